"""Many containers on a bridge, each with namespaces of its own and one folder in common: real servers, a service address in front of
two of them, and connections made as fast as possible while a stranger posts lies."""

import json
import os
import re
import shutil
import signal
import sys

import pytest

from harness import modes, system
from harness.bridge import CONTAINER, ROUTER, Bridge, need_meeting
from harness.postgres import PLACES, unprivileged
from harness.report import Report
from harness.runner import PATIENCE

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.alone("namespaces, and programs that wait for one another"),
]

# Root of a user namespace is nobody outside of it.
ROOTLESS = [*CONTAINER, "--user", "--map-root-user"]


@pytest.fixture
def bridge(r, mode, request):
    need_meeting(mode)
    with Bridge(r, request.param) as bridge:
        yield bridge


class Counted:
    """What one container's programs count, by themselves."""

    def __init__(self, r, name):
        self.report = Report(r.tmp / f"report-of-{name}")
        self.env = {"SHUNT_REPORT": str(self.report.path)}


# ------------------------------------------------------------------------------------------------ ten containers

MEMCACHED_CLIENT = """
import socket, sys
end = socket.create_connection((sys.argv[1], 11211))
for i in range(3000):
    value = b"%d" % i * (1 + i % 40)
    end.sendall(b"set key%d 0 0 %d\\r\\n%s\\r\\n" % (i, len(value), value))
    assert end.recv(100) == b"STORED\\r\\n"
    end.sendall(b"get key%d\\r\\n" % i)
    wanted = b"VALUE key%d 0 %d\\r\\n%s\\r\\nEND\\r\\n" % (i, len(value), value)
    assert end.recv(len(wanted), socket.MSG_WAITALL) == wanted
print("right")
"""

NGINX = """
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
user root;
pid {tmp}/nginx.pid;
error_log stderr;
events {{ worker_connections 256; }}
stream {{
    server {{
        listen 5432;
        proxy_pass {postgres}:5432;
    }}
}}
"""


def postgres(bridge, need):
    """The command that starts PostgreSQL for all that can reach it, with a fresh database."""
    user, data = unprivileged(), bridge.r.tmp / "data"
    data.mkdir()
    shutil.chown(data, user)
    bridge.r.run([need("initdb", *PLACES), "-D", data, "-A", "trust", "-U", "tester", "--no-sync", "--locale=C", "-E", "UTF8"], user=user,
                 timeout=120, plain=True)
    with open(data / "pg_hba.conf", "a") as rules:
        rules.write("host all all 10.78.0.0/24 trust\n")
    return ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", need("postgres", *PLACES), "-D", data, "-p", "5432",
            "-h", "0.0.0.0", "-k", "", "-F", "-c", "dynamic_shared_memory_type=mmap"]



