"""A group that runs, its units of work as futures, and what is to be seen of it."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import weakref
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shunt import _native
from shunt.filters import _launch
from shunt.filters._errors import UnitError, from_told
from shunt.filters._filter import make_chooser, make_filter, pack, unpack

if TYPE_CHECKING:
    from shunt.filters import _show
    from shunt.filters._layout import Layout, Place

log = logging.getLogger("shunt.filters")

# Groups that a program forgot to close: their threads must not outlive the interpreter.
_running: weakref.WeakSet[Group] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for group in list(_running):
        group.close()


@dataclass(frozen=True)
class Figures:
    """What went from one copy of a producer to one copy of its consumer. Times are in seconds."""

    stream: str
    producer: str
    consumer: str
    way: str
    """``thread``, ``memory``, ``shunt`` or ``tcp``."""
    sent: int
    """Buffers that the producer has sent."""
    buffers: int
    """Buffers that the consumer has started on."""
    bytes: int
    unacknowledged: int
    """Buffers that were sent and are not started on."""
    unacknowledged_most: int
    unread: int
    """Buffers that a consumer left when it ended its unit of work."""
    blocked: float
    """How long the producer waited for credits."""
    idle: float
    """How long the consumer waited for buffers."""
    latency_p50: float | None
    """From sent to started on: half of the buffers took no longer."""
    latency_p90: float | None
    latency_p99: float | None
    latency_max: float | None


@dataclass(frozen=True)
class CopyState:
    """What one copy does."""

    name: str
    host: str
    machine: str
    pid: int
    state: str
    """``idle``, ``init``, ``process``, ``drain``, ``finalize``, or ``unknown``."""
    uow: int
    ended: int
    """How many units of work it has ended."""


@dataclass(frozen=True)
class Statistics:
    """What is to be seen of a group; as text it is a table."""

    copies: list[CopyState]
    figures: list[Figures]
    units: dict[str, int]
    """How many units of work are ``done``, have ``failed``, are ``running``, are ``waiting``."""
    losses: int
    """How often a process was lost."""

    def __str__(self) -> str:
        from shunt.filters import _show

        return _show.table(self)

    def prometheus(self) -> str:
        """In Prometheus' text format."""
        from shunt.filters import _show

        return _show.prometheus(self)


