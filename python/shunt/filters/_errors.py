"""Why a unit of work, or a group, failed."""

from __future__ import annotations


class UnitError(Exception):
    """A unit of work failed. ``copies`` and ``host`` name what failed, as far as it has a name."""

    def __init__(self, text: str, copies: list[str] | None = None, host: str = "", traceback: str = "") -> None:
        super().__init__(text)
        self.copies = copies or []
        self.host = host
        self.traceback = traceback

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n\nThere:\n{self.traceback.rstrip()}" if self.traceback else text

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (super().__str__(), self.copies, self.host, self.traceback)


class FilterFailed(UnitError):
    """A copy of a filter raised an exception; ``traceback`` is where, in its process."""


class WorkerLost(UnitError):
    """A process of the group ended while it worked on it."""


class UnitCancelled(UnitError):
    """Somebody cancelled it."""


class UnitTimedOut(UnitError, TimeoutError):
    """It took longer than the timeout that it was appended with."""


class GroupClosed(UnitError):
    """The group was closed first, or does not start."""


_KINDS: dict[str, type[UnitError]] = {
    "filter": FilterFailed,
    "lost": WorkerLost,
    "cancelled": UnitCancelled,
    "timeout": UnitTimedOut,
    "closed": GroupClosed,
}


def from_told(told: tuple[str, str, list[str], str, str]) -> UnitError:
    """The exception for what the core tells."""
    kind, text, copies, host, traceback = told
    return _KINDS[kind](text, copies, host, traceback)
