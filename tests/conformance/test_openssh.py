"""OpenSSH: sshd with its processes that share a connection, give up their rights and lock themselves in (seccomp); ssh, scp and sftp;
forwarded ports; one connection for many sessions; sessions on a terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

import pytest

from harness.conform import Steps, chosen
from harness.openssh import ONE_PROGRAM, Client, start_sshd
from harness.payload import checksum, payload
from harness.runner import PATIENCE
from harness.system import until

pytestmark = pytest.mark.conformance

MB = 1_000_000
# Connects to where it is told, and passes the connection on to ssh (ProxyUseFdpass).
PASSES = """
import array, socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
with socket.socket(fileno=1) as ssh:
    ssh.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))])
"""


def sessions(r, need):
    steps, ssh = Steps(), Client(r, need)
    start_sshd(r, need)
    data = (r.tmp / "data", payload(r.tmp / "data", 10 * MB))[0].read_bytes()
    with steps.step("status"):
        done = ssh.run("there", "echo out; echo err >&2; exit 3", status=3)
        assert (done.stdout, done.stderr) == (b"out\n", b"err\n"), done
    with steps.step("much output"):
        assert checksum(ssh.run("there", f"cat {r.tmp}/data").stdout) == checksum(data)
    with steps.step("much input"):
        assert ssh.run("there", "sha1sum", input=data).text.split()[0] == checksum(data)
    with steps.step("both ways"):
        ssh.there_and_back(data)
    with steps.step("again and again"):
        for i in range(5):
            assert ssh.run("there", f"echo {i}").text == f"{i}\n"
    return steps


def copies(r, need):
    steps, ssh = Steps(), Client(r, need)
    start_sshd(r, need, ONE_PROGRAM)
    wanted = payload(r.tmp / "data", 50 * MB)
    with steps.step("scp there"):
        ssh.run("-q", r.tmp / "data", f"there:{r.tmp}/there", program="scp")
        assert checksum(r.tmp / "there") == wanted
    with steps.step("scp back"):
        ssh.run("-q", f"there:{r.tmp}/there", r.tmp / "back", program="scp")
        assert checksum(r.tmp / "back") == wanted
    return steps


def more_copies(r, need):
    steps, ssh = Steps(), Client(r, need)
    start_sshd(r, need)
    wanted = payload(r.tmp / "data", 50 * MB)
    with steps.step("scp by its old protocol"):
        ssh.run("-q", "-O", r.tmp / "data", f"there:{r.tmp}/there", program="scp")
        ssh.run("-q", "-O", f"there:{r.tmp}/there", r.tmp / "back", program="scp")
        assert checksum(r.tmp / "there") == checksum(r.tmp / "back") == wanted
    with steps.step("scp between two servers, through us"):
        ssh.run("-q", "-3", f"there:{r.tmp}/data", f"there:{r.tmp}/third", program="scp")
        assert checksum(r.tmp / "third") == wanted
    with steps.step("scp of many files"):
        many = r.tmp / "many"
        many.mkdir()
        sums = {f"{i}": payload(many / f"{i}", 1000 * i) for i in range(100)}
        ssh.run("-q", "-r", many, f"there:{r.tmp}/copied", program="scp")
        assert {path.name: checksum(path) for path in (r.tmp / "copied").iterdir()} == sums
    with steps.step("sftp"):
        (r.tmp / "part").write_bytes((r.tmp / "data").read_bytes()[:20 * MB])
        (r.tmp / "batch").write_text(f"cd {r.tmp}\nput data sent\nrename sent renamed\nreget renamed part\nls -l renamed\nrm renamed\n")
        listed = ssh.run("-b", r.tmp / "batch", "there", program="sftp").text
        assert str(50 * MB) in listed and checksum(r.tmp / "part") == wanted and not (r.tmp / "renamed").exists()
    return steps


def ciphers(r, need):
    steps, ssh = Steps(), Client(r, need)
    start_sshd(r, need, ONE_PROGRAM)
    payload(r.tmp / "data", 20 * MB)
    data = (r.tmp / "data").read_bytes()
    for name, options in {"rekeying": ["-oRekeyLimit=1M"], "compression": ["-C"], "chacha20": ["-c", "chacha20-poly1305@openssh.com"],
                          "aes-gcm": ["-c", "aes128-gcm@openssh.com"], "aes-ctr and a mac": ["-c", "aes256-ctr", "-m", "hmac-sha2-256"]}.items():
        with steps.step(name):
            ssh.there_and_back(data, *options)
    with steps.step("compressible"):
        ssh.there_and_back(b"again and again\n" * 1_000_000, "-C")
    return steps


def forwarding(r, need):
    steps, ssh = Steps(), Client(r, need)
    start_sshd(r, need, ONE_PROGRAM)
    (r.tmp / "site").mkdir()
    wanted = payload(r.tmp / "site/data", 20 * MB)
    web, local, back, dynamic, echo = (r.free_port() for _ in range(5))
    r.server([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", r.tmp / "site", web], web)
    curl = [need("curl"), "-sS", "--max-time", "60"]

    def fetched(port, *options):
        return checksum(r.run([*curl, *options, f"http://127.0.0.1:{port}/data"], timeout=60).stdout)

    with steps.step("local"):
        r.server(ssh.command("-N", "-L", f"127.0.0.1:{local}:127.0.0.1:{web}", "there"), local)
        assert fetched(local) == wanted
    with steps.step("several at a time"):
        every = [[*curl, "-o", r.tmp / f"got-{i}", f"http://127.0.0.1:{local}/data"] for i in range(4)]
        for program in [r.spawn(argv) for argv in every]:
            assert program.wait(60) == 0
        assert {checksum(r.tmp / f"got-{i}") for i in range(4)} == {wanted}
    with steps.step("remote"):
        r.server(ssh.command("-N", "-R", f"127.0.0.1:{back}:127.0.0.1:{web}", "there"), back)
        assert fetched(back) == wanted
    with steps.step("dynamic"):
        r.server(ssh.command("-N", "-D", f"127.0.0.1:{dynamic}", "there"), dynamic)
        assert fetched(web, "--socks5-hostname", f"127.0.0.1:{dynamic}") == wanted
        assert fetched(web, "--socks4", f"127.0.0.1:{dynamic}") == wanted
    with steps.step("from standard input (-W)"):
        answer = ssh.run("-W", f"127.0.0.1:{web}", "there", input="GET /data HTTP/1.0\r\n\r\n").stdout
        assert checksum(answer.partition(b"\r\n\r\n")[2]) == wanted
    with steps.step("to nobody"):
        ssh.run("-W", f"127.0.0.1:{echo}", "there", status=255)
    with steps.step("over another host (-J)"):
        assert ssh.run("-J", "there", "beyond", "echo here").text == "here\n"
    return steps


def shared(r, need):
    """Many sessions over one connection; descriptors are passed to the process that has it."""
    steps, ssh = Steps(), Client(r, need)
    start_sshd(r, need)
    payload(r.tmp / "data", 5 * MB)
    data = (r.tmp / "data").read_bytes()
    control = ["-S", r.tmp / "control"]
    with steps.step("a master"):
        r.spawn(ssh.command("-M", "-N", *control, "there"))
        until(lambda: (r.tmp / "control").exists(), 30 * PATIENCE, "the master listens")
        assert ssh.run(*control, "-O", "check", "there")
    with steps.step("sessions in turn"):
        for i in range(10):
            assert ssh.run(*control, "there", f"echo {i}").text == f"{i}\n"
    with steps.step("much data"):
        ssh.there_and_back(data, *control)
    with steps.step("sessions at a time"):
        for program in [r.spawn(ssh.command(*control, "there", f"cat {r.tmp}/data")) for _ in range(6)]:
            assert program.wait(60) == 0
            assert checksum(program.result().stdout) == checksum(data)
    with steps.step("scp"):
        ssh.run("-q", "-o", f"ControlPath={r.tmp}/control", r.tmp / "data", f"there:{r.tmp}/copy", program="scp")
        assert checksum(r.tmp / "copy") == checksum(data)
    with steps.step("a port forwarded later"):
        web, port = r.free_port(), r.free_port()
        r.server([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", r.tmp, web], web)
        ssh.run(*control, "-O", "forward", "-L", f"127.0.0.1:{port}:127.0.0.1:{web}", "there")
        assert checksum(r.run([need("curl"), "-sS", f"http://127.0.0.1:{port}/data"]).stdout) == checksum(data)
    with steps.step("the end"):
        ssh.run(*control, "-O", "exit", "there")
        until(lambda: not (r.tmp / "control").exists(), 30 * PATIENCE, "the master ends")
    with steps.step("a connection that was passed on"):
        (r.tmp / "passes.py").write_text(PASSES)
        ssh.there_and_back(data, "-oProxyUseFdpass=yes", f"-oProxyCommand={sys.executable} {r.tmp}/passes.py %h %p")
    with steps.step("over a proxy command"):
        ssh.there_and_back(data, f"-oProxyCommand={need('ssh')} -F {r.tmp}/ssh_config -W %h:%p there")
    return steps


def terminal(r, need):
    """An interactive session, as somebody types it."""
    steps, ssh = Steps(), Client(r, need)
    start_sshd(r, need, ONE_PROGRAM)
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    program = r.spawn(ssh.command("-tt", "there", "PS1=ready: exec /bin/sh -i"), stdin=theirs, stdout=theirs)
    os.close(theirs)
    seen = b""

    def expect(text):
        nonlocal seen
        end = time.monotonic() + 30 * PATIENCE
        while text not in seen:
            assert select.select([ours], [], [], max(end - time.monotonic(), 0))[0], f"no {text} in {seen}"
            seen += os.read(ours, 4096)
        seen = seen.partition(text)[2]

    def type(text):
        os.write(ours, text)

    with steps.step("a command"):
        expect(b"ready:")
        type(b"echo $((6 * 7))\r")
        expect(b"42\r\n")
    with steps.step("size"):
        type(b"stty size\r")
        expect(b"24 80\r\n")
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", 50, 132, 0, 0))
        program.popen.send_signal(signal.SIGWINCH)
        type(b"while [ \"$(stty size)\" != '50 132' ]; do sleep 0.1; done; echo now $(stty size)\r")
        expect(b"now 50 132\r\n")
    with steps.step("interrupt"):
        type(b"sh -c 'echo sleeps; exec sleep 1000'\r")
        expect(b"sleeps\r\n")
        type(b"\x03")
        expect(b"ready:")
        type(b"echo status $?\r")
        expect(b"status 130\r\n")
    with steps.step("key by key"):
        for key in b"echo typed slowly | rev\r":
            type(bytes([key]))
            expect(bytes([key]))
        expect(b"ylwols depyt\r\n")
    with steps.step("much on the screen"):
        type(b"seq 1 20000; echo e''nd\r")
        expect(b"\r\n19999\r\n20000\r\nend\r\n")
    with steps.step("the end"):
        type(b"exit 7\r")
        assert program.wait(30) == 7
    os.close(ours)
    return steps


# Where ports are forwarded, connections move. sshd's own does not: a process that has locked itself in shares it.
MOVES = ["forwarding", "shared"]
SCENARIOS = {"sessions": sessions, "copies": copies, "more copies": more_copies, "ciphers": ciphers, "forwarding": forwarding,
             "shared": shared, "terminal": terminal}


@pytest.mark.parametrize("name", chosen(SCENARIOS, ["sessions", "copies"]))
def test_openssh(conform, need, name):
    conform(f"openssh {name}", lambda r: SCENARIOS[name](r, need), moves=name in MOVES)
