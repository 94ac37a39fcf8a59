"""Redis, driven as people do: redis-cli, redis-benchmark, pipelines, big values, pub/sub, transactions, blocking pops, and BGSAVE,
which forks the server while it serves."""

import os
import socket
import sys

import pytest

from harness.system import until


@pytest.fixture
def start(r, need):
    """start(runner) -> cli, a function that runs redis-cli with arguments and returns what it prints."""

    def start(runner, *options):
        port = runner.free_port()
        runner.server([need("redis-server"), "--port", port, "--save", "", "--dir", runner.tmp, *options], port)

        def cli(*arguments, **how):
            return runner.run([need("redis-cli"), "-p", port, *arguments], **how).text

        cli.port = port
        return cli

    return start


def test_commands(same_as_plain, start):
    def scenario(r):
        cli = start(r)
        script = "\n".join([*(f"SET key:{i} value-{i}" for i in range(500)), *(f"GET key:{i}" for i in range(500)),
                            "INCRBY n 41", "INCR n", "LPUSH l a b c", "LRANGE l 0 -1", "HSET h f 1 g 2", "HGETALL h",
                            "ZADD z 2 b 1 a", "ZRANGE z 0 -1 WITHSCORES", "MULTI", "SET t 1", "INCR t", "EXEC", "GET t",
                            "MULTI", "SET t 9", "DISCARD", "GET t", "NOSUCHCOMMAND", "DBSIZE", "KEYS key:49*", ""])
        return cli(input=script).replace("\r", "").split("\n")[:1010], cli("DBSIZE")

    same_as_plain(scenario)


def test_promoted(r, start):
    """A session long enough is accelerated."""
    cli = start(r)
    assert cli(input="PING\n" * 2000).count("PONG") == 2000
    r.accelerated()


# Talks by blocking calls and nothing else.
TALKER = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for i in range(2000):
    peer.sendall(b"PING\\r\\n")
    assert peer.recv(100) == b"+PONG\\r\\n"
