"""Bytes unread, and the peer gone, when a child is started that holds the connection: the addresses stay, for all numbers of
the connection, in children and in programs that are started with it, and nothing is lost. `leftover.py ADDRESS` is the server, and starts itself as the client;
with LATE the kernel first does not know the addresses that the relay gives to its namespace, so many times."""

import os
import socket
import subprocess
import sys
import time

DATA = bytes(range(250)) * 400


def client(address, port):
    c = socket.create_connection((address, port))
    for _ in range(400):
        c.sendall(b"x")
        assert c.recv(1) == b"x"
    c.sendall(DATA)
    c.close()


def names(c):
    return c.getsockname(), c.getpeername()


def addresses_come_late(times):
    """What binds to an address is told that there is none such."""
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=bind", "-e", f"inject=bind:error=EADDRNOTAVAIL:when=1..{times}"]
    subprocess.Popen([*strace, "-p", str(os.getpid())], env=dict(os.environ, LD_PRELOAD=""), start_new_session=True)
    while "TracerPid:\t0\n" in open("/proc/self/status").read():
        time.sleep(0.01)


def started_with(c, rest):
    """Another program, started with the connection, and one that it starts: their names for it."""
    told = subprocess.run([sys.executable, __file__, "names", str(c.fileno()), rest], pass_fds=[c.fileno()], capture_output=True, check=True)
    return told.stdout.decode().splitlines()


def server(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port = listener.getsockname()[1]
    child = subprocess.Popen([sys.executable, __file__, address, "to", str(port)])
    c, _ = listener.accept()
    for _ in range(400):
        assert c.recv(1) == b"x"
        c.sendall(b"x")
    assert child.wait() == 0
    if times := os.environ.get("LATE"):
        addresses_come_late(times)
    c.set_inheritable(True)
    before, listening = names(c), listener.getsockname()
    os.system("true")
    assert names(c) == before, (names(c), before)
    assert names(c.dup()) == before
    child = os.fork()
    if child == 0:
        os._exit(names(c) != before)
    assert os.waitpid(child, 0)[1] == 0
    assert started_with(c, "again") == [str(before)] * 2, before
    assert listener.getsockname() == listening
    got = b""
    while data := c.recv(65536):
        got += data
    assert got == DATA, len(got)


if sys.argv[1] == "names":
    inherited = socket.socket(fileno=int(sys.argv[2]))
    print(names(inherited))
    if sys.argv[3] == "again":
        print(*started_with(inherited, "last"), sep="\n")
    assert not any(name.startswith("SHUNT_NAMES") for name in os.environ)
elif sys.argv[2:3] == ["to"]:
    client(sys.argv[1], int(sys.argv[3]))
else:
    server(sys.argv[1])
