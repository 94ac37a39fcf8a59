"""`shunt bench filters` in its shortest form: every table has all its rows, and who cannot take part is named."""

import json
import os
import subprocess

import pytest

from harness import modes

OWN = ["filters", "filters_shunt", "filters_tcp"]
SIZES = ["8 B", "16 KB", "1 MB"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    out = tmp_path_factory.mktemp("programs")
    made = subprocess.run(["make", "-s", "-C", str(modes.ROOT / "bench/programs"), f"OUT={out}"], capture_output=True, text=True)
    assert made.returncode == 0, f"{made.stdout}{made.stderr}"
    return out


def test_filters(tmp_path, programs):
    # A Python without packages has neither Shunt's own nor what it is compared with.
    bare = tmp_path / "python"
    bare.write_text('#!/bin/sh\nexec /usr/bin/python3 -I -S "$@"\n')
    bare.chmod(0o755)
    env = os.environ | {"SHUNT_LIBEXEC": str(programs), "SHUNT_LIB": str(modes.library()), "SHUNT_BENCH_PYTHON": str(bare)}
    words = ["filters-pipeline", "filters-overhead", "filters-heterogeneity", "--rounds", "1", "--duration", "0.2", "--json"]
    done = subprocess.run([modes.command(), "bench", *words, "--plot", tmp_path], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    absent = [it["what"] for it in found["not_run"]]
    values = {(it["group"], it["row"], it["metric"]): it for it in found["metrics"]}

    def has(group, row, metric, sides):
        of_it = values[group, row, metric]
        missing = [side for side in sides if not of_it.get(side) or of_it[side][0] is None]
        assert not missing, f"{group}, {row}, {metric}: nothing of {missing}"

    for block in (1, 4, 16, 64, 256):
        for metric in ("complete update", "partial update"):
            has("filters-pipeline", f"blocks of {block} KB", metric, OWN)
    for parts in ("image in one part", "image in 8 parts", "image in 64 parts"):
        for complete in (0, 5, 10):
            has("filters-pipeline", parts, f"{complete} of 10 complete", OWN)
    others = ["shunt"] + (["zeromq_tcp", "zeromq_ipc"] if (programs / "zmq").exists() else [])
    for size in SIZES:
        has("filters-overhead", size, "a buffer", OWN + others)
        has("filters-overhead-python", size, "a buffer", ["shunt"])
    for factor in ("equal speeds", "one 2 times slower", "one 4 times slower", "one 8 times slower"):
        for metric in ("idle, fast one, each piece", "all pieces"):
            has("filters-heterogeneity", factor, metric, ["on_demand", "round_robin"])
    (figure,) = found["figures"]
    assert all(len(row["values"]) == 2 for row in figure["rows"])
    assert (tmp_path / "filters-heterogeneity.png").exists()
    for name in ("filters", "ZeroMQ tcp", "ZeroMQ ipc", "Dask", "Ray"):
        assert f"filters-overhead-python {name}" in absent
    assert "not here" in done.stderr and "is not here (scripts/bootstrap.sh filters)" in done.stderr
