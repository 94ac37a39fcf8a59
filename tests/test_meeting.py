"""Connections between network namespaces of one host: their ends find each other by the time stamp of the SYN, and prove by the connection
itself that they belong together. Programs see what they would see with TCP."""

import os
import re
import socket
import struct
import sys
import threading
import time

import pytest

from harness import system
from harness.bridge import CONTAINER, ROUTER, Bridge, need_meeting
from harness.runner import PATIENCE

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.alone("namespaces, and programs that wait for one another"),
]

@pytest.fixture
def places(r, mode):
    need_meeting(mode)
    with Bridge(r) as places:
        yield places


# Answers each message with what it was.
ECHO = """
import socket, sys, threading
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])), backlog=64)
print("listens", flush=True)
def serve(end):
    while got := end.recv(1 << 16):
        end.sendall(got)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
# Sends messages, looks whether they come back, and says how many bytes those were.
ASK = """
import random, socket, sys
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
end = socket.create_connection((address, port))
dice, total = random.Random(5), 0
for turn in range(count):
    message = dice.randbytes(dice.choice([1, 2, 7, 64, 64, 64, 400, 3000]))
    end.sendall(message)
    got = b""
    while len(got) < len(message):
        more = end.recv(len(message) - len(got))
        assert more, "the end comes too early"
        got += more
    assert got == message, "not what was sent"
    total += len(message)
print("right", total)
"""


def python(script, *args):
    return [sys.executable, "-c", script, *map(str, args)]


def echo(places, port=7000, name="a"):
    server = places.spawn(name, python(ECHO, port))
    system.until(lambda: "listens" in server.output(), 10 * PATIENCE, "the server listens")
    return server


def moved(places):
    """How many ends have come into memory."""
    return places.r.report.promoted


def ask_until_it_moves(places, address, port, around=()):
    """A proof may fail because of how the programs happened to read, as on a busy machine; not each time."""
    for _ in range(3):
        assert "right" in places.run("b", [*around, *python(ASK, address, port, 3000)]).text
        if moved(places):
            break
    assert moved(places) == 2


def test_two_namespaces_on_a_bridge(places):
    echo(places)
    ask_until_it_moves(places, places.address["a"], 7000)
    places.r.accelerated()


@pytest.mark.parametrize("users", ["", "map_root", "two"])
def test_two_containers(places, users):
    more = [["--user", "--map-root-user"], ["--user", "--map-root-user"] if users != "two" else []] if users else [[], []]
    server = places.spawn("a", [*CONTAINER, *more[0], *python(ECHO, 7000)])
    system.until(lambda: "listens" in server.output(), 10 * PATIENCE, "the server listens")
    ask_until_it_moves(places, places.address["a"], 7000, around=[*CONTAINER, *more[1]])
    server.kill()


def test_a_published_port(places, need):
    places.publish(7080, 7000, need)
    echo(places)
    ask_until_it_moves(places, ROUTER, 7080)


def test_without_a_common_folder_it_is_tcp(places, tmp_path):
    other = tmp_path / "another"
    other.mkdir()
    other.chmod(0o1777)
    echo(places)
    assert "right" in places.r.run(places.at("b", python(ASK, places.address["a"], 7000, 1000)), env={"SHUNT_MEETING": str(other)}, timeout=60).text
    assert moved(places) == 0


def test_redis_with_fifty_clients(places, need):
    redis = places.spawn("a", [need("redis-server"), "--save", "", "--bind", "0.0.0.0", "--protected-mode", "no", "--port", "7000"])
    system.until(lambda: "Ready to accept" in redis.output(), 10 * PATIENCE, "redis is ready")
    done = places.run("b", [need("redis-benchmark"), "-h", places.address["a"], "-p", "7000", "-c", "50", "-n", "300000", "-t", "get", "-q"])
    assert re.search(r"GET: [\d.]+ requests per second", done.text)
    # Both ends of nearly all on a quiet machine: a proof may fail because of how a program happened to read.
    assert moved(places) >= 50


def test_its_sockets_go_with_the_process(places):
    """At its end; after a kill, when another one comes."""
    server = echo(places)
    names = lambda: {path.name[:16] for path in places.meeting.iterdir()}  # noqa: E731
    places.run("b", python(ASK, places.address["a"], 7000, 300))
    [first] = names()  # the client's has gone
    server.kill()
    assert names() == {first}
    echo(places, 7001)
    places.run("b", python(ASK, places.address["a"], 7001, 300))
    [second] = names()
    assert second != first


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_killed_peer(places, who):
    """The survivor's program sees the end, as with TCP, soon."""
    script = ASK.replace("range(count)", "range(1 << 30)")
    server = echo(places)
    for _ in range(3):
        client = places.spawn("b", python(script, places.address["a"], 7000, 0))
        try:
            system.until(lambda: moved(places) == 2, 5 * PATIENCE, "the connection is in memory")
            break
        except AssertionError:
            client.kill()
    assert moved(places) == 2
    if who == "client":
        client.kill()
        # The server's thread ends, and it serves another.
        assert "right" in places.run("b", python(ASK, places.address["a"], 7000, 500)).text
    else:
        server.kill()
        client.popen.wait(timeout=10 * PATIENCE)
        assert "the end comes too early" in client.output() or "reset" in client.output()


