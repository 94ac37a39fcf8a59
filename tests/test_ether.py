"""`shunt ether`: hosts in network namespaces, joined by ETHOS and by ETHOM, in memory and as if each were a machine of its own, used as one uses an
Ethernet, and treated badly."""

import json
import mmap
import os
import pwd
import random
import re
import socket
import struct
import subprocess
import sys
import time

import pytest

from harness import modes, system
from harness.ether import PATIENCE, Bed, shell, within

DRIVERS = ("ethos", "ethom", "ethom-far")


@pytest.fixture(scope="module", params=DRIVERS)
def four(request):
    """Four hosts that see one another."""
    with Bed(4, request.param) as bed:
        bed.start()
        yield bed


# ---- as an Ethernet ----

def test_all_reach_all_with_ipv4_and_ipv6(four):
    for a in four.hosts.values():
        for b in four.hosts.values():
            if a is not b:
                for to in (b.ip, b.ip6):
                    assert a.reaches(to, count=2)
                assert a.reaches(b, count=2, size=8000)  # in pieces


def test_addresses_are_by_the_rule_and_found_by_broadcast(four):
    one, two = four[1], four[2]
    one.ip_("neigh", "flush", "dev", "wire0")
    assert one.reaches(two, count=1)
    assert f"lladdr {two.mac}" in one.ip_("neigh", "show", two.ip).stdout
    assert two.mac in two.ip_("link", "show", "wire0").stdout


def test_multicast_reaches_all(four):
    said = four[1].run("ping", "-6", "-n", "-c", "3", "-i", "0.2", "ff02::1%wire0", check=False).stdout
    # Each answers from its link-local address, or the other one, while the kernel still makes sure that nobody else has that.
    who = set(re.findall(r"from (?:fd09::|fe80::45:54ff:fe48:)(\d)[:%]", said))
    assert who == {str(id) for id in four.hosts}, said


def test_tcp_flows_both_ways(four):
    one, two = four[1], four[2]
    server = two.spawn("iperf3", "-s", stdout=subprocess.DEVNULL)
    system.until(lambda: ":5201 " in two.run("ss", "-Hltn").stdout, 5 * PATIENCE, "iperf3 listens")
    for way in ([], ["-R"]):
        result = json.loads(one.run("iperf3", "-J", "-t", "1", "-c", two.ip, *way).stdout)
        assert result["end"]["sum_received"]["bytes"] > 1_000_000
    server.kill()
    server.wait()
    counted = one.peer(2)
    assert counted["bytes_out"] > 1_000_000 and counted["bytes_in"] > 1_000_000


TAGGED = """
import socket, struct, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA: the tag comes beside the frame
wire.bind((sys.argv[1], 3))
print("listens", flush=True)
while True:
    frame, beside, _, _ = wire.recvmsg(2000, 256)
    if b"tagged by hand" in frame:
        for _, _, data in beside:
            print("vlan", struct.unpack_from("=H", data, 16)[0] & 0xfff, "from", frame[6:12].hex(":"), flush=True)
"""
TAG = """
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind((sys.argv[1], 0))
to = bytes.fromhex(sys.argv[2].replace(":", ""))
wire.send(to + wire.getsockname()[4] + bytes.fromhex("8100 0007 88b6") + b"tagged by hand".ljust(100))
"""


