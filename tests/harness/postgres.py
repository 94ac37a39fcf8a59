"""A fresh PostgreSQL server. It refuses to run as root, so it and its clients run as the user `postgres` (or as nobody) when the tests do
not."""

import os
import pwd
import shutil
import signal
from pathlib import Path

from .runner import PATIENCE
from .system import until

# Debian's versions lie side by side; the newest first.
PLACES = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]


def unprivileged():
    """The user to run it as, or None: the one that we are."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            pass
    raise AssertionError("no user to run PostgreSQL as")


def start_postgres(r, need):
    """Starts one with the user `tester` and no password; returns its port."""
    user, port, data = unprivileged(), r.free_port(), r.tmp / "data"
    data.mkdir()
    if user:
        shutil.chown(data, user)
    r.run([need("initdb", *PLACES), "-D", data, "-A", "trust", "-U", "tester", "--no-sync", "--locale=C", "-E", "UTF8"], user=user,
          timeout=120, plain=True)
    # dynamic_shared_memory_type: the server's own files in /dev/shm are not what is looked for at the end of a test.
    r.server([need("postgres", *PLACES), "-D", data, "-p", port, "-h", "127.0.0.1", "-k", "", "-F", "-c",
              "dynamic_shared_memory_type=mmap"], port, user=user, stop_signal=signal.SIGINT, timeout=60)

    def serves():
        asked = r.run([need("pg_isready", *PLACES), "-q", "-h", "127.0.0.1", "-p", port], user=user, cwd="/", status=None, plain=True)
        return asked.status == 0

    until(serves, 60 * PATIENCE, "PostgreSQL serves")
    return port
