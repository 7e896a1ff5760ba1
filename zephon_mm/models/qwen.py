"""What the Qwen-VL families share: placeholders, M-RoPE positions, smaller layouts.

A picture is ``<|vision_start|>``, one ``<|image_pad|>`` for each merged patch, ``<|vision_end|>``.
Text advances all three position axes by one a token. A run of placeholders has (time, height,
width) of its merged patch, counted from the position before it, and after the run all axes go on at
``start + max(height, width)`` of the merged grid, as in transformers 5.24's ``get_rope_index``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..config import DataConfig
from ..errors import MediaError
from ..patches import PatchLayout, Resize, View
from ..sample import MeasuredDocument, MediaSpan
from .base import Colour, Kind, MediaLayout
from .inputs import image_rows, token_inputs, video_rows
from .processor import ProcessorSettings, read_settings
from .relay import capacities, relayout_document
from .sizes import image_size, within
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from ..batch import Batch

VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


@dataclass(frozen=True, slots=True)
class VisionTokens:
    """Ids of the control tokens around and inside a medium."""

    start: int
    end: int
    image: int
    video: int


@dataclass(frozen=True)
class QwenFamily(ABC):
    """The base of the Qwen-VL families; a family adds how a clip is laid out and written."""

    name: ClassVar[str]
    defaults: ClassVar[ProcessorSettings]
    position_axes: ClassVar[int] = 4
    control_tokens: ClassVar[tuple[str, ...]] = VISION_TOKENS
    placeholders: ClassVar[Mapping[str, str]] = {
        "image": "<|vision_start|><|image_pad|><|vision_end|>",
        "video": "<|vision_start|><|video_pad|><|vision_end|>",
    }
    opening: ClassVar[str] = ""

    tokenizer: Tokenizer
    processor: ProcessorSettings
    vision: VisionTokens

    @classmethod
    def build(cls, config: DataConfig, tokenizer: Tokenizer) -> Self:
        """The family with the settings of the tokeniser's folder and the config."""
        start, end, image, video = (tokenizer.token_id(name) for name in VISION_TOKENS)
        settings = read_settings(cls.defaults, tokenizer.folder, config)
        return cls(tokenizer, settings, VisionTokens(start, end, image, video))

    @property
    def patches(self) -> PatchLayout:
        return self.processor.patches

    @property
    def image_mean(self) -> Colour:
        return self.processor.image.mean

    @property
    def image_std(self) -> Colour:
        return self.processor.image.std

    @property
    def video_mean(self) -> Colour:
        return self.processor.video.mean

    @property
    def video_std(self) -> Colour:
        return self.processor.video.std

    @property
    def factor(self) -> int:
        """Pixels along a side of the square that one token stands for."""
        return self.patches.patch_size * self.patches.merge_size

    def settings(self) -> dict[str, Any]:
        return {"family": self.name, **asdict(self.processor), "tokens": asdict(self.vision)}

    def refusal(self, kinds: Sequence[Kind]) -> str | None:
        return None

    def layout_image(self, height: int, width: int, *, alone: bool = True) -> MediaLayout:
        budget = self.processor.image
        size = image_size(
            height,
            width,
            factor=self.factor,
            min_pixels=budget.min_pixels,
            max_pixels=budget.max_pixels,
        )
        return self._layout(1, within(size, self.factor, budget.max_pixels))

    def layout_video(
        self,
        num_frames: int,
        height: int,
        width: int,
        pts_seconds: Sequence[float] = (),
        fps: float = 0.0,
    ) -> MediaLayout:
        if num_frames < 1:
            raise MediaError("a clip without frames", stage="layout", kind="dropped")
        grid_t = -(-num_frames // self.patches.temporal_patch_size)
        return self._layout(grid_t, self._frame_size(num_frames, height, width))

    @abstractmethod
    def _frame_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """(height, width) of each of a clip's frames."""

    def _layout(self, grid_t: int, size: tuple[int, int]) -> MediaLayout:
        patch = self.patches.patch_size
        return MediaLayout(size=size, grid=(grid_t, size[0] // patch, size[1] // patch))

    def shown_frames(self, frames: tuple[int, ...]) -> tuple[int, ...]:
        return frames

    def block(self, span: MediaSpan) -> NDArray[np.int32]:
        if span.kind == "video":
            return self._video_block(span.grid, span.pts_seconds)
        return self._wrapped(self.vision.image, math.prod(span.grid) // self.patches.merge_size**2)

    def around(self, span: MediaSpan) -> tuple[str, str]:
        return "", ""

    def views(self, span: MediaSpan) -> tuple[View, ...]:
        return (View((Resize(*span.size),)),)

    @abstractmethod
    def _video_block(
        self, grid: tuple[int, int, int], pts_seconds: Sequence[float]
    ) -> NDArray[np.int32]:
        """A clip's whole block of token ids, int32 [n]."""

    def _wrapped(self, placeholder: int, count: int) -> NDArray[np.int32]:
        """``vision_start``, ``count`` placeholders, ``vision_end``."""
        block = np.full(count + 2, placeholder, np.int32)
        block[0] = self.vision.start
        block[-1] = self.vision.end
        return block

    def positions(self, tokens: NDArray[np.int32], media: Sequence[MediaSpan]) -> NDArray[np.int64]:
        steps = np.ones(len(tokens), np.int64)
        offsets: list[tuple[Any, NDArray[np.int64]]] = []
        for span in media:
            placeholder = self.vision.image if span.kind == "image" else self.vision.video
            at = np.flatnonzero(tokens[span.start : span.stop] == placeholder) + span.start
            steps[at] = 0
            side = max(span.grid[1:]) // self.patches.merge_size
            if at[-1] - at[0] == len(at) - 1:  # in one run
                steps[at[-1]] = side
                offsets.append((slice(at[0], at[-1] + 1), self._offsets(span)))
            else:
                last = np.append(np.flatnonzero(np.diff(at) != 1), len(at) - 1)
                steps[at[last]] = side
                offsets.append((at, self._offsets(span)))
        starts = np.cumsum(steps) - steps
        positions = np.empty((3, len(starts)), np.int64)
        positions[...] = starts
        for at, offset in offsets:
            positions[:, at] += offset
        return positions

    def _offsets(self, span: MediaSpan) -> NDArray[np.int64]:
        """Positions of a medium's placeholders from the position before its run, int64 [3, k]."""
        merge = self.patches.merge_size
        grid_t, high, wide = span.grid[0], span.grid[1] // merge, span.grid[2] // merge
        time = self._times(span, grid_t)
        if grid_t == 1:
            return _offsets_of_one(int(time[0]), high, wide)
        return _offsets_of(time, high, wide)

    def _times(self, span: MediaSpan, grid_t: int) -> NDArray[np.int64]:
        """Temporal offsets of a medium's temporal patches, int64 [grid_t]."""
        return np.zeros(grid_t, np.int64)

    def extra_inputs(
        self, documents: Sequence[Sequence[MediaSpan]]
    ) -> Mapping[str, NDArray[np.generic]]:
        return {}

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        inputs = token_inputs(batch)
        if len(batch.image_grids):
            inputs |= {
                "pixel_values": image_rows(batch, self),
                "image_grid_thw": batch.image_grids,
            }
        if len(batch.video_grids):
            inputs |= {
                "pixel_values_videos": video_rows(batch, self),
                "video_grid_thw": batch.video_grids,
            }
        return inputs

    def shrink(self, span: MediaSpan, max_tokens: int, max_patches: int) -> MediaSpan:
        temporal = self.patches.temporal_patch_size
        while not self._fits(span, max_tokens, max_patches) and len(span.frames) > 2:
            frames, pts = span.frames[::2], span.pts[::2]
            grid = (-(-len(frames) // temporal), *span.grid[1:])
            span = replace(span, frames=frames, pts=pts, grid=grid, fps=span.fps / 2)
        span = self._sized(span)
        if self._fits(span, max_tokens, max_patches):
            return span
        merge = self.patches.merge_size**2
        overhead = (span.stop - span.start) - span.num_patches // merge
        blocks = min((max_tokens - overhead) // span.grid[0], max_patches // (merge * span.grid[0]))
        if blocks < 1:
            raise MediaError(
                f"the {span.kind} of {span.source_size[1]}×{span.source_size[0]} pixels takes more "
                f"than {capacities(max_tokens, max_patches)} however small it is made",
                stage="layout",
                kind="dropped",
            )
        budget = blocks * self.factor**2
        size = image_size(
            *span.source_size, factor=self.factor, min_pixels=self.factor**2, max_pixels=budget
        )
        layout = self._layout(span.grid[0], within(size, self.factor, budget))
        return self._sized(replace(span, size=layout.size, grid=layout.grid))

    def _fits(self, span: MediaSpan, max_tokens: int, max_patches: int) -> bool:
        if span.num_patches > max_patches:
            return False
        return len(self.block(span)) <= max_tokens

    def _sized(self, span: MediaSpan) -> MediaSpan:
        return replace(span, stop=span.start + len(self.block(span)))

    def relayout(
        self, document: MeasuredDocument, max_tokens: int, max_patches: int
    ) -> MeasuredDocument:
        return relayout_document(document, max_tokens, max_patches, family=self)


def _offsets_of(time: NDArray[np.int64], high: int, wide: int) -> NDArray[np.int64]:
    offsets = np.empty((3, len(time), high, wide), np.int64)
    offsets[0] = time[:, None, None]
    offsets[1] = np.arange(high)[:, None]
    offsets[2] = np.arange(wide)
    return offsets.reshape(3, -1)


@lru_cache(maxsize=256)
def _offsets_of_one(time: int, high: int, wide: int) -> NDArray[np.int64]:
    """Of a picture, not to be written to: most pictures of a run have one of few sizes."""
    offsets = _offsets_of(np.full(1, time, np.int64), high, wide)
    offsets.flags.writeable = False
    return offsets
