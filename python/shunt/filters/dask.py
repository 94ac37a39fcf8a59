"""Groups on a Dask cluster: ``layout.start(launcher="dask")``, or ``launcher=`` a client, a cluster, an address, or a :class:`DaskLauncher`.

Dask names the machines and starts an *agent* in each of its workers, which starts the group's process there. It does nothing else: the
processes find each other by themselves, and no buffer passes through Dask.

The launcher submits one task, the agent, to each Dask worker that is used; as code, since ``shunt`` may be missing there. The agent leaves
Dask's pool and connects to the launcher by a socket of its own (:mod:`shunt.filters._agent`). A worker that comes back under its name gets a
new agent when the group starts its process again.

Each Dask worker is a *host* that a placement may name, by the worker's name (``Place(on=["0", "1"])``); several on one machine are several
hosts, whose processes share memory. The group has the workers that are there when it starts: wait for those of a batch system with
``client.wait_for_workers(n)``.
"""

from __future__ import annotations

import hmac
import itertools
import json
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import dask.config
from distributed import Client, Future, LocalCluster, get_client
from distributed.comm.addressing import get_address_host, parse_address

from shunt import __version__
from shunt.filters._agent import Line
from shunt.filters._launch import Launcher

_PATIENCE = 60.0
"""Seconds that a cluster may take to have a worker, and a worker to take up an agent."""


