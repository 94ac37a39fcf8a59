"""What needs a second kernel: TIPC and bonds between two guests, and guests that know nothing of Shunt. harness/qemu.py boots them.

Between namespaces of one kernel TIPC hands messages over inside, without touching an interface; between guests it cannot, and the counters of the
interfaces are looked at as well. Two guests are booted once for all tests that want two, and made as new after each; a test that fails
costs them their lives. `make qemu` runs what takes long, too (QEMU_TESTS=full).
"""

import json
import os
import re
import subprocess

import pytest

from harness import modes, qemu, system
from harness.runner import Runner

FULL = os.environ.get("QEMU_TESTS") == "full"
PROGRAMS = modes.ROOT / "build/qemu/programs"
TYPE = 20000
PING = re.compile(r"(\d+) packets transmitted, (\d+) received")
MTU = 1400

pytestmark = pytest.mark.alone("two guests take two processors, and what they promise one another has limits of time")


def shunt():
    assert (path := modes.command()), "the command shunt is not there: build it (cargo build --release), or set SHUNT_COMMAND to it"
    return path


def table(net, driver, addresses, directory, carrier="always"):
    """A table of hosts, with one net."""
    hosts = [f"[[host]]\nid = {number}\n" + (f'address = "{address}"\n' if address else "") for number, address in addresses.items()]
    return "\n".join([f'directory = "{directory}"\n', f'[net.{net}]\ndriver = "{driver}"\nmtu = {MTU}\ncarrier = "{carrier}"\n', *hosts])


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
        return qemu.initramfs("guests", self.kernel, [PROGRAMS / "tipc_exchange", PROGRAMS / "tipc_bench", shunt()])

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

    def cables_up(self):
        for cable in (0, 1):
            self.run(f"ip addr add 192.168.{cable + 1}.{self.number}/24 dev eth{cable}; ip link set eth{cable} up")

    def address(self, net):
        return f"10.0.{net}.{self.number}"

    def up(self, device, net):
        """Gives a device an address, and puts it up."""
        self.run(f"ip addr add {self.address(net)}/24 dev {device}; ip link set {device} up")

    def ethos(self, rail, carrier="always"):
        """Starts ETHOS over one of the cables; a daemon for each rail, so that one can die alone."""
        net = f"ethos{rail}"
        addresses = {number: f"192.168.{rail + 1}.{number}:4000" for number in (1, 2)}
        self.run(f"cat >/srv/{net}.toml <<'END'\n{table(net, 'ethos', addresses, f'/run/{net}', carrier)}\nEND")
        self.start_ethos(net)
        return net

    def start_ethos(self, net):
        self.background(net, f"shunt ether run --host {self.number} /srv/{net}.toml")
        self.until(f"shunt ether stat --dir /run/{net}", 20, f"{net} is there")

    def tipc(self, device, tolerance=1500):
        self.run(f"""
            modprobe tipc
            tipc node get identity | grep -q node || tipc node set identity node{self.number}
            tipc bearer enable media eth device {device}
            tipc bearer set tolerance {tolerance} media eth device {device}
        """)

    def background(self, name, command):
        """Starts a program, whose output `said_by` tells."""
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


def test_tipc_over_ethos(pair):
    for guest in pair:
        guest.cables_up()
        guest.up(guest.ethos(0), 9)
    tipc_over(pair, "ethos0", MTU)


if FULL:
    def test_tipc_bench(pair):
        """Latency and throughput against size, by the cable and by ETHOS over the same cable, in one run; lines of JSON in build/qemu/tipc-bench.json.
        Under TCG these are figures of translated kernels: only their ratio says something."""
        left, right = pair
        lines = []
        for device in ("eth0", "ethos0"):
            for guest in pair:
                if device == "ethos0":
                    guest.run("tipc bearer disable media eth device eth0")
                    guest.ethos(0)
                else:
                    guest.cables_up()
                guest.tipc(device)
            for guest in pair:
                guest.until(f"tipc link list | grep ':{device}-.*: up$'", 30)
            right.run(f"pidof tipc_bench || tipc_bench server {TYPE} >/tmp/bench.log 2>&1 &")
            for line in left.run(f"tipc_bench client {TYPE} -l 150 -n 300 -b 1000000 -s 64,1024,1300,4096,16384,60000", 200).splitlines():
                lines.append({"bearer": device, **json.loads(line)})
        assert len(lines) == 2 * 6 * 3
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (qemu.BUILD / "tipc-bench.json").write_text(text)
        print(text)


