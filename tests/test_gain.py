"""A connection that gains nothing in memory goes back, for as long as tcp is as fast (sockets/src/gain.rs)."""

import sys

import pytest

NO_GAIN = 51

# Two processes that send each other 64 bytes in turn, checked, so many times. Each waits for the connection and a pipe: without bells only a
# kick wakes it.
PROGRAM = """
import os, select, socket, sys

rounds = int(sys.argv[1])
listener = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child:
    peer = listener.accept()[0]
else:
    peer = socket.create_connection(listener.getsockname())
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
poll = select.poll()
for fd in peer, os.pipe()[0]:
    poll.register(fd, select.POLLIN)
for i in range(rounds):
    message = (b"%d" % i).ljust(64)
    if not child:
        peer.sendall(message)
    poll.poll()
    assert peer.recv(64, socket.MSG_WAITALL) == message
    if child:
        peer.sendall(message)
peer.close()
os._exit(os.waitpid(child, 0)[1] if child else 0)
"""


@pytest.fixture
def ran(r, mode):
    """Runs the program, and gives its counts of promotions, of ways back, and of those because of no gain."""
    if mode != "shunt":
        pytest.skip("nothing moves")

    def run(rounds, bells):
        report = r.new_report()
        # On one processor nobody spins for long, and whoever waits sleeps.
        env = {"SHUNT_SPIN_US": 0, "SHUNT_BELLS": bells, "SHUNT_PROMOTE_AFTER": "auto"}
        r.run(["taskset", "-c", "0", sys.executable, "-c", PROGRAM, str(rounds)], env=env, timeout=100)
        return report.promoted, report.demoted, report.reasons().get(NO_GAIN, 0)

    return run


def test_what_takes_a_kick_for_each_message_goes_back(ran):
    promoted, demoted, gained_nothing = ran(4000, "off")
    assert promoted >= 2 and demoted >= 2 and gained_nothing >= 1


def test_it_comes_back_a_bounded_number_of_times(ran):
    promoted, demoted, gained_nothing = ran(60000, "off")
    assert promoted >= 4 and gained_nothing <= 8


def test_what_is_woken_by_memory_stays(ran):
    promoted, demoted, gained_nothing = ran(4000, "on")
    assert promoted == 2 and demoted == gained_nothing == 0
