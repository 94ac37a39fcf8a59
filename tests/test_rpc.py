"""ONC RPC: the client and server that `shunt bench rpc` runs, made by rpcgen, on libtirpc: svc_run() in poll, calls that block."""

import json
import subprocess

import pytest

from harness import modes


@pytest.fixture(scope="session")
def rpc(tmp_path_factory):
    out = tmp_path_factory.mktemp("programs")
    made = subprocess.run(["make", "-s", "-C", str(modes.ROOT / "bench/programs"), f"OUT={out}"], capture_output=True, text=True)
    assert made.returncode == 0 and (out / "rpc").exists(), f"{made.stdout}{made.stderr}"
    return out / "rpc"


@pytest.mark.parametrize("size", [0, 1, 4096, 8000])  # libtirpc takes no string of more than 9000 bytes
def test_calls(r, rpc, size):
    port = r.free_port()
    server = r.server([rpc, "server", "--tcp", port], port)
    found = json.loads(r.run([rpc, "client", "--tcp", port, "--size", size, "--seconds", 0.3]).text)
    assert found["count"] > 0
    assert server.wait() == 0
    r.accelerated()
