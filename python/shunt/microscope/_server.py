"""HTTP and WebSocket.

=====================================  ================================================================================================
/                                      The page
/socket                                What the page talks by (below)
/slide.json                            What the slide is, and what the group was asked for
/statistics.json, /metrics             What is to be seen now, for programs and for Prometheus
/slide.dzi, /slide_files/L/X_Y.jpeg    Deep Zoom, for any other viewer
=====================================  ================================================================================================

The page says by the socket ``{"update": ID, "kind": "complete"|"partial"|"other", "tiles": [[LEVEL, X, Y], ...]}`` and ``{"cancel": ID}``. Each update is
a unit of work. Its tiles come as binary messages (ID, level, x, y as four 32-bit numbers, little-endian, then a JPEG picture), its end as ``{"end": ID,
"state": "done"|"cancelled"|"failed", ...}``. Once a second there is ``{"statistics": ...}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web

import shunt.filters as sf
from shunt.microscope import _filters
from shunt.microscope._hosts import Hosts
from shunt.microscope._scope import KINDS, Scope, Update
from shunt.microscope._slide import Tile

log = logging.getLogger("shunt.microscope")

_PAGE = Path(__file__).parent / "page"
# More than any screen shows at once.
_TILES_MOST = 4096
_ID = struct.Struct("<I")
# Nothing from elsewhere, neither scripts nor pictures; slides may be patients'.
_POLICY = "default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"


class Server:
    """Serves one scope."""

    def __init__(self, scope: Scope, about: dict[str, Any], viewer: Path, hosts: Hosts) -> None:
        self._scope = scope
        self._hosts = hosts
        self._about = about
        self._viewer = viewer
        self._gathered: dict[Tile, list[asyncio.Future[bytes]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: set[web.WebSocketResponse] = set()

    def application(self) -> web.Application:
        """For aiohttp."""
        app = web.Application(middlewares=[_headers, self._only_ours])
        app.add_routes(
            [
                web.get("/", self._file(_PAGE / "index.html")),
                web.get("/socket.js", self._file(_PAGE / "socket.js")),
                web.get("/microscope.js", self._file(_PAGE / "microscope.js")),
                web.get("/microscope.css", self._file(_PAGE / "microscope.css")),
                web.get("/openseadragon.js", self._file(self._viewer)),
                web.get("/socket", self._socket),
                web.get("/slide.json", self._slide_json),
                web.get("/statistics.json", self._statistics_json),
                web.get("/metrics", self._metrics),
                web.get("/slide.dzi", self._dzi),
                web.get(r"/slide_files/{level:\d{1,2}}/{column:\d{1,9}}_{row:\d{1,9}}.{form:jpe?g}", self._tile),
            ]
        )
        app.on_shutdown.append(self._leave)
        return app

    @web.middleware
    async def _only_ours(self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        if not self._hosts.allow(request.headers.get("Host")):
            raise web.HTTPMisdirectedRequest(text="this server is not known by that name; --host says by which\n")
        return await handler(request)

    @staticmethod
    def _file(path: Path) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(_request: web.Request) -> web.StreamResponse:
            return web.FileResponse(path, headers={"Cache-Control": "no-cache"})

        return serve

    async def _slide_json(self, _request: web.Request) -> web.Response:
        return web.json_response(self._about)

    async def _statistics_json(self, _request: web.Request) -> web.Response:
        return web.json_response(await self._scope.statistics())

    async def _metrics(self, _request: web.Request) -> web.Response:
        text = await asyncio.to_thread(self._scope.prometheus)
        return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _dzi(self, _request: web.Request) -> web.Response:
        slide = self._scope.slide
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f'<Image xmlns="http://schemas.microsoft.com/deepzoom/2008" Format="jpeg" Overlap="0" TileSize="{slide.tile_size}">'
            f'<Size Width="{slide.width}" Height="{slide.height}"/></Image>\n'
        )
        return web.Response(text=text, content_type="application/xml")

    async def _tile(self, request: web.Request) -> web.Response:
        it = request.match_info
        tile = (int(it["level"]), int(it["column"]), int(it["row"]))
        if not self._scope.slide.has(tile):
            raise web.HTTPNotFound(text=f"the slide has no tile {tile[0]}/{tile[1]}_{tile[2]}\n")
        part = await self._gather(tile)
        return web.Response(body=part, content_type="image/jpeg", headers={"Cache-Control": "no-cache"})

    def _gather(self, tile: Tile) -> asyncio.Future[bytes]:
        """Tiles that are asked for one by one at the same time become one unit of work."""
        loop = asyncio.get_running_loop()
        if not self._gathered:
            loop.call_soon(self._ask)
        future: asyncio.Future[bytes] = loop.create_future()
        self._gathered.setdefault(tile, []).append(future)
        return future

    def _ask(self) -> None:
        gathered, self._gathered = self._gathered, {}
        self._begin(self._deliver(gathered))

    async def _deliver(self, gathered: dict[Tile, list[asyncio.Future[bytes]]]) -> None:
        failure: Exception = web.HTTPInternalServerError(text="the tile cannot be made: the server's log says why\n")
        try:
            async for part in self._scope.tiles(Update("other", list(gathered))):
                for future in gathered.pop(_filters.HEAD.unpack_from(part), ()):
                    if not future.done():
                        future.set_result(part[_filters.HEAD.size :])
        except (sf.UnitError, RuntimeError) as error:
            log.error("%s", error)
            failure = web.HTTPServiceUnavailable(text=f"{error}\n")
        for future in (future for futures in gathered.values() for future in futures):
            if not future.done():
                future.set_exception(failure)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        # Any page may open a socket to this machine; only ours may read slides by it.
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(text="this page is not the microscope's\n")
        socket = web.WebSocketResponse(compress=False, heartbeat=30, max_msg_size=1 << 20)
        await socket.prepare(request)
        self._sockets.add(socket)
        updates: dict[int, Update] = {}
        telling = asyncio.create_task(self._tell(socket))
        try:
            async for message in socket:
                if message.type != WSMsgType.TEXT:
                    continue
                try:
                    self._asked(socket, updates, json.loads(message.data))
                except (ValueError, TypeError, KeyError) as error:
                    await socket.close(code=1008, message=f"not understood: {error}".encode()[:120])
        finally:
            telling.cancel()
            for update in updates.values():
                update.cancel()
            self._sockets.discard(socket)
        return socket

    def _asked(self, socket: web.WebSocketResponse, updates: dict[int, Update], asked: dict[str, Any]) -> None:
        if "cancel" in asked:
            update = updates.get(asked["cancel"])
            if update is not None:
                update.cancel()
            return
        number, kind = asked["update"], asked["kind"]
        if kind not in KINDS or not isinstance(number, int) or not 0 <= number < 1 << 32 or number in updates:
            raise ValueError("no update")
        tiles = [(int(level), int(column), int(row)) for level, column, row in asked["tiles"]]
        if not 0 < len(tiles) <= _TILES_MOST or not all(map(self._scope.slide.has, tiles)):
            raise ValueError("the slide has no such tiles, or they are too many")
        updates[number] = Update(kind, tiles)
        self._begin(self._send(socket, updates, number))

    async def _send(self, socket: web.WebSocketResponse, updates: dict[int, Update], number: int) -> None:
        update = updates[number]
        end: dict[str, Any] = {"end": number, "state": "done"}
        # The browser may be gone: then its updates are cancelled where its socket is read.
        with contextlib.suppress(ConnectionError, RuntimeError):
            try:
                async for part in self._scope.tiles(update):
                    await socket.send_bytes(_ID.pack(number) + part)
                if update.cancelled:
                    end["state"] = "cancelled"
                if update.failed:
                    end["failed"] = update.failed
            except sf.UnitError as error:
                log.error("%s", error)
                end |= {"state": "failed", "why": str(error).splitlines()[0]}
            finally:
                del updates[number]
            await socket.send_json(end)

    async def _tell(self, socket: web.WebSocketResponse) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            while True:
                await socket.send_json({"statistics": await self._scope.statistics()})
                await asyncio.sleep(1)

    async def _leave(self, _app: web.Application) -> None:
        for socket in list(self._sockets):
            await socket.close(code=1001, message=b"the microscope was closed")
        for task in list(self._tasks):
            task.cancel()


@web.middleware
async def _headers(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    response = await handler(request)
    if not response.prepared:
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
    return response
