"""A process that has the board and the meeting place in common with others, and lies to them: liar.py BOARD MEETING.

Whatever is posted it posts as well, as its own, beside it or in its place. Where one time stamp tells the next ones, as on kernels that have
one offset for each pair of addresses, it posts what will be posted in the next seconds. It invites every end that it finds, and to each
letter it gives the answer that the protocol asks for, with commitments, salts and seeds that it has thrown. Says at its end (SIGTERM) how
much it lied."""

import os
import random
import re
import signal
import socket
import struct
import sys
import time

# crates/sockets/src/board.rs: magic, check, key, token, cookie, pid, index, time.
POST = struct.Struct("<IIQQQIII12x")
MAGIC, FIRST, WAYS, BUCKETS = 0x53420001, 4096, 16, 8192
# crates/sockets/src/rendezvous/meeting/proof.rs: magic, kind, from, from_index, index, from_cookie, cookie, words.
LETTER = struct.Struct("<IIQIIQQ5Q")
MAGIC_OF_LETTERS = 0x53484D31
INVITE, ACCEPT, START, SHOW, REFUSE = 1, 2, 3, 4, 5
ANSWERS = {INVITE: (ACCEPT,), ACCEPT: (START, SHOW), START: (SHOW,), SHOW: (SHOW,), REFUSE: (INVITE,)}

FULL = (1 << 64) - 1
AHEAD = 3000  # milliseconds


def mix(value):
    z = (value + 0x9E3779B97F4A7C15) & FULL
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & FULL
    z = (z ^ z >> 27) * 0x94D049BB133111EB & FULL
    return z ^ z >> 31


def unmix(value):
    """What mix() has made this of."""
    z = value ^ value >> 31 ^ value >> 62
    z = z * pow(0x94D049BB133111EB, -1, 1 << 64) & FULL
    z = z ^ z >> 27 ^ z >> 54
    z = z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & FULL
    z = z ^ z >> 30 ^ z >> 60
    return z - 0x9E3779B97F4A7C15 & FULL


STAMPS = mix(int.from_bytes(b"SYNstamp", "big"))


def stamp_of(key):
    """The time stamp of the SYN of the connection that was posted by this key; None: it was posted by its addresses."""
    port, stamp = divmod(unmix(key) ^ STAMPS, 1 << 32)
    return stamp if port < 1 << 16 else None


def key_of(stamp):
    """By which one may be posted whose port NAT has changed."""
    return mix(STAMPS ^ stamp % (1 << 32))


def checksum(key, token, cookie, pid, index, time):
    rotated = (cookie << 17 | cookie >> 47) & FULL
    total = mix(mix(key ^ mix(token) ^ mix(rotated)) ^ pid << 32 ^ index)
    return (total ^ total >> 32) & 0xFFFFFFFF ^ time


class Liar:
    def __init__(self, board, meeting):
        self.board, self.meeting = os.open(board, os.O_RDWR), meeting
        name = os.urandom(8)
        self.token = int.from_bytes(name, "little")
        self.nobody = self.token ^ 1 << 32
        self.path = f"{meeting}/{name[::-1].hex()}l"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        os.chmod(self.path, 0o666)
        self.ahead, self.offsets, self.seen = set(), set(), set()
        self.dice, self.posted, self.written, self.asked = random.Random(7), 0, 0, 0

    def write(self, kinds, to, index, cookie, own=(0, 1)):
        """Letters to one end, as from one of ours."""
        for kind in kinds:
            words = [self.dice.getrandbits(64) for _ in range(5)]
            letter = LETTER.pack(MAGIC_OF_LETTERS, kind, self.token, own[0], index, own[1], cookie, *words)
            try:
                self.socket.sendto(letter, socket.MSG_DONTWAIT, f"{self.meeting}/{to.to_bytes(8, 'big').hex()}l")
                self.written += 1
            except OSError:
                pass

    def post(self, board, key, pid, index, time, instead=None):
        bucket = FIRST + key % BUCKETS * WAYS * POST.size
        free = [at for at in range(bucket, bucket + WAYS * POST.size, POST.size) if not any(board[at:at + 4])]
        at = min(free, default=bucket) if instead is None else instead
        # Of those that it names, every other one is not there.
        lie = (key, self.dice.choice([self.token, self.nobody]), self.dice.getrandbits(64), pid, index, time)
        os.pwrite(self.board, POST.pack(MAGIC, checksum(*lie), *lie), at)
        self.posted += 1

    def post_what_is_posted(self):
        board = os.pread(self.board, FIRST + BUCKETS * WAYS * POST.size, 0)
        stamps = {}
        for found in re.finditer(re.escape(struct.pack("<I", MAGIC)), board):
            at = found.start()
            if at < FIRST or (at - FIRST) % POST.size or at + POST.size > len(board):
                continue
            _, check, key, token, cookie, pid, index, posted = POST.unpack_from(board, at)
            if token in (self.token, self.nobody, 0) or check != checksum(key, token, cookie, pid, index, posted):
                continue
            self.post(board, key, pid, index, posted, self.dice.choice([at, None]))
            self.write([INVITE], token, index, cookie)
            if (stamp := stamp_of(key)) is not None and stamp not in self.seen:
                self.seen.add(stamp)
                stamps[stamp] = (pid, index, posted)
        now = int(time.monotonic() * 1000)
        for stamp in stamps:
            offset = stamp - now
            if any(abs(offset - other) < 50 for other in self.offsets):
                for later in set(range(stamp + 1, stamp + AHEAD)) - self.ahead:
                    self.post(board, key_of(later), *stamps[stamp])
                    self.ahead.add(later)
            self.offsets.add(offset)

    def answer(self):
        while True:
            try:
                letter = self.socket.recv(200, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if len(letter) == LETTER.size:
                _, kind, sender, sender_index, index, sender_cookie, cookie, *_ = LETTER.unpack(letter)
                self.asked += kind == INVITE
                self.write(ANSWERS.get(kind, ()), sender, sender_index, sender_cookie, (index, cookie))

    def lie(self):
        while True:
            self.post_what_is_posted()  # some 8 MB, in some 10 ms
            for _ in range(10):
                self.answer()
                time.sleep(0.001)


def main():
    liar = Liar(*sys.argv[1:])
    print("lies", flush=True)

    def end(*_):
        os.unlink(liar.path)
        print(f"posted {liar.posted}, wrote {liar.written} letters, was asked {liar.asked} times", flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    liar.lie()


if __name__ == "__main__":
    main()
