"""Between hosts over RDMA verbs: two guests, whose kernels make an RDMA device of their Ethernet interface (rdma_rxe). harness/qemu.py boots them.

Links alone, and unmodified programs whose connections move there, also back to TCP when the device is taken away. What goes there is looked at byte by byte. Figures of
translated kernels say nothing.
"""

import base64
import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from harness import modes, qemu, system
from harness.report import Report
from harness.runner import Runner

# Beside what the command is linked with: opened at run time, by it and by libibverbs.
PLUGINS = ["libfabric.so.1", "libibverbs/librxe-rdmav34.so"]
FILES = ["/etc/libibverbs.d/rxe.driver"]
MODULES = ["rdma_rxe", "ib_uverbs", "rdma_ucm", "crc32_generic", "tcp_diag"]

pytestmark = pytest.mark.alone("two guests take two processors, and what they promise one another has limits of time")


def library(name):
    """A library by its name, where the dynamic linker looks for it."""
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"):
        if (path := Path(folder) / name).exists():
            return path
    return system.lacking(name)


@pytest.fixture(scope="module")
def pair(apps):
    """Two guests with an RDMA device each, at 192.168.1.1 and .2."""
    runner = Runner("plain", None)
    net, kernel = qemu.Net(runner, "rdma"), qemu.kernel()
    key = runner.tmp / "key"
    subprocess.run([modes.command(), "agent", "new-key", key], check=True)
    programs = [modes.command(), apps / "checked", *map(qemu.program, ["rdma", "redis-server", "redis-benchmark"])]
    plugins = [*map(library, PLUGINS), (modes.library(), "usr/lib/shunt/libshunt.so")]
    image = qemu.initramfs("rdma", kernel, programs, plugins, [*FILES, (key, "srv/key")], MODULES)
    guests = []
    try:
        for number, name in ((1, "left"), (2, "right")):
            nic = qemu.nic(f"52:54:00:01:00:{number:02x}", 7030 + number, 7030 + 3 - number)
            guests.append(qemu.Guest(runner, net, name, kernel, image, [nic], memory=512))
        for number, guest in enumerate(guests, 1):
            guest.wait_booted()
            guest.run(f"""
                modprobe -a crc32_generic rdma_rxe ib_uverbs rdma_ucm tcp_diag
                ip addr add 192.168.1.{number}/24 dev eth0; ip link set eth0 up
                chmod 600 /srv/key
            """)
            device(guest)
        yield guests
    finally:
        for guest in guests:
            guest.stop()
    assert not (wrong := runner.finish()), wrong


def device(guest):
    """Makes the RDMA device."""
    guest.run("rdma link add rxe0 type rxe netdev eth0")
    guest.until("rdma link show rxe0/1 | grep -q 'state ACTIVE'", 20)


def packets(guest):
    """How many the RDMA device has sent."""
    return int(guest.run("cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"))


CHECK = "--provider verbs --host 192.168.1.2 --measure check --size 20000"


def listen(guest):
    """Starts the program that listens; its address."""
    guest.run(f"shunt bench exchange server --ofi any {CHECK} >/tmp/address 2>/tmp/listen.log &")
    said = guest.until("grep . /tmp/address || { cat /tmp/listen.log; exit 1; }", 30)
    return json.loads(said.splitlines()[0])["ready"]


def test_bytes_go_by_verbs(pair):
    left, right = pair
    address = listen(right)
    said = left.run(f"shunt bench exchange client --ofi {address} {CHECK} --count 200 2>/tmp/log || {{ cat /tmp/log; exit 1; }}", 120)
    assert json.loads(said)["bytes"] > 1_000_000, said
    assert "by verbs on rxe0" in left.run("cat /tmp/log")
    assert packets(left) > 1000, "the packets went another way"
    for guest in pair:
        assert not guest.trouble()


# ---- programs ----


