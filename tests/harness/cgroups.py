"""Control groups, as engines make them for containers: version 2 where it is there, or the controllers of version 1."""

import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def unified():
    return (ROOT / "cgroup.controllers").exists()


def usable():
    """Whether groups can be made here that freeze, and bound memory."""
    try:
        with Group("shunt-try") as group:
            group.limit(1 << 30)
        return True
    except OSError:
        return False


class Group:
    def __init__(self, name):
        self.places = {kind: (ROOT if unified() else ROOT / kind) / name for kind in ("memory", "freezer")}

    def __enter__(self):
        for place in set(self.places.values()):
            place.mkdir(exist_ok=True)
        if unified():
            (ROOT / "cgroup.subtree_control").write_text("+memory")
        return self

    def __exit__(self, *_):
        for place in set(self.places.values()):
            end = time.monotonic() + 10
            # Who was killed leaves it a moment later.
            while (place / "cgroup.procs").read_text() and time.monotonic() < end:
                time.sleep(0.01)
            place.rmdir()

    def enter(self):
        """A command that starts another one in the group."""
        enter = "".join(f"echo $$ > {place}/cgroup.procs; " for place in set(self.places.values()))
        return ["sh", "-ec", enter + 'exec "$@"', "sh"]

    def take(self, other):
        """All processes of another group."""
        for kind, place in self.places.items():
            for pid in (other.places[kind] / "cgroup.procs").read_text().split():
                (place / "cgroup.procs").write_text(pid)

    def freeze(self, frozen):
        place = self.places["freezer"]
        if unified():
            (place / "cgroup.freeze").write_text(str(int(frozen)))
            is_so = lambda: f"frozen {int(frozen)}" in (place / "cgroup.events").read_text()  # noqa: E731
        else:
            (place / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
            is_so = lambda: (place / "freezer.state").read_text().strip() == ("FROZEN" if frozen else "THAWED")  # noqa: E731
        while not is_so():
            time.sleep(0.001)

    def limit(self, size):
        (self.places["memory"] / ("memory.max" if unified() else "memory.limit_in_bytes")).write_text(str(size))