def test_a_bridge_with_a_vlan_is_joined(four):
    """A machine behind a bridge, whose address is not by the rule, talks with a host on the other side, also on VLAN 7. (Tagged by hand:
    not every kernel has VLAN devices.)"""
    bridge, other = four[4], four[2]
    inner = f"{four.prefix}i"
    four.namespace(inner)
    inside = lambda *argv, **more: shell("ip", "-n", inner, *argv, **more)
    try:
        bridge.ip_("link", "add", "br7", "type", "bridge")
        bridge.ip_("link", "add", "port", "type", "veth", "peer", "name", "eth0", "netns", inner)
        for port in ("port", "wire0"):
            bridge.ip_("link", "set", port, "master", "br7")
        for device in ("port", "br7"):
            bridge.ip_("link", "set", device, "up")
        inside("link", "set", "eth0", "up")
        inside("addr", "add", "10.9.1.99/24", "dev", "eth0")
        assert other.reaches("10.9.1.99", size=1400)
        # It was learned: what goes there now goes to one host.
        assert other.net()["learned"] >= 1
        before = other.peer(3)["frames_out"]
        assert other.reaches("10.9.1.99", count=5)
        assert other.peer(3)["frames_out"] - before < 5
        address = re.search(r"ether ([0-9a-f:]+)", inside("link", "show", "eth0").stdout)[1]
        for (ns, device, to), (into, at, source) in (((inner, "eth0", other.mac), (other.ns, "wire0", address)),
                                                     ((other.ns, "wire0", address), (inner, "eth0", other.mac))):
            listener = subprocess.Popen(["ip", "netns", "exec", into, sys.executable, "-c", TAGGED, at], stdout=subprocess.PIPE, text=True,
                                        start_new_session=True)
            four.programs.append(listener)
            assert listener.stdout.readline() == "listens\n"
            shell("ip", "netns", "exec", ns, sys.executable, "-c", TAG, device, to)
            assert listener.stdout.readline() == f"vlan 7 from {source}\n"
            listener.kill()
            listener.wait()
    finally:
        bridge.ip_("link", "del", "br7", check=False)
        bridge.ip_("link", "del", "port", check=False)


def test_several_nets_in_one_daemon():
    with Bed(2, "ethos", nets=("rail-a", "rail-b")) as bed:
        for host in bed.hosts.values():
            host.start()
            host.ip_("addr", "flush", "dev", "rail-b")
            host.ip_("addr", "add", f"10.9.2.{host.id}/24", "dev", "rail-b")
        assert bed[1].reaches("10.9.2.2")
        assert bed[1].reaches("10.9.1.2")


@pytest.mark.parametrize("driver,mtu", [("ethos", 65000), ("ethom", 65521), ("ethom-far", 65521)])
def test_the_greatest_mtu_carries_frames_whole(driver, mtu):
    with Bed(2, driver, net=f"mtu = {mtu}") as bed:
        bed.start()
        assert bed[1].reaches(bed[2], 3, mtu - 28, "-M", "do")


# ---- super-frames ----

TAKE = """
import hashlib, socket, sys
listener = socket.create_server((sys.argv[1], 5202), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print("listens", flush=True)
connection, _ = listener.accept()
said, count = hashlib.blake2b(), 0
while data := connection.recv(1 << 20):
    said.update(data)
    count += len(data)
print(count, said.hexdigest())
"""
GIVE = """
import hashlib, os, random, socket, sys
connection, left = socket.create_connection((sys.argv[1], 5202)), int(sys.argv[2])
said, some, rng = hashlib.blake2b(), os.urandom(1 << 20), random.Random(left)
print(left, end=" ")
while left:
    at = rng.randrange(1 << 19)
    data = some[at:at + min(left, rng.randrange(1, 1 << 19))]
    connection.sendall(data)
    said.update(data)
    left -= len(data)
print(said.hexdigest())
"""


def transfer(source, sink, to, count):
    """Sends bytes by TCP and compares what went with what came."""
    listener = sink.spawn(sys.executable, "-c", TAKE, to, stdout=subprocess.PIPE, text=True)
    assert listener.stdout.readline() == "listens\n"
    given = source.run(sys.executable, "-c", GIVE, to, count, timeout=120).stdout
    assert listener.communicate(timeout=30 * PATIENCE)[0] == given and given.startswith(f"{count} ")


# Datagrams in one call, which the kernel leaves uncut where it can (UDP_SEGMENT).
TAKE_DATAGRAMS = """
import socket, sys
wire = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
wire.bind((sys.argv[1], 5203))
wire.settimeout(10)
print("listens", flush=True)
print(b"".join(wire.recv(2000) for _ in range(41)) == bytes(i % 251 for i in range(40500)))
"""
GIVE_DATAGRAMS = """
import socket, sys
wire = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
wire.setsockopt(17, 103, 1000)
wire.sendto(bytes(i % 251 for i in range(40500)), (sys.argv[1], 5203))
"""


