"""`shunt ether` between machines: ETHOM hosts that have no memory, no folder and no UNIX socket in common, over libfabric's tcp provider. What any Ethernet does
is in test_ether.py, which these hosts pass as well; here is what only they have: a key, a fabric that may be missing, machines that vanish."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from harness import modes, system
from harness.ether import PATIENCE, Bed, shell, within


@contextlib.contextmanager
def bed(count=2, **more):
    with Bed(count, "ethom-far", **more) as bed:
        yield bed


def said(host, text, seconds=10):
    system.until(lambda: text in host.log.read_text(), seconds * PATIENCE, f"host {host.id} says {text!r}: {host.log.read_text()}")


# ---- what is used, and seen of it ----

def test_what_is_used_is_shown():
    with bed() as hosts:
        hosts.start()
        one = hosts[1]
        assert one.reaches(hosts[2])
        assert one.net()["between_hosts"] == "by tcp, at 192.168.77.1:4771"
        assert one.peer(2)["by"] == "tcp" and one.peer(2)["address"] == "192.168.77.2:4771" and "trouble" not in one.peer(2)
        shown = one.ether("stat").stdout
        assert re.search(r"between hosts: by tcp, at 192\.168\.77\.1:4771\n +2 host-2 +up .*between hosts, by tcp", shown), shown
        assert 'shunt_ether_peer_between_hosts{host="1",net="wire0",interface="wire0",peer="2"} 1' in one.ether("stat", "--prometheus").stdout
        assert "2 (host-2) at 192.168.77.2:4771" in shell(modes.command(), "ether", "check", one.table).stdout


def test_hosts_with_a_folder_in_common_have_memory_and_others_a_fabric():
    with bed(3) as hosts:
        hosts[2].dir = hosts[1].dir
        hosts.write(hosts.hosts)
        hosts.start()
        assert {id: hosts[1].peer(id)["by"] for id in (2, 3)} == {2: "memory", 3: "tcp"}
        assert {id: hosts[3].peer(id)["by"] for id in (1, 2)} == {1: "tcp", 2: "tcp"}
        for a in hosts.hosts.values():
            for b in hosts.hosts.values():
                assert a is b or a.reaches(b, 3, 4000)
        # The same again when one comes back.
        for victim in (2, 3, 1):
            hosts[victim].kill()
            hosts[victim].start()
            hosts.until_all_see(1, 2, 3)
            assert {id: hosts[1].peer(id)["by"] for id in (2, 3)} == {2: "memory", 3: "tcp"}


def test_several_nets_each_with_a_port():
    with bed(nets=("rail-a", "rail-b")) as hosts:
        for host in hosts.hosts.values():
            host.start()
            host.ip_("addr", "flush", "dev", "rail-b")
            host.ip_("addr", "add", f"10.9.2.{host.id}/24", "dev", "rail-b")
        for net in hosts.nets:
            system.until(lambda: hosts[1].peer(2, net)["up"], 10 * PATIENCE, f"{net} is linked")
        assert hosts[1].reaches("10.9.2.2") and hosts[1].reaches("10.9.1.2")


def test_ipv6_addresses_are_as_good():
    with bed() as hosts:
        for host in hosts.hosts.values():
            host.ip_("addr", "add", f"fd77::{host.id}/64", "dev", "outer", "nodad")
            host.table.write_text(re.sub(r'"192\.168\.77\.(\d):4771"', r'"fd77::\1"', host.table.read_text()))
        hosts.start()
        assert hosts[1].reaches(hosts[2])
        assert hosts[1].net()["between_hosts"] == "by tcp, at [fd77::1]:4771"


# ---- the key ----

def test_a_host_with_another_key_is_not_linked_and_disturbs_nobody():
    with bed(3) as hosts:
        shell(modes.command(), "agent", "new-key", hosts.tmp / "other")
        hosts[3].environment["SHUNT_CLUSTER_KEY"] = str(hosts.tmp / "other")
        hosts[3].start()
        hosts.start(1, 2)
        for host in (hosts[1], hosts[2]):
            said(host, "host 3 is not linked: it has another key than this host")
        said(hosts[3], "192.168.77.1 is not linked: it has another key than this host")
        assert "another key" in hosts[1].peer(3)["trouble"]
        assert "not linked: it has another key" in hosts[1].ether("stat").stdout
        assert hosts[1].reaches(hosts[2], count=20) and not hosts[1].reaches(hosts[3], 1, 56, "-w", "1")
        assert hosts[1].log.read_text().count("another key") == 1, "it is said once"
        # The right key, and the table read again: now it is one of them.
        (hosts.tmp / "other").write_text((hosts.tmp / "key").read_text())
        before = hosts[1].peer(2)["connects"]
        hosts[3].ether("reload")
        hosts.until_all_see(1, 2, 3)
        assert "trouble" not in hosts[1].peer(3) and hosts[1].reaches(hosts[3])
        # To read it again where it is the same disturbs nobody.
        hosts[1].ether("reload")
        assert hosts[1].peer(2)["connects"] == before and hosts[1].sees(2, 3)


def test_without_a_key_it_is_said_and_tried_again():
    with bed() as hosts:
        key = (hosts.tmp / "key").read_text()
        (hosts.tmp / "key").unlink()
        hosts[1].start()
        said(hosts[1], "hosts on other machines are not linked: ")
        assert "there is no key" in hosts[1].log.read_text() and "new-key" in hosts[1].log.read_text()
        assert hosts[1].net()["between_hosts"].startswith("not possible: ")
        (hosts.tmp / "key").write_text(key)
        hosts[1].run("chmod", "644", hosts.tmp / "key")
        said(hosts[1], "others may read it")
        hosts[1].run("chmod", "600", hosts.tmp / "key")
        hosts[2].start()
        hosts.until_all_see(1, 2)
        assert hosts[1].reaches(hosts[2])


# ---- the fabric ----

# As if libfabric were not installed.
WITHOUT = ['unshare', '--mount', 'sh', '-c',
           'for at in $(ldconfig -p | sed -n "s/.*libfabric.so.1 .*=> //p"); do mount --bind /dev/null $(realpath $at) || exit; done; exec "$@"', 'sh']


@pytest.mark.parametrize("before, fabric, why", [
    (WITHOUT, "tcp", "install libfabric"),
    ([], None, "libfabric finds no fast network at 192.168.77.1"),
    ([], "opx", "libfabric finds no opx network at 192.168.77.1"),
    ([], "token-ring", "SHUNT_FABRIC=token-ring: must be"),
])
def test_without_a_fabric_it_is_said_and_memory_goes_on(before, fabric, why):
    """Host 2 is on the machine of host 1, host 3 on another one."""
    with bed(3) as hosts:
        hosts[2].dir = hosts[1].dir
        hosts.write(hosts.hosts)
        hosts[1].start(*before, SHUNT_FABRIC=fabric)
        hosts.start(2, 3)
        said(hosts[1], why)
        assert why in hosts[1].net()["between_hosts"]
        assert hosts[1].sees(2) and not hosts[1].sees(3)
        assert hosts[1].reaches(hosts[2]) and hosts[2].reaches(hosts[3])
        assert hosts[1].log.read_text().count("other machines") == 1, "it is said once"
        # A daemon that finds it gets there.
        hosts[1].kill()
        hosts[1].start()
        hosts.until_all_see(1, 2, 3)
        assert hosts[1].reaches(hosts[3])


def test_an_address_that_this_host_does_not_have_is_waited_for():
    with bed() as hosts:
        hosts[2].ip_("addr", "del", "192.168.77.2/24", "dev", "outer")
        hosts[2].start()
        said(hosts[2], "192.168.77.2")
        assert "not possible" in hosts[2].net()["between_hosts"]
        hosts[2].ip_("addr", "add", "192.168.77.2/24", "dev", "outer")
        hosts[1].start()
        hosts.until_all_see(1, 2)
        assert hosts[1].reaches(hosts[2])


# ---- life ----

def test_a_machine_that_vanishes_is_missed_and_linked_again():
    """Nothing is closed: its packets come no more."""
    with bed(3, net='carrier = "peers"') as hosts:
        hosts.start()
        assert hosts[1].reaches(hosts[2])
        for round in range(2):
            hosts[2].ip_("link", "set", "outer", "down")
            within(8, lambda: not hosts[1].sees(2), "host 2 is missed")
            assert hosts[1].reaches(hosts[3], count=10), "the others are not held up"
            within(8, lambda: not hosts[2].carrier(), "host 2 is alone, and its interface says so")
            hosts[2].ip_("link", "set", "outer", "up")
            hosts.until_all_see(1, 2, 3)
            assert hosts[1].reaches(hosts[2]) and hosts[2].reaches(hosts[3])


@pytest.mark.alone("a flood, which leaves other tests' pings no processor, and they its own")
def test_a_daemon_that_stands_still_is_missed_and_holds_up_nobody():
    with bed(3) as hosts:
        hosts.start()
        pid = hosts[2].stat()["pid"]
        hosts[1].ip_("neigh", "replace", hosts[2].ip, "lladdr", hosts[2].mac, "dev", "wire0")
        for round in range(2):
            os.kill(pid, signal.SIGSTOP)
            try:
                flood = hosts[1].spawn(sys.executable, "-c", f"""
