"""What is counted for `shunt run --stats`, however a program ends."""

import sys

import pytest

from harness import system
from harness.runner import PATIENCE

PROGRAM = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
if os.fork():
    ours = listener.accept()[0]
else:
    ours = socket.create_connection(listener.getsockname())
ours.settimeout(1000)
for i in range(500):
    ours.sendall(bytes(100))
    left = 100
    while left:
        left -= len(ours.recv(left))
print("moved", flush=True)
if sys.argv[1] == "killed":
    ours.recv(1)
if sys.argv[1] == "exits":
    os._exit(0)
"""
# Each way, but for what went by TCP before.
LEAST, MOST = 40_000, 50_000


@pytest.mark.parametrize("end", ["closes", "exits", "killed"])
def test_bytes_are_counted_once(r, mode, end):
    """A killed program's as far as it had moved them half a second before."""
    program = r.spawn([sys.executable, "-c", PROGRAM, end])
    counts = lambda: (r.report.ring_sent, r.report.ring_received)  # noqa: E731
    if end == "killed":
        system.until(lambda: program.output().count("moved") == 2, 30 * PATIENCE, "both have moved all")
        if mode == "shunt":
            system.until(lambda: all(2 * LEAST <= count for count in counts()), 30 * PATIENCE, "what they have moved is counted")
        program.kill()
    program.wait()
    if mode == "shunt":
        assert all(2 * LEAST <= count <= 2 * MOST for count in counts()), r.report
    else:
        assert counts() == (0, 0)