def drops(host):
    """What was dropped by a host, for the peers that it has and for none."""
    return {reason: count for of in (host.net(), *host.net()["peers"]) for reason, count in of["drops"].items() if count}


@pytest.mark.parametrize("wire, mtu, offload", [
    (65535, 1450, (True, True)), (65535, 1450, (True, False)), (65535, 8950, (False, True)),
    (1500, 1450, (True, True)), (1500, 1500, (True, True)), (1500, 8950, (True, True)),
])
def test_super_frames_arrive_whole_or_in_segments(wire, mtu, offload):
    """Whole where both hosts take them and the wire carries them in one piece. On the wire of 1500 bytes the kernel does not take segments of
    the greater MTUs in one call: they go one by one."""
    with Bed(2, "ethos", wire=wire) as bed:
        for host, takes in zip(bed.hosts.values(), offload):
            bed.write(bed.hosts, f"mtu = {mtu}\noffload = {str(takes).lower()}")
            host.start()
        bed.until_all_see(1, 2)
        one, two = bed[1], bed[2]
        for source, sink in ((one, two), (two, one)):
            transfer(source, sink, sink.ip, 50_000_000)
            transfer(source, sink, sink.ip6, 10_000_000)
            for to in (sink.ip, sink.ip6):
                listener = sink.spawn(sys.executable, "-c", TAKE_DATAGRAMS, to, stdout=subprocess.PIPE, text=True)
                assert listener.stdout.readline() == "listens\n"
                source.run(sys.executable, "-c", GIVE_DATAGRAMS, to)
                assert listener.communicate(timeout=30 * PATIENCE)[0] == "True\n"
        for host, peer in ((one, 2), (two, 1)):
            assert not drops(host), bed.show()
            counted = host.peer(peer)
            long = counted["bytes_in"] / counted["frames_in"] > mtu
            assert long == (all(offload) and wire == 65535), counted


# ---- life ----

@pytest.mark.parametrize("driver", ["ethom", "ethom-far"])
def test_ethom_tells_receivers_of_frames_together(driver):
    with Bed(3, driver, net='flush = "batched"') as bed:
        bed.start()
        for a in bed.hosts.values():
            for b in bed.hosts.values():
                assert a is b or a.reaches(b, count=5, size=4000)
        transfer(bed[1], bed[2], bed[2].ip, 100_000_000)
        transfer(bed[2], bed[1], bed[1].ip, 100_000_000)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_host_that_is_killed_is_linked_again_within_two_seconds(driver):
    with Bed(3, driver, net='carrier = "peers"') as bed:
        bed[1].start()
        assert not bed[1].carrier(), "nobody is there"
        bed[2].start()
        bed[3].start()
        bed.until_all_see(1, 2, 3)
        system.until(bed[1].carrier, 2 * PATIENCE, "the carrier is on")
        for victim in (2, 3, 2):
            bed[victim].kill()
            others = [id for id in (1, 2, 3) if id != victim]
            within(3, lambda: not bed[others[0]].sees(victim), f"host {victim} is missed")
            assert bed[others[0]].reaches(bed[others[1]], count=5)
            bed[victim].start()
            start = time.monotonic()
            bed.until_all_see(1, 2, 3, seconds=2)
            assert time.monotonic() - start < 2 * PATIENCE
            for other in others:
                assert bed[other].reaches(bed[victim])
        assert bed[1].peer(2)["connects"] == 3
        assert bed[1].daemon.poll() is None
        bed[2].kill()
        bed[3].kill()
        within(3, lambda: not bed[1].carrier(), "the carrier is off")
        assert bed[1].stop() == 0
        assert not list(bed[1].dir.glob("**/01.sock")) and not list(bed[1].dir.glob("host-01.control"))


