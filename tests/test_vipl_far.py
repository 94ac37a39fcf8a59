"""Every example of the programs in tests/vipl that makes sense there, between two hosts: the two processes are in network namespaces with nothing in common but a
bridge, and agents. The link is one of libfabric's tcp provider.
"""

import os
import re
import subprocess
import sys
import time

import pytest

from harness import modes, system
from harness.cluster import PATIENCE, Cluster
from test_vipl import HERE, PROGRAMS, RELEASE, ROW, built  # noqa: F401 (built is a fixture)

pytestmark = pytest.mark.alone("hosts are network namespaces, and their agents want a port")


@pytest.fixture(scope="module")
def hosts():
    with Cluster(["a", "b"]) as cluster:
        for host in cluster.values():
            host.start_agent()
        yield cluster


def environment(server, client, **more):
    hosts = ":".join(f"/run/netns/{host.ns}" for host in (server, client))
    return server.environment(HOSTS=hosts, PATIENCE=4, **more)


def run(argv, env, timeout=100):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, env=env)
    assert done.returncode == 0, f"{argv}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def examples():
    for source in sorted((HERE / "vipl").glob("*.c")):
        for name, flags in ROW.findall(source.read_text()):
            if not re.search("ALONE|NEAR", flags):
                yield pytest.param(source.stem, name, id=f"{source.stem}-{name}")


@pytest.mark.parametrize("program, name", list(examples()))
def test_example(hosts, program, name):
    run([PROGRAMS / program, name], environment(hosts["a"], hosts["b"]))


@pytest.mark.parametrize("program, name", [("transfer", "sizes"), ("transfer", "both_ways"), ("transfer", "rdma"), ("cq", "one_for_both")])
def test_example_with_allocated_memory(hosts, program, name):
    """Which no peer maps: it is as any other memory."""
    run([PROGRAMS / program, name], environment(hosts["b"], hosts["a"], POOLS="allocated"))


# A program that waits, or requests, says what came of it, and then whether the connection stands; without a word about what the rows above are about.
PROGRAM = """
import ctypes, socket, struct, sys, time
from ctypes import byref, c_int, c_uint16, c_ulong, c_void_p
vipl, role, host, where = ctypes.CDLL(sys.argv[1]), *sys.argv[2:]

class Attributes(ctypes.Structure):
    _fields_ = [("level", c_uint16), ("most", c_ulong), ("qos", c_void_p), ("ptag", c_void_p), ("write", c_int), ("read", c_int)]

def address(host, where):
    return struct.pack("HH", 6, len(where)) + bytes(2) + socket.inet_aton(host) + where.encode()

nic, vi, asked, theirs, state = c_void_p(), c_void_p(), c_void_p(), Attributes(), c_int()
assert vipl.VipOpenNic(b"nic0", byref(nic)) == 0
assert vipl.VipCreateVi(nic, byref(Attributes(2, 1000, None, None, 0, 0)), None, None, byref(vi)) == 0
print("there", flush=True)
if role == "wait":
    came = ctypes.create_string_buffer(100)
    result = vipl.VipConnectWait(nic, address(host, where), c_ulong(20000), came, byref(theirs), byref(asked)) or vipl.VipConnectAccept(asked, vi)
else:
    result = vipl.VipConnectRequest(vi, address("0.0.0.0", "me"), address(host, where), c_ulong(20000), byref(theirs))
print({0: "connected", 4: "timeout", 5: "rejected", 14: "no match", 15: "not reachable"}.get(result, result), flush=True)
empty = c_int(), c_int()
while result == 0:
    assert vipl.VipQueryVi(vi, byref(state), byref(theirs), byref(empty[0]), byref(empty[1])) == 0
    if state.value != 1:
        print("over", flush=True)
        break
    time.sleep(0.01)
"""


def program(host, role, to, where, **more):
    return host.run([sys.executable, "-c", PROGRAM, RELEASE / "libvipl.so", role, to.address, where], plain=True, **more)


def waits(host, where, **more):
    """One who waits; he has begun to when this returns."""
    server = program(host, "wait", host, where, **more)
    assert server.stdout.readline() == "there\n", server.stderr.read()
    name = f"@shunt-via-{os.geteuid()}-d{chr(len(where))}{where}"
    system.until(lambda: name in within(host, "cat", "/proc/net/unix"), 10 * PATIENCE, "it listens")
    return server


def within(host, *argv):
    return subprocess.run(host.within(argv), capture_output=True, text=True, errors="replace").stdout


def requests(host, to, where, **more):
    """What becomes of a request, and what the program says of it on standard error."""
    client = program(host, "request", to, where, **more)
    assert client.stdout.readline() == "there\n", client.stderr.read()
    said = client.stdout.readline().strip()
    if said != "connected":
        return said, client.stderr.read()
    return said, client


def ends(one):
    one.kill()
    one.wait()


def connects(hosts, where, server=None):
    server = server or waits(hosts["a"], where)
    said, client = requests(hosts["b"], hosts["a"], where)
    assert (said, server.stdout.readline()) == ("connected", "connected\n"), server.stderr.read()
    return server, client


def test_nobody_waits(hosts):
    assert requests(hosts["b"], hosts["a"], "nobody") == ("no match", "")
    server = waits(hosts["a"], "somebody")
    assert requests(hosts["b"], hosts["a"], "somebody else") == ("no match", "")
    before = hosts["a"].status()["counts"]["met"]
    for one in connects(hosts, "somebody", server):
        ends(one)
    assert hosts["a"].status()["counts"]["met"] == before + 1