import socket
out = socket.socket(type=socket.SOCK_DGRAM)
while True: out.sendto(bytes(1400), ("{hosts[2].ip}", 9))
""")
                while hosts[1].sees(2):
                    assert hosts[1].reaches(hosts[3], count=5)
                assert hosts[1].reaches(hosts[3], count=5)
            finally:
                os.kill(pid, signal.SIGCONT)
            flood.kill()
            flood.wait()
            hosts.until_all_see(1, 2, 3)
            assert hosts[2].reaches(hosts[1])
        memory = int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{hosts[1].stat()['pid']}/status").read())[1])
        assert memory < 200_000, memory


def test_reload_changes_addresses():
    with bed() as hosts:
        hosts.start()
        for host in hosts.hosts.values():
            host.table.write_text(host.table.read_text().replace("192.168.77.2:4771", "192.168.77.2:4999"))
            host.ether("reload")
        for host in hosts.hosts.values():
            for net in hosts.nets:
                host.ip_("addr", "replace", f"{host.ip}/24", "dev", net)
        hosts.until_all_see(1, 2)
        assert hosts[1].reaches(hosts[2])
        assert hosts[1].peer(2)["address"] == "192.168.77.2:4999"
        # Without addresses they are not linked any more.
        for host in hosts.hosts.values():
            host.table.write_text(re.sub("address.*\n", "", host.table.read_text()))
            host.ether("reload")
        system.until(lambda: not hosts[1].sees(2) and not hosts[2].sees(1), 5 * PATIENCE, "they are not linked")
        assert "between_hosts" not in hosts[1].net()


# ---- bad input ----

KNOCK = """
import os, random, socket, struct, sys, time
rng = random.Random(7)
def knock(*parts):
    door = socket.create_connection(("192.168.77.1", 4771), timeout=10)
    try:
        for part in parts:
            door.sendall(part)
            time.sleep(0.01)
        while door.recv(1000):
            pass
        return "closed"
    except ConnectionError:
        return "closed"
    except TimeoutError:
        return "left open"
    finally:
        door.close()
