"""Epoll sets by dice (tests/apps/sets): what each of them tells, and whom it wakes, is the same as in a plain run of the same seed.

`SETS=100-500` throws with more seeds than CI does. A seed that fails, fails again: `build/apps/sets SEED SEED 120` prints each throw and what came of it.
"""

import os
import select
from itertools import zip_longest

import pytest

STEPS = 120
AT_ONCE = 10  # seeds of one run
FOUND = (3711, 5742, 8944)  # told one call late when back on tcp, a child that took its parent's edge, a member lost while its number was closed
LONG = {"WAIT": 300}


def runs():
    asked = os.environ.get("SETS")
    first, _, last = (asked or "0-59").partition("-")
    first, last = int(first), int(last or first)
    found = [] if asked else [(seed, seed) for seed in FOUND]
    return [(seed, min(seed + AT_ONCE - 1, last)) for seed in range(first, last + 1, AT_ONCE)] + found


def told(line):
    """The line without what edges tell, and that: data -> events."""
    # To wake somebody for an edge that is told again is to tell it again.
    words = line.replace(" ~asleep", "").replace(" ~woken", " ~woken:1").split(" ")
    edges = dict(word.split(":") for word in words if word.startswith("~"))
    return [word for word in words if not word.startswith("~")], {data: int(events, 16) for data, events in edges.items()}


def same(plain, ours, known):
    """Edges may be told more than once, which programs must cope with; none may be missing, but for room, again, where the kernel tells it with one that is over."""
    (line, edges), (our_line, our_edges) = told(plain), told(ours)
    missing = {data: events & ~our_edges.get(data, 0) for data, events in edges.items()}
    again = {data: select.EPOLLOUT if data in known else 0 for data in edges}
    known.update(edges)
    return line == our_line and not any(events & ~again[data] for data, events in missing.items())


def difference(plain, ours, mode):
    known = set()
    for number, (line, our_line) in enumerate(zip_longest(plain, ours, fillvalue="nothing")):
        if line.endswith(".0 connection 0 is number 0"):
            known.clear()  # another seed
        if not same(line, our_line, known):
            first = max(0, number - 60)
            return "\n".join(["", *plain[first:number], f"plain: {line}", f"{mode}: {our_line}"])
    return ""


@pytest.mark.parametrize("first, last", runs(), ids=lambda seed: str(seed))
def test_sets_by_dice(r, mode, first, last):
    # In mode plain it is the dice that are tested: two plain runs are the same.
    if mode != "shunt" and first >= AT_ONCE and "SETS" not in os.environ:
        pytest.skip("a few seeds tell whether the dice are good, and whether hooks alone change anything")

    def pair(**env):
        argv = [r.apps / "sets", first, last, STEPS]
        plain = r.run(argv, env={"LD_PRELOAD": ""} | env, timeout=120).text
        expected = r.tmp / "expected"
        expected.write_text(plain)
        ours = r.run([*argv, expected], env=env, timeout=300).text
        return difference(plain.splitlines(), ours.splitlines(), mode)

    report = r.new_report()
    wrong = pair()
    if wrong and wrong.endswith("woken"):
        # On a busy machine one who is woken may have had no processor in time, plain: longer, then.
        wrong = pair(**LONG)
    assert not wrong, wrong
    if mode == "tcp":
        r.not_accelerated(report)
    else:
        r.accelerated(report)
