"""Where a server and its clients have one processor, spinning takes it from those who are waited for: no profile is slower there than plain, and no client waits
while others are served over and over, real-time or not."""

import os
from statistics import median

import pytest

# The name, how the server waits, how many clients, on which processors (the server's first).
CASES = [
    pytest.param("epoll", 1, "00", id="one"),
    pytest.param("recv", 1, "00", id="reads"),
    pytest.param("epoll", 4, "00", id="epoll"),
    pytest.param("poll", 4, "00", id="poll"),
    pytest.param("epoll", 2, "010", id="beside"),
    pytest.param("epoll", 3, "0011", id="behind"),
]
# Plain and not, in turn, so often; how many milliseconds each. The machine has other things to do: a median has to reach this.
ROUNDS, MILLISECONDS, LEAST = 5, 300, 0.85
MOST = 5


@pytest.mark.alone("it measures processor time")
@pytest.mark.parametrize("policy", [[], ["chrt", "-f", "10"]], ids=["shared", "real-time"])
@pytest.mark.parametrize("how, clients, processors", CASES)
def test_one_processor(r, mode, how, clients, processors, policy):
    if mode != "shunt" or (policy and os.geteuid() != 0) or max(processors) > "0" and os.cpu_count() < 2:
        pytest.skip("nothing spins, nobody may be real-time, or there is one processor")

    def served(**env):
        argv = [*policy, r.apps / "fair", how, clients, MILLISECONDS, processors]
        return [float(word) for word in r.run(argv, env=env, timeout=60).text.split()]

    ratios, worst, plain_worst = [], [], []
    report = r.new_report()
    for _ in range(ROUNDS):
        plain, ours = served(LD_PRELOAD=""), served(SHUNT_PROFILE="latency")
        ratios.append(sum(ours) / max(sum(plain), 1))
        # Of clients on one and the same processor.
        for numbers, most in ((ours, worst), (plain, plain_worst)):
            alike = [numbers[i] for i in range(clients) if processors[1 + i % (len(processors) - 1)] == processors[-1]]
            most.append(max(alike) / max(min(alike), 1))
    r.accelerated(report)
    assert median(ratios) >= LEAST, f"of plain: {ratios}"
    assert median(worst) <= max(MOST, 2 * median(plain_worst)), f"the best served client has so many times more rounds than the worst: {worst}, plain {plain_worst}"
