"""``python -m shunt.microscope``: the command line."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import webbrowser
from pathlib import Path
from typing import Any, NoReturn

from shunt import __version__

_STAGES = ("read", "decode", "zoom", "view")
_COPIES = {"read": 2, "decode": 2, "zoom": 2, "view": 1}

# Not by the name of our package: on PyPI another one has it.
_NEEDS = "aiohttp numpy openslide-python openslide-bin pillow"

_EPILOG = """\
examples:
  shunt microscope                                  a small slide for trying, fetched once
  shunt microscope slide.svs --open                 a slide of yours, in your browser
  shunt microscope --replicate 20                   the small slide 20 x 20 times: 2.6 gigapixels
  shunt microscope slide.svs --transport tcp        a process for each copy, kernel TCP between them
  shunt microscope slide.svs --launcher dask        copies on the hosts of a Dask cluster, which must have the slide at the same path

exit status:
  0  it served, until it was interrupted (Ctrl-C, SIGTERM)
  1  the slide cannot be read, something is not installed or could not be fetched, or the address is taken
  2  wrong usage
"""


def copies(text: str) -> dict[str, int]:
    """``read=2,decode=3``."""
    given = dict(_COPIES)
    for part in filter(None, text.split(",")):
        name, _, count = part.partition("=")
        if name.strip() not in _STAGES:
            raise argparse.ArgumentTypeError(f"{name.strip()!r} is no stage: {', '.join(_STAGES)}")
        if not count.strip().isdecimal() or not 1 <= int(count) <= 64:
            raise argparse.ArgumentTypeError(f"{part.strip()!r}: a number of copies is 1 to 64, as in {name.strip()}=2")
        given[name.strip()] = int(count)
    return given


def number(least: int, most: int) -> Any:
    """A number in a range."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return value

    return parse


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        # However it was called: by the command, or with python -m.
        prog="shunt microscope",
        description="Serves a page that shows a slide, whose tiles come out of a filter group: read -> decode -> zoom -> view, each in as many copies as "
        "asked for. The page shows how long complete updates (a new image) and partial updates (what a pan or zoom made visible) take.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("slide", metavar="SLIDE", nargs="?", type=Path, help="any slide that OpenSlide reads [default: the one of --demo]")
    made.add_argument("--demo", action="store_true", help="a small slide for trying (2220 x 2967 pixels, CC0), fetched once by pip into the cache")
    made.add_argument(
        "--replicate", metavar="N", type=number(2, 100), help="show the slide N times across and down, from a file made once in the cache (needs pyvips)"
    )
    made.add_argument("--version", action="version", version=f"shunt microscope {__version__}")
    served = made.add_argument_group("the page")
    served.add_argument("--host", default="127.0.0.1", help="address to serve at [default: %(default)s, this machine only; there is no password]")
    served.add_argument("--port", type=number(0, 65535), default=8000, help="port to serve at; 0 takes a free one [default: %(default)s]")
    served.add_argument("--open", action="store_true", help="open it in the browser")
    served.add_argument(
        "--tile-size", metavar="PIXELS", type=number(32, 2048), help="width and height of tiles [default: the file's own if it suits a screen, else 256]"
    )
    served.add_argument("--quality", metavar="1-95", type=number(1, 95), default=80, help="JPEG quality of tiles [default: %(default)s]")
    served.add_argument("--openseadragon", metavar="FILE", type=Path, help="openseadragon.min.js, instead of the one that npm fetches once")
    group = made.add_argument_group("the filter group")
    group.add_argument(
        "--copies", metavar="STAGE=N,...", type=copies, default=dict(_COPIES), help="copies of each stage [default: read=2,decode=2,zoom=2,view=1]"
    )
    group.add_argument("--processes", action="store_true", help="a process for each copy of read, decode and zoom [default: threads of this process]")
    group.add_argument(
        "--transport",
        choices=["auto", "shunt", "tcp"],
        default="auto",
        help="what is between processes: auto is shared memory on one host and sockets elsewhere; shunt is sockets that Shunt promotes; tcp is kernel "
        "TCP. shunt and tcp imply --processes [default: %(default)s]",
    )
    group.add_argument("--launcher", choices=["local", "dask"], default="local", help="what starts processes [default: %(default)s]")
    return made


