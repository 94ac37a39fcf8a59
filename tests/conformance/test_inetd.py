"""Servers that are started for a connection, which is their standard input and output, or for a listener that they find open: vsftpd and
sshd -i from inetd, and both ways of systemd's socket activation (systemd-socket-activate)."""

import os
import pwd
import signal
import sys

import pytest

from harness.conform import Steps, chosen
from harness.openssh import Client, sshd_config
from harness.payload import checksum, payload

pytestmark = pytest.mark.conformance

MB = 1_000_000
# Serves the listener that it was started with (sd_listen_fds), for ever.
SERVES_LISTENER = """
import os, socket, sys
assert os.environ["LISTEN_FDS"] == "1" and int(os.environ["LISTEN_PID"]) == os.getpid()
with socket.socket(fileno=3) as listener:
    while True:
        with listener.accept()[0] as connection:
            while data := connection.recv(65536):
                connection.sendall(data)
"""
# Serves the one connection that it was started with.
SERVES_CONNECTION = """
import os
while data := os.read(0, 65536):
    while data:
        data = data[os.write(1, data):]
"""
CLIENT = """
import hashlib, socket, sys, threading
data = open(sys.argv[2], "rb").read()
for i in range(3):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        for j in range(200):
            connection.sendall(b"%100d" % j)
            assert connection.recv(100, socket.MSG_WAITALL) == b"%100d" % j
        def send():
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        thread = threading.Thread(target=send)
        thread.start()
        digest = hashlib.sha1()
        while back := connection.recv(65536):
            digest.update(back)
        thread.join()
        print(digest.hexdigest())
"""