@pytest.mark.parametrize("driver", DRIVERS)
def test_reload_adds_and_removes_hosts(driver):
    with Bed(3, driver, members=[1, 2]) as bed:
        bed.start(1, 2)
        bed.write([1, 2, 3])
        for id in (1, 2):
            bed[id].ether("reload")
        bed[3].start()
        bed.until_all_see(1, 2, 3)
        assert bed[1].reaches(bed[3])
        before = bed[1].peer(2)["connects"]
        bed.write([1, 2])
        for id in (1, 2):
            bed[id].ether("reload")
        assert [peer["host"] for peer in bed[1].net()["peers"]] == [2]
        assert not bed[1].reaches(bed[3], 1, 56, "-w", "1")
        assert bed[1].reaches(bed[2])
        assert bed[1].peer(2)["connects"] == before, "who stays is not disturbed"
        # A wrong table changes nothing, and says so.
        bed[1].table.write_text("[net.wire0]\ndriver = \"tokenring\"\n")
        done = bed[1].ether("reload", check=False)
        assert done.returncode == 1 and f"{bed[1].table.name}:2: driver: unknown variant `tokenring`" in done.stderr, done.stderr
        assert bed[1].reaches(bed[2])
        # What a net itself has changes with a new interface.
        bed.write([1, 2], net="mtu = 1400")
        for id in (1, 2):
            bed[id].ether("reload")
            assert "mtu 1400" in bed[id].ip_("link", "show", "wire0").stdout
        bed.until_all_see(1, 2)


def test_only_the_right_to_make_interfaces_is_kept():
    with Bed(2, "ethom") as bed:
        bed[1].start()
        status = open(f"/proc/{bed[1].stat()['pid']}/status").read()
        assert "CapEff:\t0000000000001000" in status and "CapPrm:\t0000000000001000" in status
        assert "NoNewPrivs:\t1" in status
        # That right alone is enough, for another user, too.
        bed.tmp.chmod(0o755)
        bed.dir.chmod(0o777)
        (bed.dir / "wire0").chmod(0o777)
        # A /dev/net/tun as Debian has it, for all users: in a container it may be root's.
        device = bed.tmp / "tun"
        other_user = (f"mknod -m 666 {device} c 10 200 && mount --bind {device} /dev/net/tun && exec setpriv --reuid=65534 --regid=65534 "
                      '--clear-groups --inh-caps=-all,+net_admin --ambient-caps=-all,+net_admin "$@"')
        bed[2].start("unshare", "--mount", "sh", "-c", other_user, "sh")
        assert "Uid:\t65534" in open(f"/proc/{bed[2].stat()['pid']}/status").read()
        # Two users do not trust one another, unless one of them is root, whom the other trusts.
        system.until(lambda: "runs as another user" in bed[1].log.read_text(), 5 * PATIENCE, "host 1 does not take host 2")
        assert not bed[1].sees(2)


def test_root_becomes_a_service_user():
    """With --user nothing of root is left but CAP_NET_ADMIN: frames go, and the table is read again."""
    with Bed(2, "ethom") as bed:
        bed.tmp.chmod(0o755)
        device = bed.tmp / "tun"
        debians = f'mknod -m 666 {device} c 10 200 && mount --bind {device} /dev/net/tun && exec "$@"'
        for id in (1, 2):
            device.unlink(missing_ok=True)
            bed[id].options = ("--user", "daemon")
            bed[id].start("unshare", "--mount", "sh", "-c", debians, "sh")
            status = dict(line.split(":", 1) for line in open(f"/proc/{bed[id].stat()['pid']}/status").read().splitlines())
            uid, gid = pwd.getpwnam("daemon")[2:4]
            assert (status["Uid"].split(), status["Gid"].split(), status["Groups"].split()) == ([str(uid)] * 4, [str(gid)] * 4, [])
            assert all(int(status[name], 16) == 1 << 12 for name in ("CapPrm", "CapEff")) and int(status["CapInh"], 16) == 0
        bed.until_all_see(1, 2)
        assert bed[1].reaches(bed[2])
        bed[1].ether("reload")
        assert bed[1].reaches(bed[2])
        done = bed[1].run(modes.command(), "ether", "run", "--host", "1", "--user", "no such user", bed.table, check=False)
        assert done.returncode == 1 and "there is no user no such user" in done.stderr


def test_one_daemon_a_host():
    with Bed(1, "ethom") as bed:
        bed[1].start()
        done = bed[1].run(modes.command(), "ether", "run", "--host", "1", bed.table, check=False)
        assert done.returncode == 1 and "host 1 runs already" in done.stderr


# ---- what is said ----