def test_another_key(hosts, tmp_path):
    """Neither an agent nor a program is talked to by one who has another key; both say so."""
    other = tmp_path / "other"
    subprocess.run([modes.command(), "agent", "new-key", other], check=True)
    server = waits(hosts["a"], "keys")
    said, why = requests(hosts["b"], hosts["a"], "keys", SHUNT_CLUSTER_KEY=other)
    assert said == "not reachable" and "another key" in why
    assert "has another key" in hosts["a"].log.read_text()
    said, why = requests(hosts["b"], hosts["a"], "keys", SHUNT_CLUSTER_KEY=tmp_path / "none")
    assert said == "not reachable" and "there is no key" in why
    # The agent has the key, but not who waits: he does not believe whoever comes, and goes on waiting.
    deaf = waits(hosts["a"], "deaf", SHUNT_CLUSTER_KEY=other)
    assert requests(hosts["b"], hosts["a"], "deaf")[0] == "no match"
    assert deaf.poll() is None
    for one in [deaf, *connects(hosts, "keys", server)]:
        ends(one)


def test_hosts_that_are_not_reached(hosts):
    server = waits(hosts["a"], "away")
    # Not in its networks: then there are no other hosts, and nothing is said of it.
    assert requests(hosts["b"], hosts["a"], "away", SHUNT_CLUSTER="10.77.9.0/24") == ("not reachable", "")
    said, why = requests(hosts["b"], hosts["a"], "away", SHUNT_FABRIC="auto")
    assert said == "not reachable" and "libfabric finds no fast network" in why
    hosts["a"].kill_agent()
    said, why = requests(hosts["b"], hosts["a"], "away")
    assert said == "not reachable" and "no agent answers at port 4770" in why
    hosts["a"].start_agent()
    for one in connects(hosts, "away", server):
        ends(one)


NOISE = """
import contextlib
import array, os, random, socket, sys
host, where, uid, name = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
random.seed(4711)
noise = [b"", b"x", b"\\0\\0", b"\\xff" * 700, random.randbytes(50), b"\\x30\\0" + random.randbytes(48), b"GET / HTTP/1.0\\r\\n\\r\\n"]
# By the agent's port.
for bytes_ in noise:
    with socket.create_connection((host, 4770)) as wire:
        wire.sendall(bytes_)
# To the one who waits, as if from the agent.
if uid:
    os.setuid(uid)
listener = socket.create_server(("127.0.0.1", 0))
for bytes_ in noise:
    wire = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    wire.sendall(bytes_)
    wire.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.connect(f"\\0shunt-via-{name}-d{chr(len(where))}{where}")
        # Another user's may be closed before it has said anything.
        with contextlib.suppress(BrokenPipeError if uid else ()):
            agent.sendmsg([b"VIA-FAR\\1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [other.fileno()]))])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.connect(f"\\0shunt-via-{name}-d{chr(len(where))}{where}")
        with contextlib.suppress(BrokenPipeError if uid else ()):
            agent.send(b"VIA-FAR\\1")
    other.close()
print("said")
"""


@pytest.mark.parametrize("uid", [0, 65534])
def test_noise(hosts, uid):
    """What cannot be, to the agent and to who waits, by the agent's way and by a stranger: nobody minds."""
    server = waits(hosts["a"], "noise")
    done = subprocess.run(hosts["a"].within([sys.executable, "-c", NOISE, hosts["a"].address, "noise", uid, os.geteuid()]),
                          capture_output=True, text=True, timeout=100)
    assert done.stdout == "said\n", done.stderr
    for one in connects(hosts, "noise", server):
        ends(one)


def test_an_agent_that_ends(hosts):
    """Connections that stand do not need it."""
    run_it = subprocess.Popen([PROGRAMS / "transfer", "both_ways"], env=environment(hosts["a"], hosts["b"]), stderr=subprocess.PIPE, text=True)
    system.until(lambda: hosts["b"].address in within(hosts["a"], "ss", "-tnH", "sport = :4770"), 10 * PATIENCE, "they meet")
    server, client = connects(hosts, "ends")
    hosts["a"].kill_agent()
    assert run_it.wait(timeout=100) == 0, run_it.stderr.read()
    assert server.poll() is None and client.poll() is None
    ends(client)
    assert server.stdout.readline() == "over\n"
    hosts["a"].start_agent()


@pytest.mark.parametrize("who", ["server", "client"])
def test_one_is_killed(hosts, who):
    server, client = connects(hosts, "killed")
    dies, stays = (server, client) if who == "server" else (client, server)
    began = time.monotonic()
    ends(dies)
    assert stays.stdout.readline() == "over\n"
    assert time.monotonic() - began < 10 * PATIENCE
    stays.wait()


def test_a_host_that_vanishes(hosts):
    """Nothing comes from there any more, not even an end: the kernel asks for it."""
    server, client = connects(hosts, "gone")
    began = time.monotonic()
    subprocess.run(["ip", "-n", hosts["b"].ns, "link", "set", "eth0", "down"], check=True)
    assert server.stdout.readline() == "over\n" and client.stdout.readline() == "over\n"
    assert time.monotonic() - began < 30 * PATIENCE
    subprocess.run(["ip", "-n", hosts["b"].ns, "link", "set", "eth0", "up"], check=True)
    for one in (server, client):
        one.wait()
    for one in connects(hosts, "back"):
        ends(one)
