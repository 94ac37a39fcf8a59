"""How a group is shown: tables, progress bars, Prometheus' text, Chrome traces."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shunt.filters._group import Figures, Group, Statistics


def duration(seconds: float | None) -> str:
    """As people read it: 3.2 us, 14 ms."""
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def amount(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.3g} TiB"


_HEAD = ("stream", "from", "to", "way", "buffers", "bytes", "unack", "most", "blocked", "idle", "p50", "p99", "max")


def rows(statistics: Statistics) -> list[tuple[str, ...]]:
    def row(it: Figures) -> tuple[str, ...]:
        return (
            it.stream,
            it.producer,
            it.consumer,
            it.way,
            f"{it.buffers:,}",
            amount(it.bytes),
            str(it.unacknowledged),
            str(it.unacknowledged_most),
            duration(it.blocked),
            duration(it.idle),
            duration(it.latency_p50),
            duration(it.latency_p99),
            duration(it.latency_max),
        )

    return [row(it) for it in statistics.figures]


def table(statistics: Statistics) -> str:
    """All figures as text."""
    lines = [_HEAD, *rows(statistics)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(_HEAD))]
    text = "\n".join(
        "  ".join(cell.ljust(width) if at < 4 else cell.rjust(width) for at, (cell, width) in enumerate(zip(line, widths))).rstrip()
        for line in lines
    )
    units = ", ".join(f"{count} {what}" for what, count in statistics.units.items())
    lost = f"; processes lost: {statistics.losses}" if statistics.losses else ""
    unread = sum(it.unread for it in statistics.figures)
    left = f"; buffers left unread: {unread:,}" if unread else ""
    return f"{text}\nunits of work: {units}{lost}{left}"


_METRICS: tuple[tuple[str, str, str, Callable[[Figures], float]], ...] = (
    ("buffers_total", "counter", "Buffers that the consumer has started on.", lambda it: it.buffers),
    ("bytes_total", "counter", "Their bytes.", lambda it: it.bytes),
    ("sent_total", "counter", "Buffers that the producer has sent.", lambda it: it.sent),
    ("unread_total", "counter", "Buffers left by a consumer that had ended its unit of work.", lambda it: it.unread),
    ("unacknowledged", "gauge", "Buffers sent and not started on.", lambda it: it.unacknowledged),
    ("unacknowledged_max", "gauge", "The most of them at once.", lambda it: it.unacknowledged_most),
    ("blocked_seconds_total", "counter", "How long the producer waited for credits.", lambda it: it.blocked),
    ("idle_seconds_total", "counter", "How long the consumer waited for buffers.", lambda it: it.idle),
)


def prometheus(statistics: Statistics) -> str:
    """The statistics in Prometheus' text format."""
    lines = []

    def labels(it: Figures, **more: str) -> str:
        all_ = {"stream": it.stream, "producer": it.producer, "consumer": it.consumer, "way": it.way, **more}
        return "{" + ",".join(f'{name}="{value}"' for name, value in all_.items()) + "}"

    for name, kind, text, value in _METRICS:
        lines += [f"# HELP shunt_filters_{name} {text}", f"# TYPE shunt_filters_{name} {kind}"]
        lines += [f"shunt_filters_{name}{labels(it)} {value(it)}" for it in statistics.figures]
    lines += ["# HELP shunt_filters_latency_seconds From sent to started on.", "# TYPE shunt_filters_latency_seconds summary"]
    for it in statistics.figures:
        for part, seconds in (("0.5", it.latency_p50), ("0.9", it.latency_p90), ("0.99", it.latency_p99)):
            if seconds is not None:
                lines.append(f"shunt_filters_latency_seconds{labels(it, quantile=part)} {seconds}")
        lines.append(f"shunt_filters_latency_seconds_count{labels(it)} {it.buffers}")
    lines += ["# HELP shunt_filters_units Units of work.", "# TYPE shunt_filters_units gauge"]
    lines += [f'shunt_filters_units{{state="{state}"}} {count}' for state, count in statistics.units.items()]
    lines += ["# HELP shunt_filters_losses_total How often a process was lost.", "# TYPE shunt_filters_losses_total counter"]
    lines.append(f"shunt_filters_losses_total {statistics.losses}")
    return "\n".join(lines) + "\n"


def chrome_trace(spans: list[tuple[str, str, int, int, str, int, int]]) -> dict[str, Any]:
    """Spans as Chrome's trace viewer and Perfetto read them: a process for each host, a thread for each copy."""
    hosts = {host: at for at, host in enumerate(sorted({span[1] for span in spans}))}
    start = min((span[5] for span in spans), default=0)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": host}} for host, pid in hosts.items()
    ]
    named = set()
    for copy, host, index, uow, state, from_, to in spans:
        if (host, index) not in named:
            named.add((host, index))
            events.append({"ph": "M", "name": "thread_name", "pid": hosts[host], "tid": index, "args": {"name": copy}})
        events.append(
            {
                "ph": "X",
                "name": f"{state} {uow}",
                "cat": state,
                "pid": hosts[host],
                "tid": index,
                "ts": (from_ - start) / 1000,
                "dur": (to - from_) / 1000,
                "args": {"unit of work": uow},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


class Bar:
    """A progress bar of units of work, and beside it how much goes by the streams."""

    def __init__(self, group: Group) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError("progress=True needs tqdm: pip install tqdm") from error
        self._group = group
        self._bar = tqdm(unit="uow", total=0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shunt-progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            self._update()

    def _update(self) -> None:
        try:
            statistics = self._group.statistics()
        except RuntimeError:
            return  # the group was closed meanwhile
        units = statistics.units
        self._bar.total = sum(units.values())
        self._bar.n = units["done"] + units["failed"]
        buffers = sum(it.buffers for it in statistics.figures)
        self._bar.set_postfix_str(f"{buffers:,} buffers, {amount(sum(it.bytes for it in statistics.figures))}", refresh=False)
        self._bar.refresh()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._update()
        self._bar.close()


def watch(group: Group, interval: float) -> None:
    """A live table, until nothing runs or waits."""
    try:
        from rich.live import Live
        from rich.table import Table
    except ImportError as error:
        raise ImportError("watch() needs rich: pip install rich") from error

    def drawn() -> tuple[Table, bool]:
        statistics = group.statistics()
        units = statistics.units
        shown = Table(title=", ".join(f"{count} {what}" for what, count in units.items()))
        for at, name in enumerate(_HEAD):
            shown.add_column(name, justify="left" if at < 4 else "right")
        for row in rows(statistics):
            shown.add_row(*row)
        return shown, bool(units["running"] or units["waiting"])

    with Live(drawn()[0], refresh_per_second=10) as live:
        busy = True
        while busy:
            time.sleep(interval)
            shown, busy = drawn()
            live.update(shown)


class Metrics:
    """An HTTP server with the statistics for Prometheus."""

    def __init__(self, group: Group, host: str, port: int) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.split("?")[0] != "/metrics":
                    self.send_error(404, "the statistics are at /metrics")
                    return
                body = group.prometheus().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((host, port), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="shunt-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