def test_stat_for_people_programs_and_prometheus(four):
    assert four[1].reaches(four[2])
    assert re.search(r"2 host-2 +up +in", four[1].ether("stat").stdout)
    peer = four[1].peer(2)
    assert peer["frames_in"] >= 3 and peer["frames_out"] >= 3 and peer["up"] and peer["drops"]["runt"] == 0
    lines = four[1].ether("stat", "--prometheus").stdout.splitlines()
    sample = re.compile(r'[a-z_]+\{([a-z]+="[^"]*",?)+\} \d+|# (HELP|TYPE) .+')
    assert all(sample.fullmatch(line) for line in lines), lines
    assert any(line.startswith('shunt_ether_receive_frames_total{host="1",net="wire0",interface="wire0",peer="2"}') for line in lines)
    everyone = json.loads(shell(modes.command(), "ether", "stat", "--json", "--dir", four[1].dir).stdout)
    assert [report["host"] for report in everyone] == ([1] if four.far else [1, 2, 3, 4])


def test_dump_is_read_by_tcpdump(four):
    """Beside the six frames of three pings others may pass: hosts ask now and then whether a neighbour is still there."""
    def dump(name, *more):
        file = four.tmp / f"{name}.pcapng"
        program = subprocess.Popen([modes.command(), "ether", "dump", "--dir", four[1].dir, "--host", "1", *more, "-w", file], start_new_session=True)
        four.programs.append(program)
        system.until(lambda: file.exists() and file.stat().st_size > 0, 5 * PATIENCE, "the dump has begun")
        return program, file

    read = lambda file, **how: shell("tcpdump", "-n", "-e", "-r", file, **how).stdout
    (six, first_six), (endless, all_frames) = dump("six", "-c", "6"), dump("all")
    assert four[1].reaches(four[2], count=3, size=1000)
    assert six.wait(10 * PATIENCE) == 0
    assert len(read(first_six).splitlines()) == 6
    system.until(lambda: read(all_frames, check=False).count("ICMP echo reply") == 3, 5 * PATIENCE, "all answers are dumped")
    endless.terminate()
    endless.wait(10 * PATIENCE)
    said = read(all_frames)
    assert said.count("ICMP echo request") == 3 and said.count("ICMP echo reply") == 3 and four[2].mac in said


@pytest.mark.parametrize("text,said", [
    ("", "there is no net"),
    ("[net.a]\ndriver = \"ethos\"\nmtu = 1\n", "t.toml:3: mtu: must be 68 to 65000"),
    ("[net.a]\ndriver = \"ethom\"\nmut = 1500\n", "t.toml:3: mut: unknown field"),
    ("[net.a]\ndriver = \"ethom\"\n[[host]]\nid = 0\n", "t.toml:4: id: must be 1 to 65534"),
    ("[net.a]\ndriver = \"ethos\"\n[[host]]\nid = 1\naddress = \"localhost\"\n", "t.toml:5: address: must be a string"),
    ("[net.a\n", "t.toml:1:"),
])
def test_a_wrong_table_is_said_to_be(tmp_path, text, said):
    table = tmp_path / "t.toml"
    table.write_text(text)
    for command in (["check"], ["run", "--host", "1"]):
        done = shell(modes.command(), "ether", *command, table, check=False)
        assert done.returncode == 3 and said in done.stderr, done.stderr


def test_which_host_must_be_known(tmp_path):
    table = tmp_path / "t.toml"
    table.write_text('[net.a]\ndriver = "ethom"\n[[host]]\nid = 1\nname = "one"\n')
    assert "hosts 1 (one)" in shell(modes.command(), "ether", "check", table).stdout
    done = shell(modes.command(), "ether", "run", table, check=False)
    assert done.returncode == 1 and "say --host" in done.stderr.lower()
    done = shell(modes.command(), "ether", "run", "--host", "two", table, check=False)
    assert done.returncode == 1 and "there is no host two; there are 1 (one)" in done.stderr
    assert shell(modes.command(), "ether", "stat", "--dir", tmp_path, check=False).returncode == 1


# ---- bad input ----

def mac(id):
    return bytes([2, 0x45, 0x54, 0x48, 0, id])


def frame(to, source, length=60):
    return (to + source + b"\x08\x00").ljust(length, b"\0")


