"""Calls thrown by dice (tests/apps/dice.py): what each of them gives is the same as in a plain run of the same seed.

`DICE=100-500` throws with more seeds than CI does. A seed that fails, fails again: `tests/apps/dice.py SEED 300` prints each call and what it gave.
"""

import os
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

DICE = Path(__file__).parent / "apps/dice.py"
STEPS = 300


# The latter have found something: two recalls that nobody came for, looks at what came by two ways and, between hosts (59, 153, 246, 275), behind an END, edges behind the ring.
SEEDS = (*range(10), 22, 38, 59, 63, 114, 153, 246, 275)


def seeds():
    if asked := os.environ.get("DICE"):
        first, _, last = asked.partition("-")
        return range(int(first), int(last or first) + 1)
    return SEEDS


def same(plain, ours):
    """Edges may be told more than once, which programs must cope with; none may be missing."""
    if not (plain.startswith("edge ") and ours.startswith("edge ")):
        return plain == ours
    (call, told), (our_call, we_told) = (line.split(" -> ") for line in (plain, ours))
    return call == our_call and int(told or "0", 16) & ~int(we_told or "0", 16) == 0


@pytest.mark.parametrize("seed", seeds())
def test_calls_by_dice(r, mode, seed):
    # In mode plain it is the dice that are tested: two plain runs are the same.
    argv = [sys.executable, DICE, seed, STEPS]
    plain = r.run(argv, env={"LD_PRELOAD": ""}, timeout=60).text.splitlines()
    report = r.new_report()
    ours = r.run(argv, timeout=60).text.splitlines()
    assert len(plain) > STEPS / 2
    for number, (line, our_line) in enumerate(zip_longest(plain, ours, fillvalue="nothing")):
        assert same(line, our_line), "\n".join(["", *plain[max(0, number - 30) : number], f"plain: {line}", f"{mode}: {our_line}"])
    if mode == "tcp":
        r.not_accelerated(report)
