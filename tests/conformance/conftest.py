"""Conformance: test suites of other people's, run plain, under Shunt, and under it but forced to TCP, and held side by side, test by
test. Each difference is a bug of ours, or has a line with its reason in reasons.txt.

    make conformance                                 every suite; the table of them is kept in build/conformance.txt
    pytest tests/conformance                         those that CI runs
    CONFORMANCE=full pytest tests/conformance -k ssl
"""

import shutil

import pytest

from harness import conform as held
from harness.runner import Runner

# These need sources of packages, packages of their own, or much time.
LONG = ["test_haproxy_suite.py", "test_mpi.py", "test_nginx.py", "test_postgres_regress.py", "test_redis_suite.py"]
collect_ignore = [] if held.FULL else LONG

_plain, _rows = {}, []


@pytest.fixture
def conform(r, mode, apps):
    """conform(suite, scenario): scenario(runner) returns {test: outcome} of one suite, which must be the plain run's. moves: whether
    connections are to move to memory in it."""

    def plainly(scenario):
        plain = Runner("plain", apps)
        try:
            return scenario(plain)
        finally:
            plain.stop_all()
            shutil.rmtree(plain.tmp, ignore_errors=True)

    def compare(suite, scenario, moves=True):
        found = scenario(r)

        def again():
            return plainly(scenario)

        if mode == "plain":
            found = _plain[suite] = held.ran(suite, found, again)
        elif suite not in _plain:
            _plain[suite] = held.ran(suite, again(), again)
        row = held.Row(suite, mode, _plain[suite], found, again, r.report.promoted)
        _rows.append(row.line())
        lines = [f"  {test}: {plain} | {here}" for test, (plain, here) in row.ours.items()]
        assert not lines, "\n".join([f"{suite}, plain | {mode}:", *lines])
        if moves:
            r.accelerated()

    return compare


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["conformance"] = _rows


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _rows.extend(tuple(row) for row in getattr(node, "workeroutput", {}).get("conformance", []))


def pytest_terminal_summary(terminalreporter):
    if _rows:
        terminalreporter.section("conformance")
        for line in held.table(_rows):
            terminalreporter.write_line(line)