SEND = """
import socket, sys
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.bind((sys.argv[1], int(sys.argv[2])))
for line in sys.stdin:
    frame, times = line.split()
    for _ in range(int(times)):
        out.sendto(bytes.fromhex(frame.strip('-')), (sys.argv[3], 7471))
"""


def test_what_cannot_be_is_counted_by_ethos_and_nothing_dies():
    with Bed(4, "ethos", members=[1, 2, 3]) as bed:
        bed.start(1, 2)

        def send(host, port, frames):
            lines = "".join(f"-{frame.hex()} {times}\n" for frame, times in frames)
            host.run(sys.executable, "-c", SEND, host.outer, port, bed[1].outer, input=lines)

        good = frame(mac(1), mac(3))
        send(bed[3], 7471, [(b"", 1), (b"x" * 13, 2), (frame(mac(1), mac(3), 1473), 3), (frame(mac(1), mac(2)), 4),
                            (frame(mac(1), mac(1)), 5), (frame(mac(1), b"\xff" * 6), 6), (good, 7), (good[:14], 8)])
        send(bed[3], 9999, [(good, 9)])   # a host's address with another port
        send(bed[4], 7471, [(good, 10)])  # nobody's address
        drops = lambda: bed[1].peer(3)["drops"]
        system.until(lambda: drops()["spoofed_host"] == 15, 5 * PATIENCE, f"15 spoofed: {drops()}")
        assert drops()["runt"] == 3 and drops()["oversize"] == 3
        system.until(lambda: bed[1].net()["drops"]["wrong_source"] == 19, 5 * PATIENCE, "19 of a wrong source")
        assert bed[1].peer(3)["frames_in"] == 15
        # A flood of rubbish, while others talk.
        rubbish = [(os.urandom(random.randrange(1, 1400)), 50) for _ in range(200)]
        send(bed[3], 7471, rubbish)
        assert bed[1].reaches(bed[2], count=10)
        # To nobody.
        bed[1].ip_("neigh", "add", "10.9.1.77", "lladdr", "02:45:54:48:00:4d", "dev", "wire0")
        bed[1].reaches("10.9.1.77", 1, 56, "-w", "1")
        assert bed[1].net()["drops"]["unknown_host"] >= 1
        assert bed[1].stop() == 0


def wrapped(inner, offload=bytes(10), kind=2):
    """As one of Shunt's hosts sends a frame with its offload header (crates/ether/src/ethos.rs)."""
    return inner[:12] + b"\x88\xb5shunt-ether\x01" + bytes([kind]) + offload + inner[12:]


def test_super_frames_that_cannot_be_are_counted():
    segments = lambda kind, size, start, offset: struct.pack("<BBHHHH", 1, kind, 0, size, start, offset)
    good = frame(mac(1), mac(3))
    for offload in (True, False):
        with Bed(3, "ethos", net=f"offload = {str(offload).lower()}", members=[1, 3]) as bed:
            bed.start(1)
            frames = [(wrapped(good), 1), (wrapped(good, segments(0, 0, 34, 16)), 2),   # nothing left undone; a checksum
                      (wrapped(good, b"\xff" * 10), 3), (wrapped(good, segments(1, 1000, 34, 60000)), 4),
                      (wrapped(good, segments(3, 1000, 34, 6)), 5), (wrapped(good, segments(1, 1500, 34, 16)), 6),
                      (wrapped(frame(mac(1), mac(3), 1473)), 7),                         # longer than the MTU, and not to be cut up
                      (wrapped(frame(mac(1), mac(2))), 8), (wrapped(frame(mac(1), mac(1))), 9), (wrapped(frame(mac(1), b"\xff" * 6)), 10),
                      (wrapped(good[:12]), 11), (wrapped(good[:13]), 12)]
            lines = "".join(f"-{data.hex()} {times}\n" for data, times in frames)
            bed[3].run(sys.executable, "-c", SEND, bed[3].outer, 7471, bed[1].outer, input=lines)
            peer = lambda: bed[1].peer(3)
            wanted = {"spoofed_host": 27, "runt": 23, "bad_offload": 25 if offload else 28}
            system.until(lambda: drops(bed[1]) == wanted, 5 * PATIENCE, f"{wanted}: {drops(bed[1])}")
            assert peer()["frames_in"] == (3 if offload else 0)
            assert bed[1].stop() == 0


