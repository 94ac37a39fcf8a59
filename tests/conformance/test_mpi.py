"""Open MPI, whose ranks talk TCP to each other (btl tcp): NetPIPE, which checks what it sends, and a program that does what programs do
with many ranks."""

import os

import pytest

from harness.conform import Steps

pytestmark = pytest.mark.conformance

PYTHON = "/usr/bin/python3"  # the one that Debian's mpi4py belongs to
COLLECTIVE = """
import hashlib
from mpi4py import MPI
all, data = MPI.COMM_WORLD, lambda key, size: hashlib.shake_128(b"%d" % key).digest(size)
me, count = all.Get_rank(), all.Get_size()
for size in (0, 1, 100, 5000, 70_000, 3_000_000):
    # Each to the next, in a ring, as it comes and without waiting.
    going = all.isend(data(me, size), (me + 1) % count)
    assert all.recv(source=(me - 1) % count) == data((me - 1) % count, size)
    going.wait()
    assert all.bcast(data(7, size) if me == 0 else None) == data(7, size)
    assert all.allgather(data(me, size)) == [data(rank, size) for rank in range(count)]
    if size < 1_000_000:
        assert all.alltoall([data(me * count + rank, size) for rank in range(count)]) == [data(rank * count + me, size) for rank in range(count)]
for i in range(300):
    assert all.allreduce(me + i) == sum(range(count)) + count * i
    all.Barrier()
if me == 0:
    print("all is well")
"""


def mpirun(r, need, ranks, *program):
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return r.run([need("mpirun"), *as_root, "--oversubscribe", "-np", ranks, "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo",
                  "--mca", "oob_tcp_if_include", "lo", "--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1", "--host", f"localhost:{ranks}",
                  *program], timeout=60, env={"HOME": r.tmp, "TMPDIR": "/tmp"}).text


def netpipe(*options):
    def scenario(r, need):
        steps = Steps()
        with steps.step("messages of all sizes"):
            mpirun(r, need, 2, need("NPopenmpi"), "-o", r.tmp / "np.out", "-u", 1_000_000, "-n", 50, *options)
            # A line for each size: bytes, throughput, time.
            sizes = [int(line.split()[0]) for line in (r.tmp / "np.out").read_text().splitlines()]
            assert len(sizes) > 30 and sizes == sorted(sizes) and sizes[-1] > 700_000, sizes
        return steps

    return scenario


def collective(ranks):
    def scenario(r, need):
        steps = Steps()
        (r.tmp / "collective.py").write_text(COLLECTIVE)
        with steps.step(f"{ranks} ranks"):
            assert mpirun(r, need, ranks, PYTHON, r.tmp / "collective.py") == "all is well\n"
        return steps

    return scenario


SCENARIOS = {"checked": netpipe("-i"), "measured": netpipe(), "both ways at once": netpipe("-2", "-a"), "streams": netpipe("-s"),
             "synchronous": netpipe("-S"), "two ranks": collective(2), "five ranks": collective(5)}


@pytest.mark.parametrize("name", SCENARIOS)
def test_mpi(conform, need, name):
    conform(f"open mpi, {name}", lambda r: SCENARIOS[name](r, need))
