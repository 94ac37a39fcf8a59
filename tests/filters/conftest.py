"""Filter streams from Python (package shunt), in threads, in processes, and on Dask clusters; treated well, and badly. Needs the wheel: the stage
`filters` of scripts/test.sh builds and installs it.
"""

import pytest

from harness import system
from harness.ether import PATIENCE

try:
    from harness import groups
except ImportError as error:
    pytest.exit(f"package shunt is not there ({error}): TEST_ONLY='bootstrap filters' scripts/test.sh builds and installs it", 4)


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    system.until(lambda: not groups.workers(), 10 * PATIENCE, "all processes of groups end")
    # Semaphores there are those of Dask's nannies.
    left = {name for name in system.shm_left() if not name.startswith("sem.")}
    assert not left, f"in /dev/shm: {left}"


@pytest.fixture(scope="session")
def cluster():
    """Two Dask workers with nannies, and a client."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0, silence_logs=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=groups.LAUNCHERS)
def launcher(request):
    return "local" if request.param == "local" else request.getfixturevalue("cluster")
