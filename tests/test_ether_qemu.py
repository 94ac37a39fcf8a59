"""What needs a second kernel: TIPC and bonds between two guests, and guests that know nothing of Shunt. harness/qemu.py boots them.

Between namespaces of one kernel TIPC hands messages over inside, without touching an interface; between guests it cannot, and the counters of the
interfaces are looked at as well. Two guests are booted once for all tests that want two, and made as new after each; a test that fails
costs them their lives. `make qemu` runs what takes long, too (QEMU_TESTS=full).
"""

import json
import os
import re
import shutil
import subprocess
import time

import pytest

from harness import modes, qemu, system
from harness.runner import Runner

FULL = os.environ.get("QEMU_TESTS") == "full"
PROGRAMS = modes.ROOT / "build/qemu/programs"
TYPE = 20000


# ---- guests ----


class Lab:
    """A network namespace with what runs in it, and the two guests once they are asked for."""

    def __init__(self):
        self.runner = Runner("plain", None)
        self.net = qemu.Net(self.runner, "lab")
        self.kernel = qemu.kernel()
        self.guests = None

    def image(self):
        made = subprocess.run(["make", "-s", "-C", qemu.HERE, f"OUT={PROGRAMS}"], capture_output=True, text=True)
        assert made.returncode == 0, f"tests/qemu does not build:\n{made.stdout}{made.stderr}"
        return qemu.initramfs("guests", self.kernel, [PROGRAMS / "tipc_exchange", PROGRAMS / "tipc_bench"])

    def pair(self):
        if self.guests is None:
            image = self.image()
            self.guests = [Host(self, "left", 1, image), Host(self, "right", 2, image)]
            for guest in self.guests:
                guest.wait_booted()
        return self.guests

    def after(self, failed):
        """Makes the guests as new, or, where that is not to be trusted, does away with them."""
        wrong = []
        for guest in self.guests or []:
            wrong += [f"the kernel of {guest.name}: {line}" for line in guest.trouble()]
            try:
                if not (failed or wrong or guest.broken):
                    guest.reset()
            except AssertionError as error:
                wrong.append(str(error))
        if failed or wrong:
            self.stop_pair(failed)
        return wrong

    def stop_pair(self, show=False):
        for guest in self.guests or []:
            if show:
                print(guest.tail())
            guest.stop()
        self.guests = None


class Host(qemu.Guest):
    """One of two guests that are joined by two cables: eth0 is 192.168.1.N, eth1 is 192.168.2.N."""

    def __init__(self, lab, name, number, image):
        self.number, self.ports = number, [7010 + number, 7020 + number]
        peers = [7010 + 3 - number, 7020 + 3 - number]
        nics = [qemu.nic(f"52:54:00:00:{cable:02x}:{number:02x}", port, peer) for cable, (port, peer) in enumerate(zip(self.ports, peers))]
        super().__init__(lab.runner, lab.net, name, lab.kernel, image, nics)

    def address(self, net):
        return f"10.0.{net}.{self.number}"

    def up(self, device, net):
        """Gives a device an address, and puts it up."""
        self.run(f"ip addr add {self.address(net)}/24 dev {device}; ip link set {device} up")

    def tipc(self, device, tolerance=1500):
        self.run(f"""
            modprobe tipc
            tipc node set identity node{self.number}
            tipc bearer enable media eth device {device}
            tipc bearer set tolerance {tolerance} media eth device {device}
        """)

    def background(self, name, command):
        """Starts a program, whose output `said` tells."""
        self.run(f"{command} >/tmp/{name}.log 2>&1 &")

    def said_by(self, name):
        return self.run(f"cat /tmp/{name}.log")


@pytest.fixture(scope="module")
def lab():
    lab = Lab()
    yield lab
    lab.stop_pair()
    assert not (wrong := lab.runner.finish()), wrong


@pytest.fixture
def pair(request, lab):
    yield lab.pair()
    report = getattr(request.node, "report_call", None)
    if wrong := lab.after(failed=report is None or report.failed):
        pytest.fail("\n".join(wrong))


# ---- TIPC ----


def tipc_link_up(pair, seconds=30):
    """Until both ends have a link to the other node: the broadcast link, which is always up, does not count."""
    for guest in pair:
        guest.until("tipc link list | grep -v ^broadcast-link: | grep ': up$'", seconds, "the TIPC link is up")


