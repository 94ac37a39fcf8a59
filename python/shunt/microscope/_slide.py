"""A slide: what OpenSlide says of it, and which blocks of it a tile on the screen is made of.

The screen asks for tiles of a Deep Zoom pyramid: level ``levels - 1`` is the slide in full, each level below half as wide and half as high. The slide has
levels of its own, any number of them, at any ratio. A tile comes from the slide's level that is the next finer one; the *blocks* of that level which it
touches are what the file is read in, as in the paper "each chunk is retrieved as a whole".
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
import openslide
from numpy.typing import NDArray
from PIL import Image

from shunt.microscope import _tiff

Tile = tuple[int, int, int]
"""Level, column and row of a tile."""

# Tiles of the screen are the file's own where these are of a size that suits a screen: then one tile is one block.
_TILE_LEAST, _TILE_MOST, _TILE_ELSE = 128, 512, 256
# Of a slide without levels for overviews, no tile is made of more pixels than this: it would have to be in memory at once.
_PIXELS_MOST = 64_000_000
# How far two decoders of JPEG may be apart, on average over a tile.
_SAME = 2.0


class SlideError(Exception):
    """A slide cannot be shown; the text says why and what to do."""


@dataclass(frozen=True)
class Box:
    """Columns and rows, from and to."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def height(self) -> int:
        return self.bottom - self.top


@dataclass(frozen=True)
class Block:
    """What is read in one piece."""

    column: int
    row: int
    clip: Box
    """What of the block the tile needs."""
    left: int
    """Where that goes in the tile's region."""
    top: int


@dataclass(frozen=True)
class Recipe:
    """How a tile is made."""

    level: int
    """The slide's level that it comes from."""
    region: Box
    """What of that level it shows."""
    width: int
    height: int
    """The tile's own size."""
    blocks: list[Block]


@dataclass(frozen=True)
class Level:
    """A level of the slide."""

    width: int
    height: int
    block_width: int
    block_height: int
    encoded: _tiff.Directory | None
    """Where its blocks lie in the file, encoded; None if only OpenSlide can read them."""


