"""Filters that tests/filters makes groups of. In a module of its own, since every process of a group that has one of them imports it."""

import os
import time

import shunt.filters as sf

WIDTH = 2**64


def number(buffer):
    return int.from_bytes(memoryview(buffer)[:8], "little")


def packed(value):
    return (value % WIDTH).to_bytes(8, "little")


class Numbers(sf.Filter):
    """As many as the unit of work says, dealt out among the copies."""

    def process(self, uow):
        for value in range(self.rank, uow.params, self.copies):
            for output in self.outputs.values():
                output.write(packed(value), key=value % 5)


class Line(sf.Filter):
    """Each number times something and something more, to all outputs."""

    def __init__(self, times, more):
        self.times, self.more = times, more

    def process(self, uow):
        for buffer in self.input:
            value = number(buffer) * self.times + self.more
            for output in self.outputs.values():
                output.write(packed(value), key=value % 5)


class Sum(sf.Filter):
    """Emits its name without rank, the sum of all numbers, and how many they were."""

    def process(self, uow):
        total = count = 0
        for buffer in self.input:
            total, count = (total + number(buffer)) % WIDTH, count + 1
        uow.emit((self.name.split("[")[0], total, count))


class Slow(sf.Filter):
    """Passes numbers on, one every so many seconds."""

    def __init__(self, seconds=0.002):
        self.seconds = seconds

    def process(self, uow):
        for buffer in self.input:
            time.sleep(self.seconds)
            self.output.write(buffer)


class DieOnce(sf.Filter):
    """Ends its process at 13, if there is a file to be removed."""

    def __init__(self, flag):
        self.flag = flag

    def process(self, uow):
        for buffer in self.input:
            if number(buffer) == 13 and os.path.exists(self.flag):
                os.remove(self.flag)
                os._exit(9)
            self.output.write(buffer)


class FailAt(sf.Filter):
    """Fails at one number."""

    def __init__(self, at):
        self.at = at

    def process(self, uow):
        for buffer in self.input:
            self.look_at(number(buffer))
            self.output.write(buffer)

    def look_at(self, value):
        if value == self.at:
            raise KeyError(f"{value} is not to be passed on")


class Warn(sf.Filter):
    """Logs, and prints."""

    def process(self, uow):
        self.log.warning("look at %s", uow.params)
        self.log.debug("nobody reads this")
        print("printed there", flush=True)
        self.output.write(b"x")


class Give(sf.Filter):
    """Writes what a function says."""

    def __init__(self, give):
        self.give = give

    def process(self, uow):
        self.give(self, uow)


class Take(sf.Filter):
    """Emits what a function says of each buffer."""

    def __init__(self, take=bytes):
        self.take = take

    def process(self, uow):
        for buffer in self.input:
            uow.emit(self.take(buffer))


class Keys(sf.Filter):
    """Emits which keys it has seen, and how many buffers."""

    def process(self, uow):
        seen = [buffer.key for buffer in self.input]
        uow.emit((self.rank, sorted(set(seen)), len(seen)))
