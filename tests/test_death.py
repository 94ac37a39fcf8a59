"""kill -9 of one side at a random moment under load, DEATHS times (default 40; `make soak` gives 1000) for each way of driving the load.

One survivor (tests/apps/survivor.c) lives through all the deaths of its peers, sometimes as the server, sometimes as the client. After
each it must see the end of every connection within 2 seconds, as end of file or reset; its descriptors must not grow; nothing may stay
in /dev/shm (the harness looks). SEED repeats a run's dice.
"""

import os
import queue
import random
import subprocess
import threading
import time

import pytest

from harness import system

DEATHS = int(os.environ.get("DEATHS", "40"))
SEED = int(os.environ.get("SEED", time.time_ns() % 10**9))
SHAPES = {"pingpong": ["pingpong"], "flood": ["flood", "poll", "epoll"], "poll": ["flood", "poll", "epoll"], "epoll": ["flood", "poll", "epoll"]}

pytestmark = pytest.mark.soak


class Lines:
    """A program's standard output line by line, with a limit on how long one waits for the next."""

    def __init__(self, program):
        self.program, self.lines, self.port = program, queue.Queue(), 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.program.popen.stdout:
            self.lines.put(line.decode().strip())
        self.program.popen.stdout.close()
        self.lines.put(None)

    def next(self, seconds, what):
        """Waits in steps, as a virtual machine may stand still for half a minute: that is one step then."""
        for _ in range(round(seconds * 10)):
            try:
                line = self.lines.get(timeout=0.1)
                break
            except queue.Empty:
                pass
        else:
            raise AssertionError(f"not within {seconds} s: {what}\n{system.where(self.program.pid)}\n"
                                 + subprocess.run(["ss", "-tanoei", f"( sport = :{self.port} or dport = :{self.port} )"], capture_output=True, text=True).stdout)
        assert line is not None, f"the program ended instead of: {what}\n{self.program.output()}"
        return line


class Survivor:
    def __init__(self, r):
        self.program = r.spawn([r.apps / "survivor", "stay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines = Lines(self.program)

    def say(self, text):
        self.program.popen.stdin.write(text.encode() + b"\n")
        self.program.popen.stdin.flush()

    def descriptors(self, wanted=None):
        self.say("fds" if wanted is None else f"fds {wanted}")
        return int(self.lines.next(10, "the survivor counts its descriptors").split()[1])


@pytest.mark.parametrize("shape", SHAPES)
def test_death(r, mode, shape):
    dice = random.Random(f"{SEED} {shape}")
    print(f"SEED={SEED}")
    survivor = Survivor(r)
    survivor.say("listen")
    port = survivor.lines.port = survivor.lines.next(10, "the survivor listens").split()[1]
    slowest, outcomes, before = 0, {}, None
    for death in range(DEATHS):
        connections = dice.choice([1, 1, 2, 5])
        other = dice.choice(SHAPES[shape])
        if dice.random() < 0.5:
            survivor.say(f"serve {shape} {connections}")
            victim = r.spawn([r.apps / "survivor", "fall-dial", port, other, connections], stdout=subprocess.PIPE)
            lines = Lines(victim)
        else:
            victim = r.spawn([r.apps / "survivor", "fall-listen", other, connections], stdout=subprocess.PIPE)
            lines = Lines(victim)
            theirs = survivor.lines.port = lines.next(10, "the victim listens").split()[1]
            survivor.say(f"dial {theirs} {shape} {connections}")
        assert survivor.lines.next(20, f"death {death}: all connections carry data") == "ready"
        time.sleep(dice.choice([0, 0.0005, 0.002, 0.01, 0.05]) * dice.random())  # the random moment: this sleep wins no race
        killed = time.monotonic()
        victim.kill()
        line = survivor.lines.next(2, f"death {death} ({shape} against {other}): the survivor sees the end")
        slowest = max(slowest, time.monotonic() - killed)
        assert line.startswith("end ")
        for outcome in line.split()[1:]:
            assert outcome in ("eof", "reset", "pipe")
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        r.programs.remove(victim)  # thousands of them need not be shown
        for path in (victim.out, victim.err):
            path.unlink()
        if death == 4:
            before = survivor.descriptors()
    if before is not None:
        after = survivor.descriptors(before)
        assert after <= before, f"descriptors grew from {before} to {after} in {DEATHS - 5} deaths"
    print(f"{DEATHS} deaths, slowest end {slowest * 1000:.0f} ms, {outcomes} | {r.report}")
    survivor.program.popen.stdin.close()
    assert survivor.program.wait(10) == 0
    r.accelerated()
