"""What an attacker with an account of its own can do to a process under Shunt, by hand: reads the board, says HELLO, offers, writes into what it gets. Run
by itself, as another user, by tests/test_adversary.py; needs nothing but Python's own library.

    hostile.py WHAT PORT [MORE]       prints one JSON object for each thing that it has seen
"""

import array
import ctypes
import fcntl
import json
import mmap
import os
import re
import socket
import struct
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)

# crates/sockets/src/layout.rs. Where this is out of date, test_one_with_a_connection_is_let_in fails.
VERSION, SEGMENT = 14, 0xa1d000
CTL, SLOT, SLOT_BYTES, DATA, SLOT_DATA = 0, 20480, 256, 0x21d000, 0x4000
W, TRIP, STATE = 0, 128, 216
RX, WORD = 1, 16
HELLO = "<IIQQIIQQQQQ"
MAGIC, POST = 0x53484C4B, 0x53420001
SO_COOKIE, F_ADD_SEALS, SEALS = 57, 1033, 7
BELLS = 9
SYS_FUTEX, FUTEX_WAIT = (98 if os.uname().machine == "aarch64" else 202), 0


def say(**what):
    print(json.dumps(what), flush=True)


def posts():
    """What stands on the board."""
    text = open(os.environ["SHUNT_BOARD"], "rb").read()[4096:]
    found = []
    for at in range(0, len(text) - 55, 56):
        magic, _, key, token, cookie, pid, index, when = struct.unpack_from("<IIQQQIII", text, at)
        if magic == POST:
            found.append(dict(at=4096 + at, key=key, token=token, cookie=cookie, pid=pid, index=index, time=when))
    return found


def mix(value):
    mask = (1 << 64) - 1
    z = (value + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31


def post(place, key, token, cookie, index, when):
    """Puts up a post, as whoever likes can."""
    rotated = (cookie << 17 | cookie >> 47) & ((1 << 64) - 1)
    total = mix(mix(key ^ mix(token) ^ mix(rotated)) ^ os.getpid() << 32 ^ index)
    check = ((total ^ total >> 32) & 0xFFFFFFFF) ^ when
    entry = struct.pack("<IIQQQIII", POST, check, key, token, cookie, os.getpid(), index, when).ljust(56, b"\0")
    with open(os.environ["SHUNT_BOARD"], "r+b") as board:
        board.seek(place)
        board.write(entry)


def name(token):
    return b"\0shunt/%016x" % token


def rendezvous():
    """All rendezvous sockets of this network."""
    return sorted(set(re.findall(r"@(shunt/[0-9a-f]{16})$", open("/proc/net/unix").read(), re.M)))


def connect(to):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(5)
    s.connect(to)
    return s


def segment():
    fd = libc.memfd_create(b"evil", 3)
    os.ftruncate(fd, SEGMENT)
    fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    return fd, mmap.mmap(fd, SEGMENT)


def eventfd(full=False):
    fd = libc.eventfd(0, 0)
    if full:
        os.write(fd, struct.pack("<Q", 0xFFFFFFFFFFFFFFFE))
    return fd


def hello(s, fds, index=0, yours=0, mine=0, token=0x4711):
    said = struct.pack(HELLO, MAGIC, VERSION, token, SEGMENT, index, 0, yours, mine, 0, 0, 0)
    s.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])


def answer(s, during=lambda: time.sleep(0.005), seconds=4):
    """What comes, and its descriptors; None if the connection is ended instead, "silence" if nothing comes. `during` keeps the victim busy, so that it looks."""
    s.setblocking(False)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        during()
        try:
            said, control, _, _ = s.recvmsg(256, socket.CMSG_LEN(256))
        except BlockingIOError:
            continue
        except ConnectionError:
            return None
        fds = array.array("i")
        for _, _, data in control:
            fds.frombytes(data[: len(data) - len(data) % 4])
        return (said, list(fds)) if said else None
    return "silence"


def told(came):
    return came if came is None or isinstance(came, str) else {"bytes": len(came[0]), "descriptors": len(came[1])}


def word(memory, at):
    return struct.unpack_from("<Q", memory, at)[0]


