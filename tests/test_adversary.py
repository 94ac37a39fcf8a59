"""Attacks by a second and a third user of the machine, in and out of user namespaces, with hostile descriptors, before and after a change of user: what
docs/security.md says. The attacker's side is harness/hostile.py. Needs root, to be others; `make test TEST_ONLY=adversary`.

Each test fails if what it is there for is taken out; one (let_in) is the control that the attacker knows the protocol.
"""

import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from harness import system

ALICE, BOB, MALLORY = 61001, 61002, 61003
PYTHON = "/usr/bin/python3"
HOSTILE = Path(__file__).parent / "harness/hostile.py"
SANDBOXED, NEW_RIGHTS = 38, 47

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")

# Echoes, by one thread that waits for all; says nothing.
SERVER = """
import selectors, socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(512)
sel = selectors.DefaultSelector(); sel.register(s, 1)
if len(sys.argv) > 2:
    import fcntl
    held = open(sys.argv[2], "r+"); fcntl.lockf(held, fcntl.LOCK_EX)
while True:
    for key, _ in sel.select():
        if key.fileobj is s:
            sel.register(s.accept()[0], 1)
            continue
        try:
            data = key.fileobj.recv(65536)
            key.fileobj.sendall(data)
        except OSError:
            data = b""
        if not data:
            sel.unregister(key.fileobj); key.fileobj.close()
"""

# Sends a secret for so long, and reads it back.
CLIENT = """
import socket, sys, time
c = socket.create_connection(("127.0.0.1", int(sys.argv[1]))); c.settimeout(10)
end, count = time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < end:
    said = b"PASSWORD=hunter2 %06d" % count
    c.sendall(said)
    assert c.recv(100) == said, "an answer that the server has not given"
    count += 1
    if count > 200: time.sleep(0.0005)
"""

# Counts its own rounds.
PING = """
import socket, sys, time
c = socket.create_connection(("127.0.0.1", int(sys.argv[1]))); c.settimeout(5)
worst = 0
for _ in range(int(sys.argv[2])):
    begun = time.monotonic()
    c.sendall(b"x" * 16); assert c.recv(100)
    worst = max(worst, time.monotonic() - begun)
print(worst)
"""


class Scene:
    """Programs of several users on one board of their own."""

    def __init__(self, r):
        self.r = r
        self.room = r.tmp / "room"
        self.room.mkdir()
        self.room.chmod(0o1777)
        hostile = self.room / "hostile.py"
        hostile.write_bytes(HOSTILE.read_bytes())
        self.hostile = hostile
        self.env = {"SHUNT_BOARD": str(self.room / "board"), "ATTACKER": str(MALLORY)}
        self.port = system.free_port()

    def as_user(self, uid, argv, **how):
        argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *map(str, argv)] if uid else argv
        return self.r.spawn(argv, env=self.env | how.pop("env", {}), cwd=self.room, **how)

    def serve(self, uid, *args, within=(), **how):
        program = self.as_user(uid, [*within, PYTHON, "-c", SERVER, self.port, *args], name="server", **how)
        self.r.wait_port(self.port, program)
        return program

    def attack(self, what, *more, uid=MALLORY, wait=True, seconds=60):
        program = self.as_user(uid, [PYTHON, self.hostile, what, self.port, *more], name=what, plain=True)
        if wait:
            assert program.wait(seconds) == 0, program.output()
        return program

    def ping(self, uid, rounds=2000, **how):
        """Rounds of an honest user; the longest took so many seconds."""
        program = self.as_user(uid, [PYTHON, "-c", PING, self.port, rounds], name="ping", **how)
        assert program.wait(60) == 0, program.output()
        return float(program.result().text)


def seen(program):
    return [json.loads(line) for line in program.result().text.splitlines()]


