"""Hosts of a cluster, and one outside of it: network namespaces on one bridge, each with its agent, its programs, and nothing else in common."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import modes, system
from .report import Report

PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
NETWORKS = "10.77.1.0/24"


class Host:
    def __init__(self, cluster, name, address):
        self.cluster, self.name, self.address = cluster, name, address
        self.ns = f"{cluster.prefix}{name}"
        self.agent = None
        self.reports = 0
        self.user = []

    def within(self, argv):
        return ["ip", "netns", "exec", self.ns, *self.user, *map(str, argv)]

    def be_used_by(self, name):
        """Agent and programs are this user's, who may write the cluster's files."""
        self.user = ["setpriv", "--reuid", name, "--regid", name, "--init-groups", "env", "-C", "/", f"HOME={self.cluster.tmp}"]
        self.cluster.tmp.chmod(0o777)
        shutil.chown(self.cluster.key, name)

    def environment(self, **more):
        # No board in common: what is written there is there for nobody.
        own = {"SHUNT_CLUSTER": NETWORKS, "SHUNT_CLUSTER_KEY": str(self.cluster.key), "SHUNT_FABRIC": "tcp", "SHUNT_BOARD": "/dev/null"}
        return {k: v for k, v in os.environ.items() if not k.startswith("SHUNT_")} | own | {k: str(v) for k, v in more.items()}

    def start_agent(self, **more):
        self.log = self.cluster.tmp / f"agent-{self.name}.log"
        with open(self.log, "ab") as log:
            self.agent = subprocess.Popen(self.within([modes.command(), "agent", "run"]), env=self.environment(**more), stderr=log)
        system.until(lambda: self.status() is not None, 10 * PATIENCE, f"the agent of {self.name} answers")
        return self.agent

    def kill_agent(self):
        self.agent.kill()
        self.agent.wait()

    def status(self):
        done = subprocess.run(self.within([modes.command(), "agent", "status", "--json"]), capture_output=True, env=self.environment())
        return json.loads(done.stdout) if done.returncode == 0 else None

    def spawn(self, script, *args, **how):
        """A Python program; how: see `run`."""
        return self.run([sys.executable, "-c", script, *args], **how)

    def run(self, argv, plain=False, **more):
        """A program in the background, under Shunt unless `plain`; its counters are in .report. `more`: of its environment."""
        self.reports += 1
        report = Report(self.cluster.tmp / f"report-{self.name}-{self.reports}")
        env = self.environment(**more)
        log = self.cluster.tmp / f"log-{self.name}-{self.reports}"
        if not plain:
            env |= {"SHUNT_LOG": str(log), "SHUNT_LOG_LEVEL": "debug"}
            env |= {"LD_PRELOAD": str(modes.library()), "SHUNT_REPORT": str(report.path), "SHUNT_PROMOTE_AFTER": "2", "SHUNT_PROMOTE_RATE": "0"}
        program = subprocess.Popen(self.within(argv), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        program.report, program.log = report, log
        self.cluster.programs.append(program)
        return program


class Cluster:
    """`with Cluster("abc") as hosts:` a dictionary of hosts by these names; a name in capitals is outside."""

    made = 0

    def __init__(self, names):
        # Each has names of its own: the kernel takes its time to remove devices.
        Cluster.made += 1
        self.prefix = f"sf{os.getpid() % 10000}{Cluster.made:x}"
        self.tmp = Path(tempfile.mkdtemp(prefix="shunt-far-"))
        self.key = self.tmp / "key"
        self.names, self.programs = names, []

    def __enter__(self):
        subprocess.run([modes.command(), "agent", "new-key", self.key], check=True)
        run = lambda *argv: subprocess.run(["ip", *argv], check=True)
        self.bridge = f"{self.prefix}br"
        run("link", "add", self.bridge, "type", "bridge")
        run("link", "set", self.bridge, "up")
        self.hosts = {}
        for number, name in enumerate(self.names, 1):
            # Those outside have another address on the same wire.
            host = Host(self, name, f"10.77.{2 if name.isupper() else 1}.{number}")
            run("netns", "add", host.ns)
            run("link", "add", f"{self.prefix}v{number}", "type", "veth", "peer", "name", "eth0", "netns", host.ns)
            run("link", "set", f"{self.prefix}v{number}", "master", self.bridge, "up")
            run("-n", host.ns, "addr", "add", f"{host.address}/16", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("-n", host.ns, "link", "set", device, "up")
            self.hosts[name] = host
        return self.hosts

    def __exit__(self, *_):
        for program in self.programs:
            program.kill()
            program.wait()
        for host in self.hosts.values():
            if host.agent:
                host.kill_agent()
            subprocess.run(["ip", "netns", "del", host.ns])
        subprocess.run(["ip", "link", "del", self.bridge])
