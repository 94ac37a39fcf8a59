"""Links between hosts over RDMA verbs: two guests, whose kernels make an RDMA device of their Ethernet interface (rdma_rxe). harness/qemu.py boots them.

What goes there is looked at byte by byte. Figures of translated kernels say nothing.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from harness import modes, qemu
from harness.runner import Runner

# Beside what crates/ofi/examples/exchange.rs is linked with: opened at run time, by it and by libibverbs.
PLUGINS = ["libfabric.so.1", "libibverbs/librxe-rdmav34.so"]
FILES = ["/etc/libibverbs.d/rxe.driver"]
MODULES = ["rdma_rxe", "ib_uverbs", "rdma_ucm", "crc32_generic"]

pytestmark = pytest.mark.alone("two guests take two processors, and what they promise one another has limits of time")


def exchange():
    target = Path(os.environ.get("CARGO_TARGET_DIR", modes.ROOT / "target"))
    program = target / "release/examples/exchange"
    assert program.is_file(), f"{program} is not there: cargo build --release -p ofi --example exchange"
    return program


def library(name):
    """A library by its name, where the dynamic linker looks for it."""
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"):
        if (path := Path(folder) / name).exists():
            return path
    raise AssertionError(f"{name} is not installed: see tests/packages.txt")


@pytest.fixture(scope="module")
def pair():
    """Two guests with an RDMA device each, at 192.168.1.1 and .2."""
    runner = Runner("plain", None)
    net, kernel = qemu.Net(runner, "rdma"), qemu.kernel()
    assert shutil.which("rdma", path=f"{os.environ['PATH']}:/usr/sbin:/sbin"), "rdma (iproute2) is not installed"
    image = qemu.initramfs("rdma", kernel, [exchange(), qemu.program("rdma")], [library(name) for name in PLUGINS], FILES, MODULES)
    guests = []
    try:
        for number, name in ((1, "left"), (2, "right")):
            nic = qemu.nic(f"52:54:00:01:00:{number:02x}", 7030 + number, 7030 + 3 - number)
            guests.append(qemu.Guest(runner, net, name, kernel, image, [nic], memory=384))
        for number, guest in enumerate(guests, 1):
            guest.wait_booted()
            guest.run(f"""
                modprobe -a crc32_generic rdma_rxe ib_uverbs rdma_ucm
                ip addr add 192.168.1.{number}/24 dev eth0; ip link set eth0 up
                rdma link add rxe0 type rxe netdev eth0
            """)
            guest.until("rdma link show rxe0/1 | grep -q 'state ACTIVE'", 20)
        yield guests
    finally:
        for guest in guests:
            guest.stop()
    assert not (wrong := runner.finish()), wrong


def exchange_by_verbs(number):
    return f"OFI_PROVIDER=verbs OFI_ADDRESS=192.168.1.{number} exchange"


def listen(guest, number):
    """Starts the program that listens; its address."""
    guest.run(f"{exchange_by_verbs(number)} listen >/tmp/address 2>/tmp/listen.log &")
    return guest.until("grep . /tmp/address || { cat /tmp/listen.log; exit 1; }", 30).strip()


def test_bytes_go_by_verbs(pair):
    left, right = pair
    address = listen(right, 2)
    said = left.run(f"{exchange_by_verbs(1)} {address} check 20000 200 2>/tmp/log || {{ cat /tmp/log; exit 1; }}", 120)
    assert json.loads(said)["bytes"] > 1_000_000, said
    assert "by verbs on rxe0" in left.run("cat /tmp/log")
    counted = left.run("cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")
    assert int(counted) > 1000, "the packets went another way"
    for guest in pair:
        assert not guest.trouble()
