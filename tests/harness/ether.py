"""Hosts for `shunt ether`: network namespaces joined by a wire of veths and a bridge, each with a daemon that is a host of one table.

    with Bed(4, "ethom") as bed:
        bed.start()                     daemons of all hosts; waits until each sees all others
        bed[1].reaches(bed[2])          a ping from the namespace of host 1
        bed[2].kill(); bed[2].start()

Hosts of driver "ethom-far" have no folder in common, as if each were a machine of its own: their ETHOM goes over the wire, by libfabric's tcp provider.

Everything is removed at the end, the namespaces too; nothing is left in the machine's own network.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from . import modes, system

PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
_numbers = itertools.count(1)


def shell(*argv, timeout=30, check=True, **more):
    """Runs a command to its end and returns it; a status other than 0 fails the test with what was printed."""
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=timeout * PATIENCE, **more)
    assert not check or done.returncode == 0, f"{' '.join(map(str, argv))}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


class Host:
    """One host: a namespace, and its daemon."""

    def __init__(self, bed, id):
        self.bed, self.id, self.daemon = bed, id, None
        self.options = ()  # of `shunt ether run`
        self.ns = f"{bed.prefix}h{id}"
        self.outer = f"192.168.77.{id}"  # its address on the wire
        self.ip, self.ip6 = f"10.9.1.{id}", f"fd09::{id}"  # on the interface
        self.mac = f"02:45:54:48:00:{id:02x}"
        self.log = bed.tmp / f"host-{id}.log"
        self.dir, self.table = (bed.tmp / f"run-{id}", bed.tmp / f"table-{id}.toml") if bed.far else (bed.dir, bed.table)
        self.environment = {} if not bed.far else {"SHUNT_FABRIC": "tcp", "SHUNT_CLUSTER_KEY": str(bed.tmp / "key")}

    def run(self, *argv, **more):
        return shell("ip", "netns", "exec", self.ns, *argv, **more)

    def ip_(self, *argv, **more):
        return shell("ip", "-n", self.ns, *argv, **more)

    def spawn(self, *argv, **more):
        program = subprocess.Popen(["ip", "netns", "exec", self.ns, *map(str, argv)], stdin=subprocess.DEVNULL, start_new_session=True, **more)
        self.bed.programs.append(program)
        return program

    def start(self, *before, **environment):
        """Starts the daemon, waits until it is ready, and gives the interface its addresses. before: in front of the command. Of the environment what is
        None is taken out."""
        with open(self.log, "a") as log:
            start = self.log.stat().st_size
            self.daemon = self.spawn(*before, modes.command(), "ether", "run", "--host", self.id, *self.options, self.table, stdout=log, stderr=log,
                                     env={name: value for name, value in (os.environ | self.environment | environment).items() if value is not None})
        ready = lambda: "is ready" in self.log.read_text()[start:] or self.daemon.poll() is not None
        system.until(ready, 10 * PATIENCE, f"host {self.id} is ready")
        assert self.daemon.poll() is None, self.log.read_text()
        for net in self.bed.nets:
            self.ip_("addr", "add", f"{self.ip}/24", "dev", net)
            self.ip_("addr", "add", f"{self.ip6}/64", "dev", net, "nodad")

    def kill(self):
        self.daemon.kill()
        self.daemon.wait()

    def stop(self):
        """Ends the daemon as systemd would; its exit status."""
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(10 * PATIENCE)

    def ether(self, *argv, **more):
        """`shunt ether ...` about this host."""
        return shell(modes.command(), "ether", *argv, "--dir", self.dir, "--host", self.id, **more)

    def stat(self):
        return json.loads(self.ether("stat", "--json").stdout)[0]

    def net(self, name=None):
        name = name or self.bed.nets[0]
        return next(net for net in self.stat()["nets"] if net["net"] == name)

    def peer(self, id, name=None):
        return next(peer for peer in self.net(name)["peers"] if peer["host"] == id)

    def sees(self, *ids):
        up = {peer["host"] for peer in self.net()["peers"] if peer["up"]}
        return up >= set(ids)

    def reaches(self, other, count=3, size=56, *more):
        """Whether `count` pings of another host, or an address, are answered within five seconds. (ping without -w takes an answer for
        lost that comes later than two others took.)"""
        to = other.ip if isinstance(other, Host) else other
        return self.run("ping", "-n", "-q", "-i", "0.02", "-w", "5", "-c", count, "-s", size, *more, to, check=False).returncode == 0

    def carrier(self):
        return "NO-CARRIER" not in self.ip_("link", "show", self.bed.nets[0]).stdout


class Bed:
    """Hosts 1 to `count`, of which `members` are in the table; `wire` is the MTU of what joins them. Further lines for the net and for hosts make its table."""

    def __init__(self, count, driver, net="", members=None, nets=("wire0",), wire=1500):
        self.prefix = f"se{os.getpid()}x{next(_numbers)}"
        self.tmp = Path(tempfile.mkdtemp(prefix="shunt-ether-"))
        self.dir, self.table = self.tmp / "run", self.tmp / "table.toml"
        self.far = driver == "ethom-far"
        self.driver, self.extra, self.nets, self.wire = driver.removesuffix("-far"), net, nets, wire
        self.programs, self.made = [], []
        self.hosts = {id: Host(self, id) for id in range(1, count + 1)}
        self.write(members or self.hosts)
        if self.far:
            shell(modes.command(), "agent", "new-key", self.tmp / "key")

    def __getitem__(self, id):
        return self.hosts[id]

    def write(self, members, net=None):
        """Writes the table."""
        lines = []
        for name in self.nets:
            lines += [f"[net.{name}]", f'driver = "{self.driver}"', self.extra if net is None else net]
        for id in members:
            lines += ["[[host]]", f"id = {id}"]
            if self.driver == "ethos":
                lines += [f'address.{name} = "192.168.77.{id}:{7471 + i}"' for i, name in enumerate(self.nets)]
            elif self.far:
                lines += [f'address.{name} = "192.168.77.{id}:{4771 + i}"' for i, name in enumerate(self.nets)]
        for host in self.hosts.values():
            host.table.write_text("\n".join([f'directory = "{host.dir}"', *lines]) + "\n")

    def namespace(self, name):
        shell("ip", "netns", "add", name)
        self.made.append(name)
        shell("ip", "-n", name, "link", "set", "lo", "up")

    def __enter__(self):
        try:
            wire = f"{self.prefix}w"
            self.namespace(wire)
            shell("ip", "-n", wire, "link", "add", "br0", "type", "bridge")
            shell("ip", "-n", wire, "link", "set", "br0", "up")
            for host in self.hosts.values():
                self.namespace(host.ns)
                shell("ip", "link", "add", "outer", "mtu", self.wire, "netns", host.ns, "type", "veth",
                      "peer", "name", f"p{host.id}", "mtu", self.wire, "netns", wire)
                shell("ip", "-n", wire, "link", "set", f"p{host.id}", "master", "br0", "up")
                host.ip_("addr", "add", f"{host.outer}/24", "dev", "outer")
                host.ip_("link", "set", "outer", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, *ids):
        ids = ids or tuple(self.hosts)
        for id in ids:
            self[id].start()
        self.until_all_see(*ids)

    def until_all_see(self, *ids, seconds=10):
        for id in ids:
            system.until(lambda: self[id].sees(*(other for other in ids if other != id)), seconds * PATIENCE, f"host {id} sees {ids}")

    def __exit__(self, *_):
        for program in self.programs:
            system.kill_group(program.pid)
            program.wait()
        for name in self.made:
            shell("ip", "netns", "del", name, check=False)
        shutil.rmtree(self.tmp, ignore_errors=True)

    def show(self):
        return "\n".join(f"--- host {host.id}\n{host.log.read_text()}" for host in self.hosts.values() if host.log.exists())


def within(seconds, condition, what):
    """How long it took until `condition`; fails when that was more than `seconds`."""
    start = time.monotonic()
    system.until(condition, seconds * PATIENCE, what)
    return time.monotonic() - start