class DaskLauncher(Launcher):
    """Starts processes of groups on a Dask cluster.

    ``on``: a ``distributed.Client``, a cluster (``SSHCluster``, ``SLURMCluster``, ``KubeCluster``, ...), or a scheduler's address. None: the client
    that is current; else the scheduler that ``DASK_SCHEDULER_ADDRESS`` names; else a ``LocalCluster`` of its own, which it closes. ``address``: the
    IP address of this host at which the workers reach it, if the one found is wrong.

    Groups leave a launcher that they were given open: close it, or use it as a context manager.
    """

    def __init__(self, on: Any = None, *, address: str | None = None) -> None:
        self._given = address
        self._own_client: Client | None = None
        self._own_cluster: LocalCluster | None = None
        self._agents: dict[str, _Agent] = {}
        self._switchboard: _Switchboard | None = None
        self._client = self._find(on)

    def _find(self, on: Any) -> Client:
        if on is None:
            try:
                on = get_client()
            except ValueError:
                on = os.environ.get("DASK_SCHEDULER_ADDRESS") or dask.config.get("scheduler-address", None)
        if on is None:
            # A host that only starts processes needs no dashboard.
            on = self._own_cluster = LocalCluster(dashboard_address=None)
        # Calls come from a thread of the group's, and must wait there: a client that belongs to somebody's event loop is no use.
        if isinstance(on, Client):
            if not on._asynchronous:
                return on
            on, security = _address_of(on.scheduler.address, on.cluster), on.security
        elif isinstance(on, str):
            security = None
        elif isinstance(getattr(on, "scheduler_address", None), str):
            on, security = _address_of(on.scheduler_address, on), getattr(on, "security", None)
        else:
            raise TypeError(f"{on!r} is neither a Dask client nor a cluster nor a scheduler's address")
        self._own_client = Client(on, security=security, asynchronous=False, set_as_default=False)
        return self._own_client

    def hosts(self) -> list[str]:
        """The names of the cluster's workers. Waits for the first."""
        until = time.monotonic() + _PATIENCE
        while not (workers := self._workers()):
            if time.monotonic() > until:
                raise TimeoutError(f"the Dask cluster at {self._client.scheduler.address} has no workers")
            time.sleep(0.1)
        return sorted(workers, key=lambda name: (not name.isdecimal(), len(name) if name.isdecimal() else 0, name))

    def _workers(self) -> dict[str, str]:
        """Names and addresses."""
        scheduler: Any = self._client.scheduler
        try:
            told = self._client.sync(scheduler.identity, n_workers=-1)
        except TypeError:  # older ones tell of all
            told = self._client.sync(scheduler.identity)
        return {str(worker["name"]): address for address, worker in told["workers"].items()}

    def address(self) -> str:
        """The address of this host from which packets to the workers go."""
        if self._given is not None:
            return self._given
        found = dict.fromkeys(_source(address) for address in self._workers().values())
        return next((address for address in found if address is not None and not address.startswith("127.")), "127.0.0.1")

    def launch(self, host: str, ticket: str) -> _Started:
        """Starts a process of a group in the Dask worker of this name."""
        agent = self._agents.get(host)
        if agent is None or agent.gone:
            # A worker that was killed comes back under its name, with another address, if it has a nanny.
            agent = self._agents[host] = self._hire(host)
        return agent.start(ticket)

    def _hire(self, host: str) -> _Agent:
        if self._switchboard is None:
            self._switchboard = _Switchboard(self.address())
        until = time.monotonic() + _PATIENCE
        why = f"the cluster has no worker '{host}'"
        while time.monotonic() < until:
            address = self._workers().get(host)
            if address is None:
                time.sleep(0.1)
                continue
            agent = self._switchboard.expect(host)
            level = str(logging.getLogger("shunt.filters").getEffectiveLevel())
            task = _task(__version__, sys.version_info[:2])
            agent.task = self._client.submit(
                task,
                host,
                self._switchboard.address,
                agent.token,
                os.environ.get("SHUNT_FILTERS_LOG", level),
                workers=[address],
                allow_other_workers=False,
                pure=False,
                key=f"shunt-agent-{secrets.token_hex(8)}",
                # Before whatever else waits there; it gives its place in the worker's pool up at once.
                priority=1_000_000,
            )
            agent.task.add_done_callback(agent.ended)
            while not agent.news.wait(0.2) and time.monotonic() < until and self._workers().get(host) == address:
                pass
            if agent.line is not None:
                return agent
            if agent.task.status == "error":
                raise RuntimeError(str(agent.task.exception()))
            agent.task.cancel()
            why = f"Dask worker '{host}' has not taken up its agent: does something else keep all of its threads busy?"
        raise TimeoutError(why)

    def close(self) -> None:
        """Ends the processes, and the cluster if it is this launcher's own."""
        for agent in self._agents.values():
            agent.close()
        self._agents.clear()
        if self._switchboard is not None:
            self._switchboard.close()
            self._switchboard = None
        if self._own_client is not None:
            self._own_client.close()
        if self._own_cluster is not None:
            self._own_cluster.close()

    def __enter__(self) -> DaskLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _address_of(address: str, cluster: Any) -> str:
    """The scheduler's address; an error if the scheduler runs in the event loop that waits for this call."""
    import asyncio

    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        return address
    loop = getattr(getattr(cluster, "loop", None), "asyncio_loop", None)
    if loop is here and getattr(cluster, "scheduler", None) is not None:
        raise RuntimeError(
            "the Dask scheduler runs in this event loop, which stands still while a group is started: "
            "await asyncio.to_thread(layout.start, launcher=...), or make the cluster without asynchronous=True"
        )
    return address


