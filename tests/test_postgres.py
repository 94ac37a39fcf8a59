"""PostgreSQL: a server that forks for each connection, with psql (COPY of large data, errors, notifications) and pgbench. It refuses to
run as root, so it and its clients run as the user `postgres` (or as nobody) when the tests do not."""

import pytest

from harness.postgres import PLACES, start_postgres, unprivileged


@pytest.fixture
def start(need):
    """start(runner) -> run(program, *arguments), which runs a client program against a fresh server."""

    def start(r):
        user, port = unprivileged(), start_postgres(r, need)

        def run(program, *arguments, timeout=60, **how):
            return r.run([need(program, *PLACES), "-h", "127.0.0.1", "-p", port, "-U", "tester", *arguments], user=user,
                         env={"PGDATABASE": "postgres"}, cwd="/", timeout=timeout, **how)

        return run

    return start


def test_queries(same_as_plain, start):
    def scenario(r):
        run = start(r)
        sql = ["CREATE TABLE t(i int PRIMARY KEY, s text);", "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 20000) i;",
               *(f"SELECT s FROM t WHERE i = {i};" for i in range(1, 500)), "SELECT * FROM nosuchtable;",
               "SELECT repeat('x', 3000000);", "BEGIN;", "UPDATE t SET s = 'gone';", "ROLLBACK;", "SELECT sum(i), min(s) FROM t;",
               "LISTEN here;", "NOTIFY here, 'hello';", "SELECT 1;"]
        result = run("psql", "-X", "-q", "-A", "-t", input="\n".join(sql), status=None).text
        return "\n".join(line for line in result.split("\n") if "PID" not in line)  # the notification names the process

    same_as_plain(scenario)


def test_copy(r, same_as_plain, start):
    """30 MB in by COPY FROM STDIN, and out again. Each backend is first left idle for a while: one that finds the next message there
    each time it reads, as on a busy machine, is not seen to wait for its connection, which then stays on TCP."""
    idle = ["-c", "\\! sleep 0.2"]

    def scenario(r):
        run = start(r)
        rows = "".join(f"{i}\t{'%064d' % (i * 7919)}\t{'y' * (i % 100)}\n" for i in range(300_000))
        (r.tmp / "rows").write_text(rows)
        (r.tmp / "rows").chmod(0o644)
        run("psql", "-X", "-q", "-c", "CREATE TABLE c(i int, a text, b text)", *idle, "-c", f"\\copy c FROM '{r.tmp}/rows'")
        back = run("psql", "-X", "-q", *idle, "-c", "COPY (SELECT * FROM c ORDER BY i) TO STDOUT").text
        assert back == rows
        return run("psql", "-X", "-A", "-t", "-c", "SELECT count(*), md5(string_agg(a || b, '' ORDER BY i)) FROM c").text

    same_as_plain(scenario)
    r.accelerated()


@pytest.mark.parametrize("options", [["-S", "-c", "8", "-j", "2"], ["-c", "4", "-j", "2"], ["-S", "-c", "2", "-M", "prepared"]],
                         ids=["select only", "read and write", "prepared"])
def test_pgbench(r, start, options):
    run = start(r)
    run("pgbench", "-i", "-s", "2", "-q", "--foreign-keys")
    text = run("pgbench", *options, "-t", "500").text
    assert "number of failed transactions: 0" in text
    sums = run("psql", "-X", "-A", "-t", "-c", "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM "
               "pgbench_branches), (SELECT count(*) FROM pgbench_accounts)").text
    assert sums == "t|200000\n"
    r.accelerated()


def test_cancel(r, start):
    """psql interrupted in a long query cancels it, over a second connection."""
    run = start(r)
    text = run("psql", "-X", "-c", "SET statement_timeout = 300", "-c", "SELECT pg_sleep(30)", status=1).stderr.decode()
    assert "canceling statement" in text