def test_without_the_check_of_sources_anyone_may_send():
    with Bed(2, "ethos", net="source_check = false", members=[1]) as bed:
        bed.start(1)
        line = f"-{frame(mac(1), mac(9)).hex()} 3\n"
        bed[2].run(sys.executable, "-c", SEND, bed[2].outer, 1234, bed[1].outer, input=line)
        rx = lambda: int(bed[1].run("cat", "/sys/class/net/wire0/statistics/rx_packets").stdout)
        system.until(lambda: rx() >= 3, 5 * PATIENCE, "the interface received them")


class Hostile:
    """Host 3 of an ETHOM net, written against the protocol (crates/ether/src/link.rs), which then breaks its rules."""

    SIZE = 1 << 20
    QUEUE, DATA = 128, 192

    def __init__(self, bed):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.settimeout(10 * PATIENCE)
        self.listener.bind(str(bed.dir / "wire0" / "03.sock"))
        self.listener.listen()

    def join(self):
        """Answers whoever connects; the number of that host."""
        import fcntl
        self.link, _ = self.listener.accept()
        self.link.settimeout(10 * PATIENCE)
        hello, fds, _, _ = socket.recv_fds(self.link, 64, 2)
        self.theirs, self.bell = mmap.mmap(fds[0], 192 + self.SIZE), fds[1]
        os.close(fds[0])
        who = struct.unpack_from("<H", hello, 8)[0]
        memory = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, 192 + self.SIZE)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.mine = mmap.mmap(memory, 192 + self.SIZE)
        bell = os.eventfd(0, os.EFD_NONBLOCK)
        answer = hello[:8] + struct.pack("<HH4xQ8x", 3, who, self.SIZE) + hello[32:]
        socket.send_fds(self.link, [answer], [memory, bell])
        os.close(memory)
        os.close(bell)
        self.at = 0
        return who

    def put(self, record, length=None):
        struct.pack_into("<Q", self.theirs, self.DATA + self.at, len(record) if length is None else length)
        self.theirs[self.DATA + self.at + 8:self.DATA + self.at + 8 + len(record)] = record
        self.at += (8 + len(record) + 63) // 64 * 64
        self.publish(self.at)

    def publish(self, index):
        struct.pack_into("<Q", self.theirs, self.QUEUE, index)
        os.eventfd_write(self.bell, 1)

    def leave(self):
        self.link.close()
        self.theirs.close()
        self.mine.close()
        os.close(self.bell)


def test_what_cannot_be_is_counted_by_ethom_and_breaks_that_link_only():
    with Bed(3, "ethom") as bed:
        bed[1].start()
        bed[2].start()
        hostile = Hostile(bed)
        while hostile.join() != 1:
            hostile.leave()
        none, good = bytes(10), frame(mac(1), mac(3))
        for record in (b"", none + good[:13], none + frame(mac(1), mac(2)), none + frame(mac(1), mac(3), 1473),
                       b"\xff" * 10 + good, struct.pack("<BBHHHH", 1, 1, 0, 1000, 34, 60000) + good,
                       none + frame(mac(1), mac(3), 65558), none + good, none + good):
            hostile.put(record)
        peer = lambda: bed[1].peer(3)
        system.until(lambda: peer()["frames_in"] == 2, 5 * PATIENCE, f"two frames are let in: {peer()}")
        drops = peer()["drops"]
        assert (drops["runt"], drops["spoofed_host"], drops["oversize"], drops["bad_offload"]) == (2, 1, 2, 2)
        # A peer that never reads: what goes to it is dropped, and nobody else waits for long.
        bed[1].ip_("neigh", "add", "10.9.1.3", "lladdr", bed[3].mac, "dev", "wire0")
        bed[1].run(sys.executable, "-c", "import socket\nout = socket.socket(type=socket.SOCK_DGRAM)\n"
                                         "for _ in range(2000): out.sendto(bytes(1400), ('10.9.1.3', 9))")
        system.until(lambda: peer()["drops"]["queue_full"] > 0, 5 * PATIENCE, "its queue is full")
        assert bed[1].reaches(bed[2], count=10)
        # What breaks the queue breaks this link.
        for breaking in (lambda: hostile.publish(hostile.at + 63), lambda: hostile.publish(hostile.at + (1 << 40)),
                         lambda: hostile.put(b"x", 1 << 50), lambda: hostile.put(b"x", 4096), lambda: hostile.put(b"", 2**64 - 1)):
            breaking()
            system.until(lambda: hostile.link.recv(1) == b"", 5 * PATIENCE, "the link is given up")
            hostile.leave()
            while hostile.join() != 1:
                hostile.leave()
            system.until(lambda: peer()["up"], 5 * PATIENCE, "it may come again")
        assert "wrote impossible values" in bed[1].log.read_text()
        hostile.leave()
        # Rubbish at the door.
        for hello in (b"", b"x", os.urandom(64), b"ethom\0\0\x01" + bytes(56)):
            door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            door.connect(str(bed.dir / "wire0" / "01.sock"))
            door.send(hello)
            door.settimeout(5 * PATIENCE)
            assert door.recv(1) == b""
            door.close()
        assert bed[1].reaches(bed[2])
        assert bed[1].stop() == 0