class Slide:
    """An open slide."""

    def __init__(self, path: Path, slide: openslide.OpenSlide, levels: list[Level], tile_size: int) -> None:
        self.path = path
        self.levels = levels
        self.tile_size = tile_size
        self.width, self.height = levels[0].width, levels[0].height
        self.deepest = math.ceil(math.log2(max(self.width, self.height, 1)))
        """The number of the Deep Zoom level that is the slide in full."""
        self._slide = slide
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.background: tuple[int, int, int] = _colour(slide.properties.get(openslide.PROPERTY_NAME_BACKGROUND_COLOR, "ffffff"))
        self.shallowest = next(level for level in range(self.deepest + 1) if self._fits(level))
        """The least Deep Zoom level that tiles are made of."""

    @classmethod
    def open(cls, path: str | Path, tile_size: int | None = None, *, check: bool = True) -> Slide:
        """Opens a slide. With ``check`` blocks are taken as they lie in the file only where they turn out to be what OpenSlide reads; copies of the
        reader, which open it again, are told what came of that (:meth:`take_encoded`)."""
        path = Path(path)
        if not path.exists():
            raise SlideError(f"{path}: there is no such file")
        if path.is_dir():
            raise SlideError(f"{path} is a folder: name the slide's file in it (for DICOM, any of its .dcm files)")
        try:
            slide = openslide.OpenSlide(path)
        except openslide.OpenSlideUnsupportedFormatError:
            raise SlideError(f"{path} is no slide that OpenSlide can read (it reads SVS, TIFF with tiles, NDPI, MRXS, SCN, VMS, BIF, CZI, DICOM)") from None
        except (openslide.OpenSlideError, OSError) as error:
            raise SlideError(f"{path} cannot be read: {error}") from error
        pictures = _tiff.directories(path) if slide.properties.get(openslide.PROPERTY_NAME_VENDOR) in ("aperio", "generic-tiff") else []
        levels = [_level(slide, index, pictures) for index in range(slide.level_count)]
        opened = cls(path, slide, levels, tile_size or _tile_size(levels[0]))
        if check:
            opened.take_encoded([opened._agrees(index) for index in range(len(levels))])
        return opened

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._slide.properties)

    @property
    def encoded(self) -> list[bool]:
        """For each level whether its blocks are taken as they lie in the file."""
        return [level.encoded is not None for level in self.levels]

    def take_encoded(self, which: list[bool]) -> None:
        """Has OpenSlide read the other levels."""
        self.levels = [level if take else replace(level, encoded=None) for level, take in zip(self.levels, which, strict=True)]

    def size_at(self, level: int) -> tuple[int, int]:
        """The size of the slide at a Deep Zoom level."""
        scale = 2 ** (self.deepest - level)
        return max(1, -(-self.width // scale)), max(1, -(-self.height // scale))

    def tiles_at(self, level: int) -> tuple[int, int]:
        """Columns and rows of tiles there."""
        width, height = self.size_at(level)
        return -(-width // self.tile_size), -(-height // self.tile_size)

    def has(self, tile: Tile) -> bool:
        """Whether there is such a tile."""
        level, column, row = tile
        if not self.shallowest <= level <= self.deepest:
            return False
        columns, rows = self.tiles_at(level)
        return 0 <= column < columns and 0 <= row < rows

    def recipe(self, tile: Tile) -> Recipe:
        """How a tile is made."""
        deep, column, row = tile
        width, height = self.size_at(deep)
        shown = Box(
            column * self.tile_size,
            row * self.tile_size,
            min((column + 1) * self.tile_size, width),
            min((row + 1) * self.tile_size, height),
        )
        index = self._source(deep)
        level = self.levels[index]
        # Not from the rounded sizes: blocks and tiles would come to lie askew, and a tile touch more blocks than it must.
        scale = 2 ** (self.deepest - deep)
        across, down = scale * level.width / self.width, scale * level.height / self.height
        region = Box(
            min(round(shown.left * across), level.width - 1),
            min(round(shown.top * down), level.height - 1),
            max(1, min(round(shown.right * across), level.width)),
            max(1, min(round(shown.bottom * down), level.height)),
        )
        return Recipe(index, region, shown.width, shown.height, list(_blocks(level, region)))

    def read_encoded(self, level: int, block: Block, into: memoryview) -> int:
        """Reads a block as it lies in the file into memory; how long it is. 0 if the file leaves it out, or that level is OpenSlide's."""
        picture = self.levels[level].encoded
        if picture is None:
            return 0
        offset, length = picture.where(block.column, block.row)
        if length > len(into):
            raise SlideError(f"{self.path}: a block of {length} bytes, where no more than {len(into)} were announced: the file has changed")
        if length and os.preadv(self._file, [into[:length]], offset) != length:
            raise SlideError(f"{self.path}: block {block.column},{block.row} of level {level} is cut off")
        return length

    def read_pixels(self, level: int, block: Block) -> NDArray[numpy.uint8]:
        """What OpenSlide gives for the part of a block that is needed: rows, columns, RGBA."""
        it = self.levels[level]
        left = block.column * it.block_width + block.clip.left
        top = block.row * it.block_height + block.clip.top
        return numpy.asarray(self._region(level, Box(left, top, left + block.clip.width, top + block.clip.height)))

    def decode(self, level: int, data: bytes | memoryview) -> Image.Image:
        """Decodes a block that was read encoded."""
        picture = self.levels[level].encoded
        assert picture is not None, "it was read encoded"
        return decode(picture.head, data)

    @property
    def encoded_most(self) -> int:
        """The length of the longest buffer between reading and decoding."""
        def most(level: Level) -> int:
            pixels = level.block_width * level.block_height * 4
            if level.encoded is None:
                return pixels
            counts = level.encoded.counts
            # What the file leaves out is read by OpenSlide.
            return max(int(counts.max()), pixels if counts.min() == 0 else 0)

        return max(most(level) for level in self.levels)

    @property
    def block_most(self) -> int:
        """The pixels of the largest block."""
        return max(it.block_width * it.block_height for it in self.levels)

    def close(self) -> None:
        self._slide.close()
        os.close(self._file)

    def _region(self, level: int, box: Box) -> Image.Image:
        # OpenSlide wants the place in terms of the slide in full, and has one ratio for both directions, though sizes of levels are rounded.
        ratio = self._slide.level_downsamples[level]
        place = (round(box.left * ratio), round(box.top * ratio))
        region: Image.Image = self._slide.read_region(place, level, (box.width, box.height))
        return region

    def _source(self, deep: int) -> int:
        """The slide's level that tiles of a Deep Zoom level come from: the coarsest one that is fine enough."""
        width, _ = self.size_at(deep)
        # Sizes of levels are rounded, in the file and here: a pixel in a hundred is no reason to read four times as much.
        return max(index for index, level in enumerate(self.levels) if index == 0 or level.width >= width * 0.99)

    def _fits(self, deep: int) -> bool:
        level = self.levels[self._source(deep)]
        width, height = self.size_at(deep)
        tile = min(width, self.tile_size) * min(height, self.tile_size)
        return tile * (level.width / width) * (level.height / height) <= _PIXELS_MOST or deep == self.deepest

    def _agrees(self, index: int) -> bool:
        """Whether some blocks of a level, taken as they lie in the file, are what OpenSlide reads."""
        level = self.levels[index]
        if level.encoded is None:
            return False
        columns, rows = -(-level.width // level.block_width), -(-level.height // level.block_height)
        for column, row in {(0, 0), (columns // 2, rows // 2), (columns - 1, rows - 1)}:
            box = Box(
                column * level.block_width,
                row * level.block_height,
                min((column + 1) * level.block_width, level.width),
                min((row + 1) * level.block_height, level.height),
            )
            offset, length = level.encoded.where(column, row)
            if length == 0:
                continue
            try:
                mine = self.decode(index, os.pread(self._file, length, offset)).crop((0, 0, box.width, box.height))
            except OSError:
                return False
            theirs = flat(numpy.asarray(self._region(index, box)), self.background)
            if numpy.abs(numpy.asarray(mine).astype(numpy.int16) - theirs).mean() > _SAME:
                return False
        return True


def decode(head: bytes, data: bytes | memoryview) -> Image.Image:
    """Decodes a JPEG tile that is without its tables: they are in ``head``."""
    image = Image.open(io.BytesIO(b"".join((head, memoryview(data)[2:]))), formats=["JPEG"])
    return image.convert("RGB")


def flat(pixels: NDArray[numpy.uint8], background: tuple[int, int, int]) -> NDArray[numpy.uint8]:
    """RGBA on a background: RGB."""
    alpha = pixels[..., 3:].astype(numpy.uint16)
    if alpha.min() == 255:
        return pixels[..., :3]
    mixed = (pixels[..., :3] * alpha + numpy.array(background, numpy.uint16) * (255 - alpha) + 127) // 255
    return mixed.astype(numpy.uint8)


def _level(slide: openslide.OpenSlide, index: int, pictures: list[_tiff.Directory]) -> Level:
    width, height = slide.level_dimensions[index]
    for picture in pictures:
        if (picture.width, picture.height) == (width, height):
            return Level(width, height, picture.tile_width, picture.tile_height, picture)
    of = slide.properties
    block_width = int(of.get(f"openslide.level[{index}].tile-width", 256))
    block_height = int(of.get(f"openslide.level[{index}].tile-height", 256))
    # Some files are one block, or blocks as wide as the slide: pieces of those are read.
    return Level(width, height, min(block_width, 1024), min(block_height, 1024), None)


def _tile_size(level: Level) -> int:
    if level.block_width == level.block_height and _TILE_LEAST <= level.block_width <= _TILE_MOST:
        return level.block_width
    return _TILE_ELSE


def _blocks(level: Level, region: Box) -> Iterator[Block]:
    width, height = level.block_width, level.block_height
    for row in range(region.top // height, -(-region.bottom // height)):
        for column in range(region.left // width, -(-region.right // width)):
            clip = Box(
                max(region.left - column * width, 0),
                max(region.top - row * height, 0),
                min(region.right - column * width, width),
                min(region.bottom - row * height, height),
            )
            left, top = column * width + clip.left - region.left, row * height + clip.top - region.top
            yield Block(column, row, clip, left, top)


def _colour(text: str) -> tuple[int, int, int]:
    value = int(text, 16)
    return value >> 16 & 255, value >> 8 & 255, value & 255
