"""Draws a layout with its placement: filters in columns from left to right, their copies by host, streams as arrows."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from shunt.filters._layout import Layout, Place, StreamDef
from shunt.filters._show import amount

_COLOURS = ("#dbeafe", "#dcfce7", "#fef3c7", "#fce7f3", "#ede9fe", "#cffafe", "#ffedd5", "#e2e8f0")
"""Backgrounds of hosts, in the order in which they come; dark text is readable on each."""

_WIDTH, _ROW, _HEAD, _GAP_X, _GAP_Y, _EDGE = 190, 22, 30, 190, 40, 30


class Copy(NamedTuple):
    """One copy of a filter."""

    filter: str
    name: str
    host: str
    process: int


class Box(NamedTuple):
    """Where a filter is drawn."""

    x: float
    y: float
    height: float


class Drawing:
    """What is drawn: which copies there are, and where."""

    def __init__(self, layout: Layout, places: dict[str, Place], hosts: list[str]) -> None:
        self.layout = layout
        told = [(name, it.copies, list(it.on), it.processes) for name, it in places.items()]
        every = list(dict.fromkeys([*hosts, *(host for it in places.values() for host in it.on if host != "caller")]))
        self.copies = [Copy(*copy) for copy in layout._native().plan(told, every)]
        self.hosts = list(dict.fromkeys(copy.host for copy in self.copies))

    def of(self, name: str) -> list[Copy]:
        """The copies of a filter."""
        return [copy for copy in self.copies if copy.filter == name]

    def columns(self) -> list[list[str]]:
        """Filters by how many streams are between them and the farthest one that begins."""
        depth = {it.name: 0 for it in self.layout.filters}
        for _ in depth:
            for stream in self.layout.streams:
                depth[stream.to] = max(depth[stream.to], depth[stream.from_] + 1)
        columns: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
        for name, at in depth.items():
            columns[at].append(name)
        return columns

    def text(self) -> str:
        """For a terminal."""
        lines = []
        for it in self.layout.filters:
            copies = self.of(it.name)
            by_host = {host: [copy for copy in copies if copy.host == host] for host in self.hosts}
            where = ", ".join(
                f"{len(there)} on {host} (processes {', '.join(sorted({str(copy.process) for copy in there}, key=int))})"
                for host, there in by_host.items()
                if there
            )
            lines.append(f"{it.name}: {len(copies)} {'copy' if len(copies) == 1 else 'copies'} of {it.shown}: {where}")
            lines += [f"  -> {stream.to}   {stream.shown}: {described(stream)}" for stream in self.layout.streams if stream.from_ == it.name]
        return "\n".join(lines) + "\n"

    def dot(self) -> str:
        """For Graphviz."""
        lines = ["digraph layout {", "  rankdir=LR; node [shape=plain fontname=sans]; edge [fontname=sans fontsize=10];"]
        for it in self.layout.filters:
            rows = "".join(
                f'<tr><td bgcolor="{self.colour(copy.host)}">{escape(copy.name)} · {escape(copy.host)}/{copy.process}</td></tr>'
                for copy in self.of(it.name)
            )
            lines.append(f'  "{it.name}" [label=<<table border="1" cellborder="0" cellspacing="0"><tr><td><b>{escape(it.name)}</b></td></tr>{rows}</table>>];')
        for stream in self.layout.streams:
            lines.append(f'  "{stream.from_}" -> "{stream.to}" [label="{stream.shown}\\n{described(stream)}"];')
        return "\n".join([*lines, "}"]) + "\n"

    def colour(self, host: str) -> str:
        return _COLOURS[self.hosts.index(host) % len(_COLOURS)]

    def svg(self) -> str:
        """As a picture."""
        columns = self.columns()
        heights = {it.name: _HEAD + _ROW * len(self.of(it.name)) for it in self.layout.filters}
        tall = max(sum(heights[name] + _GAP_Y for name in column) - _GAP_Y for column in columns)
        boxes: dict[str, Box] = {}
        for at, column in enumerate(columns):
            y = _EDGE + (tall - sum(heights[name] + _GAP_Y for name in column) + _GAP_Y) / 2
            for name in column:
                boxes[name] = Box(_EDGE + at * (_WIDTH + _GAP_X), y, heights[name])
                y += heights[name] + _GAP_Y
        width = 2 * _EDGE + len(columns) * (_WIDTH + _GAP_X) - _GAP_X
        height = 2 * _EDGE + tall + _ROW + 14
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
            'font-family="system-ui, sans-serif" font-size="12">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0 8 4 0 8z" fill="#475569"/></marker></defs>',
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        ]
        parts += self._arrows(boxes)
        parts += [self._box(name, box) for name, box in boxes.items()]
        x = float(_EDGE)
        for host in self.hosts:
            parts.append(f'<rect x="{x:.0f}" y="{height - _ROW - 8:.0f}" width="14" height="14" fill="{self.colour(host)}" stroke="#94a3b8"/>')
            parts.append(f'<text x="{x + 20:.0f}" y="{height - _ROW + 3:.0f}" fill="#0f172a">{escape(host)}</text>')
            x += 44 + 7 * len(host)
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _box(self, name: str, box: Box) -> str:
        shown = next(it.shown for it in self.layout.filters if it.name == name)
        parts = [
            f'<rect x="{box.x}" y="{box.y}" width="{_WIDTH}" height="{box.height}" rx="6" fill="white" stroke="#475569" stroke-width="1.5"/>',
            f'<text x="{box.x + 10}" y="{box.y + 20}" fill="#0f172a"><tspan font-weight="600" font-size="14">{escape(name)}</tspan>'
            f'<tspan fill="#64748b" dx="8">{escape(shown) if shown != name else ""}</tspan></text>',
        ]
        for at, copy in enumerate(self.of(name)):
            y = box.y + _HEAD + at * _ROW
            parts.append(f'<rect x="{box.x + 4}" y="{y}" width="{_WIDTH - 8}" height="{_ROW - 3}" rx="3" fill="{self.colour(copy.host)}"/>')
            parts.append(f'<text x="{box.x + 10}" y="{y + 14}" fill="#0f172a">{escape(copy.name)}</text>')
            parts.append(f'<text x="{box.x + _WIDTH - 10}" y="{y + 14}" fill="#475569" text-anchor="end">{escape(copy.host)} / {copy.process}</text>')
        return "".join(parts)

    def _arrows(self, boxes: dict[str, Box]) -> list[str]:
        parts = []
        for name, box in boxes.items():
            # From top to bottom as what they lead to, so that arrows cross as little as can be.
            leaving = sorted((stream for stream in self.layout.streams if stream.from_ == name), key=lambda stream: boxes[stream.to].y)
            for at, stream in enumerate(leaving):
                target = boxes[stream.to]
                coming = sorted((it for it in self.layout.streams if it.to == stream.to), key=lambda it: boxes[it.from_].y)
                x1, y1 = box.x + _WIDTH, box.y + box.height * (at + 1) / (len(leaving) + 1)
                x2, y2 = target.x, target.y + target.height * (coming.index(stream) + 1) / (len(coming) + 1)
                bend = (x2 - x1) / 2
                parts.append(f'<path d="M{x1} {y1:.1f} C{x1 + bend} {y1:.1f} {x2 - bend} {y2:.1f} {x2 - 2} {y2:.1f}" fill="none" stroke="#475569" stroke-width="1.5" marker-end="url(#tip)"/>')
                x, y = (x1 + x2) / 2, (y1 + y2) / 2 - 8
                parts.append(
                    f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" fill="#334155" font-size="11" stroke="white" stroke-width="3" paint-order="stroke">'
                    f'{escape(described(stream))}</text>'
                )
        return parts


def described(stream: StreamDef) -> str:
    """A stream's properties in a line."""
    policy = stream.policy if isinstance(stream.policy, str) else "a function"
    if policy == "weighted":
        policy += " " + ":".join(str(weight) for weight in stream.weights)
    split = ", splits" if stream.split else ""
    return f"{policy}, {amount(stream.buffer_size)} × {stream.credits}{split}"
