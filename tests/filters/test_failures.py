"""What fails fails by name, and alone."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from itertools import count

import pytest
import shunt.filters as sf

from harness import modes, system
from harness.ether import PATIENCE, shell
from harness.filters import DieOnce, FailAt, Numbers, Slow, Sum, number, packed
from harness.groups import apart, given_by, row, workers


def test_a_killed_process_fails_its_unit_by_name_within_a_second_and_the_next_works(launcher):
    layout = row(numbers=Numbers, slow=Slow, sum=Sum)
    with layout.start(apart(numbers=1, slow=2), launcher=launcher) as group:
        assert group.append(10).result(30 * PATIENCE) == [("sum", 45, 10)]
        unit = group.append(10**6)
        running = lambda: any(it.buffers > 0 and it.unacknowledged > 0 for it in group.statistics().figures if it.consumer == "slow[1]")
        system.until(running, 10 * PATIENCE, "slow[1] works")
        victim = next(copy for copy in group.statistics().copies if copy.name == "slow[1]")
        assert victim.pid in workers()
        os.kill(victim.pid, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(sf.WorkerLost, match=r"the process of slow\[1\] on host '\w+' was lost \(signal: 9 \(SIGKILL\)\)") as failed:
            unit.result(10 * PATIENCE)
        took = time.monotonic() - begun
        assert took < PATIENCE, took
        assert failed.value.copies == ["slow[1]"] and failed.value.host == victim.host
        assert group.append(11).result(30 * PATIENCE) == [("sum", 55, 11)]
        assert group.statistics().losses == 1
        print(f"failed after {took * 1000:.0f} ms")


def test_a_unit_is_run_again_after_a_loss(launcher, tmp_path):
    flag = tmp_path / "flag"
    layout = row("round-robin", numbers=Numbers, die=(DieOnce, str(flag)), sum=Sum)
    with layout.start(apart(numbers=1, die=2), launcher=launcher) as group:
        flag.touch()
        assert group.append(20, reruns=1).result(30 * PATIENCE) == [("sum", 190, 20)]
        assert group.statistics().losses == 1
        flag.touch()
        with pytest.raises(sf.WorkerLost, match=r"die\[[01]\].*exit status: 9"):
            group.append(20).result(30 * PATIENCE)


def test_a_failure_names_filter_copy_host_and_line(launcher):
    layout = row("round-robin", numbers=Numbers, fail=(FailAt, 13), sum=Sum)
    with layout.start(copies={"fail": 3}, launcher=launcher) as group:
        good, bad, after = group.append(10), group.append(100), group.append(12)
        assert good.result(30 * PATIENCE) == [("sum", 45, 10)]
        error = bad.exception(30 * PATIENCE)
        assert after.result(30 * PATIENCE) == [("sum", 66, 12)]
    assert isinstance(error, sf.FilterFailed) and re.fullmatch(r"fail\[[012]\]", error.copies[0])
    host = {"local": "caller"}.get(launcher if isinstance(launcher, str) else "", None)
    assert error.host == host if host else error.host in ("0", "1")
    text = str(error)
    assert f"filter {error.copies[0]} on host '{error.host}' failed: KeyError: '13 is not to be passed on'" in text
    # Frames of there: the filter's own lines.
    assert 'filters.py", line' in text and "in look_at" in text and "raise KeyError" in text
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is sf.FilterFailed and str(again) == text and again.copies == error.copies and again.host == error.host


@pytest.mark.parametrize("kind", [sf.UnitError, sf.FilterFailed, sf.WorkerLost, sf.UnitCancelled, sf.UnitTimedOut, sf.GroupClosed])
def test_errors_can_be_pickled(kind):
    error = pickle.loads(pickle.dumps(kind("what", ["a[1]"], "h", "where")))
    assert type(error) is kind and (error.copies, error.host, error.traceback) == (["a[1]"], "h", "where") and "where" in str(error)


def test_a_traceback_shows_the_lines_of_the_program_itself(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import shunt.filters as sf

class Wrong(sf.Filter):
    def process(self, uow):
        return 1 / uow.params  # here

with sf.Layout().filter("wrong", Wrong).start({"wrong": sf.Place(processes=True)}) as group:
    print(group.append(0).exception())
""")
    said = shell(sys.executable, program).stdout
    assert f'File "{program}", line 6, in process\n    return 1 / uow.params  # here' in said, said


def test_timeout_cancel_and_close(launcher):
    layout = row(numbers=Numbers, slow=Slow, sum=Sum)
    with layout.start(launcher=launcher) as group:
        with pytest.raises(TimeoutError) as failed:
            group.append(10**6, timeout=0.1).result(30 * PATIENCE)
        assert isinstance(failed.value, sf.UnitTimedOut)
        late = group.append(10**6)
        with pytest.raises(TimeoutError, match=r"unit of work 2 has not ended after 0.05 s") as waited:
            late.result(0.05)
        assert not isinstance(waited.value, sf.UnitError) and not late.done()
        late.cancel()
        with pytest.raises(sf.UnitCancelled):
            late.result(10 * PATIENCE)
        assert late.done() and "ended" in repr(late)
        assert group.append(5).result(30 * PATIENCE) == [("sum", 10, 5)]
        left = group.append(10**6)
    with pytest.raises(sf.GroupClosed):
        left.result(10 * PATIENCE)
    with pytest.raises(RuntimeError, match="the group is closed"):
        group.append(1)
    # What was to be seen at the end is still to be seen.
    assert group.statistics().units["failed"] >= 2
    group.close()


def test_a_filter_sees_that_it_is_cancelled():
    def give(self, uow):
        try:
            for number in count():
                self.output.write(packed(number))
        except sf.Cancelled:
            assert uow.cancelled
            raise

    with given_by(give, number).start() as group:
        unit = group.append()
        parts = iter(unit)
        assert [next(parts) for _ in range(3)] == [0, 1, 2]
        unit.cancel()
        with pytest.raises(sf.UnitCancelled):
            unit.result(10 * PATIENCE)


def test_ctrl_c_in_result(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import sys
import shunt.filters as sf
from harness.filters import Numbers, Slow, Sum
layout = sf.Layout(buffer_size=64, credits=4).chain(numbers=Numbers, slow=Slow, sum=Sum)
with layout.start({"slow": sf.Place(2, processes=True)}) as group:
    unit = group.append(10**7)
    print("waits", flush=True)
    unit.result()
""")
    # Shells start what is in the background with SIGINT ignored.
    run = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           env={**os.environ, "PYTHONPATH": str(modes.ROOT / "tests")},
                           preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        assert run.stdout.readline() == "waits\n"
        run.send_signal(signal.SIGINT)
        begun = time.monotonic()
        _, said = run.communicate(timeout=20 * PATIENCE)
    finally:
        run.kill()
    assert said.rstrip().endswith("KeyboardInterrupt") and run.returncode == -signal.SIGINT, said
    assert time.monotonic() - begun < 5 * PATIENCE
