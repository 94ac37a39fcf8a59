"""The example and the tutorial, as their readers run them."""

import json
import os
import re
import subprocess
from itertools import count
from pathlib import Path

import pytest

from harness import modes, system
from harness.ether import PATIENCE, shell
from harness.groups import CLEAN, EXAMPLE, LAUNCHERS, TILES


@pytest.mark.parametrize("how", LAUNCHERS)
def test_the_example_runs_locally_and_with_one_word_changed_on_dask(how):
    done = shell(CLEAN, EXAMPLE, how, timeout=60)
    total, *table = done.stdout.splitlines()
    assert int(total) == TILES
    assert table[0].split()[:4] == ["stream", "from", "to", "way"] and table[-1].startswith("units of work: 1 done, 0 failed")
    ways = {line.split()[3] for line in table[1:-1]}
    assert ways == ({"thread"} if how == "local" else {"thread", "memory"})
    assert len(table) == 2 + 3 * 3 + 3
    # The bar.
    assert "1/1" in done.stderr and "2,000 buffers" in done.stderr


class Namespaces:
    """Two network namespaces that a veth joins: 10.78.0.1 and 10.78.0.2."""

    numbers = count()

    def __enter__(self):
        prefix = f"sf{os.getpid()}x{next(self.numbers)}"
        self.names, self.programs = [f"{prefix}a", f"{prefix}b"], []
        try:
            for name in self.names:
                shell("ip", "netns", "add", name)
                shell("ip", "-n", name, "link", "set", "lo", "up")
            shell("ip", "link", "add", "wire", "netns", self.names[0], "type", "veth", "peer", "name", "wire", "netns", self.names[1])
            for at, name in enumerate(self.names, 1):
                shell("ip", "-n", name, "addr", "add", f"10.78.0.{at}/24", "dev", "wire")
                shell("ip", "-n", name, "link", "set", "wire", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def spawn(self, at, *argv, **more):
        program = subprocess.Popen(["ip", "netns", "exec", self.names[at], *map(str, argv)], stdin=subprocess.DEVNULL,
                                   start_new_session=True, **more)
        self.programs.append(program)
        return program

    def __exit__(self, *_):
        for program in self.programs:
            system.kill_group(program.pid)
            program.wait()
        for name in self.names:
            shell("ip", "netns", "del", name, check=False)


# Units of work until no stream goes by tcp any more, or for half a minute; then what the example prints.
UNTIL_MOVED = """
import time
import zoom
if __name__ == "__main__":
    with zoom.layout.start(copies={"read": 3, "zoom": 3}, launcher="dask") as group:
        end = time.monotonic() + 30
        while True:
            total = sum(group.append({"tiles": 1000}))
            if " tcp " not in str(group.statistics()) or time.monotonic() > end:
                break
        print(total)
        print(group.statistics())
"""


@pytest.mark.parametrize("cluster", [False, True])
def test_the_example_runs_on_two_hosts(tmp_path, cluster):
    """Scheduler and program on one, a Dask worker on each: between them buffers go by sockets, on each by memory, none by Dask. Where the two are a cluster, the sockets move to
    its network, for which libfabric's tcp provider stands."""
    env, run = dict(os.environ), [EXAMPLE, "dask"]
    if cluster:
        run = ["-c", UNTIL_MOVED]
        shell(modes.command(), "agent", "new-key", tmp_path / "key")
        env |= {"PYTHONPATH": str(Path(EXAMPLE).parent)}
        # Nobody finds anybody on the board.
        env |= {"SHUNT_CLUSTER": "10.78.0.0/24", "SHUNT_CLUSTER_KEY": str(tmp_path / "key"), "SHUNT_FABRIC": "tcp", "SHUNT_BOARD": "/dev/null"}
        env |= {"SHUNT_LOG": str(tmp_path / "shunt.log"), "SHUNT_LOG_LEVEL": "debug"}
    with Namespaces() as net:
        to = "tcp://10.78.0.1:8786"
        log = open(tmp_path / "log", "w")
        dask = [CLEAN, "-m", "distributed.cli.dask_scheduler"], [CLEAN, "-m", "distributed.cli.dask_worker", to, "--nthreads", 1, "--no-dashboard"]
        with log:
            for at in range(2) if cluster else ():
                net.spawn(at, modes.command(), "agent", "run", stdout=log, stderr=log, env=env)
            net.spawn(0, *dask[0], "--host", "10.78.0.1", "--port", 8786, "--no-dashboard", stdout=log, stderr=log, cwd=tmp_path, env=env)
            for at, name in enumerate("ab"):
                net.spawn(at, *dask[1], "--name", name, "--local-directory", tmp_path / name, stdout=log, stderr=log, cwd=tmp_path, env=env)
            said = lambda: (tmp_path / "log").read_text()
            system.until(lambda: said().count("Register worker") == 2, 60 * PATIENCE, "both workers are there")
        done = shell("ip", "netns", "exec", net.names[0], CLEAN, *run, env=env | {"DASK_SCHEDULER_ADDRESS": to}, timeout=120)
        total, _, *lines, _ = done.stdout.splitlines()
        assert int(total) == TILES
        ways = {tuple(line.split()[:3]): line.split()[3] for line in lines}
        # Copies 0 and 2 are on a, 1 is on b, what collects is in the program, which is in the same network as a.
        across = ways[("read->zoom", "read[0]", "zoom[1]")], ways[("read->zoom", "read[1]", "zoom[0]")], ways[("zoom->collect", "zoom[1]", "collect")]
        assert set(across) == {"shunt" if cluster else "tcp"}, ways
        assert {ways[("zoom->collect", f"zoom[{rank}]", "collect")] for rank in (0, 2)} == {"memory"}
        assert {ways[("read->zoom", f"read[{rank}]", f"zoom[{rank}]")] for rank in range(3)} == {"thread"}


TUTORIAL = modes.ROOT / "docs" / "filters.md"

# Stand-ins for clusters that nobody has at hand: they start a LocalCluster, whatever they are told.
STAND_INS = {
    "stand_in.py": """
import distributed
def cluster(*hosts, **options):
    return distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
class Scaled:
    def __new__(cls, **options):
        made = cluster()
        scale = made.scale  # which it closes by, too
        made.scale = lambda n=None, jobs=None: scale(n) if jobs is None else None
        return made
distributed.SSHCluster = cluster
""",
    "dask_jobqueue.py": "from stand_in import Scaled as SLURMCluster",
    "dask_kubernetes/__init__.py": "",
    "dask_kubernetes/operator.py": "from stand_in import Scaled as KubeCluster",
}
RUN = """
import sys
if __name__ == "__main__":
    import stand_in
    for number, block in enumerate(sys.argv[1:]):
        print("block", block, flush=True)
        exec(compile(open(block).read(), block, "exec"))
"""


def blocks():
    """(language, file name, text) of each block of code."""
    return [(it[1], it[2] or "", it[3]) for it in re.finditer(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", TUTORIAL.read_text(), re.M | re.S)]


def test_the_tutorial_does_what_it_says(tmp_path):
    """Followed literally, in a Python that has nothing but the wheel and what it declares to need."""
    env = {**os.environ, "PATH": f"{Path(CLEAN).parent}:{os.environ['PATH']}"}
    env.pop("PYTHONPATH", None)
    for name, text in {**STAND_INS, "run.py": RUN}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    ran, session = 0, []
    for language, name, text in blocks():
        match language:
            case "sh" | "rust":
                pass  # the first is what scripts/test.sh did, the second is a test of crate filters
            case "python" if name:
                (tmp_path / name).write_text(text)
            case "python":
                session.append(f"block{len(session)}.py")
                (tmp_path / session[-1]).write_text(text)
            case "console":
                command, _, expected = text.removeprefix("$ ").partition("\n")
                done = subprocess.run(command, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60 * PATIENCE)
                assert done.returncode == 0, done.stdout + done.stderr
                pattern = re.escape(expected).replace(r"\.\.\.", ".*")
                assert re.fullmatch(pattern, done.stdout, re.S), f"{command} printed\n{done.stdout}\nwhere the tutorial says\n{expected}"
                ran += 1
            case _:
                pytest.fail(f"the tutorial has a block in {language}")
    assert ran >= 4 and len(session) >= 10
    # Blocks without a name go on where the one before ended.
    done = subprocess.run(["python", "run.py", *session], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "zoom.svg").stat().st_size > 1000 and json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_the_tutorials_program_is_the_example():
    plain = lambda text: [line.replace(": sf.UnitOfWork) -> None", ")") for line in text.splitlines() if line.strip() and not line.startswith('"""')]
    text = next(text for language, name, text in blocks() if name == "zoom.py")
    assert plain(text) == plain(EXAMPLE.read_text())