def say(text: str) -> None:
    """To people, beside the output."""
    print(f"shunt microscope: {text}", file=sys.stderr, flush=True)


def main(args: list[str] | None = None) -> int:
    """Runs it; the exit status."""
    parse = parser()
    asked = parse.parse_args(args)
    if asked.demo and asked.slide is not None:
        parse.error(f"--demo is a slide itself: leave it away, or {asked.slide}")
    logging.basicConfig(level=logging.WARNING, format="shunt microscope: %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    try:
        import aiohttp  # noqa: F401
        import numpy  # noqa: F401
        import openslide  # noqa: F401
        import PIL  # noqa: F401
    except (ImportError, OSError) as error:
        # openslide-python is there, but not the library: its own words for that are long.
        say(f"something is not installed ({str(error).splitlines()[0]}): pip install {_NEEDS}")
        return 1
    from shunt.microscope._cache import CacheError
    from shunt.microscope._slide import SlideError

    try:
        return asyncio.run(_serve(asked))
    except (CacheError, SlideError) as error:
        say(str(error))
    except KeyboardInterrupt:
        return 0
    return 1


async def _serve(asked: argparse.Namespace) -> int:
    from aiohttp import web

    import shunt.filters as sf
    from shunt.microscope import _cache
    from shunt.microscope._hosts import Hosts
    from shunt.microscope._scope import Scope
    from shunt.microscope._server import Server
    from shunt.microscope._slide import Slide, SlideError

    source = _cache.Source(asked.slide.name) if asked.slide else _cache.DEMO
    path = asked.slide or _cache.demo_slide(say)
    viewer = _cache.viewer(asked.openseadragon, say)
    slide = Slide.open(path, asked.tile_size)
    replicated = ""
    if asked.replicate:
        replicated = f"replicated {asked.replicate}x{asked.replicate} from {source.name}"
        path = _cache.replicated(path, asked.replicate, slide.tile_size, say)
        slide.close()
        slide = Slide.open(path, asked.tile_size)
        if not any(slide.encoded):
            raise SlideError(f"{path} was made here and reads otherwise than it should: remove it and try again")

    processes = asked.processes or asked.transport != "auto"
    try:
        scope = Scope.start(
            slide, copies=asked.copies, processes=processes, launcher=asked.launcher, transport=asked.transport, quality=asked.quality
        )
    except (sf.UnitError, ImportError, ValueError, OSError) as error:
        say(f"the filter group does not start: {error}")
        return 1
    about = {
        "name": source.name,
        "origin": source.origin,
        "licence": source.licence,
        "replicated": replicated,
        "width": slide.width,
        "height": slide.height,
        "tile_size": slide.tile_size,
        "min_level": slide.shallowest,
        "max_level": slide.deepest,
        "levels": [[it.width, it.height] for it in slide.levels],
        "encoded": slide.encoded,
        "mpp": _number(slide.properties.get("openslide.mpp-x")),
        "objective": _number(slide.properties.get("openslide.objective-power")),
        "copies": asked.copies,
        "processes": processes or asked.launcher != "local",
        "transport": asked.transport,
        "launcher": asked.launcher,
    }
    runner = web.AppRunner(Server(scope, about, viewer, Hosts(asked.host)).application(), access_log=None, shutdown_timeout=2)
    try:
        await runner.setup()
        try:
            site = web.TCPSite(runner, asked.host, asked.port)
            await site.start()
        except OSError as error:
            say(f"cannot serve at {asked.host}:{asked.port}: {os.strerror(error.errno) if error.errno else error}; --port takes another, --port 0 any that is free")
            return 1
        port = runner.addresses[0][1]
        shown = f"[{asked.host}]" if ":" in asked.host else asked.host
        url = f"http://{shown}:{port}/"
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for which in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(which, stop.set)
        print(f"{source.name}: {slide.width} x {slide.height} pixels{f', {replicated}' if replicated else ''}")
        print(f"Serving at {url} (Ctrl-C ends it)", flush=True)
        if asked.open:
            webbrowser.open(url)
        await stop.wait()
    finally:
        await runner.cleanup()
        await asyncio.to_thread(scope.close)
    return 0


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def run() -> NoReturn:
    """The end of the program."""
    try:
        status = main()
    except BrokenPipeError:
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    run()
