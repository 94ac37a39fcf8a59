"""What the suites of tests/conformance are held to: test by test the plain run's outcome, or a line in reasons.txt."""

import os
import re
import warnings
from contextlib import contextmanager

from .modes import MODES, ROOT

FULL = os.environ.get("CONFORMANCE", "short") == "full"
REASONS = ROOT / "tests/conformance/reasons.txt"
OUT = ROOT / "build/conformance.txt"
# How often a suite is run plain again if it broke off, or something differs.
PLAIN_AGAIN = 3


class Steps(dict):
    """The outcomes of a scenario of our own: `with steps.step("name"): ...`. A step that fails fails the test, in whatever mode."""

    @contextmanager
    def step(self, name):
        try:
            yield
        except AssertionError as wrong:
            raise AssertionError(f"{name}: {wrong}") from wrong
        self[name] = "passed"


def chosen(scenarios, short):
    """The names of the scenarios to be run: all of them, or the `short` ones."""
    assert set(short) <= set(scenarios)
    return list(scenarios) if FULL else short


def outcomes(pairs):
    """{test: outcome} of (test, outcome) pairs; a name that comes again (a subtest, say) is numbered, so that none hides another."""
    found, times = {}, {}
    for name, outcome in pairs:
        times[name] = times.get(name, 0) + 1
        found[name if times[name] == 1 else f"{name} #{times[name]}"] = outcome
    return found


def ran(suite, found, again):
    """The plain run is the measure: one that broke off (CPython's test_ftplib has crashed), or in which nothing passed, measures
    nothing. `again` runs it once more."""
    for _ in range(PLAIN_AGAIN):
        if "(the run)" not in found:
            break
        warnings.warn(f"{suite} broke off plain, and is run again: {found}")
        found = again()
    assert "(the run)" not in found and "passed" in found.values(), f"{suite} does not run plain: {found}; is it installed?"
    return found


def reason_for(suite, test, mode):
    """The reason in reasons.txt for which this test may come out otherwise, or None."""
    for line in REASONS.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            of, pattern, where, reason = (field.strip() for field in line.split("|", 3))
            if of == suite and where in (mode, "*") and re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), test):
                return reason
    return None


def differences(plain, other):
    """{test: (its plain outcome, the other one)}, where they are not the same."""
    return {test: (plain.get(test, "not run"), other.get(test, "not run"))
            for test in sorted(plain.keys() | other.keys()) if plain.get(test) != other.get(test)}


class Row:
    """One suite in one mode, against its plain run. `again` runs it plain once more."""

    def __init__(self, suite, mode, plain, found, again, moved):
        self.suite, self.mode, self.moved = suite, mode, moved
        outcomes = list(found.values())
        self.passed, self.skipped = outcomes.count("passed"), outcomes.count("skipped")
        self.failed = len(outcomes) - self.passed - self.skipped
        wrong = differences(plain, found)
        self.explained = {test for test in wrong if reason_for(suite, test, mode)}
        # A test that comes out so without us, too, if only now and then, tells nothing. What comes out so under Shunt only, however
        # seldom, is ours.
        self.unsteady = set()
        for _ in range(PLAIN_AGAIN):
            if wrong.keys() <= self.explained | self.unsteady:
                break
            once_more = again()
            self.unsteady |= {test for test in wrong if once_more.get(test, "not run") == wrong[test][1]}
        self.ours = {test: ends for test, ends in wrong.items() if test not in self.explained | self.unsteady}

    def line(self):
        """(suite, mode, its line in the table): what a worker of pytest-xdist can send."""
        differ = ["", "", ""] if self.mode == "plain" else [len(self.ours), len(self.explained), len(self.unsteady)]
        moved = self.moved if self.mode == "shunt" else ""
        return self.suite, self.mode, FORM.format(self.suite, self.mode, self.passed, self.failed, self.skipped, *differ, moved)


FORM = "{:34} {:6} {:>7} {:>7} {:>8} {:>7} {:>10} {:>9} {:>7}"


def table(rows):
    """The lines of the table, of what line() gave; they are kept in build/conformance.txt, too."""
    rows = sorted(rows, key=lambda row: (row[0], MODES.index(row[1])))
    lines = [FORM.format("suite", "mode", "passed", "failed", "skipped", "differ", "explained", "unsteady", "moved"), *(row[2] for row in rows)]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")
    return lines
