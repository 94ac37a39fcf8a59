"""Every example of every victim program in tests/apps, in every mode.

The examples check themselves; here they are found (by reading the tables at the end of the C files), run, and asked whether their
connections were really promoted. Under the library each runs three times: with promotion long done (400 round trips before), with
promotion going on while the example runs (3), and with none before (0).
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import modes

APPS = Path(__file__).parent / "apps"
ROW = re.compile(r'^    \{"(\w+)", \w+, \w+, ([A-Z0-9_| ]+)\},', re.M)


def examples():
    for source in sorted(APPS.glob("*.c")):
        programs = [source.stem] + (["echo_fortified"] if source.stem == "echo" else [])
        for name, flags in ROW.findall(source.read_text()):
            for program in programs:
                marks = pytest.mark.alone("it measures processor time") if "MEASURES" in flags else ()
                yield pytest.param(program, name, flags.split(" | "), marks=marks, id=f"{program}-{name}")


# What only root's clients can do: namespaces, filters, more than 8 MB locked or as many descriptors as they like, and to take a descriptor of root's.
OF_ROOT = {("descriptors", "last_number"), ("forks", "number_one_twice"), ("forks", "number_one_reads"), ("limits", "locked_before"),
           ("limits", "locked_later"), ("tcp_only", "filter_drops")}


@pytest.mark.parametrize("program, name, flags", list(examples()))
def test_example(r, mode, program, name, flags):
    if mode == "users" and ((program, name) in OF_ROOT or program == "taking"):
        pytest.skip("its client needs root's rights")
    slow = "SLOW" in flags
    # Where it may move: with the example after that, while it is decided, and before.
    rounds = (400, 3, 0) if mode == "shunt" else (400,)
    for warm in rounds[:1] if slow else rounds:
        report = r.new_report()
        promoted = mode in ("shunt", "far", "users") and warm == 400 and "TCP_OK" not in flags
        # Examples that make their connections themselves know best which are to move.
        more = {"WARM_MOVED": 1} if promoted and "RAW" not in flags else {}
        r.run([r.apps / program, name], env={"WARM": warm} | more, timeout=120 if slow else 30)
        if mode not in ("shunt", "far", "users"):
            r.not_accelerated(report)
        elif promoted and (mode != "far" or more):
            r.accelerated(report, waited=True)


def test_buffers_set_while_offered(r):
    """The program sets small buffers while the ends agree on how to go on: with two round trips before, it is just then."""
    r.run([r.apps / "nonblocking", "small_buffers_later"], env={"WARM": 2}, timeout=60)


@pytest.mark.parametrize("rounds", range(1, 6))
def test_urgent_data_while_offered(r, rounds):
    """An end that has offered reads urgent data, and closes: nothing of it is left unread, which would reset the connection."""
    for _ in range(5):
        r.run([r.apps / "urgent", "asleep"], env={"WARM": rounds}, timeout=60)


def test_room_by_tcp(r, mode):
    """Which thread takes note that the peer has gone to tcp is chance: whoever waits for room, or another."""
    moved = {"WARM_MOVED": 1} if mode in ("shunt", "far") else {}
    for _ in range(5):
        r.run([r.apps / "threads", "room_by_tcp"], env={"WARM": 400} | moved, timeout=30)


@pytest.mark.parametrize("window, delayed", [(32, 31), (1, 0), (2, 1)])
@pytest.mark.parametrize("program, name", [("epoll", "edge"), ("epoll", "stream_one_shot"), ("polling", "poll_room")])
def test_few_credits(r, program, name, window, delayed):
    """Over VIPL a window may be full of messages of a few bytes, or its acknowledgements late: nobody waits for ever, nor with SHUNT_GROW=off."""
    env = {"WARM": 400, "SHUNT_STREAM": "via", "SHUNT_GROW": "off", "SHUNT_VIA_WINDOW": window, "SHUNT_VIA_DELAYED": delayed}
    report = r.new_report()
    r.run([r.apps / program, name], env=env, timeout=60)
    r.accelerated(report)


# Writes for half a second to a child that reads, waits for room with poll() or epoll_wait(), and then stays.
WRITER = """
import os, select, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    s, _ = listener.accept()
    for _ in range(400): s.send(s.recv(1))
    while s.recv(1 << 17): pass
    os._exit(0)
s = socket.create_connection(listener.getsockname())
for _ in range(400): s.send(b"x"); s.recv(1)
s.setblocking(False)
how = sys.argv[1]
poll = select.poll() if how == "poll" else select.epoll()
poll.register(s, select.POLLOUT | (select.EPOLLET if how == "edge" else 0))
wait = 5000 if how == "poll" else 5
end, block, full = time.monotonic() + 0.5, bytes(1 << 17), 0
while time.monotonic() < end:
    try: s.send(block)
    except BlockingIOError: full += 1; assert poll.poll(wait)
print(full, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["poll", "epoll", "edge"])
@pytest.mark.parametrize("window, delayed", [(1, 0), (4, 3)])
def test_polling_writer_keeps_to_the_window(r, mode, window, delayed, how):
    """Over VIPL one that does not block waits for acknowledgements as others do, and does not leave for the ring; `shunt stat` says how it goes."""
    env = {"SHUNT_STREAM": "via", "SHUNT_VIA_WINDOW": window, "SHUNT_VIA_DELAYED": delayed}
    writer = r.spawn([sys.executable, "-c", WRITER, how], stdin=subprocess.PIPE, env=env)
    end = time.monotonic() + 30
    while not writer.out.read_text().strip() and time.monotonic() < end:
        time.sleep(0.05)
    shown = []
    if mode == "shunt":
        told = subprocess.run([modes.command(), "stat", "--json", str(writer.pid)], capture_output=True, text=True, timeout=30)
        shown = [one["tx"] for one in json.loads(told.stdout)["processes"][0]["connections"]]
    writer.popen.stdin.close()
    assert writer.wait() == 0
    if mode == "shunt":
        assert shown == ["via"]
        assert int(writer.out.read_text()) > 0, "the window was never full"


# A connection that is used all the time, by a program that closes its file's number again before it opens the file anew, as some do with what
# they have lost count of: harmless as long as nobody else opens anything.
TWICE = """
import os, socket, sys, time

listener = socket.create_server(("127.0.0.1", 0))
child = os.fork()
peer = listener.accept()[0] if child else socket.create_connection(listener.getsockname())
fd = -1
end = time.monotonic() + 2

def round_trip():
    try:
        if child:
            peer.sendall(b"x")
        got = peer.recv(1)
        if got and not child:
            peer.sendall(b"x")
        return got
    except ConnectionError:
        return b""

while child or time.monotonic() < end:
    try:
        os.close(fd)
    except OSError:
        pass
    fd = os.open(sys.argv[1], os.O_RDONLY)
    if not round_trip():
        break
    assert os.read(fd, 100) == b"the file"
    os.close(fd)
    if not round_trip():
        break
peer.close()
os._exit(os.waitpid(child, 0)[1] if child else 0)
"""


def test_a_number_that_is_closed_twice(r):
    """Between hosts a thread of ours opens libfabric meanwhile."""
    path = r.tmp / "file"
    path.write_text("the file")
    r.run([sys.executable, "-c", TWICE, path])
