"""What it takes to have the first connection in memory, in system calls. A server that is terminated right behind its client's end has written down what the client
sent last only if the library has not held it up: it once looked for a ring at each of 1,024 numbers, in the middle of the read that came first."""

import re
from collections import Counter

import pytest

MOST = 200  # of one kind, both ends together, more than plain
# Of each round trip: by TCP, and by memory where both ends sleep. clock_gettime: how busy the process is.
EACH_TIME = {"recvfrom", "sendto", "ppoll", "clock_gettime", "getsockopt", "write", "preadv2", "futex"}


def test_no_call_is_made_over_and_over(r, mode):
    if mode != "shunt":
        pytest.skip("what connections between hosts take is the progress thread's, beside the program; others take nothing")

    def calls(**env):
        log = r.tmp / "calls"
        r.run(["strace", "-f", "-qq", "-o", log, r.apps / "polling", "select_times_out"], env=env, timeout=60)
        return Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.M))

    plain = calls(LD_PRELOAD="")
    report = r.new_report()
    ours = calls(WARM=400, WARM_MOVED=1)
    over = {call: f"{plain[call]} plain, {count}" for call, count in ours.items() if call not in EACH_TIME and count - plain[call] > MOST}
    assert not over
    r.accelerated(report)