def until_said(program, count=1):
    """Until it has seen so many things."""
    system.until(lambda: len(program.out.read_text().splitlines()) >= count or not program.alive(), 60, f"{program.name} has seen {count}")
    assert len(program.out.read_text().splitlines()) >= count, program.output()
    return seen(program)


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def addresses(pid):
    """Kilobytes of addresses."""
    return int(next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmSize")).split()[1])


@pytest.fixture
def scene(r):
    return Scene(r)


def only_in(r, *modes):
    """There is nothing to attack where nothing is moved: the stage runs in mode shunt."""
    if r.mode not in modes:
        pytest.skip("an attack on memory")


# ---- nothing before proof ----


def test_one_with_a_connection_is_let_in(r, scene):
    only_in(r, "shunt")
    scene.serve(ALICE)
    came, state = seen(scene.attack("let_in"))
    assert came["answer"]["bytes"] > 0
    assert came["answer"]["descriptors"] == 1, "memory, and no bells to another user"
    assert state == {"state": 1}, "the offer was not taken"


def test_one_without_a_connection_gets_no_answer_and_costs_nothing(r, scene):
    only_in(r, "shunt")
    server = scene.serve(ALICE)
    honest = scene.as_user(BOB, [PYTHON, "-c", CLIENT, scene.port, 12], name="client", plain=True)
    system.until(lambda: (scene.room / "board").exists(), 20, "the server has posted")
    time.sleep(0.3)
    before = descriptors(server.pid), addresses(server.pid)
    said = seen(scene.attack("nobody"))
    assert len(said) > 1, "there was nobody to attack"
    assert all(it["answer"] is None or it["answer"] == "silence" for it in said), said
    after = descriptors(server.pid), addresses(server.pid)
    assert after[0] <= before[0] + 8 and after[1] < before[1] + 10_000, (before, after)
    assert honest.wait(30) == 0, honest.output()
    # Strangers are sent away, sooner or later.
    system.until(lambda: scene.ping(BOB, 50, plain=True) and descriptors(server.pid) <= before[0] + 1, 20, "all are gone")


def test_silent_strangers_are_few_and_keep_nobody_out(r, scene):
    only_in(r, "shunt")
    server = scene.serve(ALICE)
    scene.ping(BOB)
    before = descriptors(server.pid)
    silent = scene.attack("silent", wait=False)
    assert until_said(silent)[0]["open"] > 100
    # One of its own connection; at most eight that wait to be heard, each with its socket.
    assert descriptors(server.pid) <= before + 1 + 8
    promoted = r.report.promoted
    system.until(lambda: scene.ping(BOB, 500) and r.report.promoted > promoted, 30, "an honest user is let in beside them")
    silent.kill()


def test_a_connection_brings_one_link_and_takes_it_away(r, scene):
    only_in(r, "shunt")
    server = scene.serve(ALICE)
    honest = scene.as_user(BOB, [PYTHON, "-c", CLIENT, scene.port, 60], name="client", plain=True)
    time.sleep(0.5)
    before = descriptors(server.pid), addresses(server.pid)
    attack = scene.attack("again", wait=False)
    system.until(lambda: "done" in attack.out.read_text() or not attack.alive(), 60, "the attack is over")
    answers = [it["answer"] for it in seen(attack)[:-1]]
    assert answers[0] and not any(answers[1:]), answers
    assert addresses(server.pid) - before[1] < 3 * 570_000, "more than one link's memory"
    attack.kill()
    # The honest connection stays on tcp, posted: so somebody looks.
    system.until(lambda: descriptors(server.pid) <= before[0], 20, "what the attacker had is given back")
    assert addresses(server.pid) < before[1] + 100_000
    honest.kill()


# ---- who somebody is ----


NAMESPACE = ["unshare", "-U", "--map-root-user"]


@pytest.mark.parametrize("within", [[], NAMESPACE], ids=["plain", "user-namespace"])
def test_nobody_takes_a_connection_of_which_it_has_no_end(r, scene, within):
    only_in(r, "shunt")
    scene.serve(BOB, plain=True)
    victim = scene.as_user(ALICE, [*within, PYTHON, "-c", CLIENT, scene.port, 8], name="victim")
    attack = scene.attack("between")
    found, *came = seen(attack)
    assert found["posts"] and found["cookies"], "there was nothing to attack"
    assert came and not any(isinstance(it["answer"], dict) for it in came), came
    assert victim.wait(30) == 0, victim.output()


@pytest.mark.parametrize("within", [[], NAMESPACE], ids=["plain", "user-namespace"])
@pytest.mark.parametrize("uid", [MALLORY, 0], ids=["user", "listener-of-root"])
def test_nothing_is_said_to_one_who_posts_anothers_end(r, scene, within, uid):
    only_in(r, "shunt")
    scene.serve(BOB, plain=True)
    victim = scene.as_user(ALICE, [*within, PYTHON, "-c", CLIENT, scene.port, 8], name="victim")
    system.until(lambda: (scene.room / "board").exists(), 20, "the victim has posted")
    attack = scene.attack("poster", uid=uid)
    found, came = seen(attack)
    assert found["victim"], "there was nothing to attack"
    assert came["uid"] == MALLORY
    assert not any(isinstance(it, dict) for it in came["came"]), came
    assert victim.wait(30) == 0, victim.output()


def test_users_that_are_known_still_meet(r, scene):
    only_in(r, "shunt")
    scene.serve(ALICE)
    scene.ping(BOB)
    r.accelerated()


def test_one_user_still_meets_itself_within_a_user_namespace(r, scene):
    only_in(r, "shunt")
    # Both within one namespace: the command that makes it starts both.
    both = f"""
import subprocess, sys
server = subprocess.Popen([{PYTHON!r}, "-c", {SERVER!r}, sys.argv[1]])
import time; time.sleep(1)
done = subprocess.run([{PYTHON!r}, "-c", {PING!r}, sys.argv[1], "2000"])
server.kill(); sys.exit(done.returncode)
"""
    program = scene.as_user(ALICE, [*NAMESPACE, PYTHON, "-c", both, scene.port])
    assert program.wait(60) == 0, program.output()
    r.accelerated()


# ---- bells and descriptors ----


def test_bells_of_another_user_are_not_taken(r, scene):
    only_in(r, "shunt")
    scene.serve(ALICE)
    assert not isinstance(seen(scene.attack("with_bells"))[0]["answer"], dict)
    assert scene.ping(BOB) < 2


def test_a_tripwire_that_asks_for_a_bell_holds_nobody_up(r, scene):
    only_in(r, "shunt")
    server = scene.serve(ALICE)
    attack = scene.attack("armed", wait=False)
    assert until_said(attack, 3)[2]["written"] > 0, "the ring was not used"
    assert scene.ping(BOB, 200) < 2
    assert server.alive()
    attack.kill()


def test_bells_of_another_user_that_are_passed_later_are_not_taken(r, scene):
    only_in(r, "shunt")
    server = scene.serve(ALICE)
    attack = scene.attack("armed", "12", "passed", wait=False)
    assert until_said(attack, 3)[2]["written"] > 0, "the ring was not used"
    assert scene.ping(BOB, 200) < 2
    assert server.alive()
    attack.kill()


def test_a_write_wakes_16_at_most_of_those_who_sleep_on_a_tripwire(r, scene):
    only_in(r, "shunt")
    scene.serve(ALICE)
    assert seen(scene.attack("crowd"))[-1] == {"asleep": 64, "woken": 16}


@pytest.mark.parametrize("uid", [0, ALICE], ids=["root", "user"])
def test_a_descriptor_of_ones_own_file_does_not_end_ones_locks(r, scene, uid):
    only_in(r, "shunt")
    path = scene.room / "locked"
    path.write_text("x")
    os.chown(path, uid, uid)
    path.chmod(0o644)
    server = scene.serve(uid, path)
    before = descriptors(server.pid)
    came = seen(scene.attack("lock_file", path))
    assert not any(isinstance(it["answer"], dict) for it in came)
    with open(path, "r+") as other:
        with pytest.raises(BlockingIOError):
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # One is kept; from that user no more are taken.
    scene.ping(BOB, 100, plain=True)
    system.until(lambda: descriptors(server.pid) <= before + 4, 10, "one is kept at most")


# ---- a change of user ----

# A process with a connection in memory; its child becomes a lesser one, and shows what it has.
LESSER = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
c = socket.create_connection(("127.0.0.1", int(sys.argv[1]))); c.settimeout(10)
def rounds(count):
    for _ in range(count):
        c.sendall(b"x" * 16); assert c.recv(100) == b"x" * 16
def shared():
    maps = [line.split()[-1] for line in open("/proc/self/maps") if "shunt:" in line]
    fds = []
    for fd in os.listdir("/proc/self/fd"):
        try: to = os.readlink("/proc/self/fd/" + fd)
        except OSError: continue
        if "shunt:" in to or "eventfd" in to or "board" in to: fds.append(to)
    return maps + fds
rounds(2000)
assert any("home" in it for it in shared()), "it has no home to take away"
here = sys.argv[3] == "itself"
if here or os.fork() == 0:
    exec(sys.argv[2])
    libc.prctl(4, 1)  # dumpable, to be able to look
    left = shared()
    assert not left, left
    rounds(200)
    os._exit(0)
assert os.wait()[1] == 0
rounds(2000)
"""

WAYS = {
    "setuid": "os.setuid(61003)",
    "setresuid": "os.setresuid(61003, 61003, 61003)",
    "setgid": "os.setgid(61003)",
    "setgroups": "os.setgroups([])",
    "seteuid": "os.seteuid(61003)",
    "syscall": "assert libc.syscall(117, 61003, 61003, 61003) == 0",
    "no_new_privs": "assert libc.prctl(38, 1, 0, 0, 0) == 0",
    "capset": "head = (ctypes.c_uint32 * 2)(0x20080522, 0); assert libc.capset(head, (ctypes.c_uint32 * 6)()) == 0",
    "unshare": "assert libc.unshare(0x10000000) == 0",
    "landlock": "libc.syscall(446, -1, 0)",
    "seccomp": "import struct; step = ctypes.create_string_buffer(struct.pack('<HBBI', 6, 0, 0, 0x7FFF0000)); "
               "program = struct.pack('<H6xQ', 1, ctypes.addressof(step)); assert libc.prctl(22, 2, program, 0, 0) == 0",
}


@pytest.mark.parametrize("who", ["child", "itself"])
@pytest.mark.parametrize("way", WAYS)
def test_who_becomes_a_lesser_one_shares_nothing(r, scene, way, who):
    only_in(r, "shunt")
    if way == "syscall" and os.uname().machine != "x86_64":
        pytest.skip("the number is x86-64's")
    scene.serve(BOB)
    program = scene.as_user(0, [PYTHON, "-c", LESSER, scene.port, WAYS[way], who])
    assert program.wait(60) == 0, program.output()
    r.accelerated()
    assert (SANDBOXED if way == "seccomp" else NEW_RIGHTS) in r.report.reasons()


# A loop of events that becomes a lesser one in mid-conversation; a thread of it sleeps in a read meanwhile.
LOOP = """
import ctypes, os, select, socket, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
conns = {c.fileno(): c for c in (socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(4))}
apart = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
came = []
def read():
    while data := apart.recv(100): came.append(data)
reader = threading.Thread(target=read); reader.start()
loop = select.epoll()
for fd in conns: loop.register(fd, select.EPOLLIN | (select.EPOLLET if fd % 2 else 0))
def rounds(count):
    for at in range(count):
        if at % 50 == 0: apart.sendall(b"y")
        for c in conns.values(): c.sendall(b"x" * 16)
        left = {fd: 16 for fd in conns}
        while any(left.values()):
            events = loop.poll(5)
            assert events, left
            for fd, _ in events: left[fd] -= len(conns[fd].recv(100))
rounds(2000)
exec(sys.argv[2])
rounds(500)
apart.shutdown(socket.SHUT_WR)
reader.join(10)
assert not reader.is_alive() and len(b"".join(came)) == 50, came
"""


@pytest.mark.parametrize("way", ["setuid", "no_new_privs", "unshare"])
def test_a_loop_of_events_goes_on_as_a_lesser_one(r, scene, way):
    scene.serve(BOB)
    # A user namespace takes one thread.
    changes = WAYS[way] if way != "unshare" else "libc.unshare(0x10000000)"
    program = scene.as_user(0, [PYTHON, "-c", LOOP, scene.port, changes])
    assert program.wait(60) == 0, program.output()
    r.accelerated()


BEGINS_ANEW = """
import os, socket, sys
def rounds():
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as c:
        for _ in range(2000):
            c.sendall(b"x" * 16); assert c.recv(100)
rounds()
os.setgroups([]); os.setgid(61003); os.setuid(61003)
rounds()
"""


def test_one_that_has_nothing_open_begins_anew(r, scene):
    """As servers do that drop their rights early: the rendezvous socket that it made as root is no more."""
    only_in(r, "shunt")
    scene.serve(BOB)
    program = scene.as_user(0, [PYTHON, "-c", BEGINS_ANEW, scene.port])
    assert program.wait(60) == 0, program.output()
    assert r.report.promoted >= 4, r.report
    assert NEW_RIGHTS not in r.report.reasons()


# ---- programs with more rights than who starts them ----

SETUID = """
#include <unistd.h>
int main(void) { return geteuid() == getuid(); }
"""


def test_nothing_is_done_in_a_setuid_program(r, scene):
    only_in(r, "shunt")
    library = Path(r.environment()["LD_PRELOAD"])
    program = scene.room / "setuid"
    # It has the library as by /etc/ld.so.preload: whatever the user's environment says.
    made = subprocess.run(["cc", "-x", "c", "-", "-o", program, "-x", "none", "-Wl,--no-as-needed", library, f"-Wl,-rpath,{library.parent}"],
                          input=SETUID, text=True, capture_output=True, timeout=60)
    assert made.returncode == 0, made.stderr
    program.chmod(0o4755)
    log, board = Path("/var/tmp/shunt-adversary-log"), Path("/var/tmp/shunt-adversary-board")
    log.unlink(missing_ok=True)
    env = {"SHUNT_NOSUCH": "1", "SHUNT_LOG": log, "SHUNT_BOARD": board, "SHUNT_REPORT": ""}
    done = scene.as_user(MALLORY, [program], env=env, plain=True)
    assert done.wait(20) == 0, f"it is not setuid there: {done.output()}"
    assert not log.exists() and not board.exists()
    # As it writes otherwise: so there was something to see.
    done = scene.as_user(0, [program], env=env, plain=True)
    done.wait(20)
    assert log.exists()
    log.unlink()


def test_the_log_is_not_written_by_a_link(r, scene):
    only_in(r, "shunt")
    precious, link = scene.room / "precious", scene.room / "log"
    precious.write_text("")
    link.symlink_to(precious)
    for log in (link, scene.room / "true-log"):
        scene.as_user(0, ["/bin/true"], env={"SHUNT_NOSUCH": "1", "SHUNT_LOG": log}).wait(20)
    assert precious.read_text() == ""
    assert (scene.room / "true-log").read_text() != ""


@pytest.mark.parametrize("unit", ["shunt-agent.service", "shunt-ether@.service"])
def test_units_say_which_system_calls(unit):
    text = (Path(__file__).parents[1] / "packaging" / unit).read_text()
    for line in ("SystemCallFilter=@system-service", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "SystemCallArchitectures=native"):
        assert line in text


@pytest.mark.parametrize("unit", ["shunt-agent.service", "shunt-ether@.service"])
def test_systemd_understands_the_units(tmp_path, unit):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.replace("@", "@1")
    text = (Path(__file__).parents[1] / "packaging" / unit).read_text()
    copy.write_text(text.replace("/usr/bin/shunt ", "/usr/bin/true "))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and unit.split(".")[0] not in done.stderr, done.stderr