def _source(worker: str) -> str | None:
    """The address that packets to a worker come from."""
    if parse_address(worker)[0] == "inproc":
        return None
    try:
        for family, kind, _, _, to in socket.getaddrinfo(get_address_host(worker), 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                probe.connect(to)  # sends nothing
                return str(probe.getsockname()[0])
    except OSError:
        pass
    return None


def _task(version: str, python: tuple[int, int]) -> Callable[..., None]:
    """What is submitted: a function of its own, that goes there as code, since nobody knows yet whether `shunt` is there."""

    def shunt_agent(name: str, address: tuple[str, int], token: str, level: str) -> None:
        import sys

        if sys.version_info[:2] != python:
            theirs, ours = (".".join(map(str, it)) for it in (sys.version_info[:2], python))
            raise RuntimeError(
                f"Dask worker '{name}' runs Python {theirs}, this program {ours}: filters go there as code, for which both must be the same"
            )
        fix = f"pip install shunt=={version}"
        try:
            import shunt
        except ImportError as error:
            raise RuntimeError(f"Dask worker '{name}' has no package shunt ({error}): install it there ({fix})") from None
        if shunt.__version__ != version:
            raise RuntimeError(f"Dask worker '{name}' has shunt {shunt.__version__}, this program {version}: install the same there ({fix})")
        import distributed

        from shunt.filters import _agent

        distributed.secede()
        _agent.run(name, address, token, level)

    return shunt_agent


class _Started:
    """A process that an agent has started."""

    def __init__(self, agent: _Agent, number: int) -> None:
        self._agent = agent
        self._number = number
        self.news = threading.Event()
        self.pid: int | None = None
        self.how: str | None = None
        self.over = threading.Event()

    def ended(self) -> str | None:
        return self.how

    def kill(self) -> None:
        if self.how is None:
            self._agent.say(number=self._number, kill=True)
            self.over.wait(2)

    def end(self, how: str) -> None:
        if self.how is None:
            self.how = how
        self.over.set()
        self.news.set()


class _Agent:
    """An agent, as the launcher sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.token = secrets.token_hex(16)
        self.news = threading.Event()
        self.line: Line | None = None
        self.task: Future | None = None
        self.gone = False
        self._started: dict[int, _Started] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def start(self, ticket: str) -> _Started:
        number = next(self._numbers)
        process = _Started(self, number)
        with self._lock:
            self._started[number] = process
        self.say(number=number, start=ticket)
        if self.gone:
            process.end("its Dask worker has ended")
        if not process.news.wait(_PATIENCE):
            raise TimeoutError(f"the agent in Dask worker '{self.name}' does not answer")
        if process.pid is None:
            raise OSError(f"Dask worker '{self.name}': {process.how}")
        return process

    def say(self, **what: Any) -> None:
        if self.line is not None:
            self.line.say(**what)

    def listen(self, line: Line) -> None:
        """In a thread of its own, as long as the agent is there."""
        self.line = line
        self.news.set()
        while (heard := line.hear()) is not None:
            if "log" in heard:
                _log(heard["log"], self.name)
                continue
            process = self._started[heard["number"]]
            if "pid" in heard:
                process.pid = heard["pid"]
                process.news.set()
            else:
                process.end(str(heard["ended"]))
        self.ended()

    def ended(self, *_: object) -> None:
        """Its connection has ended, or its task has."""
        self.gone = True
        self.news.set()
        with self._lock:
            for process in self._started.values():
                process.end("its Dask worker has ended")

    def close(self) -> None:
        if self.line is not None:
            self.line.close()


class _Switchboard:
    """Where agents call in."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._expected: list[_Agent] = []
        self._thread = threading.Thread(target=self._accept, name="shunt-dask", daemon=True)
        self._thread.start()

    def expect(self, name: str) -> _Agent:
        agent = _Agent(name)
        self._expected.append(agent)
        return agent

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # it was closed
            threading.Thread(target=self._admit, args=(connection,), name="shunt-dask", daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        # Whoever does not know a token, or says nothing, is not answered.
        connection.settimeout(20)
        line = Line(connection)
        said = line.hear() or {}
        for agent in self._expected:
            if hmac.compare_digest(str(said.get("token")), agent.token):
                self._expected.remove(agent)
                connection.settimeout(None)
                agent.listen(line)
                break
        line.close()

    def close(self) -> None:
        # A thread in accept() wakes up by this, not by close().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def _log(text: str, host: str) -> None:
    """Logs here what a filter has logged there."""
    record = logging.makeLogRecord(json.loads(text))
    record.levelname = logging.getLevelName(record.levelno)
    record.host = host
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
