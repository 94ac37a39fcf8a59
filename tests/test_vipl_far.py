"""Every example of the programs in tests/vipl that makes sense there, between two hosts: the two processes are in network namespaces with nothing in common but a
bridge, and agents. The link is one of libfabric's tcp provider.
"""

import os
import subprocess

import pytest

from harness import modes, system
from harness.cluster import PATIENCE, Cluster
from test_vipl import HERE, PROGRAMS, ROW, built  # noqa: F401 (built is a fixture)

pytestmark = pytest.mark.alone("hosts are network namespaces, and their agents want a port")

# There is no RDMA between hosts; `refused_rdma` says how it fails.
NOT_FAR = {"rdma", "forbidden"}


@pytest.fixture(scope="module")
def hosts():
    with Cluster(["a", "b"]) as cluster:
        for host in cluster.values():
            host.start_agent()
        yield cluster


def environment(server, client, **more):
    hosts = ":".join(f"/run/netns/{host.ns}" for host in (server, client))
    return server.environment(HOSTS=hosts, PATIENCE=4, **more)


def run(argv, env, timeout=100):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, env=env)
    assert done.returncode == 0, f"{argv}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def examples():
    for source in sorted((HERE / "vipl").glob("*.c")):
        for name, flags in ROW.findall(source.read_text()):
            if "ALONE" not in flags and name not in NOT_FAR:
                yield pytest.param(source.stem, name, id=f"{source.stem}-{name}")


@pytest.mark.parametrize("program, name", list(examples()))
def test_example(hosts, program, name):
    run([PROGRAMS / program, name], environment(hosts["a"], hosts["b"]))