def exchange(pair, device, mtu=1500):
    """SEQPACKET and RDM of all sizes to and fro, every byte looked at, and the interface really carried it."""
    left, right = pair
    right.background("server", f"tipc_exchange server {TYPE}")
    for kind in ("seqpacket", "rdm"):
        before = [guest.counters(device) for guest in pair]
        result = json.loads(left.run(f"tipc_exchange client {TYPE} {kind}", 60))
        assert result["messages"] == 110 and result["resumed"] == 0, result
        for guest, old in zip(pair, before):
            new = guest.counters(device)
            for way in ("rx", "tx"):
                grew = {what: new[f"{way}_{what}"] - old[f"{way}_{what}"] for what in ("bytes", "packets")}
                assert grew["bytes"] >= result["bytes"], f"{device} of {guest.name}, {way}: {grew}, but the payload alone was {result}"
                assert grew["packets"] >= result["bytes"] / mtu, f"{device} of {guest.name}, {way}: {grew} for {result}"
    assert right.said_by("server") == ""


def tipc_over(pair, device, mtu=1500):
    for guest in pair:
        guest.tipc(device)
    tipc_link_up(pair)
    exchange(pair, device, mtu)


def test_tipc_by_cable(pair):
    """Without Shunt: the guests, their kernel's TIPC and the programs are in order."""
    for guest in pair:
        guest.up("eth0", 9)
    tipc_over(pair, "eth0")


# ---- bonds ----


def bond(pair, rails, options):
    for guest in pair:
        options_here = options.replace("PEER", guest.address(9)[:-1] + str(3 - guest.number))
        guest.run(f"""
            modprobe bonding max_bonds=0
            ip link add bond0 type bond mode active-backup {options_here}
            for rail in {' '.join(rails)}; do ip link set $rail down; ip link set $rail master bond0; done
        """)
        guest.up("bond0", 9)


def active(guest):
    return guest.run("cat /sys/class/net/bond0/bonding/active_slave").strip()


def outage(guest):
    """The longest time in seconds between two answers of the ping that went on, and how many there were."""
    times = [float(stamp) for stamp in re.findall(r"^\[([\d.]+)\] .*bytes from", guest.said_by("ping"), re.M)]
    return max(later - earlier for earlier, later in zip(times, times[1:])), len(times)


def survives(pair, cut, kind="seqpacket", resume=False):
    """Ping and TIPC go on over bond0 while `cut` takes the active rail away."""
    left, right = pair
    left.until(f"ping -c 1 -W 1 {right.address(9)}", 30)
    tipc_link_up(pair)
    left.until("test $(cat /sys/class/net/bond0/bonding/active_slave) = $(cat /sys/class/net/bond0/bonding/active_slave)")
    right.background("server", f"tipc_exchange server {TYPE}")
    left.background("ping", f"ping -D -i 0.1 {right.address(9)}")
    left.background("client", f"tipc_exchange client {TYPE} {kind} {'-r' if resume else ''} -t 8 -l 60 -s 64,1000,5000")
    left.until("test $(grep -c 'bytes from' /tmp/ping.log) -ge 10", 30, "ten answers to ping")
    rail = active(left)
    assert active(right) == rail, "both ends are on the same rail"
    cut(rail)
    for guest in pair:
        guest.until(f"r=$(cat /sys/class/net/bond0/bonding/active_slave); test -n \"$r\" -a \"$r\" != {rail}", 20, "the bond has changed over")
    left.until("! pidof tipc_exchange", 60)
    result = json.loads(left.said_by("client").splitlines()[-1])
    assert resume or result["resumed"] == 0, left.said_by("client")
    longest, count = outage(left)
    print(f"answers to ping: {count}, longest outage {longest:.1f} s; TIPC: {result}")
    assert longest < 10
    return result


if FULL:
    def test_bond_by_cable(pair):
        """Without Shunt: two cables, one of which is cut silently at one end, so that only ARP can tell."""
        left, right = pair
        bond(pair, ["eth0", "eth1"], "arp_interval 200 arp_ip_target PEER")
        for guest in pair:
            guest.tipc("bond0", 10000)
        survives(pair, lambda rail: right.run(f"ip link set {rail} down"), resume=True)