# ------------------------------------------------------------------------------------------------ who lies

LETTER = struct.Struct("<IIQIIQQ5Q")


def test_false_letters_move_nothing(places):
    """A third process knows all that is on the board, and invites every end with seeds of its own, answers for it, and shows them."""
    server = echo(places)
    token = os.urandom(8)
    path = places.meeting / f"{token[::-1].hex()}l"
    liar = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    liar.bind(str(path))
    path.chmod(0o666)
    over, sent = threading.Event(), []

    def lie():
        number = struct.unpack("<Q", token)[0]
        while not over.is_set():
            for other in places.meeting.iterdir():
                if other == path or other.name[16:] != "l":
                    continue
                for index in range(8):
                    for kind in (1, 2, 3, 4, 5):
                        letter = LETTER.pack(0x53484D31, kind, number, 0, index, 1, 1, 1, 2, 3, 4, 5)
                        try:
                            liar.sendto(letter, socket.MSG_DONTWAIT, str(other))
                            sent.append(kind)
                        except OSError:
                            pass
            time.sleep(0.0005)

    thread = threading.Thread(target=lie)
    thread.start()
    try:
        assert "right" in places.run("b", python(ASK, places.address["a"], 7000, 4000)).text
    finally:
        over.set()
        thread.join()
    assert len(sent) > 50 and server.alive()
    assert moved(places) in (0, 2), "both ends, with each other, or none"


def test_no_descriptor_is_passed_by_a_stranger(places):
    """Its last close would be the receiver's, and may take as long as the sender likes."""
    server = echo(places)
    ask_until_it_moves(places, places.address["a"], 7000)
    kinds = {"l": socket.SOCK_DGRAM, "k": socket.SOCK_SEQPACKET}
    tried = set()
    for path in places.meeting.iterdir():
        # The others are bells, which drop what is not their word before it comes.
        if kind := kinds.get(path.name[16:]):
            with socket.socket(socket.AF_UNIX, kind) as stranger:
                stranger.connect(str(path))
                with pytest.raises(PermissionError):
                    socket.send_fds(stranger, [b"letter"], [0])
                tried.add(path.name[16:])
    assert tried == {"l", "k"} and server.alive()


# Frames of 32 bytes that are all the same: two threads send them, each in one call, and one takes the answers.
FRAMES = """
import socket, sys, threading
end = socket.create_connection((sys.argv[1], int(sys.argv[2])))
count, left = int(sys.argv[3]), threading.Semaphore(1)
def send(byte):
    for _ in range(count):
        left.acquire()
        assert end.send(bytes([byte]) * 32) == 32
for byte in (1, 2):
    threading.Thread(target=send, args=(byte,)).start()
for _ in range(2 * count):
    frame = end.recv(32, socket.MSG_WAITALL)
    assert frame in (bytes([1]) * 32, bytes([2]) * 32), frame
    left.release()
print("whole")
"""


def test_writes_of_several_threads_stay_whole(places):
    echo(places)
    for _ in range(3):
        assert "whole" in places.run("b", python(FRAMES, places.address["a"], 7000, 1500)).text


# Messages of a hundred pieces, which the kernel takes whole; and TCP_NODELAY is what it was set to, whenever it is asked for.
PIECES = """
import socket, sys
end = socket.create_connection((sys.argv[1], int(sys.argv[2])))
end.setblocking(False)
end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(sys.argv[3]))
def answered(length):
    got = b""
    while len(got) < length:
        try:
            got += end.recv(1 << 16)
        except BlockingIOError:
            pass
    assert len(got) == length
for turn in range(600):
    pieces = [b"abc"] * (100 if turn % 20 == 19 else 10)
    sent = end.sendmsg(pieces)
    assert sent == 3 * len(pieces), (turn, sent)
    answered(sent)
    assert bool(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) == bool(int(sys.argv[3]))
print("all at once")
"""


@pytest.mark.parametrize("nodelay", [0, 1])
def test_what_the_kernel_takes_at_once_goes_at_once(places, nodelay):
    echo(places)
    assert "all at once" in places.run("b", python(PIECES, places.address["a"], 7000, nodelay)).text


def test_a_server_that_forks_in_between_loses_nothing(places):
    """A child takes the connection back to TCP, and one that others have is not proved again."""
    server = places.spawn("a", python(FORKS, 7000))
    system.until(lambda: "listens" in server.output(), 10 * PATIENCE, "the server listens")
    assert "right" in places.run("b", python(ASK, places.address["a"], 7000, 6000)).text


FORKS = """
import os, socket, sys
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("listens", flush=True)
end, turns = listener.accept()[0], 0
while got := end.recv(1 << 16):
    turns += 1
    if turns % 1500 == 0:
        # The child has the connection, too, for a moment.
        if os.fork() == 0:
            os._exit(0)
        os.wait()
    end.sendall(got)
"""
