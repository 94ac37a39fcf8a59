"""PostgreSQL's own regression and isolation tests (of Debian's source package) against an installed server: a process for each connection,
many at a time, copies, cursors, errors, notifications, cancelled and killed sessions."""

import os
import re
import shutil
from pathlib import Path

import pytest

from harness.conform import outcomes
from harness.payload import checksum
from harness.postgres import PLACES, start_postgres, unprivileged
from harness.sources import source

pytestmark = pytest.mark.conformance

# What runs the tests comes with the clients, what they are made of with the sources.
DRIVERS = {"regress": "pg_regress", "isolation": "pg_isolation_regress"}
SCHEDULES = {"regress": "parallel_schedule", "isolation": "isolation_schedule"}
LINE = re.compile(r"^(?:test|    ) (\S+)\s+\.\.\. (ok|FAILED)", re.M)


def suite(kind, need):
    def scenario(r):
        bin = Path(need("postgres", *PLACES)).parent
        version = bin.parent.name
        user = unprivileged()
        port = start_postgres(r, need)
        tree = r.tmp / kind
        shutil.copytree(source(f"postgresql-{version}") / "src/test" / kind, tree)
        if user:
            for path in (tree, *tree.rglob("*")):
                shutil.chown(path, user)
        libraries = bin.parent / "lib"
        driver = libraries / "pgxs/src/test" / kind / DRIVERS[kind]
        done = r.run([driver, f"--bindir={bin}", f"--dlpath={libraries}", "--inputdir=.", "--outputdir=.", "--host=127.0.0.1", f"--port={port}",
                      "--user=tester", "--no-locale", "--max-connections=8", f"--schedule={SCHEDULES[kind]}"], cwd=tree, user=user, timeout=500,
                     status=None, env={"PATH": f"{driver.parent}:{os.environ['PATH']}"})
        # Some fail anyway, as they need a library that is not packaged: then what they put out is compared.
        return outcomes((test, "passed" if outcome == "ok" else f"failed ({checksum(tree / 'results' / f'{test}.out')})")
                        for test, outcome in LINE.findall(done.text))

    return scenario


@pytest.mark.parametrize("kind", DRIVERS)
def test_postgres(conform, need, kind):
    conform(f"postgresql {kind}", suite(kind, need))
