"""memcached, a server of several threads on libevent, driven over its text protocol by a client that runs in the same mode."""

import os

import pytest

CLIENT = r"""
import socket, sys, hashlib
sockets = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
files = [s.makefile("rwb") for s in sockets]
def command(f, line, data=None):
    f.write(line.encode() + b"\r\n" + (data + b"\r\n" if data is not None else b""))
    f.flush()
    return f.readline().decode().strip()
def get(f, key):
    head = command(f, "get " + key)
    if head == "END":
        return None
    data = f.read(int(head.split()[3]) + 2)[:-2]
    assert f.readline() == b"END\r\n"
    return data
for i in range(3000):
    f = files[i % len(files)]
    value = hashlib.sha256(b"%d" % i).digest() * (1 + i % 40)
    assert command(f, f"set key{i} 0 0 {len(value)}", value) == "STORED"
    assert get(files[(i + 1) % len(files)], f"key{i}") == value
big = bytes(range(256)) * 4000
assert command(files[0], f"set big 0 0 {len(big)}", big) in ("STORED", "SERVER_ERROR object too large for cache")
print(command(files[0], "set n 0 0 2", b"40"), command(files[0], "incr n 2"), command(files[0], "delete n"), get(files[0], "n"))
# A pipeline: everything is written before anything is read.
f = files[-1]
f.write(b"".join(b"get key%d\r\n" % i for i in range(1000)))
f.flush()
digest = hashlib.sha1()
ends = 0
while ends < 1000:
    line = f.readline()
    ends += line == b"END\r\n"
    digest.update(line)
    if line.startswith(b"VALUE"):
        digest.update(f.read(int(line.split()[3]) + 2))
print(digest.hexdigest())
"""


@pytest.mark.parametrize("threads, connections", [(1, 1), (1, 20), (4, 20)])
def test_memcached(r, same_as_plain, need, threads, connections):
    def scenario(r):
        port = r.free_port()
        user = ["-u", "root"] if os.geteuid() == 0 else []
        r.server([need("memcached"), "-l", "127.0.0.1", "-p", port, "-U", "0", "-t", threads, *user], port)
        return r.run([need("python3"), "-c", CLIENT, port, connections], timeout=60).text

    same_as_plain(scenario)
    r.accelerated()
