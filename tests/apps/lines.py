"""Python's buffered sockets: makefile() in text and in bytes, readline, read, readinto, several of them on one socket."""

import socket
import sys

s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
text = s.makefile("rw", encoding="utf-8", newline="\n")
for i in range(500):
    text.write(f"line {i} é€😀 {'x' * (i % 70)}\n")
    text.flush()
    assert text.readline() == f"line {i} é€😀 {'x' * (i % 70)}\n"
text.close()
out, back = s.makefile("wb"), s.makefile("rb", buffering=1000)
data = bytes(i * 7 % 251 for i in range(50000))
for _ in range(10):
    out.write(data)
    out.flush()
    assert back.read(len(data)) == data
unbuffered = s.makefile("rwb", buffering=0)
for i in range(200):
    assert unbuffered.write(b"%04d" % i) == 4
    room = bytearray(4)
    while not (n := back.readinto1(room)):
        pass
    assert n == 4 and room == b"%04d" % i
unbuffered.write(b"peeked\nlast")
assert back.peek()[:1] == b"p" and back.readline() == b"peeked\n"
s.shutdown(socket.SHUT_WR)
assert back.read() == b"last"
print("right")
