"""The pipeline: four filters, as in the paper's visualization server, each in as many copies as asked for.

========  ==============================================================================================================================
read      Takes every ``copies``-th tile of the request and sends the blocks that it is made of, one a buffer, as they lie in the file:
          bytes go from the file straight into the stream's memory. Where they cannot be had encoded (formats other than TIFF with JPEG
          tiles, blocks that the file leaves out), OpenSlide reads and decodes in one call, and the buffer has pixels.
decode    Decodes a block, if it is encoded, puts transparent pixels on the slide's background, and *clips*: what the tile does not need
          of the block goes no further.
zoom      Puts the blocks of a tile together and resamples it to the level that is looked at.
view      Encodes the tile for the browser and hands it out, as a partial result of the unit of work.
========  ==============================================================================================================================

Why so: a buffer is a block of the file, the "distribution block" of the paper, on the first two streams, and a tile of the screen on the last, so no
buffer is ever larger than one of them, whatever the request. What is between read and decode is small (JPEG, some 10 KB), what is between decode and zoom
is large (pixels, some 170 KB): the pipeline has both kinds of messages.

Streams are demand-driven: a copy that is slow, because its blocks are, gets fewer. Only the blocks of one tile must meet in one copy of zoom, so that
stream is keyed by the tile; request and tile both make the key, and copies get tiles in turn.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import NamedTuple

import numpy
from numpy.typing import NDArray
from PIL import Image

import shunt.filters as sf
from shunt.microscope._slide import Block, Box, Slide, Tile, flat

STAGES = ("read", "decode", "zoom", "view")

# Credits are as many as fit into this much memory for each pair of copies, and at least so many that a pipeline stays filled.
_MEMORY, _CREDITS_LEAST, _CREDITS_MOST = 8 << 20, 4, 32

_ENCODED, _PIXELS = 0, 1


class _Note(NamedTuple):
    """What goes beside a block: which tile it is for, and where in it."""

    tile: int
    """Its number in the request."""
    level: int
    """The slide's level."""
    kind: int
    left: int
    top: int
    clip_left: int
    clip_top: int
    width: int
    """Of what is clipped from the block."""
    height: int

    def pack(self) -> bytes:
        return _NOTE.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> _Note:
        return cls(*_NOTE.unpack(data))


_NOTE = struct.Struct("<IBBIIHHHH")

# What a partial result begins with: level, column, row of the tile.
HEAD = struct.Struct("<III")


def _bytes(of: sf.Buffer | sf.Draft, count: int = -1) -> NDArray[numpy.uint8]:
    """A stream's memory as NumPy sees it, without a copy."""
    return numpy.frombuffer(memoryview(of), numpy.uint8, count)


class _OfSlide(sf.Filter):
    """Has the slide; each process opens it by itself."""

    def __init__(self, path: Path, tile_size: int, encoded: list[bool]) -> None:
        self._slide = Slide.open(path, tile_size, check=False)
        self._slide.take_encoded(encoded)


class Read(_OfSlide):
    """Sends the blocks of tiles."""

    def process(self, uow: sf.UnitOfWork) -> None:
        tiles: list[Tile] = uow.params
        for number in range(self.rank, len(tiles), self.copies):
            recipe = self._slide.recipe(tiles[number])
            for block in recipe.blocks:
                with self.output.reserve() as draft:
                    draft.length, kind = self._read(recipe.level, block, draft)
                    clip = block.clip
                    note = _Note(number, recipe.level, kind, block.left, block.top, clip.left, clip.top, clip.width, clip.height)
                    draft.note = note.pack()

    def _read(self, level: int, block: Block, draft: sf.Draft) -> tuple[int, int]:
        with memoryview(draft) as memory:
            length = self._slide.read_encoded(level, block, memory)
            if length:
                return length, _ENCODED
            pixels = self._slide.read_pixels(level, block)
            memory[: pixels.nbytes] = pixels.tobytes()
            return pixels.nbytes, _PIXELS