# ---- the long run ----

RANDOM = """
import os, random, select, socket, sys, time
seed, seconds = int(sys.argv[1]), float(sys.argv[2])
rng = random.Random(seed)
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("wire0", 0x88b6))
mac = wire.getsockname()[4]
end = time.monotonic() + seconds
while time.monotonic() < end:
    to = rng.choice([bytes([2, 0x45, 0x54, 0x48, 0, rng.randrange(1, 6)]), b"\\xff" * 6, rng.randbytes(6)])
    source = mac if rng.random() < 0.8 else rng.randbytes(6)
    kind = rng.choice([b"\\x88\\xb6", b"\\x88\\xb5", rng.randbytes(2)])
    try:
        wire.send(to + source + kind + rng.randbytes(rng.randrange(1, 1400)))
    except OSError:
        time.sleep(0.01)  # the daemon is being killed: the interface is gone
        break
    if rng.random() < 0.05:
        time.sleep(0.002)
"""


@pytest.mark.parametrize("driver", DRIVERS)
def test_random_frames_and_deaths(driver):
    """Random frames while hosts are killed and restarted; ETHER_SOAK_SECONDS (make ether-soak) makes it long."""
    seconds = float(os.environ.get("ETHER_SOAK_SECONDS", "6"))
    rng = random.Random(seed := int(os.environ.get("ETHER_SOAK_SEED", time.time_ns() % 1_000_000)))
    print("ETHER_SOAK_SEED", seed)
    with Bed(4, driver) as bed:
        bed.start()
        survivor, talkers, slowest, rounds = bed[1], {}, 0.0, 0
        memory = lambda: int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{survivor.stat()['pid']}/status").read())[1])
        files = lambda: len(os.listdir(f"/proc/{survivor.stat()['pid']}/fd"))
        before = None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for id in bed.hosts:
                if id not in talkers or talkers[id].poll() is not None:
                    talkers[id] = bed[id].spawn(sys.executable, "-c", RANDOM, rng.randrange(10**9), 3600, stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0.1, 0.5))  # the frames' time, not anybody's deadline
            victim = bed[rng.choice([2, 3, 4])]
            victim.kill()
            victim.start()
            slowest = max(slowest, within(2, lambda: survivor.sees(2, 3, 4), f"host {victim.id} is linked again"))
            assert survivor.daemon.poll() is None, bed.show()
            rounds += 1
            if rounds == 3:
                before = (memory(), files())
        # Four hosts that send all they can lose most frames, requests for a neighbour's address too: what has to work is the net that they leave.
        for talker in talkers.values():
            talker.kill()
            talker.wait()
        assert survivor.reaches(bed[2]), bed.show()
        if before:
            assert memory() < before[0] + 16_384 and files() <= before[1] + 2, (before, memory(), files())
        print(f"{driver}: {rounds} deaths, linked again within {slowest:.2f} s at most")
