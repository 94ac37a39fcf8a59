"""Programs that are built for musl, another libc: the same library. (`make libcs LIBCS=musl` runs all examples of tests/apps so.)"""

import pytest

from harness import modes

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


@pytest.mark.parametrize("program, name", [(program, name) for program, names in EXAMPLES.items() for name in names])
def test_example(r, musl_apps, program, name):
    report = r.new_report()
    r.run([musl_apps(program), name], env={"WARM": 400})
    r.accelerated(report)


def test_run(r, mode, musl_apps):
    """`shunt run` starts such a program as any other, and says nothing."""
    if mode != "shunt":
        pytest.skip("there is nothing to start it otherwise")
    ran = r.run([modes.command(), "run", "--require", "--", musl_apps("echo"), "small_messages"], plain=True, env={"WARM": 400})
    assert ran.stderr == b""