# ---- bonds ----


def bond(pair, rails, options, mtu):
    """A bond of the rails. Its MTU is to be that of the rails: a bond gives its own to those that join it, and ETHOS drops what is longer than its
    table says."""
    for guest in pair:
        options_here = options.replace("PEER", guest.address(9)[:-1] + str(3 - guest.number))
        guest.run(f"""
            modprobe bonding max_bonds=0
            ip link add bond0 mtu {mtu} type bond mode active-backup {options_here}
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
    assert '"messages"' in left.said_by("client"), left.said_by("client") + right.said_by("server")
    result = json.loads(left.said_by("client").splitlines()[-1])
    assert result["messages"] > 50, left.said_by("client")
    assert resume or result["resumed"] == 0, left.said_by("client")
    longest, count = outage(left)
    print(f"answers to ping: {count}, longest outage {longest:.1f} s; TIPC: {result}")
    assert longest < 10
    return result


if FULL:
    def test_bond_by_cable(pair):
        """Without Shunt: two cables, one of which is cut silently at one end, so that only ARP can tell."""
        left, right = pair
        bond(pair, ["eth0", "eth1"], "arp_interval 200 arp_ip_target PEER", 1500)
        for guest in pair:
            guest.tipc("bond0", 10000)
        survives(pair, lambda rail: right.run(f"ip link set {rail} down"), resume=True)


def kill_rail(guest):
    """kill -9 of the daemon that serves a rail; its device goes with it."""

    def cut(rail):
        guest.run(f"kill -9 $(grep -l /srv/{rail}.toml /proc/[0-9]*/cmdline | grep -v self | cut -d/ -f3 | while read -r pid; do "
                  f"case $(readlink /proc/$pid/exe) in */shunt) echo $pid ;; esac; done)")

    return cut


def bonded_ethos(pair, options, carrier):
    for guest in pair:
        guest.cables_up()
        for rail in (0, 1):
            guest.ethos(rail, carrier)
    bond(pair, ["ethos0", "ethos1"], options, MTU)


def test_bond_by_carrier(pair):
    """Carrier follows the peer, so both ends change over with miimon, and a TIPC connection lives on."""
    bonded_ethos(pair, "miimon 100", carrier="peers")
    for guest in pair:
        guest.tipc("bond0", 10000)
    survives(pair, kill_rail(pair[1]))


if FULL:
    def test_bond_by_arp(pair):
        """Each interface is a rail of its own, and the one that stands by is silent: to a bond that goes by ARP it looks dead until it is tried. So the
        bond is without carrier for a moment, at which TIPC starts its link anew."""
        bonded_ethos(pair, "arp_interval 200 arp_ip_target PEER", carrier="always")
        for guest in pair:
            guest.tipc("bond0", 10000)
        survives(pair, kill_rail(pair[1]), resume=True)


    def test_bond_by_arp_below_a_bridge(pair):
        """A bridge with a port that is always up does not pass the bond's moment without carrier on: the connection lives."""
        for guest in pair:
            guest.run("modprobe bridge; modprobe dummy numdummies=0; ip link add br0 type bridge; ip link add dummy0 type dummy; ip link set dummy0 master br0 up")
        bonded_ethos(pair, "arp_interval 200 arp_ip_target PEER", carrier="always")
        for guest in pair:
            guest.run(f"ip addr flush bond0; ip link set bond0 master br0; ip link set br0 up")
            guest.up("br0", 9)
            guest.tipc("br0", 10000)
        survives(pair, kill_rail(pair[1]))


# ---- ETHOM ----


if FULL:
    def test_ethom_inside_a_guest(pair):
        """ETHOM's memory is handed over by a UNIX socket, so it reaches from namespace to namespace and not, through a device that two guests share, from
        kernel to kernel. Here are two namespaces of one guest. TIPC between them would not touch the interface; TCP does, as the counters say."""
        guest = pair[0]
        guest.run(f"cat >/srv/ethom.toml <<'END'\n{table('ethom0', 'ethom', {1: None, 2: None}, '/run/ethom')}\nEND")
        for number in (1, 2):
            guest.run(f"""
                ip netns add n{number}
                ip -n n{number} link set lo up
                ip netns exec n{number} shunt ether run --host {number} /srv/ethom.toml >/tmp/ethom{number}.log 2>&1 &
            """)
            guest.until(f"ip -n n{number} addr add 10.0.9.{number}/24 dev ethom0", 20)
        guest.until("ip netns exec n1 ping -c 1 -W 1 10.0.9.2", 20)
        for size in (0, 56, MTU - 28):
            assert PING.search(guest.run(f"ip netns exec n1 ping -M do -c 5 -i 0.05 -W 10 -s {size} 10.0.9.2")).groups() == ("5", "5")
        guest.run("head -c 3000000 /dev/urandom >/srv/sent; ip netns exec n2 httpd -f -h /srv >/tmp/httpd.log 2>&1 &")
        guest.until("ip netns exec n1 wget -q -O /srv/came http://10.0.9.2/sent", 20)
        guest.run("cmp /srv/sent /srv/came")
        for number, way in ((1, "rx"), (2, "tx")):
            carried = int(guest.run(f"ip netns exec n{number} cat /sys/class/net/ethom0/statistics/{way}_bytes"))
            assert carried > 3000000, f"ethom0 of namespace {number}: {carried} bytes {way}"
        guest.run("kill -TERM $(pidof shunt)")
        guest.until("! pidof shunt", 20, "shunt ether run ends when asked to")
        guest.run("ip netns del n1; ip netns del n2")


# ---- guests without Shunt ----


@pytest.fixture
def stranger(lab):
    """A guest that QEMU's command line alone makes a host of the network: number 5, with nothing of ours in it."""
    image = qemu.initramfs("bare", lab.kernel)
    guest = qemu.Guest(lab.runner, lab.net, "stranger", lab.kernel, image, [qemu.nic("02:45:54:48:00:05", 7105, 7101)]).wait_booted()
    yield guest
    assert not guest.trouble()
    guest.stop()




def test_guest_without_shunt(lab, stranger):
    """Its command line alone makes it a host: it finds an ETHOS host by broadcast, and both ping each other with packets of every size."""
    net, path = lab.net, lab.runner.tmp / "table.toml"
    path.write_text(table("ethos0", "ethos", {1: "127.0.0.1:7101", 5: "127.0.0.1:7105"}, lab.runner.tmp / "ether").replace(
        f"mtu = {MTU}", "mtu = 1500"))
    host = net.spawn([shunt(), "ether", "run", "--host", "1", path], name="ethos")
    system.until(lambda: not host.alive() or net.run(["ip", "link", "show", "ethos0"], status=None).status == 0, 20, "ethos0 is there")
    assert host.alive(), host.output()
    net.run(["ip", "addr", "add", "10.0.9.1/24", "dev", "ethos0"])
    stranger.run("ip addr add 10.0.9.5/24 dev eth0; ip link set eth0 up")
    before = stranger.counters("eth0")
    for size in (0, 56, 1472):
        words = f"ping -M do -c 5 -i 0.05 -W 10 -s {size}"
        for said in (stranger.run(f"{words} 10.0.9.1"), net.run([*words.split(), "10.0.9.5"]).text):
            assert PING.search(said).groups() == ("5", "5"), said
    after = stranger.counters("eth0")
    for way in ("rx_bytes", "tx_bytes"):
        assert after[way] - before[way] >= 2 * 5 * (56 + 1472), (before, after)
    assert host.stop(), "shunt ether run did not end when asked to"
    assert host.popen.returncode == 0, host.output()