def start_inetd(r, need, port, program, *arguments):
    """inetd with one service, which it starts anew for each connection."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    line = " ".join(map(str, [program, *arguments]))
    (r.tmp / "inetd.conf").write_text(f"127.0.0.1:{port} stream tcp nowait.1000 {user} {need(program)} {line}\n")
    r.server([need("inetd"), "-i", "-d", r.tmp / "inetd.conf"], port)


def sshd(r, need):
    steps, ssh, port = Steps(), Client(r, need), r.free_port()
    config = sshd_config(r, need, port)
    start_inetd(r, need, port, "sshd", "-i", "-E", r.tmp / "sshd.log", "-f", config)
    wanted = payload(r.tmp / "data", 20 * MB)
    with steps.step("a session"):
        assert ssh.run("there", "echo here; exit 3", status=3).text == "here\n"
    with steps.step("both ways"):
        ssh.there_and_back((r.tmp / "data").read_bytes())
    with steps.step("scp"):
        ssh.run("-q", r.tmp / "data", f"there:{r.tmp}/copy", program="scp")
        assert checksum(r.tmp / "copy") == wanted
    with steps.step("several at a time"):
        sessions = [r.spawn(ssh.command("there", f"sha1sum < {r.tmp}/data")) for _ in range(4)]
        assert [session.wait(60) for session in sessions] == [0] * 4
        assert {session.result().text.split()[0] for session in sessions} == {wanted}
    return steps


def vsftpd_config(r, **more):
    site = r.tmp / "ftp"
    site.mkdir()
    (site / "incoming").mkdir()
    (site / "incoming").chmod(0o777)
    (r.tmp / "empty").mkdir()
    options = {"anonymous_enable": "YES", "anon_root": site, "write_enable": "YES", "anon_upload_enable": "YES", "no_anon_password": "YES",
               "anon_umask": "022", "secure_chroot_dir": r.tmp / "empty", "xferlog_enable": "NO",
               "run_as_launching_user": "NO" if os.geteuid() == 0 else "YES", **more}
    (r.tmp / "vsftpd.conf").write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    (r.tmp / "vsftpd.conf").chmod(0o644)
    return site, r.tmp / "vsftpd.conf"


def transfers(r, need, port, site):
    """What an FTP server is for; by curl, in passive and active mode."""
    steps, url = Steps(), f"ftp://127.0.0.1:{port}"
    wanted = payload(site / "data", 20 * MB)
    (r.tmp / "data").write_bytes((site / "data").read_bytes())
    curl = [need("curl"), "-sS", "--max-time", "60"]
    with steps.step("list"):
        assert r.run([*curl, "-l", f"{url}/"]).text.split() == ["data", "incoming"]
    with steps.step("passive"):
        assert checksum(r.run([*curl, f"{url}/data"], timeout=60).stdout) == wanted
    with steps.step("active"):
        assert checksum(r.run([*curl, "--ftp-port", "127.0.0.1", f"{url}/data"], timeout=60).stdout) == wanted
    with steps.step("the rest of a file"):
        (r.tmp / "part").write_bytes((site / "data").read_bytes()[:7 * MB])
        r.run([*curl, "-C", "-", "-o", r.tmp / "part", f"{url}/data"], timeout=60)
        assert checksum(r.tmp / "part") == wanted
    with steps.step("upload"):
        r.run([*curl, "-T", r.tmp / "data", f"{url}/incoming/sent"], timeout=60)
        assert checksum(site / "incoming/sent") == wanted
    with steps.step("several over one connection"):
        got = r.run([*curl, *[f"{url}/data"] * 3], timeout=60).stdout
        assert {checksum(got[at:at + 20 * MB]) for at in range(0, len(got), 20 * MB)} == {wanted}
    return steps


def vsftpd(r, need):
    port = r.free_port()
    site, config = vsftpd_config(r)
    start_inetd(r, need, port, "vsftpd", config)
    return transfers(r, need, port, site)


def vsftpd_alone(r, need):
    port = r.free_port()
    site, config = vsftpd_config(r, listen="YES", listen_ipv6="NO", listen_address="127.0.0.1", listen_port=port, background="NO")
    r.server([need("vsftpd"), config], port)
    return transfers(r, need, port, site)


def echoes(r, need, port):
    wanted = payload(r.tmp / "data", 5 * MB)
    told = r.run([sys.executable, "-c", CLIENT, port, r.tmp / "data"], timeout=60).text
    # The client's three runs, each of them 200 small messages and the data.
    assert told.split() == [wanted] * 3
    return Steps({"small messages and large ones": "passed"})


def listener(r, need):
    port = r.free_port()
    (r.tmp / "serves.py").write_text(SERVES_LISTENER)
    activate(r, need, port, sys.executable, r.tmp / "serves.py")
    return echoes(r, need, port)


def connection(r, need):
    port = r.free_port()
    (r.tmp / "serves.py").write_text(SERVES_CONNECTION)
    activate(r, need, port, "--accept", "--inetd", sys.executable, r.tmp / "serves.py")
    return echoes(r, need, port)


def sshd_activated(r, need):
    steps, ssh, port = Steps(), Client(r, need), r.free_port()
    config = sshd_config(r, need, port)
    activate(r, need, port, "--accept", "--inetd", need("sshd"), "-i", "-E", r.tmp / "sshd.log", "-f", config)
    payload(r.tmp / "data", 20 * MB)
    with steps.step("both ways"):
        ssh.there_and_back((r.tmp / "data").read_bytes())
    return steps


def activate(r, need, port, *words):
    """Not r.server(): whoever connects first starts the program."""
    library = [f"--setenv={name}" for name in r.environment() if name in ("LD_PRELOAD",) or name.startswith("SHUNT_")]
    program = r.spawn([need("systemd-socket-activate"), "-l", f"127.0.0.1:{port}", *library, *words], stop_signal=signal.SIGTERM)
    r.wait_listening(port, program)


SCENARIOS = {"inetd, sshd": sshd, "inetd, vsftpd": vsftpd, "vsftpd by itself": vsftpd_alone, "activated by listener": listener,
             "activated by connection": connection, "activated by connection, sshd": sshd_activated}
# A connection that crosses exec() stays on tcp. Those of a listener that does so are the program's own.
MOVES = ["activated by listener"]


@pytest.mark.parametrize("name", chosen(SCENARIOS, ["inetd, sshd", "activated by listener"]))
def test_inetd(conform, need, name):
    conform(name, lambda r: SCENARIOS[name](r, need), moves=name in MOVES)
