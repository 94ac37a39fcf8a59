"""How many system calls the library makes for a call of a program's that waits or moves bytes, for each outcome, with one connection and with other
descriptors beside it, and for each call of a connection that is over before it could move. By TCP one: the program's own. tests/apps/costs.c makes the
calls, strace counts."""

import os
import re
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

POLLS = ("select", "pselect", "poll", "ppoll")
EPOLLS = ("epoll_wait", "epoll_pwait")


def costs():
    """{call, members, outcome: what it costs at most by memory, for a program that never spins}; where there are two ways, each of them."""
    cost = {}
    for call in POLLS:
        for count in 1, 10, 1000:
            # Of rings alone nobody need be asked, but once in 100 us whether the peer lives: between calls that strace shows
            # more time goes by.
            cost[call, count, "ready"] = Counter(ppoll=int(count > 1))
            cost[call, count, "nothing"] = Counter(ppoll=1 + int(count > 1))
            cost[call, count, "times out"] = Counter(ppoll=1)
            # The second takes the ring of the bell.
            cost[call, count, "woken"] = cost[call, count, "woken in time"] = Counter(ppoll=1, preadv2=1)
        # One connection alone is slept for on its tripwire, at first.
        cost[call, 1, "woken"] = cost[call, 1, "woken in time"] = at_first(cost[call, 1, "woken"])
    for call in EPOLLS:
        for count in 1, 10, 1000:
            cost[call, count, "ready"] = cost[call, count, "nothing"] = cost[call, count, "times out"] = Counter(epoll_pwait=1)
            # The second finds which member it is, or that the bell has been rung.
            cost[call, count, "woken"] = cost[call, count, "woken in time"] = Counter(epoll_pwait=2)
    for call in "send", "write", "sendmsg", "recv", "read", "recvmsg":
        cost[call, None, "ready"] = Counter()
    for call in "recv", "recvmsg":
        cost[call, None, "nothing"] = Counter(ppoll=1)
    for call in "recv", "read", "recvmsg":
        # SO_RCVTIMEO; the sleep; the ring of the bell
        cost[call, None, "woken"] = at_first(Counter(getsockopt=1, ppoll=1, preadv2=1))
    for call, own in {"socket": "socket", "accept": "accept", "send": "sendto", "recv": "recvfrom", "shutdown": "shutdown"}.items():
        cost[call, None, "short"] = Counter({own: 1})
    # Whether it may wait is asked of one in 16.
    cost["recv", None, "not seen to wait"] = Counter(recvfrom=1)
    # Which protocol the socket is of; whether the one that closes is a child of vfork().
    cost["connect", None, "short"] = Counter(connect=1, getsockopt=1)
    cost["close", None, "short"] = Counter(close=1, getpid=1)
    # The family, of a program that wants no address.
    cost["accept", None, "unnamed"] = Counter(accept=1, getsockopt=1)
    return cost


def at_first(later):
    """Of a sleep on a tripwire, and of one that has gone on as `later`, which the wake-up of a busy peer may take."""
    return Counter(futex=1), Counter(futex=1) + later


def counted(text):
    """{call, members, outcome: the system calls of each round}, of strace's lines: what lies between two writes to no descriptor."""
    found, now = defaultdict(list), {}
    for pid, call, rest in re.findall(r"^(\d+) +(\w+)\((.*)", text, re.M):
        if call == "write" and (mark := re.match(r'-1, "(.*?)"', rest)):
            if mark[1]:
                parts = mark[1].split(", ")
                now[pid] = (parts[0], int(parts[1]) if len(parts) == 3 else None, parts[-1]), Counter()
            elif pid in now:
                key, calls = now.pop(pid)
                found[key].append(calls)
        elif pid in now:
            now[pid][1][call] += 1
    return found


def example_of(key):
    _, members, outcome = key
    return "shorts" if outcome in ("short", "unnamed", "not seen to wait") else "waits" if members else "moves"


@pytest.mark.parametrize("example", ["waits", "moves", "shorts"])
def test_costs(r, mode, example):
    log = r.tmp / "calls"
    moved = {"WARM": 400, "WARM_MOVED": 1} if mode == "shunt" else {}
    report = r.new_report()
    # The sleeper's check gets up now and then to look.
    r.run(["strace", "-f", "-qq", "-s", "64", "-o", log, r.apps / "costs", example],
          env={"SHUNT_PROFILE": "safe", "SHUNT_CHECK_SLEEPERS": "off", "SHUNT_PROMOTE_AFTER": "4", **moved}, timeout=100)
    found = counted(log.read_text())
    wanted = {key: cost for key, cost in costs().items() if example_of(key) == example}
    assert found.keys() == wanted.keys()
    if mode == "shunt":
        r.accelerated(report)
    over = {}
    for key, rounds in found.items():
        # Housekeeping makes a call more now and then; two thirds of the rounds are without.
        ways = wanted[key] if isinstance(wanted[key], tuple) else (wanted[key],)
        within = [calls for calls in rounds if (any(calls <= way for way in ways) if mode == "shunt" else calls.total() <= 1)]
        first = mode != "shunt" or any(calls <= ways[0] for calls in rounds)
        if len(within) * 3 < len(rounds) * 2 or not first:
            over[key] = [dict(calls) for calls in rounds]
    assert not over


@pytest.mark.parametrize("how", ["poll", "epoll"])
def test_threads_wake_without_tcp(r, mode, how):
    """Each of several threads of a process sleeps by a bell of its own, and each of their sets, also those that came after the processes met."""
    log = r.tmp / "calls"
    report = r.new_report()
    r.run(["strace", "-f", "-qq", "-e", "trace=sendto", "-o", log, r.apps / "polling", f"threads_{how}"],
          env={"SHUNT_PROFILE": "safe", "SHUNT_CHECK_SLEEPERS": "off"}, timeout=100)
    r.accelerated(report)
    # Of 5,000 messages; the program itself writes by write().
    assert log.read_text().count(" sendto(") < 250


def test_what_holds_for_all_connections_is_looked_up_once(r, mode):
    """Users, who are compared for each connection, are told by the namespace that they are in."""
    log = r.tmp / "opened"
    report = r.new_report()
    r.run(["strace", "-f", "-qq", "-e", "trace=openat", "-o", log, r.apps / "echo", "many_connections"], timeout=100)
    if mode == "shunt":
        r.accelerated(report)
    opened = Counter(re.findall(r'openat\(.*"(/proc/(?:self|sys)/.*?)"', log.read_text()))
    # By two processes, for each of their threads at most.
    assert not {path: count for path, count in opened.items() if count > 10}


def test_a_program_without_connections_gets_little_of_us(r, mode):
    """No library beside ours is loaded, nothing is measured, looked up or changed that only a connection needs: many a server starts a program, or
    several, for each request."""
    opened, changed = [], []
    for env in os.environ | {"LD_PRELOAD": ""}, r.environment() | {"SHUNT_REPORT": ""}:
        log = r.tmp / f"calls.{len(opened)}"
        subprocess.run(["strace", "-qq", "-e", "trace=openat,open,mprotect", "-o", log, "/bin/true"], env=env, check=True, timeout=60)
        opened.append(set(re.findall(r'open.*"(.*?)"', log.read_text())))
        changed.append(log.read_text().count("mprotect("))
    ours = [path for path in opened[1] - opened[0] if not path.endswith((".conf", ".rules"))]
    assert [Path(path).name for path in ours] == ([] if mode == "plain" else ["libshunt.so"])
    # What the loader has written to in our own image.
    assert changed[1] - changed[0] == (0 if mode == "plain" else 1)
