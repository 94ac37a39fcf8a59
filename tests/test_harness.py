"""What the tests themselves rely on."""

import os
import signal
import subprocess
import sys

import pytest
from harness import modes, system


def test_only_groups_of_ours_are_killed(monkeypatch):
    """A number that was a program's may be anybody's later: a soak that ended killed daemons of another one so."""
    killed = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: killed.append((pid, sig)))
    monkeypatch.setattr(os, "killpg", lambda group, sig: killed.append((-group, sig)) if sig else None)
    system.kill_group(1)
    assert killed == []


def test_what_a_leader_leaves_behind_is_killed():
    leader = subprocess.Popen([sys.executable, "-c", "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"],
                              stdout=subprocess.PIPE, text=True, start_new_session=True)
    left = int(leader.stdout.readline())
    leader.wait()
    assert os.getpgid(left) == leader.pid
    system.kill_group(leader.pid)
    system.until(lambda: left not in system.descendants(), 5, "what was left has ended")


def test_a_group_with_its_leader_is_killed():
    leader = subprocess.Popen(["sleep", "600"], start_new_session=True)
    system.kill_group(leader.pid)
    assert leader.wait(5) == -signal.SIGKILL


def test_a_program_that_hangs_is_told_of_in_one_line(r):
    """A summary of many tests shows the first line of what failed, and nothing else may be left of a run on another machine."""
    hanging = r.spawn(["sleep", "600"])
    with pytest.raises(AssertionError, match=r"\Asleep did not end within .* s: sleep S in [a-z_]*nanosleep; hung at\n"):
        hanging.wait(0.5)


def test_only_a_program_that_is_not_there_skips_a_test(tmp_path):
    """So did any file without a folder in its name, and a test that was wrong did not run."""
    (tmp_path / "test_lacking.py").write_text("""
import subprocess

def test_program():
    subprocess.run(["no-such-program"])

def test_file():
    open("no-such-file")

def test_program_in_a_folder():
    subprocess.run(["./no-such-program"])
""")

    def run(**more):
        env = {key: value for key, value in os.environ.items() if key != "BOOTSTRAP" and not key.startswith("PYTEST_")}
        command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "conftest", "--modes", "plain",
                   "--rootdir", tmp_path, "-c", os.devnull, tmp_path]
        return subprocess.run(command, cwd=tmp_path, env=env | {"PYTHONPATH": str(modes.ROOT / "tests")} | more, capture_output=True, text=True).stdout

    told = run()
    assert "1 skipped" in told and "2 failed" in told, told
    assert "no-such-program is not installed" in told and "FAILED test_lacking.py::test_file" in told, told
    told = run(BOOTSTRAP="install")
    assert "3 failed" in told and "no-such-program is not installed: see tests/packages.txt" in told, told