class Unit:
    """A unit of work that was appended: a future, whose partial results are iterated over as they come (``for``, ``async for``)."""

    def __init__(self, native: _native.Unit) -> None:
        self._native = native

    @property
    def id(self) -> int:
        """Its number: 1 is the group's first."""
        return self._native.id

    def __iter__(self) -> Iterator[Any]:
        """The partial results that have not been taken. At the end raises what it failed with, if it failed."""
        while True:
            match self._native.next_part(None):
                case ("part", _, data):
                    yield unpack(data)
                case ("failed", told):
                    raise from_told(told)
                case _:
                    return

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._parts()

    async def _parts(self) -> AsyncIterator[Any]:
        while True:
            match self._native.next_part(0):
                case ("part", _, data):
                    yield unpack(data)
                case ("failed", told):
                    raise from_told(told)
                case ("done",):
                    return
                case _:
                    await self._news()

    async def _news(self) -> None:
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(news.set)
            except RuntimeError:
                pass  # the loop has ended meanwhile: nobody waits

        self._native.on_news(tell)
        await news.wait()

    def __await__(self) -> Generator[Any, None, list[Any]]:
        """Waits for the end: the partial results that have not been taken."""

        async def all_parts() -> list[Any]:
            return [part async for part in self]

        return all_parts().__await__()

    def result(self, timeout: float | None = None) -> list[Any]:
        """Waits for the end; the partial results that have not been taken. Raises what it failed with, or TimeoutError if it does not end in
        time (it goes on)."""
        self.wait(timeout)
        parts = []
        while (part := self._native.next_part(0))[0] == "part":
            parts.append(unpack(part[2]))
        return parts

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end, as :meth:`result` does; partial results stay where they are."""
        match self._native.wait(timeout):
            case ("failed", told):
                raise from_told(told)
            case ("later",):
                raise TimeoutError(f"unit of work {self.id} has not ended after {timeout} s")

    def exception(self, timeout: float | None = None) -> UnitError | None:
        """What it failed with; None if it did not."""
        try:
            self.wait(timeout)
        except UnitError as error:
            return error
        return None

    def done(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self._native.is_done()

    def progress(self) -> tuple[int, int]:
        """How many copies have ended their part, of how many."""
        return self._native.progress()

    def cancel(self) -> None:
        """Cancels it, unless it has ended."""
        self._native.cancel()

    def __repr__(self) -> str:
        done, of = self.progress()
        return f"<unit of work {self.id}: {'ended' if self.done() else f'{done} of {of} copies done'}>"


class Group:
    """A filter group that runs: made by :meth:`Layout.start`, ended by :meth:`close`, or by the end of a ``with`` block."""

    def __init__(self, native: _native.Group, layout: Layout, launcher: _launch.Launcher | None) -> None:
        self._native = native
        self._launcher = launcher
        self._bar: _show.Bar | None = None
        self._metrics: _show.Metrics | None = None
        self._spans: list[tuple[str, str, int, int, str, int, int]] = []
        self._last: Statistics | None = None
        self.layout = layout
        _running.add(self)

    @classmethod
    def _start(
        cls,
        layout: Layout,
        native: _native.Layout,
        places: dict[str, Place],
        launcher: str | _launch.Launcher | Any,
        transport: str,
        window: int,
        progress: bool,
        trace: bool,
    ) -> Group:
        found = _launch.find(launcher)
        # A launcher that was given may have other groups: whoever made it closes it.
        own = None if found is launcher else found
        try:
            group, failed = _native.Group.start(
                native,
                placement=[(name, it.copies, list(it.on), it.processes) for name, it in places.items()],
                launcher=found,
                command=_launch.command(),
                transport=transport,
                window=window,
                trace=trace,
                make_filter=make_filter,
                make_chooser=make_chooser,
            )
            if group is None:
                assert failed is not None
                raise ValueError(failed[1]) if failed[0] == "mistake" else from_told(failed)
        except BaseException:
            if own is not None and hasattr(own, "close"):
                own.close()
            raise
        started = cls(group, layout, own)
        if progress:
            from shunt.filters import _show

            started._bar = _show.Bar(started)
        return started

    def append(self, params: object = None, *, timeout: float | None = None, reruns: int = 0) -> Unit:
        """Appends a unit of work and returns at once; it begins when there is room, those before it need not have ended.

        ``params`` is any object that can be pickled: filters see it as ``uow.params``. After ``timeout`` seconds it fails. With ``reruns`` it is run
        again, so often at most, if a process is lost; its partial results then come only at its end.
        """
        if reruns < 0:
            raise ValueError(f"reruns is {reruns}, less than 0")
        return Unit(self._native.append(pack(params), timeout, reruns))

    def map(self, params: Any) -> Iterator[list[Any]]:
        """Appends a unit of work for each, and gives their results in order."""
        units = [self.append(it) for it in params]
        return (unit.result() for unit in units)

    def statistics(self) -> Statistics:
        """What is to be seen now; after :meth:`close` what was to be seen then."""
        if self._last is not None:
            return self._last
        status = self._native.status()
        copies = [CopyState(*copy) for copy in status["copies"]]
        figures = [Figures(**figure) for figure in status["figures"]]
        units = dict(zip(("done", "failed", "running", "waiting"), status["units"]))
        return Statistics(copies, figures, units, status["losses"])

    def plan(self) -> list[tuple[str, str, int]]:
        """For each copy its name, its host, and which process of the group it is in (0 is this one)."""
        return self._native.plan()

    def prometheus(self) -> str:
        """The statistics in Prometheus' text format."""
        return self.statistics().prometheus()

    def trace(self, path: str | Path) -> None:
        """Writes what the copies did so far as a Chrome trace (chrome://tracing, ui.perfetto.dev). Needs ``trace=True`` at the start."""
        from shunt.filters import _show

        if self._last is None:
            self._spans += self._native.spans()
        Path(path).write_text(json.dumps(_show.chrome_trace(self._spans)), encoding="utf-8")

    def watch(self, interval: float = 0.5) -> None:
        """Shows a live table in the terminal until no unit of work runs or waits. Needs rich."""
        from shunt.filters import _show

        _show.watch(self, interval)

    def serve_metrics(self, port: int = 0, host: str = "127.0.0.1") -> int:
        """Serves the statistics for Prometheus at http://HOST:PORT/metrics, until the group is closed; the port, if 0 was given."""
        from shunt.filters import _show

        metrics = _show.Metrics(self, host, port)
        self._metrics = metrics
        return metrics.port

    def close(self) -> None:
        """Ends the group: units of work that have not ended fail."""
        if self._last is not None:
            return
        self._last = self.statistics()
        self._spans += self._native.spans()
        if self._bar is not None:
            self._bar.close()
        if self._metrics is not None:
            self._metrics.close()
        self._native.close()
        if self._launcher is not None and hasattr(self._launcher, "close"):
            self._launcher.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
