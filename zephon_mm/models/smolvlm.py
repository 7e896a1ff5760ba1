"""Idefics3, SmolVLM, SmolVLM2: a picture as rows of tiles and the whole, a clip as stamped frames.

A picture's long side becomes ``size`` (four tiles), its short side follows, both are rounded up to
whole tiles (Lanczos each time), and the canvas is cut; last comes the canvas in one tile. A tile is
``<fake_token_around_image><row_1_col_2>`` and its ``<image>`` placeholders. A clip is an
introduction that says how many frames it has and how long it is, then each frame with its time, one
tile a frame. Idefics3 takes no clips.

The clip's length is that of the frames shown: from the start of the first to the end of the last.
As the introduction is part of the text around the clip, a clip that is longer than a sequence is
dropped and not shown with fewer frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..config import DataConfig
from ..errors import MediaError
from ..patches import Resize, View
from ..sample import MediaSpan
from .base import MediaLayout
from .processor import read_folder
from .tiles import TileFamily, check_size, read_tiles, refuse_budgets
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from ..batch import Batch

MAX_SIDE = 4096
_FAKE, _GLOBAL, _IMAGE = "<fake_token_around_image>", "<global-img>", "<image>"
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


@dataclass(frozen=True)
class Idefics3(TileFamily):
    """The family ``idefics3``; a picture's ``size`` is that of its canvas of tiles."""

    name: ClassVar[str] = "idefics3"
    control_tokens: ClassVar[tuple[str, ...]] = (_FAKE, _GLOBAL, _IMAGE)
    placeholders: ClassVar[Mapping[str, str]] = {"image": _IMAGE}

    longest: int
    splits: bool

    @classmethod
    def build(cls, config: DataConfig, tokenizer: Tokenizer) -> Self:
        """The family with the settings of the tokeniser's folder."""
        refuse_budgets(config, cls.name)
        files = read_folder(tokenizer.folder)
        side = int((files.image.get("max_image_size") or {}).get("longest_edge", 364))
        tokens = int(files.processor.get("image_seq_len", 169))
        return cls(
            tokenizer,
            read_tiles(files, side, tokens),
            longest=int((files.image.get("size") or {}).get("longest_edge", 4 * side)),
            splits=files.image.get("do_image_splitting") is not False,
        )

    def layout_image(self, height: int, width: int, *, alone: bool = True) -> MediaLayout:
        check_size(height, width)
        return self._layout(height, width, self.longest)

    def _layout(self, height: int, width: int, longest: int) -> MediaLayout:
        side = self.tile.side
        if not self.splits:
            return MediaLayout((side, side), (1, 1, 1))
        size = self._canvas(_long_side(height, width, longest))
        tiles = size[0] * size[1] // side**2
        return MediaLayout(size, (tiles + (tiles > 1), 1, 1))

    def _canvas(self, size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) rounded up to tiles, the short side by the rounded long one's scale."""
        side, (height, width) = self.tile.side, size
        ratio = width / height
        if width >= height:
            width = math.ceil(width / side) * side
            return math.ceil(int(width / ratio) / side) * side, width
        height = math.ceil(height / side) * side
        return height, math.ceil(int(height * ratio) / side) * side

    def views(self, span: MediaSpan) -> tuple[View, ...]:
        longest = self.longest
        if span.grid[0] != self._layout(*span.source_size, longest).grid[0]:
            longest = max(span.size)  # laid out smaller
        first = Resize(*_long_side(*span.source_size, longest), "lanczos")
        canvas = (first, Resize(*span.size, "lanczos"))
        if span.grid[0] == 1:
            return (View(canvas),)
        whole = Resize(self.tile.side, self.tile.side, "lanczos")
        return View(canvas), View((*canvas, whole))

    def smaller(self, span: MediaSpan) -> Iterator[MediaSpan]:
        if span.kind == "video":
            return  # its text says how many frames it has
        longest = max(span.size)
        while longest > self.tile.side:
            longest -= self.tile.side
            layout = self._layout(*span.source_size, longest)
            yield replace(span, size=layout.size, grid=layout.grid)

    def block(self, span: MediaSpan) -> NDArray[np.int32]:
        if span.kind == "video":
            return self._frames(span)
        if span.grid[0] == 1:
            return self._tile(_FAKE + _GLOBAL, _FAKE)
        down, across = (length // self.tile.side for length in span.size)
        parts = []
        for row in range(down):
            for column in range(across):
                parts.append(self._tile(f"{_FAKE}<row_{row + 1}_col_{column + 1}>"))
            parts.append(self.ids("\n" if row < down - 1 else "\n\n"))
        return np.concatenate([*parts, self._tile(_FAKE + _GLOBAL, _FAKE)])

    def _tile(self, before: str, after: str = "") -> NDArray[np.int32]:
        inside = self.placeholder(_IMAGE, self.tile.tokens)
        return np.concatenate((self.ids(before), inside, self.ids(after)))

    def _frames(self, span: MediaSpan) -> NDArray[np.int32]:
        """A clip's frames from the first one's tile on; what stands before it is in `around`."""
        frame = self._tile(_FAKE + _GLOBAL, _FAKE)
        parts = [frame]
        for time in span.pts_seconds[1:]:
            parts += [self.ids(_stamp(time)), frame]
        return np.concatenate(parts)

    def layout_video(
        self,
        num_frames: int,
        height: int,
        width: int,
        pts_seconds: Sequence[float] = (),
        fps: float = 0.0,
    ) -> MediaLayout:
        if "video" not in self.placeholders:
            raise MediaError(f"{self.name} takes no clips", stage="layout", kind="dropped")
        return super().layout_video(num_frames, height, width, pts_seconds, fps)

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        """One "sample" that holds all tiles: the model flattens samples, and none is padding."""
        inputs = super().model_inputs(batch)
        if "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"][None]
        return inputs


class SmolVLM(Idefics3):
    """The family ``smolvlm``: SmolVLM and SmolVLM2."""

    name: ClassVar[str] = "smolvlm"
    control_tokens: ClassVar[tuple[str, ...]] = (_FAKE, _GLOBAL, _IMAGE, "<video>")
    placeholders: ClassVar[Mapping[str, str]] = {"image": _IMAGE, "video": "<video>"}

    def around(self, span: MediaSpan) -> tuple[str, str]:
        if span.kind == "image":
            return "", ""
        shown = len(span.frames) / span.fps if span.fps > 0 else span.pts_seconds[-1]
        length = timedelta(seconds=int(round(shown, 6)))
        intro = (
            f"You are provided the following series of {number_words(len(span.frames))} frames "
            f"from a {length} [H:MM:SS] video.\n"
        )
        return intro + _stamp(span.pts_seconds[0]), "\n\n"


def number_words(number: int) -> str:
    """A number below a million in English words, as num2words writes it."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_ONES[hundreds]} hundred" + (f" and {number_words(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    joint = " and " if rest < 100 else ", "
    return f"{number_words(thousands)} thousand" + (joint + number_words(rest) if rest else "")


def _stamp(seconds: float) -> str:
    return f"\nFrame from {int(seconds // 60):02d}:{int(seconds % 60):02d}:"


def _long_side(height: int, width: int, longest: int) -> tuple[int, int]:
    """``get_resize_output_image_size`` of transformers: the long side given, the short one even."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > MAX_SIDE:
        width, height = MAX_SIDE, int(MAX_SIDE / ratio)
    elif height > width and height > MAX_SIDE:
        height, width = MAX_SIDE, int(MAX_SIDE * ratio)
    return max(height, 1), max(width, 1)
