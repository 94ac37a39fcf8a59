"""The agent: :mod:`shunt.filters.dask` runs one in each Dask worker. It starts processes there for one launcher, and reports how they end.

Agent and launcher exchange lines of JSON over a socket of their own (start, kill; started, ended, logged), so that an end is known at once and
nothing polls. When that socket ends, because the launcher's process has, the agent ends its processes; when the Dask worker ends, the kernel
does (PR_SET_PDEATHSIG, see :func:`end_with`). No buffer passes here: processes of a group exchange them among themselves.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import IO, Any

from shunt.filters._launch import LOG_TO, PARENT, TICKET, WORKER

log = logging.getLogger("distributed.worker.shunt")
PR_SET_PDEATHSIG = 1


class Line:
    """A connection that carries JSON objects, a line each."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reading = connection.makefile("r", encoding="utf-8")
        self._lock = threading.Lock()
        # A machine that vanishes says nothing: notice that within a minute.
        for option, seconds in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4)):
            connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def say(self, **what: Any) -> None:
        """Sends one. Whoever reads finds out when the other end is gone; here it does not matter."""
        try:
            with self._lock:
                self._connection.sendall(json.dumps(what).encode() + b"\n")
        except OSError:
            pass

    def hear(self) -> dict[str, Any] | None:
        """The next one; None when the other end is gone."""
        try:
            heard = self._reading.readline(1 << 20)
            return dict(json.loads(heard)) if heard.endswith("\n") else None
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended by itself
        self._connection.close()


def run(name: str, address: tuple[str, int], token: str, level: str) -> None:
    """Works for the launcher at this address until that hangs up."""
    try:
        line = Line(socket.create_connection(address, timeout=20))
    except OSError as error:
        raise OSError(
            f"Dask worker '{name}' does not reach the program that starts the group, at {address[0]} port {address[1]}: {error}. "
            "Both must be in one network; DaskLauncher(..., address=) names another address of the program's host"
        ) from None
    line._connection.settimeout(None)
    line.say(token=token, name=name, pid=os.getpid())
    started: dict[int, subprocess.Popen[bytes]] = {}
    try:
        while (asked := line.hear()) is not None:
            number = asked["number"]
            if "start" in asked:
                try:
                    started[number] = _start(name, number, asked["start"], level, line)
                except OSError as error:
                    line.say(number=number, ended=f"it could not be started: {error}")
                    continue
                line.say(number=number, pid=started[number].pid)
            elif number in started:
                started[number].kill()
    finally:
        line.close()
        for process in started.values():
            process.kill()
            process.wait()


def _start(name: str, number: int, ticket: str, level: str, line: Line) -> subprocess.Popen[bytes]:
    # A worker writes what its filters log there, beside what it prints.
    read, write = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, *WORKER, *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[write],
            env={**os.environ, TICKET: ticket, PARENT: str(os.getpid()), LOG_TO: str(write), "SHUNT_FILTERS_LOG": level},
        )
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    assert process.stdout is not None

    def report() -> None:
        how = process.wait()
        line.say(number=number, ended=f"signal: {-how} ({signal.Signals(-how).name})" if how < 0 else f"exit status: {how}")

    for what in (
        report,
        lambda: _print(f"{name}, process {process.pid}", process.stdout),
        lambda: _forward(os.fdopen(read, "r", encoding="utf-8", errors="replace"), line),
    ):
        threading.Thread(target=what, name="shunt-agent", daemon=True).start()
    return process


def _print(prefix: str, output: IO[bytes] | None) -> None:
    with output or open(os.devnull, "rb") as lines:
        for text in lines:
            log.info("%s: %s", prefix, text.decode(errors="replace").rstrip())


def _forward(records: IO[str], line: Line) -> None:
    with records:
        for record in records:
            line.say(number=-1, log=record)


class Forward(logging.Handler):
    """In a worker: hands what is logged to the agent."""

    def __init__(self, to: int) -> None:
        super().__init__()
        os.set_inheritable(to, False)
        self._to = os.fdopen(to, "w", encoding="utf-8", buffering=1)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            text = text[:100_000]
            self._to.write(json.dumps({"name": record.name, "levelno": record.levelno, "msg": text, "created": record.created}) + "\n")
        except Exception:
            self.handleError(record)


def end_with(parent: int) -> None:
    """In a worker: ends this process when the one that started it does, however that ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(1)
