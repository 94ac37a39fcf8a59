"""The three ways in which every program is run.

plain: as it is. shunt: with libshunt.so preloaded. tcp: with libshunt.so preloaded and told to keep to TCP, which shows whether
the hooks alone change anything. What a program prints must be the same in all three.

far, for those who ask for it (--modes far): as shunt, but no two processes have a board in common, as if each were on a host of its own: an
agent introduces them, and bytes go by libfabric's tcp provider. The two processes of the programs in tests/apps are in two network namespaces. It takes a moment until a connection has moved, and a connection of a process with
itself does not: so nothing is asked about what was promoted.

users, for those who ask for it, as root: as shunt, but the clients of the programs in tests/apps are another user's than their servers.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

MODES = ("plain", "shunt", "tcp")
ON_DEMAND = ("far", "users")
ROOT = Path(__file__).resolve().parents[2]


def library():
    """The libshunt.so under test, or None: $SHUNT_LIB, else what `cargo build --release` makes."""
    if named := os.environ.get("SHUNT_LIB"):
        return Path(named).resolve() if Path(named).exists() else None
    built = ROOT / "target/release/libshunt.so"
    return built if built.exists() else None


def reachable(path):
    """Whether every user can come to `path`: programs of some tests change their user, and a checkout may lie in /root."""
    return all(part.stat().st_mode & 0o001 for part in path.resolve().parents)


def stage():
    """Where that is not so: copies the library to a folder that everybody can read, below the name of the profile that it was built with, and returns the folder, else
    None. The victim programs are to be built there, too."""
    if reachable(ROOT / "tests") and (library() is None or reachable(library())):
        return None
    folder = Path(tempfile.mkdtemp(prefix="shunt-staged-"))
    folder.chmod(0o755)
    if library():
        below = folder / library().parent.name
        below.mkdir()
        below.chmod(0o755)
        os.environ["SHUNT_LIB"] = shutil.copy(library(), below)
    return folder


def command():
    """The command `shunt`, or None: $SHUNT_COMMAND, else what `cargo build --release` makes."""
    path = Path(os.environ.get("SHUNT_COMMAND", ROOT / "target/release/shunt"))
    return path if path.exists() else None


def environment(mode, report):
    """The environment that makes a program run in `mode`, and the library count into `report`."""
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "SHUNT_LIB", "SHUNT_COMMAND", "SHUNT_PATH", "SHUNT_REPORT")}
    # C.UTF-8 and UTC: output that is compared must not depend on who runs the tests.
    env |= {"LC_ALL": "C.UTF-8", "TZ": "UTC"}
    if mode == "plain":
        return env
    env |= {"LD_PRELOAD": str(library()), "SHUNT_REPORT": str(report.path)}
    # Whoever has slept for a second although what it waits for is there ends its program.
    env["SHUNT_CHECK_SLEEPERS"] = "on"
    # However short and slow a test's connections are, they are to be promoted.
    env |= {"SHUNT_PROMOTE_AFTER": "2", "SHUNT_PROMOTE_RATE": "0"}
    if mode == "tcp":
        env["SHUNT_PATH"] = "tcp"
    if mode == "users":
        env["CLIENT_USER"] = str(pwd.getpwnam("daemon").pw_uid)
    if mode == "far":
        # What is written there is not there for anybody.
        env |= {"SHUNT_BOARD": "/dev/null", "SHUNT_FABRIC": "tcp"} | CLUSTER
    return env


CLUSTER = {"SHUNT_CLUSTER": "127.0.0.0/8,::1,10.76.0.0/16,fd76::/64"}


class Hosts:
    """What mode far needs: an agent, and, for programs that place their two processes there (tests/apps/pair.c), two more hosts, network namespaces that a veth joins."""

    def __init__(self):
        self.agents = []
        key = Path(tempfile.mkdtemp(prefix="shunt-key-")) / "key"
        subprocess.run([command(), "agent", "new-key", key], check=True)
        CLUSTER["SHUNT_CLUSTER_KEY"] = str(key)
        self.start_agent()
        self.names = [f"sm{os.getpid()}{end}" for end in "ab"] if os.geteuid() == 0 else []
        if self.names:
            first, second = self.names
            for name in self.names:
                ip("netns", "add", name)
            ip("link", "add", "wire", "netns", first, "type", "veth", "peer", "name", "wire", "netns", second)
            for number, name in enumerate(self.names, 1):
                ip("-n", name, "addr", "add", f"10.76.0.{number}/24", "dev", "wire")
                ip("-n", name, "addr", "add", f"fd76::{number}/64", "dev", "wire", "nodad")
                for device in ("lo", "wire"):
                    ip("-n", name, "link", "set", device, "up")
                self.start_agent("ip", "netns", "exec", name)
            CLUSTER["HOSTS"] = f"/run/netns/{first} /run/netns/{second} 10.76.0.1 fd76::1"

    def start_agent(self, *within):
        self.agents.append(subprocess.Popen([*within, command(), "agent", "run"], env=os.environ | CLUSTER, stderr=subprocess.DEVNULL))

    def stop(self):
        for agent in self.agents:
            agent.kill()
            agent.wait()
        for name in self.names:
            ip("netns", "del", name)


def ip(*argv):
    subprocess.run(["ip", *argv], check=True)
