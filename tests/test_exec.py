"""A connection that a program keeps over exec() is in memory again afterwards, if the next image can have it for itself, and nothing is
lost or doubled on the way (tests/apps/again.py). How it crosses: tests/apps/execs.c, spawns.c and leftover.c."""

import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "apps/again.py"


def run(r, *arguments):
    r.run([sys.executable, PROGRAM, *arguments], timeout=60)
    r.accelerated()


@pytest.mark.parametrize("details", ["", "inherited", "own set"])
@pytest.mark.parametrize("how", ["turns", "ahead", "epoll"])
def test_in_memory_again(r, how, details):
    run(r, how, "3", details)
    if r.mode == "shunt":
        # What waits unread may need a relay, which stays.
        assert r.report.promoted == 8 or how == "ahead" and r.report.promoted > 2, f"two ends, four images: {r.report}"


def test_although_it_failed_first(r):
    run(r, "turns", "3", "failing")
    if r.mode == "shunt":
        assert r.report.promoted >= 8, f"two ends, four images, each with a failed exec in its middle: {r.report}"


@pytest.mark.parametrize("details", ["failing, own set", "failing, set"])
def test_sets_know_it_when_exec_has_failed(r, details):
    run(r, "turns", "3", details)


def test_in_the_middle_of_a_stream(r):
    run(r, "threads", "5")


@pytest.mark.parametrize("details", ["shared", "twice", "set"])
def test_on_tcp_where_others_may_have_it_or_tell_of_it(r, details):
    run(r, "turns", "3", details)
    if r.mode == "shunt":
        assert r.report.promoted == 2, f"only the first image is alone: {r.report}"
