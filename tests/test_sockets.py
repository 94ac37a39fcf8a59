"""Every example of every victim program in tests/apps, in every mode.

The examples check themselves; here they are found (by reading the tables at the end of the C files), run, and asked whether their
connections were really promoted. Under the library each runs three times: with promotion long done (400 round trips before), with
promotion going on while the example runs (3), and with none before (0).
"""

import re
from pathlib import Path

import pytest

APPS = Path(__file__).parent / "apps"
ROW = re.compile(r'^    \{"(\w+)", \w+, \w+, ([A-Z0-9_| ]+)\},', re.M)


def examples():
    for source in sorted(APPS.glob("*.c")):
        programs = [source.stem] + (["echo_fortified"] if source.stem == "echo" else [])
        for name, flags in ROW.findall(source.read_text()):
            for program in programs:
                marks = pytest.mark.alone("it measures processor time") if "MEASURES" in flags else ()
                yield pytest.param(program, name, flags.split(" | "), marks=marks, id=f"{program}-{name}")


@pytest.mark.parametrize("program, name, flags", list(examples()))
def test_example(r, mode, program, name, flags):
    slow = "SLOW" in flags
    # Where nothing moves, there is no more than: before and after that was decided.
    rounds = {"plain": (400,), "tcp": (400, 0), "shunt": (400, 3, 0), "far": (400,)}[mode]
    for warm in rounds[:1] if slow else rounds:
        report = r.new_report()
        promoted = mode in ("shunt", "far") and warm == 400 and "TCP_OK" not in flags
        # Examples that make their connections themselves know best which are to move.
        more = {"WARM_MOVED": 1} if promoted and "RAW" not in flags else {}
        r.run([r.apps / program, name], env={"WARM": warm} | more, timeout=120 if slow else 30)
        if mode not in ("shunt", "far"):
            r.not_accelerated(report)
        elif promoted and (mode == "shunt" or more):
            r.accelerated(report, waited=True)


def test_buffers_set_while_offered(r):
    """The program sets small buffers while the ends agree on how to go on: with two round trips before, it is just then."""
    r.run([r.apps / "nonblocking", "small_buffers_later"], env={"WARM": 2}, timeout=60)


@pytest.mark.parametrize("rounds", range(1, 6))
def test_urgent_data_while_offered(r, rounds):
    """An end that has offered reads urgent data, and closes: nothing of it is left unread, which would reset the connection."""
    for _ in range(5):
        r.run([r.apps / "urgent", "asleep"], env={"WARM": rounds}, timeout=60)


def test_room_by_tcp(r, mode):
    """Which thread takes note that the peer has gone to tcp is chance: whoever waits for room, or another."""
    moved = {"WARM_MOVED": 1} if mode in ("shunt", "far") else {}
    for _ in range(5):
        r.run([r.apps / "threads", "room_by_tcp"], env={"WARM": 400} | moved, timeout=30)


@pytest.mark.parametrize("window, delayed", [(32, 31), (1, 0), (2, 1)])
@pytest.mark.parametrize("program, name", [("epoll", "edge"), ("epoll", "stream_one_shot"), ("polling", "poll_room")])
def test_few_credits(r, program, name, window, delayed):
    """Over VIPL a window may be full of messages of a few bytes, or its acknowledgements late: nobody waits for ever, nor with SHUNT_GROW=off."""
    env = {"WARM": 400, "SHUNT_STREAM": "via", "SHUNT_GROW": "off", "SHUNT_VIA_WINDOW": window, "SHUNT_VIA_DELAYED": delayed}
    report = r.new_report()
    r.run([r.apps / program, name], env=env, timeout=60)
    r.accelerated(report)
