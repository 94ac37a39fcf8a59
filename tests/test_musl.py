"""Programs that are built for musl, another libc: the same library. (`make libcs LIBCS=musl` runs all examples of tests/apps so.)"""

import subprocess

import pytest

from harness import modes, system

APPS = modes.ROOT / "tests/apps"
# What is musl's own: stdio, cancellation, the way into a program and through fork() and exec().
EXAMPLES = {
    "echo": ["small_messages", "many_connections"],
    "streams": ["lines", "blocks", "unbuffered", "wide", "flushed_at_exit", "under_a_stream", "last_fclose", "number_again", "reopened_to_file",
                "interrupted_stream"],
    "cancel": ["reading", "waiting", "sending"],
    "forks": ["in_turn"],
    "execs": ["inetd", "spawn"],
    "epoll": ["edge"],
}


@pytest.fixture(scope="session")
def built():
    """The folder with the programs of EXAMPLES for musl."""
    system.program("musl-gcc")
    out = modes.ROOT / "build/musl"
    compiler = "musl-gcc -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu -include older.h"
    with system.building(out):
        subprocess.run(["make", "-s", "-C", APPS, f"OUT={out}", f"CC={compiler}", *(out / name for name in EXAMPLES)], check=True)
    return out


@pytest.mark.parametrize("program, name", [(program, name) for program, names in EXAMPLES.items() for name in names])
def test_example(r, built, program, name):
    report = r.new_report()
    r.run([built / program, name], env={"WARM": 400})
    r.accelerated(report)


def test_run(r, mode, built):
    """`shunt run` starts such a program as any other, and says nothing."""
    if mode != "shunt":
        return
    ran = r.run([modes.command(), "run", "--require", "--", built / "echo", "small_messages"], plain=True, env={"WARM": 400})
    assert ran.stderr == b""
