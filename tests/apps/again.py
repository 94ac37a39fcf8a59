"""A server that executes itself again and again, and keeps its connection: `again.py HOW STAGES [DETAILS]`.

HOW is how the client, which stays one process, uses its end:
  turns    one message at a time
  ahead    as turns, but at the end of a stage messages are already under way to the next image
  threads  as turns for a while, then one thread writes, another one reads, all the time
  epoll    as turns, with a non-blocking socket in an epoll set
DETAILS: "shared", the server has a child that holds the connection, too; "twice", it has it under two numbers; "inherited", it is one
end of what its parent has accepted and closed; "failing", it tries to execute what is not there before; "set", it waits for
messages in an epoll set, which all images have; "own set", in one that each makes for itself."""

import hashlib
import os
import select
import signal
import socket
import sys
import threading
import time

TURNS, SIZE, AHEAD = 1500, 100, 50
STREAM = 60 << 20


def block(number):
    return hashlib.sha512(b"%d" % number).digest().ljust(SIZE, b".")


def recv_all(connection, size):
    data = b""
    while len(data) < size:
        data += (piece := connection.recv(size - len(data)))
        assert piece, "the end came early"
    return data


def wait_in(events):
    """Waits until something is ready in an epoll set, if there is one."""
    if events:
        assert events.poll(20), "no event"


def try_nothing(connection):
    connection.set_inheritable(True)
    for name in "/nonexistent", "/nowhere/at/all":
        try:
            os.execv(name, [name])
        except FileNotFoundError:
            continue
        raise AssertionError(f"{name} is there")


def serve(how, stages, details, number, held):
    """One image of the server; `held` are the descriptors of what the first one forked."""
    assert "SHUNT_KEPT" not in os.environ and os.stat(f"/proc/self/fd/{number}")
    connection = socket.socket(fileno=number)
    events = None
    if "set" in details:
        events = select.epoll.fromfd(held.pop()) if held else select.epoll()
        if not os.get_inheritable(events.fileno()):
            events.register(connection, select.EPOLLIN)
        if "own set" not in details:
            os.set_inheritable(events.fileno(), True)
    if how == "threads":
        served = 0
        while data := connection.recv(65536):
            connection.sendall(data)
            served += len(data)
            if stages and served > STREAM // 8:
                break
        else:
            stages = 0
    else:
        for turn in range(TURNS):
            if "failing" in details and turn == TURNS // 2:
                try_nothing(connection)
            wait_in(events)
            connection.sendall(recv_all(connection, SIZE))
        if stages and how == "ahead":
            # The client knows nothing of it: what it sends now comes before, or after.
            time.sleep(0.02)
    if not stages:
        os._exit(0)
    if "shared" in details and not held:
        if (child := os.fork()) == 0:
            signal.pause()
        held = [child]
    if "twice" in details and not held:
        held = [os.dup(number)]
        os.set_inheritable(held[0], True)
    if stages == 1 and "shared" in details:
        os.kill(held[0], signal.SIGKILL)
        os.waitpid(held[0], 0)
    if "set" in details and "own set" not in details:
        held = [events.fileno()]
    if "failing" in details:
        try_nothing(connection)
    connection.set_inheritable(True)
    connection.detach()
    arguments = [sys.executable, __file__, how, str(stages - 1), details, str(number), *map(str, held)]
    os.execv(sys.executable, arguments)


def turns(connection, stages):
    number = 0
    for stage in range(stages + 1):
        for _ in range(TURNS):
            connection.sendall(block(number))
            assert recv_all(connection, SIZE) == block(number)
            number += 1


def ahead(connection, stages):
    sent = got = 0
    while got < TURNS * (stages + 1):
        # As many as may be under way, of this stage and the next one.
        while sent < min(got + AHEAD, TURNS * (stages + 1)):
            connection.sendall(block(sent))
            sent += 1
        assert recv_all(connection, SIZE) == block(got)
        got += 1
        if got % TURNS == TURNS // 2:
            # On a busy machine an image of the server may find the next message there each time. It is to be seen to wait: once it has none.
            while got < sent:
                assert recv_all(connection, SIZE) == block(got)
                got += 1
            time.sleep(0.05)


def threads(connection, stages):
    # In memory before the stream begins, whose threads are in calls of the kernel all the time.
    for number in range(TURNS):
        connection.sendall(block(number))
        assert recv_all(connection, SIZE) == block(number)
    data = os.urandom(STREAM)
    hashes = [hashlib.sha256(data).digest()]

    def read():
        reading, left = hashlib.sha256(), STREAM
        while left:
            piece = connection.recv(min(left, 65536))
            assert piece, "the end came early"
            reading.update(piece)
            left -= len(piece)
        hashes.append(reading.digest())

    reader = threading.Thread(target=read)
    reader.start()
    for at in range(0, STREAM, 3000):
        connection.sendall(data[at:at + 3000])
    reader.join()
    assert hashes[1:] == hashes[:1]


def epoll(connection, stages):
    connection.setblocking(False)
    events = select.epoll()
    events.register(connection, select.EPOLLIN)
    for number in range(TURNS * (stages + 1)):
        assert connection.send(block(number)) == SIZE
        data = b""
        while len(data) < SIZE:
            assert events.poll(20), f"no event for message {number}"
            data += connection.recv(SIZE)
        assert data == block(number)


def main():
    how, stages, details = sys.argv[1], int(sys.argv[2]), (sys.argv + [""])[3]
    if len(sys.argv) > 4:
        serve(how, stages, details, int(sys.argv[4]), [int(held) for held in sys.argv[5:]])
    listener = socket.create_server(("127.0.0.1", 0))
    server = os.fork()
    if server == 0:
        connection = listener.accept()[0]
        listener.close()
        if "inherited" in details:
            closed, closing = os.pipe()
            if (child := os.fork()) != 0:
                connection.close()
                os.close(closing)
                os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            # As long as two have it, it stays on tcp: on a busy machine perhaps to the end.
            os.close(closing)
            os.read(closed, 1)
            os.close(closed)
        serve(how, stages, details, connection.detach(), [])
    connection = socket.create_connection(listener.getsockname())
    listener.close()
    globals()[how](connection, stages)
    connection.close()
    assert os.waitpid(server, 0)[1] == 0


main()
