"""Bytes unread, and the peer gone, when a child is started that holds the connection: the addresses stay (unless `ports` says that
the ports need not), and nothing is lost. `leftover.py ADDRESS [ports]` is the server, and starts itself as the client."""

import os
import socket
import subprocess
import sys

DATA = bytes(range(250)) * 400


def client(address, port):
    c = socket.create_connection((address, port))
    for _ in range(400):
        c.sendall(b"x")
        assert c.recv(1) == b"x"
    c.sendall(DATA)
    c.close()


def server(address, with_ports):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port = listener.getsockname()[1]
    child = subprocess.Popen([sys.executable, __file__, address, "to", str(port)])
    c, _ = listener.accept()
    for _ in range(400):
        assert c.recv(1) == b"x"
        c.sendall(b"x")
    assert child.wait() == 0
    c.set_inheritable(True)
    before = c.getsockname(), c.getpeername()
    os.system("true")
    after = c.getsockname(), c.getpeername()
    if with_ports:
        assert before == after, (before, after)
    else:
        assert [name[0] for name in before] == [name[0] for name in after], (before, after)
    got = b""
    while data := c.recv(65536):
        got += data
    assert got == DATA, len(got)


if sys.argv[2:3] == ["to"]:
    client(sys.argv[1], int(sys.argv[3]))
else:
    server(sys.argv[1], sys.argv[2:] != ["ports"])