@pytest.mark.parametrize("bridge", ["abcdefghij"], indirect=True)
def test_ten_containers(bridge, need):
    """Redis, memcached, and PostgreSQL behind nginx, each with clients in containers of their own."""
    r, at = bridge.r, bridge.address
    counted = {name: Counted(r, name) for name in at}

    def serve(name, argv, port):
        # The first process of a container gets no signal that it does not want.
        bridge.spawn(name, [*CONTAINER, *argv], env=counted[name].env, stop_signal=signal.SIGKILL)
        bridge.wait_port(name, port)

    def ask(name, argv, around=(), says=None):
        client = bridge.spawn(name, [*CONTAINER, *around, *argv], env={**counted[name].env, "PGDATABASE": "postgres"})
        return client, says

    serve("a", [need("redis-server"), "--save", "", "--protected-mode", "no", "--port", "6379"], 6379)
    serve("b", [need("memcached"), "-u", "root", "-l", "0.0.0.0", "-U", "0"], 11211)
    serve("c", postgres(bridge, need), 5432)
    (r.tmp / "nginx.conf").write_text(NGINX.format(tmp=r.tmp, postgres=at["c"]))
    serve("d", [need("nginx"), "-c", r.tmp / "nginx.conf", "-p", r.tmp, "-e", "stderr"], 5432)
    bridge.run("c", [need("pgbench", *PLACES), "-h", at["c"], "-U", "tester", "-i", "-q", "postgres"], plain=True)
    redis = [need("redis-benchmark"), "-h", at["a"], "-c", "10", "-n", "50000", "-t", "set,get", "-q"]
    pgbench = [need("pgbench", *PLACES), "-U", "tester", "-S", "-c", "4", "-t", "2000", "postgres"]
    clients = {
        "e": ask("e", redis, says="GET: "),
        "f": ask("f", redis, ROOTLESS[-2:], says="GET: "),
        "g": ask("g", [sys.executable, "-c", MEMCACHED_CLIENT, at["b"]], says="right"),
        "h": ask("h", [*pgbench, "-h", at["d"]], says="number of failed transactions: 0"),
        "i": ask("i", [*pgbench, "-h", at["c"]], says="number of failed transactions: 0"),
        "j": ask("j", [*redis, "-r", "1000"], ROOTLESS[-2:], says="GET: "),
    }
    for name, (client, says) in clients.items():
        assert client.wait(120) == 0 and says in client.output(), client.output()
    moved = {name: one.report.promoted for name, one in counted.items()}
    print(moved, {name: one.report.reasons() for name, one in counted.items()})
    # Nearly all on a quiet machine: a proof may fail because of how a program happened to read.
    assert all(moved.values()), moved
    assert moved["a"] >= 30 and moved["d"] >= 4, moved


# ------------------------------------------------------------------------------------------------ who is paired with whom

