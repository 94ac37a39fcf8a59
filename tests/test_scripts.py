"""scripts/: a word that they do not know is an error, and what the error says there is, there is."""

import os
import re
import subprocess

import pytest

from harness import modes

SCRIPTS = modes.ROOT / "scripts"


def run(script, *words, **more):
    # scripts/test.sh keeps its place between its two halves there.
    env = {key: value for key, value in os.environ.items() if key not in ("STAGES_BEFORE", "TEST_ONLY")}
    return subprocess.run([SCRIPTS / script, *words], env=env | more, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def test_groups_of_bootstrap():
    """One was named that did not exist."""
    text = (SCRIPTS / "bootstrap.sh").read_text()
    there_are = set(re.findall(r"^        (\w+)\) need_", text, flags=re.M))
    assert {"build", "test", "conformance"} <= there_are
    assert set(re.findall(r"^#   scripts/bootstrap.sh (\w+) ", text, flags=re.M)) == there_are
    done = run("bootstrap.sh", "tets")
    assert done.returncode == 1
    assert set(re.search(r"no such group: tets \((.*)\)", done.stderr).group(1).split(", ")) == there_are


def test_stages():
    """A misspelt one ran nothing, which looked like success."""
    done = run("test.sh", TEST_ONLY="hobbits")
    assert done.returncode == 2 and "no such stage: hobbits" in done.stderr, done.stdout + done.stderr
    assert "passed" not in done.stdout


@pytest.mark.parametrize("script, words, says", [
    ("test.sh", ["slow"], "no such list of stages: slow (everything, quick)"),
    ("fuzz.sh", ["1", "massages"], "no such target: massages ("),
    ("tests-root.sh", ["leave"], "no such verb: leave (install, enter, possible, remove)"),
])
def test_unknown_words(script, words, says):
    done = run(script, *words, **({"STAGES_BEFORE": "true"} if script == "test.sh" else {}))
    assert done.returncode == 2 and says in done.stderr, done.stdout + done.stderr
