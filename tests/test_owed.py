"""What waits unread in memory is shown, and who sleeps beside it is named: what a report of a hang needs."""

import json
import subprocess
import sys

import pytest

from harness import modes

SERVER = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
for _ in range(1000): connection.sendall(connection.recv(10))
print("warm", flush=True)
input()
connection.recv(10)
print("read", flush=True)
input()
"""
CLIENT = """
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(1000):
    connection.sendall(b"0123456789")
    assert connection.recv(10)
connection.sendall(bytes(98))
print("sent", flush=True)
input()
"""


def stat(pid):
    shown = json.loads(subprocess.check_output([modes.command(), "stat", "--json"]))
    return next(process["connections"] for process in shown["processes"] if process["pid"] == pid)


def doctor(pid):
    shown = subprocess.run([modes.command(), "doctor", "--pid", str(pid)], capture_output=True, text=True)
    return shown.stdout + shown.stderr


def test_bytes_that_nobody_reads(r, mode):
    if mode != "shunt":
        pytest.skip("nothing is in memory")
    start = lambda *argv: subprocess.Popen([sys.executable, "-c", *argv], env=r.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    server = start(SERVER)
    client = start(CLIENT, server.stdout.readline().strip())
    try:
        assert server.stdout.readline() == "warm\n" and client.stdout.readline() == "sent\n"
        (connection,) = stat(server.pid)
        assert connection["rx"].startswith("ring") and connection["unread"] == 98, connection
        (other,) = stat(client.pid)
        assert other["unread"] == 0, other
        said = doctor(server.pid)
        assert "process sleepers" in said and "98 B of descriptor" in said, said
        assert "process sleepers" not in doctor(client.pid)
        server.stdin.write("\n"), server.stdin.flush()
        assert server.stdout.readline() == "read\n"
        assert stat(server.pid)[0]["unread"] == 88
    finally:
        for program in client, server:
            program.kill()
            program.wait()
