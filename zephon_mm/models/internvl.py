"""InternVL (2.5, 3, 3.5): a picture as up to 12 tiles and a thumbnail, a clip as a tile a frame.

The arrangement of tiles is the one whose aspect ratio is nearest the picture's; of equal ones the
larger, if the picture has over half of its pixels (``get_optimal_tiled_canvas`` of transformers
5.24). A picture is ``<img>``, so many ``<IMG_CONTEXT>`` a tile, ``</img>``; a clip is
``Frame1: <img>…</img>`` and so on, each frame on a line. Pictures and clips share ``pixel_values``,
in the order of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..config import DataConfig
from ..patches import Resize, View
from ..sample import MediaSpan
from .base import MediaLayout
from .processor import read_folder
from .tiles import (
    CLIP_MEAN,
    CLIP_STD,
    TileFamily,
    check_size,
    read_tiles,
    refuse_budgets,
    square,
)
from .tokenizer import Tokenizer


@dataclass(frozen=True)
class InternVL(TileFamily):
    """The family ``internvl``; a picture's ``size`` is that of its canvas of tiles."""

    name: ClassVar[str] = "internvl"
    control_tokens: ClassVar[tuple[str, ...]] = ("<img>", "</img>", "<IMG_CONTEXT>", "<video>")
    placeholders: ClassVar[Mapping[str, str]] = {"image": "<IMG_CONTEXT>", "video": "<video>"}

    min_tiles: int
    max_tiles: int

    @classmethod
    def build(cls, config: DataConfig, tokenizer: Tokenizer) -> Self:
        """The family with the settings of the tokeniser's folder."""
        refuse_budgets(config, cls.name)
        files = read_folder(tokenizer.folder)
        side = square(files.image.get("size"), 448, files)
        tokens = int(files.processor.get("image_seq_length", 256))
        asked = files.images_kwargs
        cut = asked.get("crop_to_patches", True)
        return cls(
            tokenizer,
            read_tiles(files, side, tokens, CLIP_MEAN, CLIP_STD),
            min_tiles=_tiles("min_patches", 1, asked, files.image) if cut else 1,
            max_tiles=_tiles("max_patches", 12, asked, files.image) if cut else 1,
        )

    def layout_image(self, height: int, width: int, *, alone: bool = True) -> MediaLayout:
        check_size(height, width)
        return self._layout(height, width, self.max_tiles)

    def _layout(self, height: int, width: int, max_tiles: int) -> MediaLayout:
        side = self.tile.side
        low = min(self.min_tiles, max_tiles)
        across, down = _canvas(height, width, side, low, max_tiles)
        tiles = across * down
        return MediaLayout((down * side, across * side), (tiles + (tiles > 1), 1, 1))

    def views(self, span: MediaSpan) -> tuple[View, ...]:
        canvas = View((Resize(*span.size),))
        if span.grid[0] == 1:
            return (canvas,)
        return canvas, View((Resize(self.tile.side, self.tile.side),))

    def smaller(self, span: MediaSpan) -> Iterator[MediaSpan]:
        if span.kind == "video":
            yield from super().smaller(span)
            return
        max_tiles = span.grid[0]
        while max_tiles > 1:
            max_tiles //= 2
            layout = self._layout(*span.source_size, max_tiles)
            yield replace(span, size=layout.size, grid=layout.grid)

    def block(self, span: MediaSpan) -> NDArray[np.int32]:
        if span.kind == "image":
            return self._tiles(span.grid[0])
        frame = self._tiles(1)
        parts = [frame]
        for number in range(1, span.grid[0]):
            parts += [self.ids(f"\nFrame{number + 1}: "), frame]
        return np.concatenate(parts)

    def _tiles(self, count: int) -> NDArray[np.int32]:
        inside = self.placeholder("<IMG_CONTEXT>", count * self.tile.tokens)
        return np.concatenate((self.ids("<img>"), inside, self.ids("</img>")))

    def around(self, span: MediaSpan) -> tuple[str, str]:
        return ("Frame1: " if span.kind == "video" else ""), ""


def _tiles(name: str, default: int, *found: Mapping[str, Any]) -> int:
    return next((int(settings[name]) for settings in found if name in settings), default)


@lru_cache(maxsize=4096)
def _canvas(height: int, width: int, side: int, low: int, high: int) -> tuple[int, int]:
    """(tiles across, tiles down)."""
    best, off = (1, 1), float("inf")
    for across, down in _arrangements(low, high):
        here = abs(width / height - across / down)
        larger = width * height > 0.5 * side * side * across * down
        if here < off or (here == off and larger):
            best, off = (across, down), here
    return best


@lru_cache(maxsize=64)
def _arrangements(low: int, high: int) -> tuple[tuple[int, int], ...]:
    sides = range(1, high + 1)
    found = [(a, d) for a in sides for d in sides if low <= a * d <= high]
    return tuple(sorted(found, key=lambda sides: sides[0] * sides[1]))
