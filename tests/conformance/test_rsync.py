"""rsync: a daemon with modules, one behind a password; there, back, only what has changed, by checksum; over ssh. Both ends talk at once
all the time."""

import os
import shutil
import signal

import pytest

from harness.conform import Steps, chosen
from harness.openssh import Client, start_sshd
from harness.payload import checksum, payload

pytestmark = pytest.mark.conformance

MB = 1_000_000


def tree(folder):
    """Files of many sizes."""
    for i in range(60):
        place = folder / f"part {i % 7}"
        place.mkdir(parents=True, exist_ok=True)
        payload(place / f"file {i}", i * i * 800)
    payload(folder / "large", 20 * MB)
    (folder / "link").symlink_to("large")
    return sums(folder)


def sums(folder):
    return {str(path.relative_to(folder)): checksum(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def change(path):
    """A few bytes here and there, and another time: size and second alone would not tell."""
    later = path.stat().st_mtime + 10
    with open(path, "r+b") as file:
        for at in range(0, path.stat().st_size, 4 * MB):
            file.seek(at)
            file.write(b"changed")
    os.utime(path, (later, later))


def start_daemon(r, need):
    port, there = r.free_port(), r.tmp / "there"
    there.mkdir()
    (r.tmp / "secrets").write_text("tester:secret\n")
    (r.tmp / "password").write_text("secret\n")
    for name in ("secrets", "password"):
        (r.tmp / name).chmod(0o600)
    ids = "uid = root\ngid = root\n" if os.geteuid() == 0 else ""
    (r.tmp / "rsyncd.conf").write_text(f"""
use chroot = no
munge symlinks = no
pid file = {r.tmp}/rsyncd.pid
{ids}
[open]
    path = {there}
    read only = no
[locked]
    path = {there}
    read only = no
    auth users = tester
    secrets file = {r.tmp}/secrets
""")
    r.server([need("rsync"), "--daemon", "--no-detach", "--address=127.0.0.1", f"--port={port}", f"--config={r.tmp}/rsyncd.conf",
              "--log-file=/dev/stderr"], port, stop_signal=signal.SIGTERM)
    return f"rsync://127.0.0.1:{port}"


def daemon(r, need):
    steps, url = Steps(), start_daemon(r, need)
    wanted = tree(r.tmp / "here")
    rsync = [need("rsync"), "-a", "--timeout=60"]
    with steps.step("push"):
        r.run([*rsync, f"{r.tmp}/here/", f"{url}/open/"], timeout=60)
        assert sums(r.tmp / "there") == wanted
    with steps.step("pull"):
        r.run([*rsync, f"{url}/open/", f"{r.tmp}/back/"], timeout=60)
        assert sums(r.tmp / "back") == wanted
    with steps.step("nothing to do"):
        assert r.run([*rsync, "-i", f"{url}/open/", f"{r.tmp}/back/"], timeout=60).text == ""
    with steps.step("what has changed"):
        change(r.tmp / "here/large")
        told = r.run([*rsync, "-z", "--stats", "--no-whole-file", f"{r.tmp}/here/", f"{url}/open/"], timeout=60).text
        assert sums(r.tmp / "there") == sums(r.tmp / "here") and "Number of regular files transferred: 1\n" in told, told
    with steps.step("by checksum"):
        shutil.copystat(r.tmp / "here/large", r.tmp / "back/large")  # the same size and time, other bytes
        assert r.run([*rsync, "-n", "-i", f"{url}/open/", f"{r.tmp}/back/"], timeout=60).text == ""
        r.run([*rsync, "--checksum", f"{url}/open/", f"{r.tmp}/back/"], timeout=60)
        assert sums(r.tmp / "back") == sums(r.tmp / "here")
    return steps


def more(r, need):
    steps, url = Steps(), start_daemon(r, need)
    wanted = tree(r.tmp / "here")
    rsync = [need("rsync"), "-a", "--timeout=60"]
    with steps.step("list of modules"):
        assert [line.split()[0] for line in r.run([*rsync, f"{url}/"]).text.splitlines()] == ["open", "locked"]
    with steps.step("a wrong password"):
        (r.tmp / "wrong").write_text("guess\n")
        (r.tmp / "wrong").chmod(0o600)
        r.run([*rsync, f"--password-file={r.tmp}/wrong", f"{r.tmp}/here/", url.replace("//", "//tester@") + "/locked/"], status=5)
        assert not sums(r.tmp / "there")
    with steps.step("the password"):
        r.run([*rsync, f"--password-file={r.tmp}/password", f"{r.tmp}/here/", url.replace("//", "//tester@") + "/locked/"], timeout=60)
        assert sums(r.tmp / "there") == wanted
    with steps.step("deletion"):
        (r.tmp / "here/part 3/file 3").unlink()
        r.run([*rsync, "--delete", f"{r.tmp}/here/", f"{url}/open/"], timeout=60)
        assert sums(r.tmp / "there") == sums(r.tmp / "here")
    with steps.step("slowly"):
        r.run([*rsync, "--bwlimit=20M", f"{url}/open/large", f"{r.tmp}/slow"], timeout=60)
        assert checksum(r.tmp / "slow") == wanted["large"]
    with steps.step("the rest of a file"):
        (r.tmp / "slow").write_bytes((r.tmp / "slow").read_bytes()[:10 * MB])
        r.run([*rsync, "--append-verify", f"{url}/open/large", f"{r.tmp}/slow"], timeout=60)
        assert checksum(r.tmp / "slow") == wanted["large"]
    with steps.step("several at a time"):
        pulls = [r.spawn([*rsync, f"{url}/open/", f"{r.tmp}/many-{i}/"]) for i in range(4)]
        assert [pull.wait(60) for pull in pulls] == [0] * 4
        assert all(sums(r.tmp / f"many-{i}") == sums(r.tmp / "here") for i in range(4))
    with steps.step("what is not there"):
        r.run([*rsync, f"{url}/open/nothing", f"{r.tmp}/nothing"], status=23)
    return steps


def over_ssh(r, need):
    steps, ssh = Steps(), Client(r, need)
    start_sshd(r, need)
    wanted = tree(r.tmp / "here")
    rsync = [need("rsync"), "-a", "-e", " ".join(map(str, ssh.command()))]
    with steps.step("push"):
        r.run([*rsync, f"{r.tmp}/here/", f"there:{r.tmp}/there/"], timeout=60)
        assert sums(r.tmp / "there") == wanted
    with steps.step("pull"):
        r.run([*rsync, f"there:{r.tmp}/there/", f"{r.tmp}/back/"], timeout=60)
        assert sums(r.tmp / "back") == wanted
    with steps.step("what has changed"):
        change(r.tmp / "here/large")
        r.run([*rsync, "-z", f"{r.tmp}/here/", f"there:{r.tmp}/there/"], timeout=60)
        assert sums(r.tmp / "there") == sums(r.tmp / "here")
    return steps


SCENARIOS = {"daemon": daemon, "more of the daemon": more, "over ssh": over_ssh}


@pytest.mark.parametrize("name", chosen(SCENARIOS, ["daemon"]))
def test_rsync(conform, need, name):
    conform(f"rsync {name}", lambda r: SCENARIOS[name](r, need), moves=False)
