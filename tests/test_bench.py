"""`shunt bench filters`, `containers` and `ofi` in their shortest form: every table has all its rows, and who cannot take part is named."""

import json
import os
import subprocess

import pytest

from harness import modes
from harness.bridge import keeps_descriptors_out
from harness.cluster import Cluster
from harness.report import Report

OWN = ["filters", "filters_shunt", "filters_tcp"]
SIZES = ["8 B", "16 KB", "1 MB"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    out = tmp_path_factory.mktemp("programs")
    made = subprocess.run(["make", "-s", "-C", str(modes.ROOT / "bench/programs"), f"OUT={out}"], capture_output=True, text=True)
    assert made.returncode == 0, f"{made.stdout}{made.stderr}"
    return out


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.alone("it measures, with two processes that wait for one another")
def test_containers(tmp_path, programs):
    if not keeps_descriptors_out():
        pytest.skip("the kernel is older than Linux 6.16, and has no SO_PASSRIGHTS: all stays on TCP")
    report = Report(tmp_path / "report")
    env = os.environ | {"SHUNT_LIBEXEC": str(programs), "SHUNT_LIB": str(modes.library()), "SHUNT_REPORT": str(report.path)}
    words = ["containers", "--rounds", "1", "--duration", "0.3", "--json"]
    done = subprocess.run([modes.command(), "bench", *words], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    values = {(it["row"], it["metric"]): it for it in json.loads(done.stdout)["metrics"]}
    assert values.keys() == {("64 B round trip", "p50"), ("redis GET", "requests"), ("redis SET", "requests")}
    for of_it in values.values():
        assert all(of_it[side][0] for side in ("tcp", "shunt", "tcp_on_one_host", "shunt_on_one_host"))
    # On one host 2 ends of the round trips and of 50 connections in each of 4 loads; between containers as many.
    assert report.promoted > 600
    assert not [name for name in os.listdir("/run/netns") if name.startswith("shunt-bench-")]


@pytest.mark.alone("it measures, with four processes that wait for one another")
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


# ---- footprint ----

# What a guest may carry at most: the budgets of `shunt bench footprint`, but that of an idle connection, 4 KB, which a page here and there of others goes into.
LIMITS = {
    ("no promoted connection", "descriptors"): 4, ("no promoted connection", "addresses"): 4 << 20, ("no promoted connection", "threads"): 0,
    ("first promoted connection", "descriptors"): 6, ("first promoted connection", "addresses"): 32 << 20,
    ("first promoted connection", "threads"): 0, ("first promoted connection", "memory of both ends"): 512 << 10,
    ("each further connection", "memory when used"): 64 << 10, ("each further connection", "memory when idle"): 6 << 10,
}


@pytest.mark.alone("it measures memory that others share")
def test_footprint(programs):
    env = os.environ | {"SHUNT_LIBEXEC": str(programs), "SHUNT_LIB": str(modes.library())}
    done = subprocess.run([modes.command(), "bench", "footprint", "--rounds", "1", "--json"], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = {(it["row"], it["metric"]): it["shunt"][0] for it in json.loads(done.stdout)["metrics"]}
    assert ("start of true", "time") in found
    over = {what: found[what] for what, limit in LIMITS.items() if found[what] > limit}
    assert not over, f"more than {LIMITS}"


# ---- ofi ----


def bench_ofi(programs, *words, before=()):
    """What is found by one round, as short as can be: (group, row, metric) to values by side, and the rest."""
    env = os.environ | {"SHUNT_LIBEXEC": str(programs), "SHUNT_LIB": str(modes.library())}
    argv = [*before, modes.command(), "bench", "ofi", "--rounds", "1", "--duration", "0.05", "--json", *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=500)
    found = json.loads(done.stdout)
    # fi_pingpong is not ours, and does not always get to its end.
    ours = [it for it in found["not_run"] if "fi_pingpong" not in it["what"]]
    assert not ours and done.returncode in ([1] if found["not_run"] else [0]), f"{found['not_run']}\n{done.stderr}"
    return {(it["group"], it["row"], it["metric"]): it for it in found["metrics"]}, found, done.stderr


def has_all_of_ofi(values, sides):
    for row in ("64 B", "256 B", "1 KB", "4 KB", "64 KB"):
        for metric in ("mean", "p50", "p99"):
            assert not [side for side in sides if not values["ofi-latency", row, metric].get(side)], (row, metric)
    for row in ("4 KB", "64 KB", "256 KB", "1 MB"):
        assert not [side for side in sides if not values["ofi-bandwidth", row, "bytes"].get(side)], row
    in_place = values["ofi-bandwidth", "64 KB, in place", "bytes"]
    assert in_place["shunt_over_libfabric"] and "tcp" not in in_place


@pytest.mark.alone("both ends look without end, on a processor each")
def test_ofi(tmp_path, programs):
    values, found, said = bench_ofi(programs, "--plot", tmp_path)
    has_all_of_ofi(values, ["shunt_over_libfabric", "libfabric_writes", "libfabric_messages", "tcp", "unix"])
    assert any(it.get("fi_pingpong") for it in values.values()), said
    assert found["notes"]["ofi"]["server"]["provider"] == "tcp" and "by tcp on lo" in said
    assert (tmp_path / "ofi-latency.png").exists() and (tmp_path / "ofi-bandwidth.png").exists()


@pytest.mark.alone("both ends look without end, on a processor each")
@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces")
def test_ofi_to_another_host(programs):
    with Cluster("ab") as hosts:
        there = ["--at", hosts["b"].address, "--remote", " ".join(hosts["b"].within([]))]
        values, found, said = bench_ofi(programs, *there, before=hosts["a"].within([]))
        has_all_of_ofi(values, ["shunt_over_libfabric", "libfabric_writes", "libfabric_messages", "tcp"])
        assert not values["ofi-latency", "64 B", "p50"].get("unix"), "a UNIX socket goes nowhere"
        assert found["notes"]["ofi"]["client"]["domain"] == "eth0" and f"to {hosts['b'].address}" in said


def test_ofi_where_nothing_can_be_gone_by(programs):
    argv = [modes.command(), "bench", "ofi", "--provider", "none", "--rounds", "1"]
    done = subprocess.run(argv, env=os.environ | {"SHUNT_LIBEXEC": str(programs)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "libfabric finds no such domain" in done.stdout, done.stderr


# ---- another build ----

def test_other_build_is_measured_in_turn(programs):
    env = os.environ | {"SHUNT_LIBEXEC": str(programs), "SHUNT_LIB": str(modes.library())}
    argv = [modes.command(), "bench", "latency", "--rounds", "1", "--duration", "0.05", "--json", "--beside"]
    done = subprocess.run([*argv, modes.library()], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for metric in json.loads(done.stdout)["metrics"]:
        assert metric["shunt"][0] > 0 and metric["shunt_beside"][0] > 0 and metric["tcp"][0] > 0
    assert "x other build" in done.stderr
    lost = subprocess.run([*argv, "/nonexistent/libshunt.so"], env=env, capture_output=True, text=True, timeout=300)
    assert lost.returncode == 1 and "/nonexistent/libshunt.so: No such file" in lost.stderr, lost.stderr