said = [knock(b"\\xff\\xff" + bytes(100)), knock(b"ethom-f\\x01"), knock(b"\\0\\0"), knock(struct.pack("<H", 48) + os.urandom(48)),
        knock(struct.pack("<H", 528) + os.urandom(528)), knock(b"GET / HTTP/1.1\\r\\n\\r\\n"), knock(b"\\x30"), knock()]
said += [knock(*[rng.randbytes(rng.randrange(200)) for _ in range(3)]) for _ in range(20)]
print(*said, sep="\\n")
"""


def test_who_knocks_without_the_key_is_shut_out():
    with bed(4, members=[1, 2, 3]) as hosts:
        hosts.start(1, 2)
        done = hosts[3].run(sys.executable, "-c", KNOCK, timeout=100)
        assert set(done.stdout.split("\n")) == {"closed", ""}, done.stdout
        # Who has no address of the table does not get so far.
        assert hosts[4].run(sys.executable, "-c", KNOCK, timeout=100).stdout.count("closed") == 28
        said(hosts[1], "192.168.77.4 is not linked: no host of the table has that address")
        # Many who say nothing.
        silent = hosts[3].spawn(sys.executable, "-c", "import socket, time\nall = [socket.create_connection(('192.168.77.1', 4771)) for _ in range(200)]\n"
                                                      "print('there', flush=True)\ntime.sleep(100)", stdout=subprocess.PIPE, text=True)
        assert silent.stdout.readline() == "there\n"
        assert hosts[1].reaches(hosts[2], count=20)
        ticks = lambda: sum(map(int, open(f"/proc/{hosts[1].stat()['pid']}/stat").read().rsplit(")")[1].split()[11:13]))
        before = ticks()
        time.sleep(1)  # the time over which it is looked how busy it is
        assert ticks() - before < 60, "it does not spin"
        silent.kill()
        silent.wait()
        hosts[3].start()
        hosts.until_all_see(1, 2, 3, seconds=30)
        assert hosts[1].stop() == 0


INJECT = """
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("wire0", 0))
for line in sys.stdin:
    frame, times = line.split()
    for _ in range(int(times)):
        wire.send(bytes.fromhex(frame))
