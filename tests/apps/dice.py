#!/usr/bin/env python3
"""Calls thrown by dice, on both ends of one connection: what each of them gave is printed, and has to be the same with kernel TCP and without (tests/test_dice.py).

`dice.py SEED STEPS`: this process listens, starts itself again as the other end, and tells it what to call. Nothing is left to chance but the dice: whoever
sends waits until it has arrived, and a call that blocks is one that something wakes. Only edges may be told more often than by the kernel: such lines begin with "edge".
"""

import array
import ctypes
import errno
import fcntl
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import termios
import time
import zlib

BUFFER = 1 << 20  # of the kernel's for each direction: how much is taken in many small pieces is the kernel's affair else
ROOM = 50_000  # so many bytes find room there, whatever they are
ROOM_AT_ONCE = 12_000  # and so many in all, the small ring among them, for one who does not wait
SIZES = (1, 7, 100, 500, 1000, 3000, 9000, 20_000)
SO_PEEK_OFF = 42



def checksum(data):
    return f"{len(data)}:{zlib.crc32(data):08x}"


def outcome(call, *args):
    try:
        return call(*args)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))


class End:
    """One end of the connection: what can be called on it. Each call gives a string."""

    def __init__(self, sock, key):
        self.sock = sock
        self.key = key
        self.sent = 0
        self.file = os.memfd_create("dice")
        # Without the byte that records between hosts begin with: where it comes last it may be held for a moment (peek_while_left in flags.c is about that).
        self.pattern = random.Random(7 + key).randbytes(1 << 20).replace(b"\xf8", b"\0")
        os.write(self.file, self.pattern)
        self.set = select.epoll()

    def next(self, count):
        """What is sent next."""
        at = self.sent % (len(self.pattern) - 65536)
        self.sent += count
        return at, self.pattern[at : at + count]

    # Writing. Whole: there is room.

    def send(self, count, how):
        at, data = self.next(count)
        fd = self.sock.fileno()
        if how == "send":
            return str(self.sock.send(data))
        if how == "write":
            return str(os.write(fd, data))
        if how == "sendmsg":
            return str(self.sock.sendmsg([data[: count // 3], data[count // 3 :]]))
        if how == "writev":
            return str(os.writev(fd, [data[: count // 2], b"", data[count // 2 :]]))
        if how == "sendfile":
            return str(os.sendfile(fd, self.file, at, count))
        if how == "bits":
            for i in range(0, count, max(1, count // 5)):
                self.sock.sendall(data[i : min(count, i + max(1, count // 5))])
            return str(count)
        raise ValueError(how)

    # Reading.

    def recv(self, count, flags, how):
        fd = self.sock.fileno()
        buffer = bytearray(count)
        if how == "recv":
            got = self.sock.recv_into(buffer, count, flags)
        elif how == "recvfrom":
            got = self.sock.recvfrom_into(buffer, count, flags)[0]
        elif how == "recvmsg":
            view = memoryview(buffer)
            got, _, said, _ = self.sock.recvmsg_into([view[: count // 2], view[count // 2 :]], 0, flags)
            if said:
                return f"{checksum(buffer[:got])} flags {said:#x}"
        elif how == "read":
            data = os.read(fd, count)
            return checksum(data)
        elif how == "readv":
            view = memoryview(buffer)
            got = os.readv(fd, [view[: count // 4], view[count // 4 :]])
        else:
            raise ValueError(how)
        return str(got) if flags & socket.MSG_TRUNC else checksum(buffer[:got])

    def splice(self, count):
        """Into a pipe and out of it, until all is there: how much comes at once is the kernel's affair."""
        into, out = os.pipe()
        data = b""
        try:
            while len(data) < count and (got := os.splice(self.sock.fileno(), out, count - len(data), flags=2)):  # SPLICE_F_NONBLOCK
                data += os.read(into, got)
            return checksum(data)
        finally:
            os.close(into)
            os.close(out)

    # Asking.

    def unread(self):
        count = array.array("i", [-1])
        fcntl.ioctl(self.sock.fileno(), termios.FIONREAD, count)
        return count[0]

    def poll(self, wait, room):
        poll = select.poll()
        poll.register(self.sock.fileno(), select.POLLIN | select.POLLRDHUP | select.POLLPRI | (select.POLLOUT if room else 0))
        return " ".join(f"{events:#x}" for _, events in poll.poll(wait))

    def select(self, wait, room):
        fd = self.sock.fileno()
        return str([len(found) for found in select.select([fd], [fd] if room else [], [fd], wait / 1000)])

    def epoll(self, how, events):
        fd = self.sock.fileno()
        if how == "add":
            self.set.register(fd, events)
        elif how == "mod":
            self.set.modify(fd, events)
        else:
            self.set.unregister(fd)
        return "ok"

    def epoll_wait(self, wait, room):
        told = [events if room else events & ~select.EPOLLOUT for _, events in self.set.poll(wait / 1000, 4)]
        return " ".join(f"{events:#x}" for events in told if events)

    # Options.

    def set_option(self, level, name, value):
        if isinstance(value, list):
            value = struct.pack("ll", *value)
        self.sock.setsockopt(level, name, value)
        return "ok"

    def option(self, level, name):
        return str(self.sock.getsockopt(level, name))

    def nonblocking(self, on):
        # Not as Python sees it, which would wait itself.
        flags = fcntl.fcntl(self.sock.fileno(), fcntl.F_GETFL)
        fcntl.fcntl(self.sock.fileno(), fcntl.F_SETFL, flags | os.O_NONBLOCK if on else flags & ~os.O_NONBLOCK)
        return "ok"

    # Descriptors and processes.

    def dup(self, close_old):
        other = os.dup(self.sock.fileno())
        if close_old:
            member = self.members()
            self.sock.close()
            self.sock = socket.socket(fileno=other)
            # The set knows the old number, as the kernel's would.
            return "member" if member else "ok"
        os.close(other)
        return "ok"

    def members(self):
        return False

    def fork(self, count, flags):
        """A child reads, and ends."""
        into, out = os.pipe()
        child = os.fork()
        if child == 0:
            said = outcome(self.recv, count, flags | socket.MSG_DONTWAIT, "recv") if count else "nothing"
            os.write(out, said.encode())
            os._exit(0)
        os.close(out)
        said = os.read(into, 100).decode()
        os.close(into)
        os.waitpid(child, 0)
        return said

    def shutdown(self, how):
        self.sock.shutdown(how)
        return "ok"

    def close(self):
        self.set.close()
        self.sock.close()
        return "ok"

    # Waiting for the other end, which shows nothing.

    def arrived(self, count):
        end = time.monotonic() + 5
        while (unread := self.unread()) != count:
            if time.monotonic() > end:
                return f"{unread} instead of {count} are there"
            time.sleep(0.0002)
        return "ok"

    def ended(self):
        poll = select.poll()
        poll.register(self.sock.fileno(), select.POLLRDHUP)
        return "ok" if poll.poll(5000) else "no end came"

    def later(self, milliseconds, name, *args):
        time.sleep(milliseconds / 1000)
        return getattr(self, name)(*args)


class Far:
    """The other end, in the other process."""

    def __init__(self, channel):
        self.channel = channel
        self.said = channel.makefile("rb")

    def begin(self, name, *args):
        self.channel.sendall(json.dumps([name, *args]).encode() + b"\n")

    def result(self):
        said = self.said.readline()
        if not said:
            raise SystemExit("the other process has gone")
        return json.loads(said)


class Near:
    """This one."""

    def __init__(self, end):
        self.end = end

    def begin(self, name, *args):
        self.what = (name, args)

    def result(self):
        name, args = self.what
        return outcome(getattr(self.end, name), *args)


class Model:
    """What is known of one end."""

    def __init__(self):
        self.unread = 0
        self.eof = self.shut = self.peeks = self.nonblocking = self.timed = False
        self.low = 1
        self.member = None
        self.edge = False


class Game:
    def __init__(self, ends, seed):
        self.ends = ends
        self.models = [Model(), Model()]
        self.dice = random.Random(seed)
        self.step = 0

    def call(self, side, name, *args):
        self.ends[side].begin(name, *args)
        return self.ends[side].result()

    def show(self, side, name, args, result, mark=""):
        print(f"{mark}{self.step} {'AB'[side]} {name} {args} -> {result}", flush=True)

    def throw(self, side, name, *args, mark=""):
        result = self.call(side, name, *args)
        self.show(side, name, args, result, mark)
        return result

    def quietly(self, side, name, *args):
        result = self.call(side, name, *args)
        if result != "ok":
            self.show(side, name, args, result)

    def room(self, side):
        """Whether there is so much room that whoever asks is told so, whatever the buffers are."""
        return self.models[1 - side].unread < 4000

    # What is thrown.

    def send(self, side):
        me, other = self.models[side], self.models[1 - side]
        count = self.dice.choice(SIZES)
        if me.shut or other.unread + count > (ROOM_AT_ONCE if me.nonblocking else ROOM):
            return self.recv(1 - side)
        self.throw(side, "send", count, self.dice.choice(("send", "write", "sendmsg", "writev", "sendfile", "bits")))
        other.unread += count
        self.quietly(1 - side, "arrived", other.unread)

    def recv(self, side):
        me, dice = self.models[side], self.dice
        count = dice.choice(SIZES)
        how = dice.choice(("recv", "recv", "recvfrom", "recvmsg", "read", "readv"))
        flags = 0
        if not how.startswith("read"):
            for flag, chance in ((socket.MSG_PEEK, 0.3), (socket.MSG_WAITALL, 0.2), (socket.MSG_DONTWAIT, 0.3), (socket.MSG_TRUNC, 0.1)):
                flags |= int(flag) if dice.random() < chance else 0
        peek = flags & socket.MSG_PEEK
        needed = count if flags & socket.MSG_WAITALL else min(me.low, count)
        waits = not (flags & socket.MSG_DONTWAIT or me.nonblocking or me.timed or me.eof)
        if waits and me.unread < needed or peek and me.peeks and waits:
            if how.startswith("read"):
                return
            flags |= int(socket.MSG_DONTWAIT)
        result = self.throw(side, "recv", count, flags, how)
        if not peek and result[0].isdigit():
            me.unread -= int(result.split(":")[0].split(" ")[0])

    def splice(self, side):
        me = self.models[side]
        count = min(me.unread, self.dice.choice((100, 4000)))
        if count < me.low:
            return
        result = self.throw(side, "splice", count)
        if result[0].isdigit():
            me.unread -= int(result.split(":")[0])

    def asleep(self, side):
        """One waits, the other wakes it."""
        me, other, dice = self.models[side], self.models[1 - side], self.dice
        if me.unread or me.eof or other.shut or me.nonblocking or me.timed or me.low > 1 or me.peeks:
            return self.poll(side)
        count = dice.choice((1, 100, 1000))
        what = dice.choice(("recv", "peek", "all", "poll", "select", "epoll"))
        if what == "epoll" and (me.member is None or me.edge or not me.member & select.EPOLLIN or me.member & select.EPOLLOUT):
            what = "poll"
        parts = [count] if what != "all" else [count, 50]
        call = {
            "recv": ("recv", 2000, 0, "recv"),
            "peek": ("recv", 2000, socket.MSG_PEEK, "recv"),
            "all": ("recv", sum(parts), socket.MSG_WAITALL | (socket.MSG_PEEK if dice.random() < 0.5 else 0), "recv"),
            "poll": ("poll", 5000, False),
            "select": ("select", 5000, False),
            "epoll": ("epoll_wait", 5000, True),
        }[what]
        if side == 1:
            self.ends[1].begin(*call)
            for part in parts:
                self.call(0, "later", 2, "send", part, "send")
            result = self.ends[1].result()
        else:
            # One order after the other: the second may come when we are awake already.
            self.ends[1].begin("later", 2, "send", parts[0], "send")
            for part in parts[1:]:
                self.ends[1].begin("later", 2, "send", part, "send")
            result = self.call(0, *call)
            for _ in parts:
                self.ends[1].result()
        self.show(side, "asleep", call, result)
        me.unread += sum(parts)
        if call[0] == "recv" and not call[2] & socket.MSG_PEEK and result[0].isdigit():
            me.unread -= int(result.split(":")[0])
        self.quietly(side, "arrived", me.unread)

    def poll(self, side):
        self.throw(side, self.dice.choice(("poll", "select")), 0, self.room(side))

    def unread(self, side):
        self.throw(side, "unread")

    def epoll(self, side):
        me, dice = self.models[side], self.dice
        if me.member is None or dice.random() < 0.3:
            how = "add" if me.member is None else dice.choice(("mod", "mod", "del"))
            events = 0
            for event, chance in ((select.EPOLLIN, 0.9), (select.EPOLLOUT, 0.3), (select.EPOLLRDHUP, 0.5), (select.EPOLLET, 0.3), (select.EPOLLONESHOT, 0.3)):
                events |= event if dice.random() < chance else 0
            if events & select.EPOLLONESHOT:
                events &= ~select.EPOLLOUT  # when there is room is not always certain
            self.throw(side, "epoll", how, events)
            me.member = None if how == "del" else events
            me.edge = bool(me.member and me.member & (select.EPOLLET | select.EPOLLONESHOT))
        # The kernel tells with one edge what there is besides: room, again.
        edge = bool(me.member and me.member & select.EPOLLET)
        self.throw(side, "epoll_wait", 0, self.room(side) and not edge, mark="edge " if edge else "")

    def option(self, side):
        me, dice = self.models[side], self.dice
        level, name, value = dice.choice(
            (
                (socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1),
                (socket.SOL_SOCKET, socket.SO_RCVLOWAT, dice.choice((1, 50, 1000))),
                (socket.SOL_SOCKET, SO_PEEK_OFF, dice.choice((0, -1))),
                (socket.SOL_SOCKET, socket.SO_RCVTIMEO, dice.choice(([0, 0], [0, 30_000]))),
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, dice.choice((0, 1))),
                (socket.SOL_SOCKET, socket.SO_OOBINLINE, dice.choice((0, 1))),
                (socket.IPPROTO_TCP, socket.TCP_NODELAY, dice.choice((0, 1))),
                (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1),
            )
        )
        rare = name in (SO_PEEK_OFF, socket.SO_RCVLOWAT) and level == socket.SOL_SOCKET
        if rare and dice.random() < 0.8:
            return self.throw(side, "option", level, name)
        if name == SO_PEEK_OFF and me.unread and me.member is not None:
            return  # may be refused, as kernels before 6.9 do
        result = self.throw(side, "set_option", level, name, value)
        if result == "ok" and level == socket.SOL_SOCKET:
            if name == socket.SO_RCVLOWAT:
                me.low = value
            elif name == SO_PEEK_OFF:
                me.peeks = value >= 0
            elif name == socket.SO_RCVTIMEO:
                me.timed = value != [0, 0]
        if not isinstance(value, list):
            self.throw(side, "option", level, name)

    def nonblocking(self, side):
        self.models[side].nonblocking = self.dice.random() < 0.5
        self.throw(side, "nonblocking", self.models[side].nonblocking)

    def dup(self, side):
        # Of a member of a set the kernel keeps the old number, with which nothing can be done any more.
        self.throw(side, "dup", self.models[side].member is None and self.dice.random() < 0.5)

    def fork(self, side):
        me = self.models[side]
        peek = self.dice.random() < 0.5
        result = self.throw(side, "fork", self.dice.choice((0, 100, 5000)), socket.MSG_PEEK if peek else 0)
        if not peek and result[0].isdigit():
            me.unread -= int(result.split(":")[0])

    def shutdown(self, side):
        me, other = self.models[side], self.models[1 - side]
        if me.shut or self.dice.random() < 0.7:
            return
        self.throw(side, "shutdown", socket.SHUT_WR)
        me.shut = other.eof = True
        self.quietly(1 - side, "ended")

    def warm(self, side):
        """Round trips, if nothing is in the way."""
        me, other = self.models[side], self.models[1 - side]
        if me.shut or other.shut or me.unread or other.unread or any(m.low > 64 or m.nonblocking or m.timed for m in self.models):
            return
        for _ in range(self.dice.choice((3, 20, 60))):
            for here in (side, 1 - side):
                self.call(here, "send", 64, "send")
                self.call(1 - here, "arrived", 64)
                self.call(1 - here, "recv", 64, 0, "recv")

    def play(self, steps):
        throws = {
            self.send: 30, self.recv: 30, self.asleep: 12, self.poll: 6, self.unread: 3, self.epoll: 12, self.option: 4,
            self.nonblocking: 3, self.dup: 2, self.fork: 0.7, self.shutdown: 0.4, self.splice: 0.5, self.warm: 6,
        }
        for self.step in range(steps):
            (throw,) = self.dice.choices(list(throws), list(throws.values()))
            throw(self.dice.randrange(2))
        self.end()

    def end(self):
        """One end closes, with or without bytes unread; the other reads what there is."""
        side = self.dice.randrange(2)
        me, other = self.models[side], self.models[1 - side]
        if self.dice.random() < 0.7 and me.unread and not me.peeks:
            self.call(side, "set_option", socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            while me.unread > 0 and (got := self.throw(side, "recv", 65536, socket.MSG_DONTWAIT, "recv"))[0].isdigit():
                me.unread -= int(got.split(":")[0])
        self.throw(side, "close")
        self.call(1 - side, "set_option", socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self.quietly(1 - side, "ended")
        self.call(1 - side, "unread")  # waits for a kernel that is in the middle of a reset
        self.throw(1 - side, "poll", 0, True)
        for _ in range(4):
            self.throw(1 - side, "recv", 65536, socket.MSG_DONTWAIT, "recv")
        self.throw(1 - side, "close")


def go_to_a_host(number):
    """As tests/apps/pair.c does."""
    hosts = os.environ.get("HOSTS", "").split(" ")
    if len(hosts) < 4:
        return "127.0.0.1"
    host = os.open(hosts[number], os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(host, 0x40000000) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(host)
    return hosts[2]


def other_end(port, channel):
    address = go_to_a_host(1)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    sock.connect((address, port))
    near = Near(End(sock, 1))
    with channel, channel.makefile("r") as orders:
        for order in orders:
            near.begin(*json.loads(order))
            channel.sendall(json.dumps(near.result()).encode() + b"\n")


def main():
    if sys.argv[1] == "other":
        return other_end(int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])))
    seed, steps = int(sys.argv[1]), int(sys.argv[2])
    address = go_to_a_host(0)
    with socket.create_server((address, 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        ours, theirs = socket.socketpair()
        with theirs:
            other = subprocess.Popen([sys.executable, __file__, "other", str(listener.getsockname()[1]), str(theirs.fileno())], pass_fds=[theirs.fileno()])
        sock, _ = listener.accept()
    Game([Near(End(sock, 0)), Far(ours)], seed).play(steps)
    ours.close()
    return other.wait()


if __name__ == "__main__":
    sys.exit(main())
