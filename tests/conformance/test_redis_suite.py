"""Redis's own tests (from Debian's source package, driven by Tcl) of the installed redis-server: those units in which connections,
replication or processes are what is tested. Servers and clients both run under Shunt."""

import re
import shutil

import pytest

from harness.conform import outcomes
from harness.sources import source

pytestmark = pytest.mark.conformance

UNITS = """unit/auth unit/protocol unit/info unit/type/list unit/type/zset unit/type/stream-cgroups unit/other unit/multi unit/quit unit/aofrw
unit/acl unit/latency-monitor unit/pubsub unit/pubsubshard unit/introspection unit/introspection-2 unit/maxmemory unit/limits
unit/obuf-limits unit/wait unit/pause unit/querybuf unit/pendingquerybuf unit/tracking unit/shutdown unit/networking unit/client-eviction
unit/replybufsize unit/cluster unit/cluster/misc unit/cluster/links integration/block-repl integration/replication integration/replication-2
integration/replication-3 integration/replication-4 integration/replication-psync integration/replication-buffer integration/shutdown
integration/aof integration/aof-multi-part integration/rdb integration/logging integration/psync2 integration/psync2-reg
integration/psync2-pingoff integration/psync2-master-restart integration/failover integration/redis-cli integration/redis-benchmark""".split()
PROGRAMS = ["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"]
# Checks that expect the server to have run between a write on one connection and a question on another, which kernel TCP does not promise
# either (with redis-server at nice 19 beside busy processors they fail over it, with the same figures): they wait for what they check.
UNTIL = """wait_for_condition 200 10 {{{0}}} else {{fail "not within two seconds: {0}"}}"""
WAITS = {
    "unit/client-eviction": [
        ("        set tot_mem [client_field $cname tot-mem]\n        assert {$tot_mem >= $n &&", "[client_field $cname tot-mem] >= $n"),
        ("        assert {![client_exists $cname]}\n        $rr close\n        \n        # Restore settings", "![client_exists $cname]"),
    ]
}
LINE = re.compile(r"^\[(ok|err|exception|skip|ignore)\]: (.*?)(?: \(\d+ ms\))?(?: in tests/.*)?$")
OUTCOME = {"ok": "passed", "skip": "skipped", "ignore": "skipped"}


def together(pairs):
    """PSYNC2's tests draw which replicas they take, and go on for a time, not for a number: all of a kind are one, failed if one did."""
    kinds = {}
    for name, outcome in pairs:
        if not name.startswith("PSYNC2"):
            yield name, outcome
            continue
        kind = re.sub(r"( #N)+$", " #N", re.sub(r"\(x = \d+\)", "", re.sub(r"(#|CYCLE )\d+", r"\1N", name))).strip()
        if outcome != "passed" or kind not in kinds:
            kinds[kind] = outcome
    yield from kinds.items()


def with_waits(unit, path):
    for check, condition in WAITS.get(unit, []):
        text = path.read_text()
        assert text.count(check) == 1, f"{path.name}: the check that was to wait is not there once: {check}"
        path.write_text(text.replace(check, f"        {UNTIL.format(condition)}\n{check}"))


def suite(unit, need):
    def scenario(r):
        # It writes where it lies.
        tree = r.tmp / "redis"
        for part in ("tests", "utils"):
            shutil.copytree(source("redis") / part, tree / part, symlinks=True)
        with_waits(unit, tree / "tests" / f"{unit}.tcl")
        (tree / "src").mkdir()
        for name in PROGRAMS:
            (tree / "src" / name).symlink_to(need(name))
        done = r.run([need("tclsh"), "tests/test_helper.tcl", "--clients", "1", "--baseport", "21111", "--single", unit], cwd=tree, status=None,
                     timeout=600)
        lines = map(LINE.match, re.sub(r"\x1b\[[\d;]*m", "", done.text).splitlines())
        found = outcomes(together((line[2], OUTCOME.get(line[1], "failed")) for line in lines if line))
        if "All tests passed" not in done.text and "failed" not in found.values():
            found["(the run)"] = f"status {done.status}"
        return found

    return scenario


@pytest.mark.parametrize("unit", UNITS)
def test_redis(conform, need, unit):
    conform(f"redis {unit}", suite(unit, need), moves=False)
