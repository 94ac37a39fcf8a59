"""Random checksummed traffic for SOAK_SECONDS (default 20; `make soak` gives 600). soak.c says what it does; a failure prints the seed,
and `SOAK_SEED=that` runs the same dice again."""

import os

import pytest

SECONDS = int(os.environ.get("SOAK_SECONDS", "20"))
SEED = os.environ.get("SOAK_SEED")

pytestmark = pytest.mark.soak


def test_soak(r):
    seed = ["-s", SEED] if SEED else []
    result = r.run([r.apps / "soak", "-t", SECONDS, *seed], timeout=SECONDS + 120)
    last = result.text.strip().split("\n")[-1]
    print(last, "|", r.report)
    assert last.startswith("right:")
    r.accelerated()
