"""Containers that are paused, moved to another control group, out of memory, or killed, while their connections with other containers are
in memory: their peers see what they see with TCP."""

import os
import signal
import sys
import time

import pytest

from harness import system
from harness.bridge import CONTAINER, Bridge, need_meeting
from harness.cgroups import Group, usable
from harness.runner import PATIENCE

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.alone("namespaces, and programs that wait for one another"),
]


# Answers each message with what it was; "eat" is answered by taking all memory that there is.
ECHO = """
import socket, sys, threading
listener = socket.create_server(("0.0.0.0", 7000))
def serve(end):
    while got := end.recv(1 << 16):
        if got == b"eat":
            eaten = [b"x" * (1 << 20) for _ in range(1 << 14)]
        end.sendall(got)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
# Small messages that are answered, then large ones; then, if so asked, the last word. Says how it ended.
ASK = """
import socket, sys
end = socket.create_connection((sys.argv[1], 7000))
def ask(message):
    end.sendall(message)
    got = b""
    while len(got) < len(message):
        more = end.recv(len(message) - len(got))
        if not more:
            sys.exit("the end")
        got += more
    assert got == message, "WRONG"
try:
    for i in range(int(sys.argv[2])):
        ask(b"%064d" % i)
        if i % 100 == 99:
            ask(b"%065d" % i * 1000)
            print(i, flush=True)
    if sys.argv[3:]:
        ask(sys.argv[3].encode())
except ConnectionResetError:
    sys.exit("reset")
print("right")
"""


class Pair:
    """A server and a client in a container each, and each container in a control group. Their connection is in memory."""

    def __init__(self, bridge, groups, *last, count=20000):
        self.bridge, self.groups = bridge, groups
        self.server = bridge.spawn("a", [*CONTAINER, sys.executable, "-c", ECHO], before=groups["server"].enter(), stop_signal=signal.SIGKILL)
        bridge.wait_port("a", 7000)
        for _ in range(3):
            before = bridge.r.report.promoted
            client = [*CONTAINER, sys.executable, "-c", ASK, bridge.address["a"], count, *last]
            self.client = bridge.spawn("b", client, before=groups["client"].enter())
            # A proof may fail because of how the programs happened to read.
            system.until(lambda: self.asked() > 500 or not self.client.alive(), 20 * PATIENCE, "some was asked")
            if bridge.r.report.promoted == before + 2:
                return
            self.client.kill()
        raise AssertionError(f"nothing moved: {bridge.r.report}")

    def asked(self):
        return int(([0] + [line for line in self.client.out.read_text().split() if line.isdigit()])[-1])


@pytest.fixture
def pair(r, mode):
    need_meeting(mode)
    if not usable():
        pytest.skip("no control groups can be made here")
    number = os.getpid()
    with Group(f"shunt-{number}-s") as server, Group(f"shunt-{number}-c") as client, Bridge(r) as bridge:
        yield lambda *last, **how: Pair(bridge, {"server": server, "client": client}, *last, **how)


@pytest.mark.parametrize("who", ["server", "client"])
def test_a_paused_container(pair, who):
    """Its peer waits, however long that takes; then all goes on."""
    pair = pair(count=60000)
    pair.groups[who].freeze(True)
    time.sleep(0.2)
    before = pair.asked()
    time.sleep(1)
    assert pair.asked() == before and pair.client.alive()
    pair.groups[who].freeze(False)
    assert pair.client.wait(60) == 0 and "right" in pair.client.output(), pair.client.output()


def test_a_container_that_moves_to_another_group(pair):
    pair = pair(count=60000)
    with Group(f"shunt-{os.getpid()}-t") as other:
        other.take(pair.groups["server"])
        pair.groups["server"].take(pair.groups["client"])
        assert pair.client.wait(60) == 0 and "right" in pair.client.output(), pair.client.output()
        pair.server.kill()


def test_a_container_that_runs_out_of_memory(pair):
    """The kernel kills it; its peer's last call ends as TCP's does, and another one takes its place."""
    pair = pair("eat", count=1000)
    pair.groups["server"].limit(100 << 20)
    assert pair.client.wait(60) == 1
    assert pair.client.err.read_text().strip() in ("the end", "reset"), pair.client.output()
    # What its container was has gone, too.
    system.until(lambda: not pair.server.alive(), 10 * PATIENCE, "the server's container ends")
    Pair(pair.bridge, pair.groups, count=1000)


@pytest.mark.parametrize("who", ["server", "client"])
def test_a_container_that_is_killed(pair, who):
    pair = pair()
    (pair.server if who == "server" else pair.client).kill()
    if who == "server":
        assert pair.client.wait(20) == 1
        assert pair.client.err.read_text().strip() in ("the end", "reset"), pair.client.output()
    else:
        # Its thread in the server ends, and others are served.
        again = pair.bridge.spawn("b", [*CONTAINER, sys.executable, "-c", ASK, pair.bridge.address["a"], "500"])
        assert again.wait(20) == 0 and "right" in again.output()
