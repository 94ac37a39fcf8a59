"""`shunt container` with an engine that reads its file: containers that Podman starts with `--device shunt.dev/shunt=...`, and nothing else, have
their connections in memory."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from harness import modes, system
from harness.bridge import keeps_descriptors_out
from harness.runner import PATIENCE

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="containers with bridges need root"),
    pytest.mark.alone("an engine, its bridge and its address translation"),
]

# In a mount namespace of their own, which all calls of Podman share: /etc, which has the CDI file and the engine's networks, and /run.
SETUP = """
cp -a /etc {tmp}/etc; mount --bind {tmp}/etc /etc; mount -t tmpfs none /run; mount -t tmpfs none /var/lib/cni || :
rm -f /etc/cdi/shunt.json
{shunt} container --meeting --library {library}
echo ready
exec sleep infinity
"""


def image(root, programs):
    """A root file system with these programs, and what they are linked with."""
    for name in ("proc", "sys", "dev", "etc", "run", "tmp", "bin"):
        (root / name).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    for program in programs:
        shutil.copy(os.path.realpath(program), root / "bin" / Path(program).name)
        for library in subprocess.check_output(["ldd", os.path.realpath(program)], text=True).split():
            if library.startswith("/") and not (root / library[1:]).exists():
                (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(os.path.realpath(library), root / library[1:])


class Podman:
    def __init__(self, r, need):
        self.r, self.program = r, need("podman")
        self.root = r.tmp / "image"
        image(self.root, [need("redis-server"), need("redis-benchmark")])
        steps = SETUP.format(tmp=r.tmp, shunt=modes.command(), library=modes.library())
        self.place = r.spawn(["unshare", "--mount", "--propagation", "private", "sh", "-ec", steps], plain=True, stop_signal=signal.SIGKILL)
        system.until(lambda: "ready" in self.place.output() or not self.place.alive(), 20 * PATIENCE, "the place of the containers is made")
        assert self.place.alive(), self.place.output()
        works = self.call("info", status=None)
        if works.status:
            pytest.skip(f"podman does not work here: {works.stderr.decode().strip()}")

    def call(self, *argv, **how):
        state = ["--root", self.r.tmp / "storage", "--runroot", "/run/podman-test", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs",
                 "--events-backend", "none", "--runtime", "runc"]
        return self.r.run(["nsenter", "-t", self.place.pid, "-m", self.program, *state, *argv], plain=True, timeout=60, **how)

    def start(self, name, device, *argv, options=(), wait=False):
        report = ["--volume", f"{self.r.report.path}:/report", "--env", "SHUNT_REPORT=/report"]
        # What the engine sets otherwise may be more than this login has, and where it logs may not be there.
        how = ["--rm" if wait else "--detach", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--log-driver", "k8s-file"]
        return self.call("run", *how, "--name", name, "--device", f"shunt.dev/shunt={device}", *report, *options, "--rootfs", self.root, *argv).text

    def address(self, name):
        return self.call("inspect", "--format", "{{.NetworkSettings.IPAddress}}", name).text.strip()


@pytest.fixture
def podman(r, mode, need):
    if mode != "shunt":
        pytest.skip("only with the library there is something to see")
    podman = Podman(r, need)
    yield podman
    podman.call("rm", "--all", "--force", "--time", "0", status=None)
    # The engine's own.
    Path("/dev/shm/libpod_lock").unlink(missing_ok=True)


SERVER = ["redis-server", "--save", "", "--protected-mode", "no", "--bind", "0.0.0.0"]
BENCHMARK = ["redis-benchmark", "-c", "10", "-n", "50000", "-t", "set,get", "-q"]


def is_measured(text):
    return re.search(r"SET: [\d.]+ requests", text) and re.search(r"GET: [\d.]+ requests", text)


@pytest.mark.parametrize("device", ["meeting", "on"])
def test_containers_with_the_device_move_their_connections(podman, device):
    """With networks of their own: by the meeting place, and not without it. By a published port, too."""
    podman.start("server", device, *SERVER, options=["--publish", "7080:6379"])
    assert is_measured(podman.start("client", device, *BENCHMARK, "-h", podman.address("server"), wait=True))
    moved = podman.r.report.promoted
    if device == "on" or not keeps_descriptors_out():
        assert moved == 0, podman.r.report
        return
    # Both ends of ten for each command; a proof may fail because of how a program happened to read.
    assert moved >= 30, podman.r.report
    gateway = podman.address("server").rsplit(".", 1)[0] + ".1"
    assert is_measured(podman.start("other", device, *BENCHMARK, "-h", gateway, "-p", "7080", wait=True))
    assert podman.r.report.promoted - moved >= 30, podman.r.report


def test_one_pod_needs_the_board_only(podman):
    podman.start("server", "on", *SERVER)
    assert is_measured(podman.start("client", "on", *BENCHMARK, "-h", "127.0.0.1", options=["--network", "container:server"], wait=True))
    assert podman.r.report.promoted >= 40, podman.r.report


def test_musl_is_told_by_the_environment(podman, musl_apps):
    """It reads no /etc/ld.so.preload: an image as Alpine's, with the device and without the variable, stays on TCP."""
    linker = "lib/ld-musl-x86_64.so.1"
    for file, place in (musl_apps("echo"), "bin/echo"), (f"/{linker}", linker):
        (podman.root / place).parent.mkdir(exist_ok=True)
        shutil.copy(file, podman.root / place)
    for variables, moves in ([], False), (["--env", "LD_PRELOAD=/opt/shunt/libshunt.so"], True):
        podman.start("alone", "on", "/bin/echo", "small_messages", options=["--env", "WARM=400", *variables], wait=True)
        assert (podman.r.report.promoted > 0) == moves, podman.r.report
