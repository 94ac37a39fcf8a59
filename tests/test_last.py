"""What a client writes last before it ends is written down by a server that is terminated soon after, wherever the connection was on its way to another path and
back: as with plain TCP in the same run."""

import re
import sys

import pytest

SOON = 30  # ms from the client's end to the server's
TRIES = 3


def test_last_line(r, mode):
    def lost(which, **env):
        ran = r.run([r.apps / "last", SOON, *which], env=env, timeout=120)
        return {int(number) for number in ran.text.split()}

    report = r.new_report()
    ours = lost([])
    # On a busy machine either may be late: what is lost is lost again, and by plain TCP it is not.
    for _ in range(TRIES):
        ours = {which for which in ours if lost([which])}
    plain = {which for which in ours if lost([which], LD_PRELOAD="")}
    assert ours <= plain, f"lost: {ours} (stage, way to wait, way to end: see last.c)"
    r.accelerated(report)


SERVER = """
import os, socket
listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
while True:
    if os.fork() == 0:
        connection, _ = listener.accept()
        while line := connection.recv(10):
            if line == b"exit":
                os._exit(0)
            connection.sendall(line)
        os._exit(0)
    os.wait()
"""
CLIENT = """
import os, socket
for _ in range(ROUNDS):
    connection = socket.create_connection(("127.0.0.1", int(os.environ["PORT"])))
    for _ in range(200):
        connection.sendall(b"line")
        assert connection.recv(10) == b"line"
    connection.sendall(b"exit")
    assert connection.recv(10) == b""
    connection.close()
"""
ROUNDS = 10


def test_the_end_of_one_that_exits_is_told_at_once(r, mode):
    """Without a close(): who sleeps on a tripwire, which the kernel does not wake at the end of a connection, is told to ask the kernel."""
    port = r.free_port()
    env = {"PORT": port, "SHUNT_PROFILE": "safe", "SHUNT_CHECK_SLEEPERS": "off"}
    r.server([sys.executable, "-c", SERVER], port, env=env)
    log = r.tmp / "calls"
    r.run(["strace", "-qq", "-e", "trace=futex,connect", "-o", log, sys.executable, "-c", CLIENT.replace("ROUNDS", str(ROUNDS))], env=env)
    rounds = log.read_text().split("connect(")[1:]
    # The last sleep of each: those before it wait for lines, and on a busy machine these may be late.
    sleeps = [re.findall(r"FUTEX_WAIT.*", calls)[-1:] for calls in rounds]
    late = sum("ETIMEDOUT" in sleep for last in sleeps for sleep in last)
    # There some exit late, too.
    assert len(rounds) >= ROUNDS and late * 2 <= ROUNDS, sleeps
    r.accelerated()
