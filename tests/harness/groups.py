"""What the tests of filter groups from Python (tests/filters) share: layouts in a line, and where examples run."""

import os
import sys

import shunt.filters as sf

from harness import modes, system
from harness.filters import Give, Take

EXAMPLE = modes.ROOT / "python" / "examples" / "zoom.py"
# A Python that has the wheel and what it declares to need, no more; scripts/test.sh makes one.
CLEAN = os.environ.get("FILTERS_PYTHON", sys.executable)
TILES = sum(tile % 251 * 4096 for tile in range(1000))
LAUNCHERS = ("local", "dask")


def workers():
    """Processes of groups that live, by their process ids."""
    return {pid for pid, command in system.descendants().items() if "shunt.filters.worker" in command}


def row(policy="demand-driven", buffer_size=64, credits=4, **filters):
    """Filters in a row; each is a class, or a class and what it is made with."""
    layout = sf.Layout(policy=policy, buffer_size=buffer_size, credits=credits)
    for name, make in filters.items():
        make = make if isinstance(make, tuple) else (make,)
        layout.filter(name, *make)
    for one, other in zip(filters, list(filters)[1:]):
        layout.stream(one, other)
    return layout


def apart(**copies):
    """So many copies, each with a process of its own."""
    return {name: sf.Place(copies=count, processes=True) for name, count in copies.items()}


def given_by(give, take=bytes, **stream):
    """One filter that does what a function says, and one that emits what another makes of its buffers."""
    return sf.Layout(**{"buffer_size": 64, "credits": 4}).filter("give", Give, give).filter("take", Take, take).stream("give", "take", **stream)
