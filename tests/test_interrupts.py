"""A wait of one call that the library makes of several sleeps is one to signals: a handler that runs between two of them ends it, as
where the kernel waits."""

import subprocess
import sys

import pytest

# Behind the library, before libc: sends the thread one signal, just when a sleep has ended because its time was over, the first that
# does so AFTER seconds of sleep or later.
BEHIND = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static double began, last;
static int sent;

static void before(void)
{
    double time = now();
    if (time > last + 0.05)
        began = time;
}

static int behind(int result, int slept)
{
    last = now();
    if (result == 0 && slept && last > began + atof(getenv("AFTER")) && !sent++)
        raise(SIGALRM);
    return result;
}

int ppoll(struct pollfd *polls, nfds_t count, const struct timespec *time, const sigset_t *mask)
{
    before();
    int (*next)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *) = dlsym(RTLD_NEXT, "ppoll");
    return behind(next(polls, count, time, mask), time && (time->tv_sec || time->tv_nsec));
}

int epoll_pwait(int set, struct epoll_event *events, int most, int time, const sigset_t *mask)
{
    before();
    int (*next)(int, struct epoll_event *, int, int, const sigset_t *) = dlsym(RTLD_NEXT, "epoll_pwait");
    return behind(next(set, events, most, time, mask), time > 0);
}
"""
WAITS = """
import os, select, signal, socket, sys, time

class Interrupted(Exception):
    pass

def handler(*_):
    raise Interrupted

listener = socket.create_server(("127.0.0.1", 0))
child = os.fork()
peer = listener.accept()[0] if child else socket.create_connection(listener.getsockname())
for _ in range(200):
    peer.send(b"x") if child else None
    assert peer.recv(1) == b"x"
    None if child else peer.send(b"x")
if not child:
    end = time.monotonic() + 7
    while time.monotonic() < end:
        if sys.argv[1] == "send":
            peer.recv(1 << 16)
        time.sleep(0.01)
    os._exit(0)
signal.signal(signal.SIGALRM, handler)
began = time.monotonic()
try:
    if sys.argv[1] == "epoll":
        epoll = select.epoll()
        epoll.register(peer, select.EPOLLIN)
        epoll.poll(6)
    elif sys.argv[1] == "poll":
        poll = select.poll()
        poll.register(peer, select.POLLIN)
        poll.poll(6000)
    elif sys.argv[1] == "select":
        select.select([peer], [], [], 6)
    elif sys.argv[1] == "send":
        peer.send(bytes(100 << 20))
    else:
        peer.recv(1)
except Interrupted:
    pass
waited = time.monotonic() - began
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print(waited)
"""


def interrupted(r, how, after):
    library, source = r.tmp / "behind.so", r.tmp / "behind.c"
    source.write_text(BEHIND)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    ours = r.environment().get("LD_PRELOAD")
    for _ in range(5):
        report = r.new_report()
        env = {"LD_PRELOAD": f"{ours}:{library}", "SHUNT_REPORT": report.path, "AFTER": str(after)}
        waited = float(r.run([sys.executable, "-c", WAITS, how], env=env).stdout)
        if report.demoted == 0:
            break  # else its reader had no processor for a while, and the rest went by TCP
    r.accelerated(report)
    return waited < 5


@pytest.mark.parametrize("how", ["epoll", "poll", "select", "send", "recv"])
def test_a_signal_between_two_sleeps(r, mode, how):
    """Signals are blocked there."""
    if mode != "shunt":
        pytest.skip("there the kernel's wait is one sleep")
    assert interrupted(r, how, after=0.1)


@pytest.mark.parametrize("how", ["epoll", "send"])
def test_a_signal_behind_the_first_sleep(r, mode, how):
    """They are not yet: it is counted."""
    if mode != "shunt":
        pytest.skip("there the kernel's wait is one sleep")
    assert interrupted(r, how, after=0)


@pytest.mark.parametrize("milliseconds", [1, 60])
def test_handlers_of_both_kinds(r, milliseconds):
    """What a read does is up to the handler that has run; and readers are woken by memory all the same."""
    report = r.new_report()
    r.run([r.apps / "kinds", milliseconds])
    r.accelerated(report)


def test_handlers_are_what_the_program_has_set(r):
    """The kernel has ours: the program is told of its own by each way of asking, and they find what they are given."""
    r.run([r.apps / "handlers"])
