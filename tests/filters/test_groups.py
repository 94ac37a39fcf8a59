"""Units of work as futures, and what is to be seen of a group."""

import asyncio
import json
import urllib.request

import numpy as np
import pytest
import shunt.filters as sf

from harness.ether import PATIENCE
from harness.filters import Give, Line, Numbers, Slow, Sum, Take, number
from harness.groups import given_by, row


def test_partial_results_come_as_they_are_emitted_whatever_they_are(launcher):
    emitted = [1, "two", {"three": (4, None)}, b"five", np.arange(3), sf.UnitError("six")]

    def give(self, uow):
        for part in emitted:
            uow.emit(part)

    with given_by(give).start(launcher=launcher) as group:
        unit = group.append()
        parts = list(unit)
        assert unit.result() == [] and unit.progress() == (2, 2) and unit.done()
    assert parts[:4] == emitted[:4] and list(parts[4]) == [0, 1, 2] and str(parts[5]) == "six"


def test_async(launcher):
    async def main():
        with row(numbers=Numbers, line=(Line, 1, 0), take=(Take, number)).start(launcher=launcher) as group:
            one, other = group.append(50), group.append(30)
            parts = [part async for part in one]
            assert parts == list(range(50)) and await other == list(range(30))
            slow = group.append(10**6)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    async for _ in slow:
                        pass
            slow.cancel()
            with pytest.raises(sf.UnitCancelled):
                await slow

    asyncio.run(main())


def test_map_gives_results_in_order(launcher):
    with row(numbers=Numbers, sum=Sum).start(launcher=launcher) as group:
        results = group.map(range(10))
        assert [total for [(_, total, _)] in results] == [sum(range(it)) for it in range(10)]


def test_two_groups_at_once(launcher):
    with row(numbers=Numbers, line=(Line, 1, 0), sum=Sum).start(launcher=launcher) as one:
        with row(numbers=Numbers, line=(Line, 2, 0), sum=Sum).start(launcher=launcher) as other:
            units = [(one.append(100), 4950), (other.append(100), 9900)]
            assert [unit.result(30 * PATIENCE)[0][1] for unit, _ in units] == [expected for _, expected in units]
        # The end of one leaves the other alone.
        assert one.append(10).result(30 * PATIENCE) == [("sum", 45, 10)]


def test_init_and_finalize_frame_each_unit(launcher):
    class Framed(sf.Filter):
        def __init__(self):
            self.said = []

        def init(self, uow):
            self.said.append(f"init {uow.id}")

        def process(self, uow):
            for _ in self.input:
                pass
            self.said.append(f"process {uow.params}")
            if uow.params == "fails":
                raise RuntimeError("as it was told")
            self.output.write("; ".join(self.said).encode())

        def finalize(self, uow):
            self.said.append("finalize")

    layout = row("round-robin", 500, give=(Give, lambda self, uow: None), framed=Framed, take=Take)
    with layout.start(launcher=launcher, window=1) as group:
        units = [group.append(params) for params in ("a", "fails", "b")]
        units[1].exception(30 * PATIENCE)
        assert units[0].result() == [b"init 1; process a"]
        assert units[2].result(30 * PATIENCE) == [b"init 1; process a; finalize; init 2; process fails; finalize; init 3; process b"]

def test_statistics(launcher):
    with row(numbers=Numbers, line=(Line, 1, 0), sum=Sum).start(copies={"line": 2}, launcher=launcher) as group:
        group.append(500).result(30 * PATIENCE)
        seen = group.statistics()
        plan = group.plan()
    assert [name for name, *_ in plan] == [copy.name for copy in seen.copies] == ["numbers", "line[0]", "line[1]", "sum"]
    assert {copy.ended for copy in seen.copies} == {1} and all(copy.pid > 0 and copy.machine for copy in seen.copies)
    assert sum(it.buffers for it in seen.figures) == 1000 and sum(it.bytes for it in seen.figures) == 8000
    assert all(it.unacknowledged == 0 and it.unacknowledged_most <= 4 and it.sent == it.buffers for it in seen.figures)
    assert seen.units == {"done": 1, "failed": 0, "running": 0, "waiting": 0}
    # Everybody has the ways that a process can see; none goes by Dask.
    assert {it.way for it in seen.figures} <= {"thread", "memory"}
    table = str(seen).splitlines()
    assert len({line.index("line[") for line in table[1:3]}) == 1 and table[-1] == "units of work: 1 done, 0 failed, 0 running, 0 waiting"


def test_prometheus(launcher):
    from prometheus_client.parser import text_string_to_metric_families

    with row(numbers=Numbers, sum=Sum).start(launcher=launcher) as group:
        port = group.serve_metrics()
        group.append(500).result(30 * PATIENCE)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10 * PATIENCE) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10 * PATIENCE)
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10 * PATIENCE)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    buffers = families["shunt_filters_buffers"]
    assert buffers.type == "counter" and [sample.value for sample in buffers.samples] == [500]
    assert buffers.samples[0].labels["stream"] == "numbers->sum" and buffers.samples[0].labels["consumer"] == "sum"
    units = {sample.labels["state"]: sample.value for sample in families["shunt_filters_units"].samples}
    assert units == {"done": 1, "failed": 0, "running": 0, "waiting": 0}
    assert {sample.labels.get("quantile") for sample in families["shunt_filters_latency_seconds"].samples} >= {"0.5", "0.9", "0.99"}


def test_a_trace_has_what_each_copy_did(launcher, tmp_path):
    with row(numbers=Numbers, slow=(Slow, 0.001), sum=Sum).start(copies={"slow": 2}, launcher=launcher, trace=True) as group:
        for unit in [group.append(20), group.append(20)]:
            unit.result(30 * PATIENCE)
    group.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert named == {"numbers", "slow[0]", "slow[1]", "sum"}
    spans = [event for event in events if event["ph"] == "X" and event["cat"] == "process"]
    assert sorted(event["args"]["unit of work"] for event in spans) == [1] * 4 + [2] * 4
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans)
    assert max(event["dur"] for event in spans) > 10_000  # microseconds: twenty buffers by two copies, each a millisecond


def test_a_progress_bar(capsys):
    with row(numbers=Numbers, sum=Sum).start(progress=True) as group:
        for unit in [group.append(10) for _ in range(3)]:
            unit.result(30 * PATIENCE)
    said = capsys.readouterr().err
    assert "3/3" in said and "30 buffers, 240 B" in said


def test_a_live_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with row(numbers=Numbers, slow=(Slow, 0.01), sum=Sum).start() as group:
        group.append(30)
        group.watch(0.05)
        assert group.statistics().units["done"] == 1
    assert "numbers->slow" in capsys.readouterr().out
