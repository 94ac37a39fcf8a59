"""What a filter is, and what it sees."""

from __future__ import annotations

import io
import logging
import pickle
import types
from collections import ChainMap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import cloudpickle

from shunt import _native

if TYPE_CHECKING:
    from typing_extensions import Buffer as Bytes

# How a partial result or the parameters of a unit of work go: as they are if they are bytes, else pickled. The first byte says which.
_RAW, _PICKLED = b"\0", b"\1"


def _code(code: types.CodeType) -> tuple[Any, ...]:
    make, args = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return make, tuple(code.co_filename if it == "<dynamic-code>" else it for it in args)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles what the program itself defines as well, with the names of its files, which tracebacks show; cloudpickle leaves those out."""

    dispatch_table = ChainMap({types.CodeType: _code}, cloudpickle.Pickler.dispatch_table)


def dumps(thing: object) -> bytes:
    to = io.BytesIO()
    _Pickler(to, protocol=pickle.HIGHEST_PROTOCOL).dump(thing)
    return to.getvalue()


def pack(thing: object) -> bytes:
    if type(thing) is bytes:
        return _RAW + thing
    return _PICKLED + dumps(thing)


def unpack(data: bytes) -> Any:
    return data[1:] if data[:1] == _RAW else pickle.loads(memoryview(data)[1:])


class UnitOfWork:
    """A unit of work, as a filter sees it."""

    def __init__(self, context: _native.Context) -> None:
        self._context = context
        self._params: Any = None
        self._of = -1

    @property
    def id(self) -> int:
        """Its number: 1 is the group's first."""
        return self._context.uow

    @property
    def params(self) -> Any:
        """What it is about: what was given to :meth:`Group.append`."""
        if self._of != self.id:
            self._params, self._of = unpack(self._context.params), self.id
        return self._params

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants it any more. Reading and writing raise :class:`Cancelled` then; a filter that computes for long may ask."""
        return self._context.cancelled

    def emit(self, part: object) -> None:
        """Hands a partial result, any object that can be pickled, to whoever appended the unit of work."""
        self._context.emit(pack(part))


class Input:
    """The buffers of one stream (or, as :attr:`Filter.input`, of all that the filter reads): iterate over it, once for each unit of work.

    A buffer may be kept; its memory goes back to its producer when nothing refers to it any more, or with ``buffer.release()``.
    """

    def __init__(self, context: _native.Context, place: int | None, name: str) -> None:
        self._context = context
        self._place = place
        self.name = name

    def __iter__(self) -> Iterator[_native.Buffer]:
        read, place = self._context.read, self._place
        while (buffer := read(place)) is not None:
            yield buffer

    def read(self) -> _native.Buffer | None:
        """The next buffer; None when all copies of all producers have ended the unit of work."""
        return self._context.read(self._place)


class Output:
    """A stream that the filter writes."""

    def __init__(self, context: _native.Context, place: int, name: str, buffer_size: int) -> None:
        self._context = context
        self._place = place
        self.name = name
        self.buffer_size = buffer_size

    def write(self, data: Bytes, key: int = 0, note: bytes | None = None) -> None:
        """Writes bytes (anything with the buffer protocol) as one buffer. More than ``buffer_size`` is an error, unless the stream splits.

        ``key`` is for keyed streams; consumers see it and ``note``, a few bytes, beside the buffer.
        """
        self._context.write(self._place, data, key, note)

    def reserve(self) -> _native.Draft:
        """Memory of the stream, to be filled in place, without a copy. As a context manager it is sent at the end of the block::

            with self.output.reserve() as draft:
                numpy.frombuffer(draft, numpy.uint8)[:] = 7
        """
        return self._context.reserve(self._place)


class Filter:
    """A filter: override :meth:`process`, and where there are resources to make and release :meth:`init` and :meth:`finalize`.

    Each copy is an object of its own with a thread (or process) of its own, made once, which sees one unit of work after another. What it is
    made with goes to :meth:`Layout.filter`.
    """

    rank: int
    """Which copy this is, from 0."""
    copies: int
    """How many copies there are."""
    name: str
    """How people name the copy: ``zoom[1]``."""
    host: str
    """The host that it runs on, by the launcher's name."""
    inputs: dict[str, Input]
    """The streams that it reads, by their names."""
    outputs: dict[str, Output]
    """The streams that it writes, by their names."""
    input: Input
    """All streams that it reads."""
    log: logging.Logger
    """A logger with the copy's name."""

    def init(self, uow: UnitOfWork) -> None:
        """Before a unit of work."""

    def process(self, uow: UnitOfWork) -> None:
        """The unit of work: usually reads until there is no more."""
        raise NotImplementedError(f"{type(self).__name__} has no method process")

    def finalize(self, uow: UnitOfWork) -> None:
        """After a unit of work, also after one that failed, if ``init`` came to its end."""

    @property
    def output(self) -> Output:
        """The stream that it writes, if that is one."""
        if len(self.outputs) != 1:
            has = ", ".join(self.outputs) or "none"
            raise AttributeError(f"filter {self.name} has not one output but {len(self.outputs)} ({has}): use self.outputs[NAME]")
        return next(iter(self.outputs.values()))


class Adapter:
    """The core calls this: it makes a filter's world before its first unit of work."""

    def __init__(self, filter_: Filter) -> None:
        self._filter = filter_
        self._uow: UnitOfWork | None = None

    def _bound(self, context: _native.Context) -> UnitOfWork:
        if self._uow is None:
            it = self._filter
            it.rank, it.copies, it.name, it.host, inputs, outputs = context.describe()
            it.inputs = {name: Input(context, place, name) for place, (name, _) in enumerate(inputs)}
            it.outputs = {name: Output(context, place, name, size) for place, (name, size) in enumerate(outputs)}
            it.input = Input(context, None, "all inputs")
            it.log = logging.getLogger(f"shunt.filters.{it.name}")
            self._uow = UnitOfWork(context)
        return self._uow

    def init(self, context: _native.Context) -> None:
        self._filter.init(self._bound(context))

    def process(self, context: _native.Context) -> None:
        self._filter.process(self._bound(context))

    def finalize(self, context: _native.Context) -> None:
        self._filter.finalize(self._bound(context))


def make_filter(spec: bytes, rank: int, copies: int) -> Adapter:
    """Makes one copy of a filter from what the layout says of it."""
    make, args, kwargs = pickle.loads(spec)
    made = make(*args, **kwargs)
    if not isinstance(made, Filter):
        raise TypeError(f"{make!r} made a {type(made).__name__}, which is no shunt.filters.Filter")
    return Adapter(made)


def make_chooser(spec: bytes) -> Any:
    """Makes a policy that is a function."""
    choose = pickle.loads(spec)

    def chosen(key: int, length: int, note: bytes, unacknowledged: list[int]) -> int:
        return int(choose(Meta(key, length, note), unacknowledged))

    return chosen


class Meta:
    """What a policy sees of a buffer."""

    __slots__ = ("key", "length", "note")

    def __init__(self, key: int, length: int, note: bytes) -> None:
        self.key = key
        self.length = length
        self.note = note
