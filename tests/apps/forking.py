"""A server that forks: `forking.py exec|exit|spawn CONNECTIONS`. For each connection a child executes a program, or ends without closing, or
the server starts a program that has nothing to do with it. Prints at the end how many connections `shunt stat` knows, given as
$SHUNT_STAT; none may be left over."""

import json
import os
import socket
import subprocess
import sys


def client(port, count):
    for _ in range(count):
        c = socket.create_connection(("127.0.0.1", port))
        for _ in range(100):
            c.sendall(b"x")
            assert c.recv(1) == b"x"
        assert c.recv(10) == b""
        c.close()


def serve(c, how):
    for _ in range(100):
        assert c.recv(1) == b"x"
        c.sendall(b"x")
    if how == "spawn":
        subprocess.run(["true"], check=True)
        return None
    pid = os.fork()
    if pid == 0:
        if how == "exec":
            try:
                os.execv("/nonexistent", ["x"])
            except FileNotFoundError:
                pass
            os.execv("/bin/true", ["true"])
        sys.exit(0)
    return pid


def server(how, count):
    listener = socket.create_server(("127.0.0.1", 0))
    child = subprocess.Popen([sys.executable, __file__, "to", str(listener.getsockname()[1]), str(count)])
    for i in range(count):
        c, _ = listener.accept()
        c.set_inheritable(i % 2 == 0)
        pid = serve(c, how)
        c.close()
        if pid:
            os.waitpid(pid, 0)
    assert child.wait() == 0
    if stat := os.environ.get("SHUNT_STAT"):
        told = json.loads(subprocess.check_output([stat, "stat", "--json", str(os.getpid())]))
        print(sum(len(process["connections"]) for process in told["processes"]))


if sys.argv[1] == "to":
    client(int(sys.argv[2]), int(sys.argv[3]))
else:
    server(sys.argv[1], int(sys.argv[2]))
