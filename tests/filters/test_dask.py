"""Groups on Dask clusters."""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys

import pytest
import shunt.filters as sf

from harness import modes, system
from harness.ether import PATIENCE
from harness.filters import Line, Numbers, Slow, Sum, Take, Warn
from harness.groups import row, workers


def test_placements_name_dask_workers(cluster):
    layout = row(numbers=Numbers, line=(Line, 1, 0), sum=Sum)
    placement = {"numbers": sf.Place(2, on=["1"]), "line": sf.Place(2), "sum": sf.Place(on=["0"])}
    with layout.start(placement, launcher=cluster) as group:
        assert group.append(10).result(30 * PATIENCE) == [("sum", 45, 10)]
        assert {name: host for name, host, _ in group.plan()} == {"numbers[0]": "1", "numbers[1]": "1", "line[0]": "0", "line[1]": "1", "sum": "0"}
        # One process in each Dask worker.
        assert len(workers()) == 2
    with pytest.raises(ValueError, match=r"host '7', which the launcher does not have \(it has: 0, 1, caller\)"):
        layout.start({"line": sf.Place(on=["7"])}, launcher=cluster)


def test_what_may_be_given_as_a_launcher(cluster):
    from shunt.filters.dask import DaskLauncher

    layout = row(numbers=Numbers, sum=Sum)
    for given in (cluster, cluster.cluster, cluster.scheduler.address):
        with layout.start(launcher=given) as group:
            assert {host for name, host, _ in group.plan() if name == "numbers"} == {"0"}
            assert group.append(10).result(30 * PATIENCE) == [("sum", 45, 10)]
    with DaskLauncher(cluster) as one:
        for _ in range(2):  # a launcher outlives the groups that it was given to
            with layout.start(launcher=one) as group, layout.start(launcher=one) as other:
                assert group.append(10).result(30 * PATIENCE) == other.append(10).result(30 * PATIENCE)
    with pytest.raises(TypeError, match="neither a Dask client nor a cluster nor a scheduler's address"):
        DaskLauncher(7)
    cluster.run(lambda: None)  # it is as it was
    system.until(lambda: not any(cluster.processing().values()), 10 * PATIENCE, "no agent is left")


def test_dask_from_an_event_loop(cluster):
    """As in a notebook: the loop stands still while the group starts."""
    from distributed import Client, LocalCluster

    layout = row(numbers=Numbers, line=(Line, 1, 0), sum=Sum)

    async def main():
        async with Client(cluster.scheduler.address, asynchronous=True, set_as_default=False) as client:
            with layout.start(launcher=client) as group:
                assert await group.append(10) == [("sum", 45, 10)]
        async with LocalCluster(n_workers=1, asynchronous=True, processes=False, dashboard_address=None) as own:
            with pytest.raises(RuntimeError, match="await asyncio.to_thread"):
                layout.start(launcher=own)
            group = await asyncio.to_thread(layout.start, launcher=own)
            try:
                assert await group.append(10) == [("sum", 45, 10)]
            finally:
                await asyncio.to_thread(group.close)

    asyncio.run(main())


def test_what_filters_log_there_is_logged_here(cluster, caplog):
    with row(warn=Warn, take=Take).start(copies={"warn": 2}, launcher=cluster) as group:
        with caplog.at_level(logging.WARNING, "shunt.filters"):
            group.append("this").result(30 * PATIENCE)
            logged = lambda: {(it.name, it.levelname, it.getMessage(), it.host) for it in caplog.records if hasattr(it, "host")}
            expected = {(f"shunt.filters.warn[{rank}]", "WARNING", "look at this", str(rank)) for rank in range(2)}
            system.until(lambda: logged() == expected, 10 * PATIENCE, "both warnings are here")
    # What they print is in the log of the Dask worker.
    log = lambda: "\n".join(text for lines in cluster.get_worker_logs().values() for _, text in lines)
    system.until(lambda: len(re.findall(r"[01], process \d+: printed there", log())) == 2, 10 * PATIENCE, "the log has what was printed")


def test_a_dask_worker_without_shunt_or_with_another_version_is_named(cluster, monkeypatch):
    layout = row(numbers=Numbers, sum=Sum)

    def hide():
        import sys

        sys.modules["hidden shunt"], sys.modules["shunt"] = sys.modules.get("shunt"), None

    def show():
        import sys

        sys.modules["shunt"] = sys.modules.pop("hidden shunt")
        if sys.modules["shunt"] is None:
            del sys.modules["shunt"]

    cluster.run(hide)
    try:
        with pytest.raises(sf.GroupClosed, match="on host '0': .*Dask worker '0' has no package shunt .*: install it there .pip install shunt=="):
            layout.start(launcher=cluster)
    finally:
        cluster.run(show)
    from shunt.filters import dask

    monkeypatch.setattr(dask, "__version__", "99.9")
    with pytest.raises(sf.GroupClosed, match="Dask worker '0' has shunt .*, this program 99.9: install the same there"):
        layout.start(launcher=cluster)


def test_processes_end_with_their_dask_worker_which_comes_back(cluster):
    layout = row(numbers=Numbers, slow=Slow, sum=Sum)
    with layout.start({"slow": sf.Place(on=["1"]), "numbers": sf.Place(on=["0"])}, launcher=cluster) as group:
        group.append(10).result(30 * PATIENCE)
        unit = group.append(10**6)
        system.until(lambda: sum(it.buffers for it in group.statistics().figures) > 100, 10 * PATIENCE, "it runs")
        there = {copy.name: copy.pid for copy in group.statistics().copies}
        daskers = {str(name): pid for name, pid in
                   cluster.run(lambda dask_worker: (dask_worker.name, os.getpid())).values()}
        os.kill(daskers["1"], signal.SIGKILL)
        with pytest.raises(sf.WorkerLost, match=r"the process of slow on host '1' was lost"):
            unit.result(10 * PATIENCE)
        system.until(lambda: there["slow"] not in workers(), 5 * PATIENCE, "the process has ended")
        assert there["numbers"] in workers()
        # Its nanny starts the worker again; the group goes on there.
        assert group.append(11).result(60 * PATIENCE) == [("sum", 55, 11)]


def test_processes_end_with_the_program(cluster, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import sys, time
import shunt.filters as sf
from harness.filters import Numbers, Slow, Sum
layout = sf.Layout(buffer_size=64, credits=4).chain(numbers=Numbers, slow=Slow, sum=Sum)
group = layout.start({"slow": sf.Place(2, processes=True)}, launcher=sys.argv[1])
group.append(10**7)
print("runs", flush=True)
time.sleep(1000)
""")
    run = subprocess.Popen([sys.executable, program, cluster.scheduler.address], stdout=subprocess.PIPE, text=True,
                           env={**os.environ, "PYTHONPATH": str(modes.ROOT / "tests")})
    assert run.stdout.readline() == "runs\n"
    assert len(workers()) == 3
    run.kill()
    run.wait()
    run.stdout.close()
    system.until(lambda: not workers(), 5 * PATIENCE, "all have ended")
    system.until(lambda: not any(cluster.processing().values()), 10 * PATIENCE, "so have the agents")