class Counted:
    """A program under Shunt in a guest, in the background, with the library's counters and log."""

    def __init__(self, tmp, guest, name, command):
        self.tmp, self.guest, self.name = tmp, guest, name
        empty = base64.b64encode(Report(tmp / "empty").path.read_bytes()).decode()
        guest.run(f"""
            rm -f /tmp/{name}.*
            echo {empty} | base64 -d >/tmp/{name}.report
            export SHUNT_CLUSTER=192.168.1.0/24 SHUNT_CLUSTER_KEY=/srv/key SHUNT_REPORT=/tmp/{name}.report SHUNT_LOG=/tmp/{name}.log SHUNT_LOG_LEVEL=debug
            ( status=0; shunt run -- {command} >/tmp/{name}.out 2>/tmp/{name}.err || status=$?; echo $status >/tmp/{name}.status ) &
            echo $! >/tmp/{name}.pid
        """)

    def report(self):
        path = self.tmp / "report"
        report = Report(path)
        path.write_bytes(base64.b64decode(self.guest.run(f"base64 /tmp/{self.name}.report")))
        return report

    def until(self, ready, seconds, what):
        end = time.monotonic() + seconds * qemu.PATIENCE
        while not ready(report := self.report()):
            assert time.monotonic() < end, f"not within {seconds} s: {what}: {report}\n{self.said()}"
            time.sleep(0.2)

    def said(self):
        """What it and the library have said, and what it is doing."""
        return self.guest.run(f"""
            cd /tmp
            tail -n 30 {self.name}.out {self.name}.err {self.name}.log 2>&1
            shunt stat
            for pid in $(pidof checked redis-server); do
                for task in /proc/$pid/task/*; do cat $task/comm $task/wchan $task/syscall $task/stat; done
            done
        """, status=None)[1]

    def end(self, seconds=60):
        """What it printed, at its end."""
        try:
            status = self.guest.until(f"cat /tmp/{self.name}.status", seconds, f"{self.name} ends")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None
        assert status.strip() == "0", f"status {status}\n{self.said()}"
        return self.guest.run(f"cat /tmp/{self.name}.out")


@pytest.mark.cluster
def test_redis_moves_to_verbs(pair, tmp_path):
    """As its users run it: the agents are started on demand, and the provider is the best there is."""
    left, right = pair
    before = packets(left)
    server = Counted(tmp_path, right, "server", "redis-server --bind 192.168.1.2 --protected-mode no --save '' --appendonly no")
    right.until("grep -q 'Ready to accept' /tmp/server.out", 30)
    asked = Counted(tmp_path, left, "ask", "redis-benchmark -h 192.168.1.2 -c 4 -n 20000 -d 200 -t set,get --csv")
    said = asked.end(180)
    rates = dict(re.findall(r'^"(SET|GET)","([\d.]+)"', said, re.M))
    assert set(rates) == {"SET", "GET"}, said
    report, counted = asked.report(), server.report()
    assert report.promoted >= 4 and report.ring_sent > 1_000_000, f"{report}\n{asked.said()}"
    assert counted.promoted >= 4 and counted.ring_sent > 1_000_000, f"{counted}\n{server.said()}"
    assert packets(left) - before > 10_000, "the packets went another way"
    right.run("kill $(pidof redis-server)")
    server.end()
    for guest in pair:
        assert not guest.trouble()


def stream(pair, tmp_path):
    """Both ends of a stream that has moved; it ends when there is /tmp/ask.stop on the left."""
    left, right = pair
    server = Counted(tmp_path, right, "server", "checked server 7000")
    right.until("netstat -ltn | grep -q :7000", 20)
    asked = Counted(tmp_path, left, "ask", "checked client 192.168.1.2 7000 /tmp/ask.stop")
    for program in (asked, server):
        program.until(lambda report: report.promoted == 1, 60, "it moves to verbs")
    return asked, server


@pytest.mark.cluster
def test_the_device_is_taken_away_in_mid_stream(pair, tmp_path):
    """No byte is lost: the connection goes on by TCP."""
    left, right = pair
    # QEMU's wire loses packets, which holds up an RDMA connection for a second or two: one may be back on TCP for that before it has done much.
    for _ in range(5):
        asked, server = stream(pair, tmp_path)
        before = packets(left)
        asked.until(lambda report: packets(left) - before > 1000 or report.demoted > 0, 30, "it goes by verbs")
        if asked.report().demoted == 0:
            break
        left.run("touch /tmp/ask.stop")
        assert asked.end() == server.end()
    # The kernel waits with it until the program has closed the device, as this one cannot be taken from under its users.
    left.run("rdma link del rxe0 >/tmp/del.log 2>&1 &")
    for program in (asked, server):
        program.until(lambda report: report.demoted == 1, 30, "it is back on TCP")
    time.sleep(2)
    left.run("touch /tmp/ask.stop")
    sent, echoed = json.loads(asked.end()), json.loads(server.end())
    assert sent == echoed and sent["bytes"] > 1_000_000
    left.until("! rdma link show | grep -q rxe0", 30)
    for guest in pair:
        assert not guest.trouble()
    device(left)
