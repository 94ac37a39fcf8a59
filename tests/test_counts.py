"""How many instructions the calls that programs make all the time take (tests/apps/counted.c), by callgrind: the same on a machine with other things to do. A change that makes
one of them longer fails here. Where that is worth it, or a new compiler counts otherwise, the table gets the new count, and the commit says why.
"""

import pytest

from harness import modes

# Instructions of a call with 64 bytes, with all that it calls, of a library built with the profile `release`. In epoll the sender also wakes the set, which asks the kernel each time.
COUNTS = {
    "blocking": {"send": 486, "recv": 527},
    "epoll": {"send": 742, "recv": 527, "epoll_wait": 2555},
}
MOST = 1.03  # of that
ROUNDS = (100, 500)  # the difference of the two leaves out what happens once


def calls(path):
    """{what rounds() has called: (how often, instructions)}, from callgrind's output."""
    found, within, callee = {}, None, None
    lines = iter(path.read_text().splitlines())
    for line in lines:
        if line.startswith("fn="):
            within = line.removeprefix("fn=")
        elif line.startswith("cfn="):
            callee = line.removeprefix("cfn=")
        elif line.startswith("calls="):
            often, cost = int(line.removeprefix("calls=").split()[0]), int(next(lines).split()[1])
            if within == "rounds":
                before = found.get(callee, (0, 0))
                found[callee] = (before[0] + often, before[1] + cost)
    return found


@pytest.mark.parametrize("how", COUNTS)
def test_instructions(r, mode, need, how):
    if mode != "shunt":
        pytest.skip("the counts are those of accelerated calls")

    def counted(rounds):
        out = r.tmp / f"{how}-{rounds}.callgrind"
        r.run([need("valgrind"), "-q", "--tool=callgrind", "--toggle-collect=rounds", "--compress-strings=no", "--compress-pos=no",
               f"--callgrind-out-file={out}", r.apps / "counted", how, rounds])
        return calls(out)

    few, many = map(counted, ROUNDS)
    r.accelerated()
    counts = {}
    for call in COUNTS[how]:
        often, cost = (after - before for after, before in zip(many[call], few[call]))
        assert often == 2 * (ROUNDS[1] - ROUNDS[0])
        counts[call] = round(cost / often)
    if (profile := modes.library().parent.name) != "release":
        pytest.skip(f"the table has the counts of a release build; one of {profile} takes {counts}")
    for call, known in COUNTS[how].items():
        assert counts[call] <= known * MOST, f"{call}() takes {counts[call]} instructions, {counts[call] - known} more than {known}"
