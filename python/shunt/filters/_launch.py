"""Launchers: what starts processes of a group on hosts. ``local`` needs none of this: the core starts processes beside it by itself."""

from __future__ import annotations

import sys
from typing import Any, Protocol, runtime_checkable

WORKER = ["-m", "shunt.filters.worker"]
TICKET = "SHUNT_FILTERS_TICKET"
"""The variable of the environment by which a worker is told whom it works for."""
PARENT = "SHUNT_FILTERS_PARENT"
"""The process that a worker ends with, if there is one."""
LOG_TO = "SHUNT_FILTERS_LOG_TO"
"""The number of an open file for what its filters log, if somebody reads that."""


class Process(Protocol):
    """A process that a launcher has started."""

    def ended(self) -> str | None:
        """How it ended, in words; None while it runs."""

    def kill(self) -> None:
        """Ends it."""


@runtime_checkable
class Launcher(Protocol):
    """Starts processes on hosts. All of it is called from a thread of the group's."""

    def hosts(self) -> list[str]:
        """The hosts that there are, by names that a placement may use."""

    def address(self) -> str:
        """The IP address of this host at which they reach it."""

    def launch(self, host: str, ticket: str) -> Process:
        """Starts ``python -m shunt.filters.worker`` on a host, with the ticket in its environment as :data:`TICKET`."""


def command() -> list[str]:
    """What a process beside this one runs. It looks for modules where this one does."""
    return [sys.executable, *WORKER, *sys.path]


def find(launcher: str | Launcher | Any) -> Launcher | None:
    """The launcher of this name; None is the core's own."""
    if launcher == "local":
        return None
    if launcher == "dask":
        try:
            from shunt.filters.dask import DaskLauncher
        except ImportError as error:
            raise ImportError("launcher='dask' needs Dask.distributed: pip install distributed") from error
        return DaskLauncher()
    if isinstance(launcher, Launcher):
        return launcher
    # Clients, and clusters of whatever kind.
    is_dask = type(launcher).__module__.split(".")[0] == "distributed" or hasattr(launcher, "scheduler_address")
    if is_dask or (isinstance(launcher, str) and "://" in launcher):
        from shunt.filters.dask import DaskLauncher

        return DaskLauncher(launcher)
    if isinstance(launcher, str):
        raise ValueError(f"{launcher!r} is no launcher: 'local', 'dask', a Dask scheduler's address, or an object with hosts, address and launch")
    raise TypeError(f"{launcher!r} is no launcher: it lacks hosts, address or launch")
