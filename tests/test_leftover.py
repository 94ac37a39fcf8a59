"""The addresses of a connection that a relay carries on (crates/sockets/src/relay.rs), beyond those of tests/apps/leftover.c: the host's
own, where the kernel takes its time to know them, and where it allows no new network namespaces."""

import os
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "apps/leftover.py"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")


def run(r, options, commands, *arguments, **more):
    """Runs the program in namespaces of its own, after shell commands that are not under Shunt."""
    env = r.environment()
    library = env.get("LD_PRELOAD")
    shell = "; ".join([*commands, 'exec env $PRELOAD "$@"'])
    r.run(["unshare", *options, "sh", "-ec", shell, "sh", sys.executable, PROGRAM, *arguments],
          env={"LD_PRELOAD": "", "PRELOAD": f"LD_PRELOAD={library}" if library else "PRELOAD=none", **more})
    r.accelerated()


@pytest.mark.parametrize("address", ["198.51.100.7", "127.3.4.5", "2001:db8::7"])
def test_addresses_stay(r, address):
    length = 128 if ":" in address else 32
    run(r, ["-n"], ["ip link set lo up", f"ip addr add {address}/{length} dev lo nodad"], address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_addresses_come_late(r, address):
    """The kernel makes an IPv6 address usable in work of its own, behind whatever else changes the network."""
    run(r, ["-n"], ["ip link set lo up"], address, LATE="200")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_no_namespaces(r, address):
    """The kernel has other ports for it then, of which no program under Shunt hears."""
    run(r, ["-r", "-n"], ["ip link set lo up", "echo 0 > /proc/sys/user/max_net_namespaces"], address)
