"""The group that runs, and updates: requests for tiles with their times."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import shunt.filters as sf
from shunt.microscope import _filters
from shunt.microscope._slide import Slide, Tile

log = logging.getLogger("shunt.microscope")

Kind = Literal["complete", "partial", "other"]
"""A new image, what a move of the window made visible, or neither: what is shown behind both, and what other viewers ask for."""
KINDS: tuple[Kind, ...] = ("complete", "partial", "other")

WINDOW = 16
"""How many updates may be under way at once: as many as a group can. A mouse makes a small one with each frame."""

# Of how many updates the times are kept.
_KEPT = 500
# A process that was lost is started again by the group; what it worked on is asked for again so often.
_TRIES = 3


class Update:
    """One request for tiles."""

    def __init__(self, kind: Kind, tiles: Sequence[Tile]) -> None:
        self.kind = kind
        self.tiles = tiles
        self.failed: list[Tile] = []
        """Tiles that cannot be made; the log says why."""
        self.cancelled = False
        self._unit: sf.Unit | None = None

    def cancel(self) -> None:
        """Nobody wants the rest of it any more."""
        self.cancelled = True
        if self._unit is not None:
            self._unit.cancel()

    def _runs_as(self, unit: sf.Unit) -> None:
        self._unit = unit
        if self.cancelled:
            unit.cancel()


@dataclass
class Times:
    """How long updates of one kind took, as the server sees it: from the request to the last tile."""

    done: int = 0
    tiles: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def told(self) -> dict[str, Any]:
        """For JSON."""
        kept = sorted(self.seconds)

        def at(part: float) -> float | None:
            return kept[math.ceil(part * len(kept)) - 1] if kept else None

        return {"done": self.done, "tiles": self.tiles, "p50": at(0.5), "p95": at(0.95)}


class Scope:
    """A filter group with a slide."""

    def __init__(self, slide: Slide, group: sf.Group) -> None:
        self.slide = slide
        self.times: dict[Kind, Times] = {kind: Times() for kind in KINDS}
        self.cancelled = 0
        self.in_flight = 0
        """Tiles that are asked for and have not come."""
        self.in_flight_most = 0
        self._group = group
        self._last: tuple[float, dict[str, Any]] | None = None

    @classmethod
    def start(
        cls, slide: Slide, *, copies: dict[str, int], processes: bool, launcher: str, transport: str, quality: int
    ) -> Scope:
        """Starts the group."""
        # What hands tiles out belongs where they are handed on: in this process. Its copies are threads.
        places = {name: sf.Place(copies.get(name, 1), processes=processes and name != "view") for name in _filters.STAGES}
        if launcher != "local":
            places["view"].on = ["caller"]
        group = _filters.layout(slide, quality).start(places, launcher=launcher, transport=transport, window=WINDOW)
        return cls(slide, group)

    async def tiles(self, update: Update) -> AsyncIterator[bytes]:
        """The tiles of an update as they come: each its address (:data:`_filters.HEAD`) and a JPEG picture. Raises what the group failed with, if that
        was not for a single tile's sake."""
        begun = time.perf_counter()
        missing = dict.fromkeys(update.tiles)
        self.in_flight += len(missing)
        self.in_flight_most = max(self.in_flight_most, self.in_flight)
        try:
            async for part in self._parts(update, missing):
                self.in_flight -= 1
                yield part
        except sf.UnitCancelled:
            self.cancelled += 1
            return
        finally:
            self.in_flight -= len(missing)
        times = self.times[update.kind]
        times.done += 1
        times.tiles += len(update.tiles)
        times.seconds.append(time.perf_counter() - begun)

    async def _parts(self, update: Update, missing: dict[Tile, None]) -> AsyncIterator[bytes]:
        tries = 0
        apart = False
        while left := [tile for tile in missing if tile not in update.failed]:
            # One tile that cannot be made fails its unit of work: then each has one of its own, so that only that tile is missed.
            asked = left[:1] if apart else left
            unit = self._group.append(asked)
            update._runs_as(unit)
            try:
                async for part in unit:
                    missing.pop(_filters.HEAD.unpack_from(part), None)
                    yield part
            except sf.WorkerLost as error:
                tries += 1
                if tries == _TRIES:
                    raise
                log.warning("%s; asking again", error)
            except sf.FilterFailed as error:
                if len(asked) == 1:
                    log.error("tile %s cannot be made: %s", asked[0], error)
                    update.failed.append(asked[0])
                apart = True

    async def statistics(self) -> dict[str, Any]:
        """What is to be seen of the group, for JSON; not newer than a moment."""
        if self._last is None or time.monotonic() - self._last[0] > 0.4:
            seen = await asyncio.to_thread(self._group.statistics)
            self._last = (time.monotonic(), _told(seen))
        return self._last[1] | {
            "kinds": {kind: times.told() for kind, times in self.times.items()},
            "cancelled": self.cancelled,
            "in_flight": self.in_flight,
            "in_flight_most": self.in_flight_most,
        }

    def prometheus(self) -> str:
        """The group's statistics in Prometheus' text format."""
        return self._group.prometheus()

    def close(self) -> None:
        """Ends the group."""
        self._group.close()


def _told(seen: sf.Statistics) -> dict[str, Any]:
    streams: dict[str, list[sf.Figures]] = {}
    for figures in seen.figures:
        streams.setdefault(figures.stream, []).append(figures)

    # Of several pairs of copies there is no common median: the worst of them is told.
    def worst(of: Iterable[float | None]) -> float | None:
        return max((seconds for seconds in of if seconds is not None), default=None)

    return {
        "streams": [
            {
                "stream": name,
                "ways": sorted({it.way for it in of}),
                "buffers": sum(it.buffers for it in of),
                "bytes": sum(it.bytes for it in of),
                "unacknowledged": sum(it.unacknowledged for it in of),
                "unacknowledged_most": max(it.unacknowledged_most for it in of),
                "blocked": sum(it.blocked for it in of),
                "idle": sum(it.idle for it in of),
                "p50": worst(it.latency_p50 for it in of),
                "p99": worst(it.latency_p99 for it in of),
            }
            for name, of in streams.items()
        ],
        "ways": sorted({it.way for it in seen.figures}),
        "copies": [{"name": it.name, "host": it.host, "pid": it.pid, "state": it.state} for it in seen.copies],
        "units": seen.units,
        "losses": seen.losses,
    }
