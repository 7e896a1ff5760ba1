"""LLaVA-OneVision: one picture in "anyres" tiles, several pictures as one tile each, clips pooled.

A document's only picture is shown twice: squeezed into one tile, and resized into the best of the
model's resolutions (``image_grid_pinpoints``), padded with black and cut into tiles. Its
placeholders are the first tile's, and those of the second rendering without the padding, with a
newline a row, at most about nine tiles' worth. Each of several pictures is padded to a square with
the mean colour. A clip's frame takes a quarter of a tile's placeholders, a clip one newline.

How transformers 5.24's model tells the two apart sets the rules here: it asks whether a sample
(here, a document) has one picture, so a document of several is taken whole or dropped, never split.
It stacks clips, so all of a batch must have the same number of frames: ``video.mode`` must be
``uniform`` or ``random``, and a clip with fewer frames than ``video.num_frames`` repeats its last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..config import DataConfig
from ..errors import ConfigError, MediaError
from ..patches import Pad, Resize, View
from ..sample import MeasuredDocument, MediaSpan
from .base import MediaLayout
from .inputs import image_rows, tiles, token_inputs, video_rows
from .processor import ModelFolder, read_folder
from .relay import capacities
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

if TYPE_CHECKING:
    from ..batch import Batch

_SIDES = range(384, 2305, 384)
PINPOINTS = tuple((height, width) for height in _SIDES for width in _SIDES)


@dataclass(frozen=True)
class LlavaOnevision(TileFamily):
    """The family ``llava_onevision``.

    A picture's ``size`` is what it counts as having: its own, or less where it was made to fit. It
    has one tile if the document has several pictures.
    """

    name: ClassVar[str] = "llava_onevision"
    control_tokens: ClassVar[tuple[str, ...]] = ("<image>", "<video>")
    placeholders: ClassVar[Mapping[str, str]] = {"image": "<image>", "video": "<video>"}

    pinpoints: tuple[tuple[int, int], ...]
    max_tiles: int
    drop_first: bool
    num_frames: int | None

    @classmethod
    def build(cls, config: DataConfig, tokenizer: Tokenizer) -> Self:
        """The family with the settings of the tokeniser's folder."""
        refuse_budgets(config, cls.name)
        files = read_folder(tokenizer.folder)
        side = square(files.image.get("size"), 384, files)
        points = files.image.get("image_grid_pinpoints") or files.model.get("image_grid_pinpoints")
        aspect = files.processor.get("vision_aspect_ratio") or "anyres_max_9"
        strategy = files.processor.get("vision_feature_select_strategy") or "full"
        uniform = config.video.mode in ("uniform", "random")
        return cls(
            tokenizer,
            read_tiles(files, side, _tokens(files, side), CLIP_MEAN, CLIP_STD),
            pinpoints=tuple((int(h), int(w)) for h, w in points or PINPOINTS),
            max_tiles=int(str(aspect).removeprefix("anyres_max_")),
            drop_first=strategy == "default",
            num_frames=config.video.num_frames if uniform else None,
        )

    def layout_image(self, height: int, width: int, *, alone: bool = True) -> MediaLayout:
        check_size(height, width)
        if not alone:
            return MediaLayout((height, width), (1, 1, 1))
        high, wide = self._resolution(height, width)
        return MediaLayout((height, width), (1 + high * wide // self.tile.side**2, 1, 1))

    def layout_video(
        self,
        num_frames: int,
        height: int,
        width: int,
        pts_seconds: Sequence[float] = (),
        fps: float = 0.0,
    ) -> MediaLayout:
        if self.num_frames is None:
            raise ConfigError(
                f"model={self.name!r} stacks the clips of a batch, so all must have the same "
                "number of frames: set video.mode to 'uniform' and video.num_frames"
            )
        return super().layout_video(num_frames, height, width, pts_seconds, fps)

    def shown_frames(self, frames: tuple[int, ...]) -> tuple[int, ...]:
        return frames + frames[-1:] * ((self.num_frames or 0) - len(frames))

    def _resolution(self, height: int, width: int) -> tuple[int, int]:
        """``select_best_resolution`` of transformers: the most pixels kept, the fewest wasted."""
        best, most, least = self.pinpoints[0], 0, float("inf")
        for high, wide in self.pinpoints:
            scale = min(wide / width, high / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            if kept > most or (kept == most and high * wide - kept < least):
                best, most, least = (high, wide), kept, high * wide - kept
        return best

    def views(self, span: MediaSpan) -> tuple[View, ...]:
        height, width = span.size
        tile = Resize(self.tile.side, self.tile.side)
        if span.grid[0] == 1:
            side = max(height, width)
            red, green, blue = (int(value * 255) for value in self.image_mean)
            place = Pad((side - height) // 2, (side - width) // 2, side, side, (red, green, blue))
            return (View((place, tile)),)
        high, wide = self._resolution(height, width)
        across, down = wide / width, high / height
        if across < down:
            shown = Resize(min(math.ceil(height * across), high), wide)
        else:
            shown = Resize(high, min(math.ceil(width * down), wide))
        place = Pad((high - shown.height) // 2, (wide - shown.width) // 2, high, wide)
        first = () if span.size == span.source_size else (Resize(height, width),)
        return View((*first, tile)), View((*first, shown, place))

    def block(self, span: MediaSpan) -> NDArray[np.int32]:
        side = math.isqrt(self.tile.tokens)
        if span.kind == "video":
            return self.placeholder("<video>", span.grid[0] * math.ceil(side / 2) ** 2 + 1)
        count = self.tile.tokens + (1 if span.grid[0] == 1 else self._unpadded(*span.size, side))
        return self.placeholder("<image>", count - self.drop_first)

    def _unpadded(self, height: int, width: int, side: int) -> int:
        """Placeholders of the second rendering: rows and columns off the padding, and newlines."""
        best = self._resolution(height, width)
        high, wide = (side * (length // self.tile.side) for length in best)
        if width / height > wide / high:
            high -= (high - int(round(height * (wide / width), 7))) // 2 * 2
        else:
            wide -= (wide - int(round(width * (high / height), 7))) // 2 * 2
        ratio = math.sqrt(high * wide / (self.max_tiles * side**2))
        if ratio > 1.1:
            return int(high // ratio) * int(wide // ratio) + int(high // ratio)
        return high * wide + high

    def smaller(self, span: MediaSpan) -> Iterator[MediaSpan]:
        if span.kind == "video" or span.grid[0] == 1:
            return  # one size each
        height, width = span.size
        while min(height, width) > 1:
            height, width = height // 2, width // 2
            layout = self.layout_image(height, width)
            yield replace(span, size=layout.size, grid=layout.grid)

    def relayout(
        self, document: MeasuredDocument, max_tokens: int, max_patches: int
    ) -> MeasuredDocument:
        found = super().relayout(document, max_tokens, max_patches)
        several = sum(span.kind == "image" for span in found.media) > 1
        if several and (len(found.tokens) > max_tokens or found.num_patches > max_patches):
            raise MediaError(
                f"{len(found.tokens)} tokens and {found.num_patches} tiles are over "
                f"{capacities(max_tokens, max_patches, 'tiles')}, and {self.name} can't split a "
                "document of several pictures",
                stage="packing",
                kind="dropped",
            )
        return found

    def extra_inputs(
        self, documents: Sequence[Sequence[MediaSpan]]
    ) -> Mapping[str, NDArray[np.generic]]:
        images = [[span for span in media if span.kind == "image"] for media in documents]
        images = [media for media in images if media]
        if not images:
            return {}
        sizes = [span.size for media in images for span in media]
        return {
            "image_sizes": np.array(sizes, np.int64),
            "batch_num_images": np.array([len(media) for media in images], np.int64),
        }

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        import torch

        inputs = token_inputs(batch)
        side = self.tile.side
        if len(batch.image_grids):
            counts = batch.image_grids[:, 0].tolist()
            parts = torch.split(tiles(image_rows(batch, self), side), counts)
            values = parts[0].new_zeros(len(parts), max(counts), 3, side, side)
            for number, part in enumerate(parts):
                values[number, : len(part)] = part
            inputs["pixel_values"] = values
        if len(batch.video_grids):
            frames = tiles(video_rows(batch, self), side)
            inputs["pixel_values_videos"] = frames.view(len(batch.video_grids), -1, 3, side, side)
        return inputs


def _tokens(files: ModelFolder, side: int) -> int:
    """Placeholders a tile: as the processor says, else the patches of the vision tower."""
    found = files.processor.get("num_image_tokens")
    if found is not None:
        return int(found)
    return (side // int(files.vision.get("patch_size", 14))) ** 2