def put(memory, at, value):
    struct.pack_into("<Q", memory, at, value)


def offer(theirs, count, slot, index, yours, mine):
    at = CTL + 64 + count % 256 * 64
    theirs[at : at + 64] = struct.pack("<IIIIQQ", 1, slot, index, 0, yours, mine).ljust(64, b"\0")
    put(theirs, CTL, count + 1)


def cookie_of(s):
    return s.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8)


class Customer:
    """A connection of the attacker's own to an echo server, and the server's post of it."""

    def __init__(self, port):
        before = {it["cookie"] for it in posts()} if os.path.exists(os.environ["SHUNT_BOARD"]) else set()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(3)
        self.cookie = struct.unpack("<Q", cookie_of(self.socket))[0]
        self.post = None
        for _ in range(2000):
            self.exchange()
            new = [it for it in posts() if it["cookie"] not in before] if os.path.exists(os.environ["SHUNT_BOARD"]) else []
            if new:
                self.post = new[-1]
                break

    def exchange(self):
        self.socket.sendall(b"x" * 16)
        return self.socket.recv(100)

    def hello(self, fds):
        s = connect(name(self.post["token"]))
        hello(s, fds, self.post["index"], self.post["cookie"], self.cookie)
        return s


def let_in(port, *_):
    """The control: a customer is let in and its offer is taken."""
    c = Customer(port)
    fd, mine = segment()
    s = c.hello([fd])
    came = answer(s, c.exchange)
    say(answer=told(came))
    theirs = mmap.mmap(came[1][0], SEGMENT)
    offer(theirs, 0, 0, c.post["index"], c.post["cookie"], c.cookie)
    for _ in range(2000):
        if word(mine, SLOT + STATE):
            break
        c.socket.sendall(b"z" * 16)
        try:
            c.socket.recv(100)
        except TimeoutError:
            break
        time.sleep(0.001)
    say(state=word(mine, SLOT + STATE) & 3)
    return c, s, mine, theirs


def armed(port, bell="0", passed=""):
    """As let_in, and then its tripwire asks to be rung by a bell: it has given none, or passes a full one, that blocks, which is not taken from another user."""
    c, s, mine, theirs = let_in(port)
    if passed:
        socket.send_fds(s, [bytes([int(bell)])], [eventfd(full=True)])
    put(mine, SLOT + TRIP, 1 | 8 | int(bell) << 8)
    c.socket.sendall(b"last" * 4)
    time.sleep(0.5)
    say(written=word(mine, SLOT + W))
    time.sleep(600)


def crowd(port, count="64"):
    """As let_in, and then so many threads sleep on its tripwire: says how many of them one write of the victim's wakes."""
    c, s, mine, theirs = let_in(port)
    armed, woken = RX | WORD, []
    put(mine, SLOT + TRIP, armed)
    place = ctypes.addressof(ctypes.c_uint32.from_buffer(mine, SLOT + TRIP))
    asleep = lambda: woken.append(libc.syscall(SYS_FUTEX, ctypes.c_void_p(place), FUTEX_WAIT, armed, None, None, 0))
    threads = [threading.Thread(target=asleep, daemon=True) for _ in range(int(count))]
    for thread in threads:
        thread.start()
    while sum(call.startswith(f"{SYS_FUTEX} {place:#x} ") for call in calls([thread.native_id for thread in threads])) < len(threads):
        time.sleep(0.01)
    c.socket.sendall(b"last" * 4)
    time.sleep(1)
    say(asleep=len(threads), woken=len(woken))


def calls(threads):
    """The system calls in which they are, each with its arguments."""
    return [open(f"/proc/self/task/{thread}/syscall").read() for thread in threads]


def with_bells(port, *_):
    """A customer of another user that brings bells: full ones, that block."""
    c = Customer(port)
    fd, _ = segment()
    came = answer(c.hello([fd] + [eventfd(full=True) for _ in range(BELLS)]), c.exchange)
    say(answer=told(came))


