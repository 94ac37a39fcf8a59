"""Streams loaded into Python by ctypes (examples/extension.rs), for tests/python.rs: python.py EXTENSION LIBRARY serve | client PORT."""

import ctypes
import hashlib
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading

lib = ctypes.CDLL(sys.argv[1])
for name in ("listen", "accept", "connect"):
    getattr(lib, f"extension_{name}").restype = ctypes.c_void_p
lib.extension_load.restype = ctypes.c_char_p
lib.extension_read.restype = ctypes.c_ssize_t
TOTAL, ROUNDS = 4 << 20, 400


def say(what):
    print(f"@{what}", flush=True)


class Stream:
    def __init__(self, at):
        assert at
        self.at = ctypes.c_void_p(at)

    def write(self, data):
        return lib.extension_write(self.at, data, ctypes.c_size_t(len(data)))

    def read(self, most):
        buffer = ctypes.create_string_buffer(most)
        count = lib.extension_read(self.at, buffer, ctypes.c_size_t(most))
        assert count >= 0
        return buffer.raw[:count]

    def read_exact(self, count):
        data = b""
        while len(data) < count:
            part = self.read(count - len(data))
            assert part, "an early end"
            data += part
        return data

    def promoted(self):
        return lib.extension_promoted(self.at) == 1

    def close(self):
        lib.extension_close(self.at)


def ask(stream, question):
    assert stream.write(question) == 0 and stream.read_exact(1) == b"!"


def ping(stream, rounds=ROUNDS):
    for _ in range(rounds):
        ask(stream, b"?")


def pong(stream, rounds=ROUNDS):
    for _ in range(rounds):
        assert stream.read_exact(1) == b"?" and stream.write(b"!") == 0


def warm(stream):
    """Round trips until it is in memory; a test that waits for that in vain ends by its own limit."""
    while not stream.promoted():
        ping(stream)
    ask(stream, b".")


def answer_warm(stream):
    question = b""
    while question != b".":
        question = stream.read_exact(1)
        assert stream.write(b"!") == 0


def both_ways(stream, seed):
    """Random bytes in random sizes each way at once, then what each has got."""
    dice, sent, got = random.Random(seed), hashlib.sha256(), hashlib.sha256()

    def write():
        left = TOTAL
        while left:
            data = dice.randbytes(min(left, int(2 ** (dice.random() * 17))))
            sent.update(data)
            assert stream.write(data) == 0
            left -= len(data)

    writer = threading.Thread(target=write)
    writer.start()
    left = TOTAL
    while left:
        data = stream.read(min(left, random.randrange(1, 100_000)))
        assert data, "an early end"
        got.update(data)
        left -= len(data)
    writer.join()
    assert stream.write(sent.digest()) == 0
    assert stream.read_exact(32) == got.digest(), "other bytes than were sent"


def childs_stream(stream, port):
    """In a child of fork(): its parent's stream is closed here, and it makes one of its own."""
    assert stream.write(b"from the child") == -1
    stream.close()
    own = Stream(lib.extension_connect(port))
    warm(own)
    own.close()


def own_sockets():
    one, two = socket.socketpair()
    listener = socket.create_server(("127.0.0.1", 0))
    there = socket.create_connection(listener.getsockname())
    here, _ = listener.accept()
    for _ in range(ROUNDS):
        there.sendall(b"x")
        assert here.recv(1) == b"x"
        one.send(b"y")
        assert two.recv(1) == b"y"
    with here.makefile("rw") as file:  # Python's files do not use libc's streams; print(flush) and popen do no harm either
        print("line", file=file, flush=True)
    assert there.recv(5) == b"line\n"
    assert os.popen("echo done").read() == "done\n"


def client(port):
    stream = Stream(lib.extension_connect(port))
    say(STATUS)
    warm(stream)
    say("promoted" if stream.promoted() else "by tcp")
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)  # interrupts calls, for which write_all goes on
    signal.siginterrupt(signal.SIGALRM, False)
    living = subprocess.Popen(["sleep", "1000"], close_fds=False)
    both_ways(stream, 1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    own_sockets()
    assert subprocess.run(["true"]).returncode == 0
    assert subprocess.run(["true"], preexec_fn=lambda: None).returncode == 0  # by fork(), with Python running in the child
    child = multiprocessing.get_context("fork").Process(target=childs_stream, args=(stream, port))
    child.start()
    child.join()
    assert child.exitcode == 0
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: where the test fails nothing stays behind
        signal.pause()  # lives on
        os._exit(1)
    ping(stream)
    stream.close()
    # Until the other end has seen the end, which it does although two children live.
    sys.stdin.readline()
    say("ok")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    living.kill()
    living.wait()


def serve():
    port = ctypes.c_uint16()
    listener = ctypes.c_void_p(lib.extension_listen(ctypes.byref(port)))
    say(port.value)
    stream = Stream(lib.extension_accept(listener))
    say(STATUS)
    answer_warm(stream)
    say("promoted" if stream.promoted() else "by tcp")
    both_ways(stream, 2)
    childs = Stream(lib.extension_accept(listener))
    answer_warm(childs)
    assert childs.read(1) == b"", "the child's end"
    childs.close()
    pong(stream)
    assert stream.read(1) == b"", "the end"
    stream.close()
    say("ok")


STATUS = lib.extension_load(sys.argv[2].encode()).decode()
serve() if sys.argv[3] == "serve" else client(int(sys.argv[4]))