"""


def test_who_is_always_answered_before_it_waits(r, need):
    """On one processor the server often runs as soon as it is written to, and its client finds the answer there each time, for hundreds
    of calls: it is seen to wait only if an answer comes late once (rendezvous::nap). Beside other programs it may not run while that one
    is late; it has several chances in 2,000 calls, and had too few in 300."""
    port, one = r.free_port(), ["taskset", "-c", min(os.sched_getaffinity(0))]
    r.server([*one, need("redis-server"), "--port", port, "--save", "", "--dir", r.tmp], port)
    for _ in range(40):
        r.run([*one, sys.executable, "-c", TALKER, port])
    if r.mode == "shunt":
        # Both ends of each.
        assert r.report.promoted >= 76, r.report


@pytest.mark.parametrize("options", [["-c", "50", "-n", "30000"], ["-c", "20", "-n", "50000", "-P", "16"], ["-c", "1", "-n", "2000"],
                                     ["-c", "10", "-n", "500", "-d", "100000"], ["-c", "20", "-n", "20000", "--threads", "2"]],
                         ids=["50 clients", "pipeline", "1 client", "100 KB", "2 threads"])
def test_benchmark(r, start, need, options):
    cli = start(r)
    result = r.run([need("redis-benchmark"), "-p", cli.port, "-t", "set,get,incr,lpush,lrange_100", "-q", *options], timeout=120)
    for name in ("SET", "GET", "INCR", "LPUSH"):
        assert f"{name}: " in result.text and "requests per second" in result.text
    assert "error" not in (result.text + result.stderr.decode()).lower()
    r.accelerated()


def test_short_connections(r, start, need):
    """A connection for each request (-k 0): nothing to gain, nothing to lose."""
    cli = start(r)
    result = r.run([need("redis-benchmark"), "-p", cli.port, "-t", "ping", "-q", "-k", "0", "-c", "10", "-n", "2000"], timeout=60)
    assert "requests per second" in result.text


def test_big_values(same_as_plain, start):
    def scenario(r):
        cli = start(r)
        sizes = [1, 1000, 65536, 1 << 20, 30 << 20]
        for size in sizes:
            value = bytes((i * 7 + size) % 251 for i in range(1000)) * (size // 1000 + 1)
            assert cli("-x", "SET", f"big{size}", input=value[:size]) == "OK\n"
        return [(cli("STRLEN", f"big{size}"), r.run(["sha1sum"], input=cli("--raw", "GET", f"big{size}")).text) for size in sizes]

    same_as_plain(scenario)


def test_mass_insertion(same_as_plain, start):
    """redis-cli --pipe: megabytes written before anything is read."""

    def scenario(r):
        cli = start(r)
        protocol = "".join(f"*3\r\n$3\r\nSET\r\n${len(k := f'key{i}')}\r\n{k}\r\n$100\r\n{'v' * 100}\r\n" for i in range(50000))
        return cli("--pipe", input=protocol, timeout=60), cli("DBSIZE")

    assert "errors: 0, replies: 50000" in same_as_plain(scenario)[0]


def test_publish_subscribe(r, start, need):
    cli = start(r)
    subscribers = [r.spawn([need("redis-cli"), "-p", cli.port, "SUBSCRIBE", "news"], name=f"subscriber{i}") for i in range(3)]
    until(lambda: cli("PUBSUB", "NUMSUB", "news").split() == ["news", "3"], 10, "three have subscribed")
    cli(input="".join(f"PUBLISH news message-{i}\n" for i in range(1000)))
    wanted = [f"message-{i}" for i in range(1000)]
    for s in subscribers:
        until(lambda: b"message-999\n" in s.out.read_bytes(), 10, "the last message came")
        assert [line for line in s.out.read_text().split("\n") if line.startswith("message-")] == wanted


def test_blocking_pop(r, start, need):
    cli = start(r)
    for i in range(10):
        waiting = r.spawn([need("redis-cli"), "-p", cli.port, "BLPOP", "queue", "20"])
        until(lambda: "blocked_clients:1" in cli("INFO", "clients"), 10, "a client waits")
        cli("RPUSH", "queue", f"job{i}")
        assert waiting.wait(10) == 0
        assert waiting.out.read_text().split() == ["queue", f"job{i}"]
    assert cli("BLPOP", "queue", "0.2").strip() == ""


def test_background_save_under_load(r, start, need):
    """The server forks to save while 20 clients keep it busy, ten times; nothing is lost."""
    cli = start(r)
    cli("DEBUG", "POPULATE", "100000", status=None)
    for i in range(100):
        cli("SET", f"known{i}", str(i)) if i % 25 == 0 else None
    load = r.spawn([need("redis-benchmark"), "-p", cli.port, "-t", "set,get", "-c", "20", "-n", "400000", "-r", "1000", "-q"])
    for _ in range(10):
        cli("BGSAVE")
        until(lambda: "rdb_bgsave_in_progress:0" in cli("INFO", "persistence"), 60, "the save has ended")
        assert "rdb_last_bgsave_status:ok" in cli("INFO", "persistence")
        assert cli("GET", "known50") == "50\n"
    assert load.wait(120) == 0
    assert (r.tmp / "dump.rdb").stat().st_size > 0
    assert "error" not in load.err.read_text().lower()
    r.accelerated()


def test_replication(r, start, need):
    """A second server follows the first: a long stream from a forked child, then live."""
    first, second = start(r), start(r)
    first(input="".join(f"SET key:{i} {'x' * 500}{i}\n" for i in range(5000)))
    second("REPLICAOF", "127.0.0.1", str(first.port))
    until(lambda: "master_link_status:up" in second("INFO", "replication"), 60, "the replica is in step")
    first(input="".join(f"SET live:{i} {i}\n" for i in range(3000)))
    until(lambda: second("DBSIZE") == first("DBSIZE"), 20, "the replica has all keys")
    assert second("GET", "key:4999") == first("GET", "key:4999")
    assert second("GET", "live:2999") == "2999\n"


def test_raw_pipeline(r, start):
    """By hand, outside Shunt: a plain client of an accelerated server, 20,000 commands before the first answer is read."""
    cli = start(r)
    with socket.create_connection(("127.0.0.1", cli.port)) as s:
        s.sendall(b"INCR n\r\n" * 20000)
        data = b""
        while not data.endswith(b":20000\r\n"):
            data += s.recv(1 << 16)
    assert data == b"".join(b":%d\r\n" % i for i in range(1, 20001))
    r.not_accelerated()
