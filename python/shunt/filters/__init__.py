"""DataCutter's filter streams: programs made of filters that exchange buffers over streams, one unit of work after another.

A program in short::

    import shunt.filters as sf

    class Read(sf.Filter):
        def process(self, uow):
            for number in range(self.rank, uow.params, self.copies):
                self.output.write(number.to_bytes(8, "little"))

    class Sum(sf.Filter):
        def process(self, uow):
            uow.emit(sum(int.from_bytes(buffer, "little") for buffer in self.input))

    layout = sf.Layout(policy="demand-driven", buffer_size="16KiB", credits=32).chain(read=Read, sum=Sum)
    with layout.start(copies={"read": 3}) as group:
        print(group.append(1000).result())

*Layout* says what connects to what, *placement* (``copies=``, ``placement=``) what runs where, and the *launcher* what starts processes.
"""

from shunt._native import NOTE_MOST, Buffer, Cancelled, Draft
from shunt.filters._errors import (
    FilterFailed,
    GroupClosed,
    UnitCancelled,
    UnitError,
    UnitTimedOut,
    WorkerLost,
)
from shunt.filters._filter import Filter, Input, Output, UnitOfWork
from shunt.filters._group import Figures, Group, Statistics, Unit
from shunt.filters._launch import Launcher, Process
from shunt.filters._layout import Layout, Place

__all__ = [
    "NOTE_MOST",
    "Buffer",
    "Cancelled",
    "Draft",
    "Figures",
    "Filter",
    "FilterFailed",
    "Group",
    "GroupClosed",
    "Input",
    "Launcher",
    "Layout",
    "Output",
    "Place",
    "Process",
    "Statistics",
    "Unit",
    "UnitCancelled",
    "UnitError",
    "UnitOfWork",
    "UnitTimedOut",
    "WorkerLost",
]
