"""Where the encoded tiles of a TIFF file lie.

OpenSlide reads and decodes in one call. For reading and decoding to be two filters, on two hosts perhaps, the bytes must be had as they lie in the file.
This finds them for what most slides are: tiled TIFF (classic or BigTIFF) whose tiles are JPEG. Whoever uses it must have OpenSlide's word that the
picture is the same (:meth:`shunt.microscope._slide.Slide.open` compares).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy
from numpy.typing import NDArray

# The tags that matter here, by their numbers in the standard.
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_SAMPLES, _PLANAR, _TILE_WIDTH, _TILE_HEIGHT = 277, 284, 322, 323
_OFFSETS, _COUNTS, _JPEG_TABLES = 324, 325, 347
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_NUMBERS = {1: "u1", 3: "u2", 4: "u4", 16: "u8"}
_JPEG = 7
_RGB = 2
# A marker that keeps a decoder from taking RGB for YCbCr, as it would by itself: Adobe's, with transform 0.
_ADOBE_RGB = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
_MOST_DIRECTORIES = 1000


@dataclass(frozen=True)
class Directory:
    """One picture of the file that is made of JPEG tiles."""

    width: int
    height: int
    tile_width: int
    tile_height: int
    offsets: NDArray[numpy.uint64]
    counts: NDArray[numpy.uint64]
    head: bytes
    """What a tile must have in the place of its first two bytes, to be a JPEG picture of its own."""

    @property
    def columns(self) -> int:
        return -(-self.width // self.tile_width)

    def where(self, column: int, row: int) -> tuple[int, int]:
        """Offset and length of a tile; length 0 if the file leaves it out."""
        at = row * self.columns + column
        return int(self.offsets[at]), int(self.counts[at])


def directories(path: str | Path) -> list[Directory]:
    """All pictures of JPEG tiles. None if the file is no TIFF, or is damaged: then OpenSlide has to read it, or to say what is wrong."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return list(_Reader(data).pictures())
    except (struct.error, ValueError, KeyError, IndexError, OverflowError, OSError):
        return []


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._order = {b"II": "<", b"MM": ">"}[data[:2]]
        (version,) = self._numbers("H", 2)
        if version == 42:
            self._form, self._count, self._inline = "I", "H", 4
            (self._first,) = self._numbers("I", 4)
        elif version == 43:
            self._form, self._count, self._inline = "Q", "Q", 8
            (self._first,) = self._numbers("Q", 8)
        else:
            raise ValueError("no TIFF")

    def _numbers(self, form: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from(self._order + form, self._data, at)

    def pictures(self) -> list[Directory]:
        found: list[Directory] = []
        at = self._first
        for _ in range(_MOST_DIRECTORIES):
            if at == 0:
                break
            tags, at = self._directory(at)
            picture = self._picture(tags)
            if picture is not None:
                found.append(picture)
        return found

    def _directory(self, at: int) -> tuple[dict[int, tuple[int, int, int]], int]:
        """Tags, each with type, count and where its values are; and where the next directory is."""
        (count,) = self._numbers(self._count, at)
        at += struct.calcsize(self._count)
        size = 4 + 2 * self._inline
        tags = {}
        for entry in range(at, at + count * size, size):
            tag, kind, values = self._numbers("HH" + self._form, entry)
            place = entry + 4 + self._inline
            if _SIZES.get(kind, 1) * values > self._inline:
                (place,) = self._numbers(self._form, place)
            tags[tag] = (kind, values, place)
        (following,) = self._numbers(self._form, at + count * size)
        return tags, following

    def _values(self, tags: dict[int, tuple[int, int, int]], tag: int, default: int | None = None) -> NDArray[numpy.uint64]:
        if tag not in tags and default is not None:
            return numpy.array([default], numpy.uint64)
        kind, count, place = tags[tag]
        form = numpy.dtype(_NUMBERS[kind]).newbyteorder(self._order)  # type: ignore[arg-type]  # it is < or >
        if place + count * form.itemsize > len(self._data):
            raise ValueError("cut off")
        return numpy.frombuffer(self._data[place : place + count * form.itemsize], form).astype(numpy.uint64)

    def _picture(self, tags: dict[int, tuple[int, int, int]]) -> Directory | None:
        if _TILE_WIDTH not in tags or _OFFSETS not in tags:
            return None

        def one(tag: int, default: int | None = None) -> int:
            return int(self._values(tags, tag, default)[0])

        if one(_COMPRESSION, 1) != _JPEG or one(_PLANAR, 1) != 1 or one(_BITS, 1) != 8 or one(_SAMPLES, 1) not in (1, 3):
            return None
        tables = b""
        if _JPEG_TABLES in tags:
            _, count, place = tags[_JPEG_TABLES]
            # Without its own start and end of image.
            tables = self._data[place + 2 : place + count - 2]
        colour = _ADOBE_RGB if one(_PHOTOMETRIC) == _RGB else b""
        picture = Directory(
            one(_WIDTH),
            one(_HEIGHT),
            one(_TILE_WIDTH),
            one(_TILE_HEIGHT),
            self._values(tags, _OFFSETS),
            self._values(tags, _COUNTS),
            b"\xff\xd8" + colour + tables,
        )
        tiles = picture.columns * -(-picture.height // picture.tile_height)
        if len(picture.offsets) != tiles or len(picture.counts) != tiles:
            return None
        return picture