# Serves connections of which each has a token: all of its messages bear that and the next number, and so do the answers, with our name.
NAMED = """
import socket, struct, sys, threading
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])), backlog=512)
def serve(end):
    first, count = None, 0
    while message := end.recv(24, socket.MSG_WAITALL):
        token, number = message[:16], struct.unpack("<Q", message[16:])[0]
        first = first or token
        if (token, number) != (first, count):
            print("WRONG", first, token, number, count, flush=True)
        count += 1
        end.sendall(message + sys.argv[2].encode())
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
# Opens so many connections, some at once, and exchanges so many messages on each in turn. Says how many each server has had.
CROWD = """
import os, socket, struct, sys, time
address, port, connections, at_once, rounds, pause = sys.argv[1], *map(int, sys.argv[2:6]), float(sys.argv[6])
served = {}
for _ in range(connections // at_once):
    ends = [(socket.create_connection((address, port)), os.urandom(16)) for _ in range(at_once)]
    names = [None] * at_once
    for number in range(rounds):
        if number == 2:
            time.sleep(pause)
        for at, (end, token) in enumerate(ends):
            message = token + struct.pack("<Q", number)
            end.sendall(message)
            answer = end.recv(25, socket.MSG_WAITALL)
            assert answer[:24] == message, ("WRONG", answer, message)
            names[at] = names[at] or answer[24:]
            assert answer[24:] == names[at], ("WRONG", answer, names)
    for (end, _), name in zip(ends, names):
        served[name.decode()] = served.get(name.decode(), 0) + 1
        end.close()
print(*(f"{name}:{count}" for name, count in sorted(served.items())))
"""


def named(bridge, names):
    servers = [bridge.spawn(name, [*CONTAINER, sys.executable, "-c", NAMED, "7000", name], stop_signal=signal.SIGKILL) for name in names]
    for name in names:
        bridge.wait_port(name, 7000)
    return servers


def crowd(bridge, name, address, port, connections, at_once, rounds, pause=0):
    """pause: in seconds, while they are posted."""
    return bridge.spawn(name, [*CONTAINER, sys.executable, "-c", CROWD, address, port, connections, at_once, rounds, pause])


@pytest.mark.parametrize("bridge", ["abc"], indirect=True)
def test_a_service_with_two_backends(bridge, need):
    """One address, and behind it in turn one of two servers: each connection has the one that the kernel has given it."""
    bridge.publish(7080, 7000, need, backends="ab")
    servers = named(bridge, "ab")
    clients = [crowd(bridge, "c", ROUTER, 7080, 40, 4, 200) for _ in range(2)]
    for client in clients:
        assert client.wait(120) == 0, client.output()
    served = {name: sum(int(count) for client in clients for count in re.findall(f"{name}:([0-9]+)", client.output())) for name in "ab"}
    assert served == {"a": 40, "b": 40}
    assert not any("WRONG" in server.output() for server in servers)
    moved = bridge.r.report.promoted
    print(f"{moved / 160:.0%} of connections moved: {bridge.r.report}")
    assert moved >= 80, bridge.r.report


@pytest.mark.parametrize("bridge", ["ab"], indirect=True)
def test_both_ends_are_shown_from_the_host(bridge, need):
    """`shunt stat` and `shunt doctor --pid`, in none of the containers: who has which end, through NAT, and whether they can meet."""
    bridge.publish(7080, 7000, need)
    named(bridge, "a")
    for _ in range(3):
        client = bridge.spawn("b", [*CONTAINER, sys.executable, "-c", CROWD.replace("    for (end", "    time.sleep(9)\n    for (end"),
                                    ROUTER, 7080, 1, 1, 300, 0])
        system.until(lambda: bridge.r.report.promoted or not client.alive(), 20 * PATIENCE, "it moves")
        if bridge.r.report.promoted:
            break
    shown = json.loads(bridge.r.run([modes.command(), "stat", "--json"], plain=True).text)["processes"]
    ends = {(process["container"], conn["local"].split(":")[0]): process for process in shown for conn in process["connections"]
            if conn["tx"].startswith("ring") and process.get("container", "").startswith(f"netns:{bridge.prefix}")}
    server, client = (f"netns:{bridge.prefix}{name}" for name in "ab")
    assert set(ends) == {(server, bridge.address["a"]), (client, bridge.address["b"])}, shown
    table = bridge.r.run([modes.command(), "stat"], plain=True).text
    assert "CONTAINER" in table and server in table and client in table
    doctor = lambda **env: bridge.r.run([modes.command(), "doctor", "--pid", ends[server, bridge.address["a"]]["pid"]],  # noqa: E731
                                        env=env, plain=True, status=None).text
    assert f"({server}), and the meeting place of programs here" in doctor(SHUNT_MEETING=bridge.meeting)
    assert "a meeting place that is not that of programs here" in doctor()


CONNECTIONS = int(os.environ.get("BRIDGE_CONNECTIONS", "400"))


@pytest.mark.parametrize("nat", ["nat", "no_nat"])
@pytest.mark.parametrize("bridge", ["abcd"], indirect=True)
def test_no_wrong_pair(bridge, need, nat):
    """BRIDGE_CONNECTIONS of them, from equal addresses, as fast as one program can, and with time for lies by another, while a stranger lies
    to all of them."""
    address, port = bridge.address["a"], 7000
    if nat == "nat":
        bridge.publish(7080, 7000, need)
        address, port = ROUTER, 7080
    [server] = named(bridge, "a")
    board = bridge.r.environment().get("SHUNT_BOARD", "/dev/shm/shunt-board")
    assert os.path.exists(board) or bridge.run("b", [sys.executable, "-c", CROWD, address, port, 1, 1, 20, 0])
    liar = bridge.spawn("d", [sys.executable, modes.ROOT / "tests/harness/liar.py", board, bridge.meeting], plain=True)
    system.until(lambda: "lies" in liar.output(), 20 * PATIENCE, "the stranger lies")
    before = bridge.r.report.promoted
    clients = [crowd(bridge, name, address, port, CONNECTIONS // 2, 8, 150, pause) for name, pause in (("b", 0), ("c", 0.02))]
    for client in clients:
        assert client.wait(60 + CONNECTIONS / 10) == 0, client.output()
    assert "WRONG" not in server.output() and server.alive()
    moved = bridge.r.report.promoted - before
    liar.stop()
    print(f"{moved / CONNECTIONS / 2:.0%} of {CONNECTIONS} connections moved; the stranger {liar.output()}; {bridge.r.report}")
    assert re.search("posted [1-9].* wrote [1-9].* was asked [1-9]", liar.output()), liar.output()