class Decode(_OfSlide):
    """Decodes and clips blocks."""

    def process(self, uow: sf.UnitOfWork) -> None:
        for buffer in self.input:
            note = _Note.unpack(buffer.note)
            shape = (note.height, note.width, 3)
            with self.output.reserve() as draft:
                draft.length, draft.note, draft.key = note.height * note.width * 3, buffer.note, uow.id + note.tile
                pixels = _bytes(draft, draft.length).reshape(shape)
                self._decode(note, buffer, pixels)
                del pixels

    def _decode(self, note: _Note, buffer: sf.Buffer, into: NDArray[numpy.uint8]) -> None:
        if note.kind == _PIXELS:
            rgba = _bytes(buffer).reshape(note.height, note.width, 4)
            into[:] = flat(rgba, self._slide.background)
            return
        image = self._slide.decode(note.level, memoryview(buffer))
        box = Box(note.clip_left, note.clip_top, note.clip_left + note.width, note.clip_top + note.height)
        into[:] = numpy.asarray(image)[box.top : box.bottom, box.left : box.right]


class Zoom(_OfSlide):
    """Makes tiles of blocks."""

    def process(self, uow: sf.UnitOfWork) -> None:
        tiles: list[Tile] = uow.params
        begun: dict[int, _Begun] = {}
        for buffer in self.input:
            note = _Note.unpack(buffer.note)
            tile = begun.get(note.tile)
            if tile is None:
                tile = begun[note.tile] = _Begun(self._slide, tiles[note.tile])
            if tile.add(note, buffer):
                del begun[note.tile]
                with self.output.reserve() as draft:
                    draft.length = tile.write(draft)
                    draft.note = HEAD.pack(*tiles[note.tile])


class _Begun:
    """A tile whose blocks come."""

    def __init__(self, slide: Slide, tile: Tile) -> None:
        recipe = slide.recipe(tile)
        self._size = (recipe.width, recipe.height)
        self._missing = len(recipe.blocks)
        self._pixels = numpy.empty((recipe.region.height, recipe.region.width, 3), numpy.uint8)

    def add(self, note: _Note, buffer: sf.Buffer) -> bool:
        """Puts a block in its place; whether it was the last."""
        pixels = _bytes(buffer).reshape(note.height, note.width, 3)
        self._pixels[note.top : note.top + note.height, note.left : note.left + note.width] = pixels
        self._missing -= 1
        return self._missing == 0

    def write(self, draft: sf.Draft) -> int:
        """Writes the tile, resampled; how many bytes it has."""
        pixels = self._pixels
        if (pixels.shape[1], pixels.shape[0]) != self._size:
            # The gap makes it cheap to shrink a region of many pixels, and changes less than JPEG does.
            pixels = numpy.asarray(Image.fromarray(pixels).resize(self._size, Image.Resampling.LANCZOS, reducing_gap=2.0))
        _bytes(draft, pixels.nbytes)[:] = pixels.ravel()
        return pixels.nbytes


class View(_OfSlide):
    """Hands tiles out."""

    def __init__(self, path: Path, tile_size: int, encoded: list[bool], quality: int) -> None:
        super().__init__(path, tile_size, encoded)
        self._quality = quality

    def process(self, uow: sf.UnitOfWork) -> None:
        for buffer in self.input:
            recipe = self._slide.recipe(HEAD.unpack(buffer.note))
            image = Image.frombuffer("RGB", (recipe.width, recipe.height), _bytes(buffer), "raw", "RGB", 0, 1)
            file = io.BytesIO(buffer.note)
            file.seek(0, io.SEEK_END)
            image.save(file, "JPEG", quality=self._quality)
            uow.emit(file.getvalue())


def layout(slide: Slide, quality: int) -> sf.Layout:
    """The pipeline for a slide."""
    made = sf.Layout(policy="demand-driven")
    of = (slide.path.absolute(), slide.tile_size, slide.encoded)
    made.filter("read", Read, *of).filter("decode", Decode, *of).filter("zoom", Zoom, *of).filter("view", View, *of, quality)

    def stream(from_: str, to: str, size: int, policy: str) -> None:
        credits_ = min(max(_MEMORY // size, _CREDITS_LEAST), _CREDITS_MOST)
        made.stream(from_, to, buffer_size=size, credits=credits_, policy=policy)

    stream("read", "decode", slide.encoded_most, "demand-driven")
    stream("decode", "zoom", slide.block_most * 3, "keyed")
    stream("zoom", "view", slide.tile_size**2 * 3, "demand-driven")
    return made
