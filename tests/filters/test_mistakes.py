"""Mistakes of programs, and what is said of them."""

import subprocess
import sys

import pytest
import shunt.filters as sf

from harness.ether import PATIENCE
from harness.filters import Give, Numbers, Sum
from harness.groups import given_by, row


MISTAKES = {
    "an unknown filter": (lambda: sf.Layout().filter("a", Sum).stream("a", "b"), "'b', which is not there (there are: a)"),
    "a filter twice": (lambda: sf.Layout().filter("a", Sum).filter("a", Sum), "two filters named 'a'"),
    "a stream twice": (lambda: row(a=Numbers, b=Sum).stream("a", "b"), "give one of them another name"),
    "no name": (lambda: sf.Layout().filter("a b", Sum), "'a b' is no name for a filter"),
    "an odd size": (lambda: row(buffer_size="16 furlongs", a=Numbers, b=Sum), "'16 furlongs' is no size: a number of bytes, or a text like '16KiB'"),
    "an empty buffer": (lambda: row(buffer_size=0, a=Numbers, b=Sum), "buffer_size is 0, not 1 byte to 1 GiB"),
    "no credits": (lambda: row(credits=0, a=Numbers, b=Sum), "credits is 0, not 1 to 4096"),
    "negative credits": (lambda: row(credits=-1, a=Numbers, b=Sum), "credits"),
    "a negative size": (lambda: row(buffer_size=-5, a=Numbers, b=Sum), "buffer_size"),
    "an odd policy": (lambda: row("by-luck", a=Numbers, b=Sum), "'by-luck' is no policy: round-robin, weighted, demand-driven, keyed, or a function"),
    "weights without the policy": (lambda: sf.Layout().filter("a", Numbers).filter("b", Sum).stream("a", "b", weights=[1]), "weighted"),
    "a circle": (lambda: row(a=Sum, b=Sum).stream("b", "a").start(), "streams go round in a circle, so that no unit of work could end: see a, b"),
    "nothing": (lambda: sf.Layout().start(), "the layout has no filters"),
    "wrong weights": (lambda: sf.Layout().filter("a", Numbers).filter("b", Sum).stream("a", "b", policy="weighted", weights=[1, 2]).start(),
                      "2 weights, but its consumer 'b' has 1 copies"),
    "copies of nobody": (lambda: row(a=Numbers, b=Sum).start(copies={"c": 2}), "names the filter 'c', which is not in the layout"),
    "no copies": (lambda: row(a=Numbers, b=Sum).start(copies={"a": 0}), "filter 'a' has 0 copies"),
    "an unknown host": (lambda: row(a=Numbers, b=Sum).start({"a": sf.Place(on=["moon"])}), "host 'moon', which the launcher does not have (it has: caller)"),
    "an unknown launcher": (lambda: row(a=Numbers, b=Sum).start(launcher="slurm"), "'slurm' is no launcher: 'local', 'dask'"),
    "an unknown transport": (lambda: row(a=Numbers, b=Sum).start(transport="mail"), "'mail' is no transport: auto, shunt, tcp"),
    "fewer than no copies": (lambda: row(a=Numbers, b=Sum).start(copies={"a": -1}), "copies of filter 'a' is -1, less than 0"),
    "a negative weight": (lambda: sf.Layout("weighted").filter("a", Numbers).filter("b", Sum).stream("a", "b", weights=[-1]), "a weight is -1, less than 0"),
    "no time": (lambda: row(a=Numbers, b=Sum).start().append(timeout=-1), "negative"),
    "reruns": (lambda: row(a=Numbers, b=Sum).start().append(reruns=-1), "reruns is -1, less than 0"),
    "an odd window": (lambda: row(a=Numbers, b=Sum).start(window=0), "window is 0, not 1 to 16"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_value_errors_that_say_what_to_do(what):
    make, text = MISTAKES[what]
    with pytest.raises(ValueError) as failed:
        make()
    assert text in str(failed.value)


def test_other_mistakes():
    with pytest.raises(TypeError, match="is no launcher: it lacks hosts, address or launch"):
        row(a=Numbers, b=Sum).start(launcher=object())
    with pytest.raises(sf.FilterFailed, match="filter a on host 'caller' failed: TypeError: .* made a dict, which is no shunt.filters.Filter"):
        row(a=dict, b=Sum).start()
    with pytest.raises(sf.FilterFailed, match="has no method process"):
        with row(a=sf.Filter, b=Sum).start() as group:
            group.append().result(30 * PATIENCE)
    with given_by(lambda self, uow: self.outputs["nothing"], bytes).start() as group:
        with pytest.raises(sf.FilterFailed, match="KeyError: 'nothing'"):
            group.append().result(30 * PATIENCE)
    with row(give=(Give, lambda self, uow: self.output), a=Sum).stream("give", "a", name="other").start() as group:
        with pytest.raises(sf.FilterFailed, match=r"filter give has not one output but 2 \(give->a, other\): use self.outputs\[NAME\]"):
            group.append().result(30 * PATIENCE)
    worker = subprocess.run([sys.executable, "-m", "shunt.filters.worker"], capture_output=True, text=True)
    assert worker.returncode == 2 and "people do not" in worker.stderr
