"""`shunt container`: what it writes, and what a container has by it. The mounts of the CDI file are made here as an engine makes them, in a mount namespace."""

import json
import os
import subprocess
import sys

import pytest

from harness import modes
from harness.runner import PATIENCE

# One end listens, in one container, and the other one comes from elsewhere.
ECHO = """
import socket
listener = socket.create_server(("127.0.0.1", %d))
while True:
    end = listener.accept()[0]
    while data := end.recv(100):
        end.sendall(data)
"""
ASK = """
import socket
end = socket.create_connection(("127.0.0.1", %d))
for i in range(20000):
    end.sendall(b"a" * 64)
    assert len(end.recv(64)) == 64
assert "libshunt.so" in open("/proc/self/maps").read()
"""


@pytest.fixture
def command(mode):
    if mode != "shunt":
        pytest.skip("one mode is enough")

    def run(*arguments):
        return subprocess.run([modes.command(), "container", *arguments], capture_output=True, text=True, timeout=60 * PATIENCE)

    return run


def written(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_it_writes_what_an_engine_needs_and_removes_it(command, tmp_path):
    done = command("--root", tmp_path, "--library", modes.library())
    assert done.returncode == 0 and "--device shunt.dev/shunt=on" in done.stderr
    assert written(tmp_path) == ["etc/cdi/shunt.json", "etc/shunt/ld.so.preload", "etc/tmpfiles.d/shunt.conf", "run/shunt/board"]
    assert (tmp_path / "run/shunt/board").stat().st_mode & 0o777 == 0o666
    assert (tmp_path / "etc/shunt/ld.so.preload").read_text() == "/opt/shunt/libshunt.so\n"
    file = json.loads((tmp_path / "etc/cdi/shunt.json").read_text())
    [device] = file["devices"]
    assert (file["kind"], device["name"]) == ("shunt.dev/shunt", "on")
    mounts = {mount["containerPath"]: (mount["hostPath"], mount["options"][0]) for mount in device["containerEdits"]["mounts"]}
    assert mounts == {
        "/opt/shunt/libshunt.so": (str(modes.library().resolve()), "ro"),
        "/etc/ld.so.preload": ("/etc/shunt/ld.so.preload", "ro"),
        "/run/shunt/board": ("/run/shunt/board", "rw"),
    }
    assert not (tmp_path / "run/shunt/meeting").exists()
    # An image of a host has the library at a place of its own.
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libshunt.so").write_bytes(modes.library().read_bytes())
    of_image = json.loads(command("--root", tmp_path, "--library", tmp_path / "lib/libshunt.so", "--print").stdout)
    assert of_image["devices"][0]["containerEdits"]["mounts"][0]["hostPath"] == "/lib/libshunt.so"
    (tmp_path / "lib/libshunt.so").unlink()
    # Again, as after an update, and what it prints is what it writes.
    assert command("--root", tmp_path, "--library", modes.library()).returncode == 0
    assert json.loads(command("--print", "--library", modes.library().resolve()).stdout) == file
    assert command("--root", tmp_path, "--remove").returncode == 0
    assert written(tmp_path) == []


def test_containers_meet_across_networks_only_where_that_was_asked_for(command, tmp_path):
    done = command("--meeting", "--root", tmp_path, "--library", modes.library())
    assert done.returncode == 0 and "--device shunt.dev/shunt=meeting" in done.stderr
    assert (tmp_path / "run/shunt/meeting").stat().st_mode & 0o7777 == 0o1777
    assert "d /run/shunt/meeting 1777 root root" in (tmp_path / "etc/tmpfiles.d/shunt.conf").read_text()
    plain, meets = json.loads((tmp_path / "etc/cdi/shunt.json").read_text())["devices"]
    mounts = [device["containerEdits"]["mounts"] for device in (plain, meets)]
    assert (plain["name"], meets["name"]) == ("on", "meeting") and mounts[1][:-1] == mounts[0]
    assert mounts[1][-1] == {"hostPath": "/run/shunt/meeting", "containerPath": "/run/shunt/meeting",
                             "options": ["rw", "bind", "nosuid", "nodev", "noexec"]}
    assert command("--root", tmp_path, "--remove").returncode == 0
    assert written(tmp_path) == [] and not (tmp_path / "run/shunt/meeting").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_the_doctor_looks_at_what_containers_get(r, command, tmp_path):
    """On a host of its own: with /etc and /run that are not the machine's."""
    if r.mode != "shunt":
        pytest.skip("one mode is enough")
    steps = f"""
        cp -a /etc {tmp_path}/etc; mount --bind {tmp_path}/etc /etc; mount -t tmpfs none /run
        rm -f /etc/cdi/shunt.json
        look() {{ {modes.command()} doctor --container | grep -A1 "  container " | sed "s/^/$1: /" || :; }}
        cp {modes.library()} /run/lib.so
        look none
        {modes.command()} container --library /run/lib.so
        look plain
        {modes.command()} container --meeting --library /run/lib.so
        look meeting
        chmod 755 /run/shunt/meeting; chmod 600 /run/shunt/board; rm /run/lib.so
        look broken
    """
    text = r.run(["unshare", "--mount", "--propagation", "private", "sh", "-ec", steps], plain=True).text
    for step, found in [
        ("none", "/etc/cdi/shunt.json is not there"),
        ("plain", "containers get Shunt by --device shunt.dev/shunt=on\n"),
        ("plain", "/run/shunt/board is there, for all users"),
        ("plain", "containers with networks of their own stay on TCP with each other"),
        ("meeting", "shunt.dev/shunt=on or =meeting"),
        ("meeting", "/run/shunt/meeting is there"),
        ("meeting", "SO_PASSRIGHTS"),
        ("meeting", "SYNs have them"),
        ("broken", "it mounts what is not there: /run/lib.so"),
        ("broken", "/run/shunt/board is no file that all users may write"),
        ("broken", "/run/shunt/meeting is no folder of mode 1777"),
    ]:
        assert any(line.startswith(f"{step}: ") and found in f"{line}\n" for line in text.split("\n")), (step, found, text)


@pytest.mark.parametrize("wrong, why", [
    (["--library", "/nowhere/libshunt.so"], "is not there"),
    (["--library", "/etc/passwd"], "is not an ELF file"),
    (["--root", "/proc/nowhere", "--library", "LIBRARY"], "/proc/nowhere"),
])
def test_what_is_wrong_is_said(command, wrong, why):
    done = command(*[str(modes.library()) if word == "LIBRARY" else word for word in wrong])
    assert done.returncode == 1 and why in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
@pytest.mark.parametrize("both", ["in_containers", "one_on_the_host"])
def test_programs_with_its_mounts_meet(r, command, tmp_path, both):
    """Each with a /dev/shm of its own, and no variable in its environment."""
    command("--root", tmp_path, "--library", modes.library())
    [device] = json.loads((tmp_path / "etc/cdi/shunt.json").read_text())["devices"]
    own = ["mount -t tmpfs none /dev/shm", "mount -t tmpfs none /run"]
    mounts = [f"cp -a /etc {tmp_path}/copy; mount --bind {tmp_path}/copy /etc; mount -t tmpfs none /opt"]
    for mount in device["containerEdits"]["mounts"]:
        source, place = mount["hostPath"], mount["containerPath"]
        source = source if source == str(modes.library().resolve()) else f"{tmp_path}{source}"
        # An engine makes the place in a layer of the container's.
        make = f"mkdir -p {place}" if os.path.isdir(source) else f"mkdir -p $(dirname {place}); : > {place}"
        mounts.append(f"{make}; mount --bind {source} {place}")
    host = ["mkdir /run/shunt; : > /run/shunt/board", f"mount --bind {tmp_path}/run/shunt/board /run/shunt/board",
            f"export LD_PRELOAD={modes.library()}"]
    place = lambda lines: ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join([*own, *lines, 'exec "$@"']), "sh"]  # noqa: E731
    port = r.free_port()
    server = r.spawn([*place(mounts), sys.executable, "-c", ECHO % port], env={"LD_PRELOAD": ""})
    r.wait_port(port, server)
    # From here it has another board, and from a shell with the host's the same one.
    doctor = [modes.command(), "doctor", "--pid", server.pid]
    assert "no board in common" in r.run(doctor, status=None).text
    assert "the same as that of programs here" in r.run([*place(host), *doctor], env={"LD_PRELOAD": ""}, status=None).text
    mounts[0] = mounts[0].replace("copy", "another")
    r.run([*place(mounts if both == "in_containers" else host), sys.executable, "-c", ASK % port], env={"LD_PRELOAD": ""})
    server.kill()
    r.accelerated()