"""


def test_what_a_host_must_not_send_is_counted():
    """Host 3 lies about who it is, and has a greater MTU than the others' tables say."""
    mac = lambda id: bytes([2, 0x45, 0x54, 0x48, 0, id])
    frame = lambda to, source, length=60: (to + source + b"\x88\xb6").ljust(length, b"\0")
    with bed(3) as hosts:
        hosts[3].table.write_text(hosts[3].table.read_text().replace('"ethom"', '"ethom"\nmtu = 9000'))
        hosts.start()
        frames = [(frame(mac(1), mac(3)), 3), (frame(mac(1), mac(2)), 4), (frame(mac(1), mac(1)), 5), (frame(mac(1), b"\xff" * 6), 6),
                  (frame(mac(1), mac(3), 1473), 7), (frame(mac(1), mac(3), 1472), 8)]
        before = hosts[1].peer(3)
        hosts[3].run(sys.executable, "-c", INJECT, input="".join(f"{data.hex()} {times}\n" for data, times in frames))
        drops = lambda: {name: count for name, count in hosts[1].peer(3)["drops"].items() if count and name != "no_peer"}
        system.until(lambda: drops() == {"spoofed_host": 15, "oversize": 7}, 5 * PATIENCE, f"22 are dropped: {drops()}")
        assert hosts[1].peer(3)["frames_in"] - before["frames_in"] >= 11
        assert hosts[1].reaches(hosts[2]) and hosts[1].reaches(hosts[3])


def test_tables_that_differ_are_noticed():
    """At the address that host 1 knows as host 2's there is host 3."""
    with bed(3) as hosts:
        text = hosts[2].table.read_text()
        swapped = text.replace("192.168.77.2", "X").replace("192.168.77.3", "192.168.77.2").replace("X", "192.168.77.3")
        hosts[2].table.write_text(swapped)
        hosts[1].start()
        with open(hosts[2].log, "a") as log:
            impostor = hosts[2].spawn(modes.command(), "ether", "run", "--host", "3", hosts[2].table, stdout=log, stderr=log,
                                      env=os.environ | hosts[2].environment)
        said(hosts[2], "host 1 calls host 2: is its table the same as ours?")
        assert not hosts[1].sees(2) and not hosts[1].sees(3)
        impostor.kill()
        impostor.wait()


@pytest.mark.parametrize("text, why", [
    ("address = \"\"", "t.toml:5: address: must be a string \"IP\" or \"IP:PORT\""),
    ("address.b = \"10.0.0.1\"", "t.toml:5: address.b: there is no [net.b]"),
    ("address = \"10.0.0.1\"\n[[host]]\nid = 2\naddress = \"10.0.0.1\"", "10.0.0.1:4771 is taken by another host or net"),
])
def test_a_wrong_address_is_said_to_be(tmp_path, text, why):
    table = tmp_path / "t.toml"
    table.write_text(f"[net.a]\ndriver = \"ethom\"\n[[host]]\nid = 1\n{text}\n")
    done = shell(modes.command(), "ether", "check", table, check=False)
    assert done.returncode == 3 and why in done.stderr, done.stderr
