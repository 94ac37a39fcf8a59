"""stress-ng's stressors of sockets, and of what goes with them: they check what they send (--verify), and use calls as no program would."""

import pytest

from harness.conform import FULL

pytestmark = pytest.mark.conformance

# Each, and how many rounds.
SHORT = {"sock": 600, "sockmany": 20, "epoll": 500}
LONG = {"sockabuse": 1000, "sockpair": 10000, "sockfd": 10000, "poll": 10000, "sendfile": 3000, "udp": 10000, "splice": 10000, "pipe": 50000,
        "fork": 2000, "vfork": 2000, "dup": 2000, "close": 2000, "eventfd": 20000, "seccomp": 200, "sigio": 2000, "signal": 5000,
        "sigpipe": 2000, "aio": 2000, "iomix": 500, "clone": 200, "exec": 500, "spawn": 300, "netdev": 2000}
# Some once more, with options.
WAYS = {"sock by sendmsg": ["--sock", 1, "--sock-ops", 1000, "--sock-opts", "sendmsg"],
        "sock by sendmmsg": ["--sock", 1, "--sock-ops", 1000, "--sock-opts", "sendmmsg"],
        "sock by all ways": ["--sock", 2, "--sock-ops", 2000, "--sock-opts", "random", "--sock-nodelay"],
        "sock over IPv6": ["--sock", 1, "--sock-ops", 1000, "--sock-domain", "ipv6"],
        "sock without copies": ["--sock", 1, "--sock-ops", 1000, "--sock-zerocopy"],
        "epoll over TCP": ["--epoll", 2, "--epoll-ops", 2000, "--epoll-domain", "ipv4"],
        "epoll over IPv6": ["--epoll", 1, "--epoll-ops", 1000, "--epoll-domain", "ipv6"]}
STRESSORS = {name: [f"--{name}", 2, f"--{name}-ops", rounds] for name, rounds in {**SHORT, **(LONG if FULL else {})}.items()} | (WAYS if FULL else {})
# What the program's status says.
OUTCOME = {0: "passed", 3: "skipped", 4: "skipped"}
# Those in which two processes talk TCP for long enough.
MOVES = ["sock", "sock by all ways", "sock over IPv6", "sock without copies"]


def suite(name, need):
    def scenario(r):
        done = r.run([need("stress-ng"), "--verify", "--temp-path", r.tmp, "--timeout", "30s", *STRESSORS[name]], timeout=120, status=None)
        return {name: OUTCOME.get(done.status, f"failed ({done.status})")}

    return scenario


@pytest.mark.parametrize("name", STRESSORS)
def test_stress(conform, need, name):
    conform(f"stress-ng {name}", suite(name, need), moves=name in MOVES)
