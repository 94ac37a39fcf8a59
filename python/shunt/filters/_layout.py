"""What connects to what, and what runs where."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunt import _native
from shunt.filters._filter import Filter, Meta, dumps
from shunt.filters._group import Group
from shunt.filters._launch import Launcher

Policy = str | Callable[[Meta, list[int]], int]
"""``"round-robin"``, ``"demand-driven"``, ``"weighted"`` (with ``weights=``), ``"keyed"``, or a function of a buffer's :class:`Meta` and the
unacknowledged buffers of each consumer copy, which gives the copy's rank."""

_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def size(what: int | str) -> int:
    """A number of bytes, or a text like ``"16KiB"``."""
    if isinstance(what, int):
        return what
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", what)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{what!r} is no size: a number of bytes, or a text like '16KiB' or '1MB'")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def natural(what: str, number: int) -> None:
    """An error if it is less than nothing: the core's numbers have no sign."""
    if number < 0:
        raise ValueError(f"{what} is {number}, less than 0")


@dataclass
class Place:
    """Where the copies of one filter run."""

    copies: int = 1
    """How many."""
    on: Sequence[str] = ()
    """On which of the launcher's hosts, in turn; empty: on all. ``"caller"`` is this process."""
    processes: bool = False
    """Whether each has a process of its own: for filters that keep the interpreter busy."""


@dataclass
class FilterDef:
    """A filter of a layout."""

    name: str
    spec: bytes
    shown: str


@dataclass
class StreamDef:
    """A stream of a layout."""

    from_: str
    to: str
    name: str | None
    policy: Policy
    weights: list[int]
    buffer_size: int
    credits: int
    split: bool

    @property
    def shown(self) -> str:
        return self.name or f"{self.from_}->{self.to}"


@dataclass
class Layout:
    """Filters, and the streams that connect them. What is given here holds for all streams that do not say otherwise."""

    policy: Policy = "demand-driven"
    buffer_size: int | str = "64KiB"
    credits: int = 32
    filters: list[FilterDef] = field(default_factory=list, init=False)
    streams: list[StreamDef] = field(default_factory=list, init=False)

    def filter(self, name: str, make: Callable[..., Filter], *args: Any, **kwargs: Any) -> Layout:
        """Adds a filter: a subclass of :class:`Filter`, or a function that makes one, and what each copy is made with."""
        spec = dumps((make, args, kwargs))
        self.filters.append(FilterDef(name, spec, getattr(make, "__qualname__", repr(make))))
        self._native()
        return self

    def stream(
        self,
        from_: str,
        to: str,
        *,
        name: str | None = None,
        policy: Policy | None = None,
        weights: Sequence[int] = (),
        buffer_size: int | str | None = None,
        credits: int | None = None,
        split: bool = False,
    ) -> Layout:
        """Adds a stream from one filter to another.

        ``buffer_size`` bounds a buffer, ``credits`` how many buffers of one producer copy may wait at one consumer copy; with ``split`` a write of
        more than a buffer becomes several.
        """
        policy = self.policy if policy is None else policy
        if weights and policy != "weighted":
            raise ValueError(f"weights are for policy 'weighted', and this stream's is {policy!r}")
        size_ = size(self.buffer_size if buffer_size is None else buffer_size)
        credits_ = self.credits if credits is None else credits
        natural(f"stream '{name or f'{from_}->{to}'}': buffer_size", size_)
        natural(f"stream '{name or f'{from_}->{to}'}': credits", credits_)
        for weight in weights:
            natural(f"stream '{name or f'{from_}->{to}'}': a weight", weight)
        self.streams.append(StreamDef(from_, to, name, policy, list(weights), size_, credits_, split))
        try:
            self._native()
        except ValueError:
            self.streams.pop()
            raise
        return self

    def chain(self, **filters: Callable[..., Filter]) -> Layout:
        """Adds filters in a row, by their names, each with a stream to the next."""
        for name, make in filters.items():
            self.filter(name, make)
        names = list(filters)
        for from_, to in zip(names, names[1:]):
            self.stream(from_, to)
        return self

    def start(
        self,
        placement: Mapping[str, Place | int] | None = None,
        *,
        copies: Mapping[str, int] | None = None,
        launcher: str | Launcher | Any = "local",
        transport: str = "auto",
        window: int = 4,
        progress: bool = False,
        trace: bool = False,
    ) -> Group:
        """Starts a group: returns when every copy is ready.

        ``placement`` says for each filter how many copies there are and where; ``copies`` is the short form of it. Filters that write no stream run
        in this process, unless placed elsewhere.

        ``launcher``: ``"local"``, ``"dask"`` (see :mod:`shunt.filters.dask`), or a :class:`Launcher`. ``transport``: ``"auto"`` (shared memory on one
        host, sockets elsewhere), ``"shunt"`` (sockets that Shunt promotes), ``"tcp"``. ``window``: how many units of work may be under way at once.
        ``progress`` shows a bar (needs tqdm), ``trace`` keeps what :meth:`Group.trace` writes.
        """
        places: dict[str, Place] = {}
        for name, place in (placement or {}).items():
            places[name] = Place(copies=place) if isinstance(place, int) else place
        for name, count in (copies or {}).items():
            places.setdefault(name, Place()).copies = count
        for name, place in places.items():
            natural(f"the number of copies of filter '{name}'", place.copies)
        if not 1 <= window <= _native.WINDOW_MOST:
            raise ValueError(f"window is {window}, not 1 to {_native.WINDOW_MOST}")
        return Group._start(self, self._native(), places, launcher, transport, window, progress, trace)

    def check(self) -> None:
        """Raises ValueError if it cannot run."""
        self._native().check()

    def _native(self) -> _native.Layout:
        native = _native.Layout()
        for it in self.filters:
            native.filter(it.name, it.spec)
        for stream in self.streams:
            is_name = isinstance(stream.policy, str)
            chooser = b"" if is_name else dumps(stream.policy)
            native.stream(
                stream.from_,
                stream.to,
                name=stream.name,
                policy=stream.policy if isinstance(stream.policy, str) else "user",
                weights=stream.weights,
                buffer_size=stream.buffer_size,
                credits=stream.credits,
                split=stream.split,
                chooser=chooser,
            )
        return native
