"""Servers that fork, run for long: what children have had, whichever way they end, is not kept for ever. (How forked processes share a
connection: tests/apps/forks.c.)"""

import sys
from pathlib import Path

import pytest

from harness import modes

PROGRAM = Path(__file__).parent / "apps/forking.py"
# Whose processes have gone is looked at when so many are in use.
MOST = 1100


@pytest.mark.parametrize("how", ["exec", "exit", "spawn"])
def test_connections_are_given_back(r, mode, how):
    stat = {"SHUNT_STAT": modes.command()} if mode == "shunt" else {}
    count = 1500 if how == "exec" and mode == "shunt" else 100
    done = r.run([sys.executable, PROGRAM, how, count], env=stat, timeout=120)
    r.accelerated()
    if mode == "shunt":
        assert int(done.text) < (MOST if how == "exec" else 30)
