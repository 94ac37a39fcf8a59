"""Network namespaces on a bridge: all that the programs in them have in common is a folder."""

import os
import socket
import subprocess
import sys

import pytest

from .runner import PATIENCE
from .system import until

ROUTER = "10.78.0.1"
# The namespaces of a container but for that of networks, in which it is started; in a user namespace root is the user that it was.
CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--uts"]


class Bridge:
    """A namespace for each letter of `names`, and one more, which has the bridge and may do NAT."""

    def __init__(self, r, names="ab"):
        self.r = r
        self.address = {name: f"10.78.0.{at}" for at, name in enumerate(names, 2)}
        self.prefix = f"sm{os.getpid() % 100000}"
        self.router = f"{self.prefix}-r"
        self.meeting = r.tmp / "meeting"
        self.meeting.mkdir()
        self.meeting.chmod(0o1777)

    def __enter__(self):
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self):
        ip = lambda *argv: subprocess.run(["ip", *argv], check=True)  # noqa: E731
        ip("netns", "add", self.router)
        ip("-n", self.router, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.router, "addr", "add", f"{ROUTER}/24", "dev", "bridge")
        ip("-n", self.router, "link", "set", "bridge", "up")
        for name, address in self.address.items():
            ns = self.prefix + name
            ip("netns", "add", ns)
            ip("link", "add", f"to-{name}", "netns", self.router, "type", "veth", "peer", "name", "eth0", "netns", ns)
            ip("-n", self.router, "link", "set", f"to-{name}", "master", "bridge", "up")
            ip("-n", ns, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", ns, "link", "set", "eth0", "up")
            ip("-n", ns, "link", "set", "lo", "up")
            ip("-n", ns, "route", "add", "default", "via", ROUTER)

    def __exit__(self, *_):
        self.r.stop_all()
        for name in [self.router, *(self.prefix + name for name in self.address)]:
            subprocess.run(["ip", "netns", "del", name])

    def at(self, name, argv):
        return ["ip", "netns", "exec", self.prefix + name, *argv]

    def spawn(self, name, argv, env=None, before=(), **how):
        """before: a command that starts another one, outside of the namespace."""
        return self.r.spawn([*before, *self.at(name, argv)], env={"SHUNT_MEETING": str(self.meeting), **(env or {})}, **how)

    def run(self, name, argv, env=None, timeout=60, **how):
        return self.r.run(self.at(name, argv), env={"SHUNT_MEETING": str(self.meeting), **(env or {})}, timeout=timeout * PATIENCE, **how)

    def wait_port(self, name, port):
        """Until somebody listens there."""
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
        until(lambda: self.run(name, [sys.executable, "-c", probe], status=None, plain=True).status == 0, 20 * PATIENCE, f"port {port} answers")

    def publish(self, port, to, need, backends="a"):
        """NAT as for a published port, or for a service with several backends, one after the other: the address is another one for each
        end, and the port, too."""
        enter = ["ip", "netns", "exec", self.router]
        subprocess.run([*enter, "sysctl", "-q", "net.ipv4.ip_forward=1"], check=True)
        rules = []
        for at, name in enumerate(backends):
            turn = ["-m", "statistic", "--mode", "nth", "--every", str(len(backends) - at), "--packet", "0"]
            rules.append(["-A", "PREROUTING", "-p", "tcp", "--dport", str(port), *turn, "-j", "DNAT",
                          "--to-destination", f"{self.address[name]}:{to}"])
        rules.append(["-A", "POSTROUTING", "-p", "tcp", "--dport", str(to), "-j", "MASQUERADE", "--random-fully"])
        for rule in rules:
            subprocess.run([*enter, need("iptables"), "-t", "nat", *rule], check=True)


def keeps_descriptors_out():
    """Whether the kernel has SO_PASSRIGHTS (Linux 6.16): without it all stays on TCP."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        try:
            one.setsockopt(socket.SOL_SOCKET, 83, 0)
        except OSError:
            return False
    return True


def need_meeting(mode):
    """Skips a test where nothing can meet."""
    if mode != "shunt":
        pytest.skip("only with the library there is something to meet")
    if not keeps_descriptors_out():
        pytest.skip("the kernel is older than Linux 6.16, and has no SO_PASSRIGHTS: all stays on TCP")
