"""What the tests themselves rely on."""

import os
import signal
import subprocess
import sys

from harness import system


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