def nobody(port, *_):
    """No connection at all: asks every rendezvous socket, and says what each post says."""
    fd, _ = segment()
    for to in rendezvous():
        say(answer=told(answer(_hello(b"\0" + to.encode(), [fd] + [eventfd() for _ in range(BELLS)]))))
    for it in posts():
        say(answer=told(answer(_hello(name(it["token"]), [fd], it["index"], it["cookie"], 1234567))))


def _hello(to, fds, *names):
    s = connect(to)
    try:
        hello(s, fds, *names)
    except OSError:
        pass
    return s


def silent(port, *_):
    """Connects to the victim's rendezvous, often, and says nothing."""
    c = Customer(port)
    kept = []
    for _ in range(200):
        try:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            s.connect(name(c.post["token"]))
            kept.append(s)
        except OSError:
            s.close()
    for _ in range(500):
        c.exchange()
    say(open=len(kept))
    end = time.monotonic() + 600
    while time.monotonic() < end:
        c.exchange()
        time.sleep(0.001)


def again(port, count="20"):
    """One connection brings link after link."""
    c = Customer(port)
    fd, _ = segment()
    links = []
    for _ in range(int(count)):
        s = c.hello([fd])
        came = answer(s, c.exchange, 1.5)
        links.append(s)
        say(answer=told(came))
        if came is None and len(links) > 3:
            break
    say(done=True)
    for _ in range(100):
        c.exchange()
        time.sleep(0.01)


def lock_file(port, path):
    """Sends the victim's own file instead of memory: whoever closes a descriptor of it loses all locks on it."""
    c = Customer(port)
    fd = os.open(path, os.O_RDONLY)
    for _ in range(3):
        say(answer=told(answer(c.hello([fd]), c.exchange, 1.5)))


def between(port, *as_root):
    """Takes a connection of which it has neither end: claims the server's."""
    time.sleep(0.5)
    out = os.popen(f"ss -tnHe sport = :{port}").read()
    cookies = [int(it, 16) for it in re.findall(r"sk:([0-9a-f]+)", out)]
    victims = [it for it in posts() if it["cookie"] not in cookies]
    say(posts=len(victims), cookies=len(cookies))
    fd, _ = segment()
    for victim in victims:
        for cookie in cookies:
            s = _hello(name(victim["token"]), [fd], victim["index"], victim["cookie"], cookie)
            say(answer=told(answer(s)))


def poster(port, *_):
    """Posts the server's end of a victim's connection as if it were its own, and waits for HELLO. Started as root it makes its listener first, and
    is root no more when somebody comes."""
    token = 0x1234567890ABCDEF
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.bind(name(token))
    s.listen(8)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(int(os.environ["ATTACKER"]))
        os.setuid(int(os.environ["ATTACKER"]))
    # The server's end: its addresses and cookie, as anybody can ask.
    line = next(it for it in os.popen(f"ss -tnHe sport = :{port}").read().splitlines() if "ESTAB" in it)
    cookie = int(re.search(r"sk:([0-9a-f]+)", line)[1], 16)
    client = int(line.split()[4].rsplit(":", 1)[1])
    ip = bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1])
    half = [int.from_bytes(ip[at : at + 8], "little") for at in (0, 8)]
    net = 1
    for byte in os.readlink("/proc/self/ns/net").encode():
        net = mix(net ^ byte)

    def key(own, peer):
        total = mix(net)
        for part in (*half, *half, own << 16 | peer):
            total = mix(total ^ part)
        return total

    servers, clients = key(port, client), key(client, port)
    victim = next((it for it in posts() if it["key"] == clients), None)
    say(victim=bool(victim))
    bucket = 4096 + (servers ^ clients) % 8192 * 16 * 56
    place = next(bucket + way * 56 for way in range(16) if bucket + way * 56 != victim["at"])
    post(place, servers, token, cookie, 0, victim["time"])
    s.settimeout(4)
    came = []
    end = time.monotonic() + 4
    while time.monotonic() < end and len(came) < 2:
        try:
            c, _ = s.accept()
        except TimeoutError:
            break
        came.append(told(answer(c)))
    say(uid=os.getuid(), came=came)


if __name__ == "__main__":
    globals()[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:])
