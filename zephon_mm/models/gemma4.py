"""Gemma 4: patches of 16 pixels, channels last, as many as fit 280 placeholders, 70 a frame.

A picture takes the largest size of its aspect ratio whose patches, pooled three by three, fit the
placeholders. It is the begin token, its placeholders, the end token; a frame of a clip is the same
after its time, ``MM:SS``. Patches are padded with zeros to the most there can be, and their places
are −1 there.

As in `gemma3`, rows carry two boolean masks for ``attn_implementation="sdpa"``: in sliding layers
the tokens of a picture see each other both ways, if ``use_bidirectional_attention`` of the model's
text config is ``vision``; full layers are causal. Sound is not taken.
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
from ..patches import Resize, View
from ..sample import MediaSpan
from .base import MediaLayout
from .gemma3 import attention_masks
from .inputs import token_inputs
from .processor import read_folder, read_named_tokens, sliding_window
from .tiles import TileFamily, TileSettings, check_size, refuse_budgets
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from ..batch import Batch

_VIDEO = "<|video|>"
_BLACK, _ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Gemma4(TileFamily):
    """The family ``gemma4``; ``tile`` is a patch, and of it only the side matters.

    Attributes:
        begin, soft, end: control tokens of a picture, as the tokenizer's config names them.
        pool: patches that a placeholder is wide and high.
        image_tokens, video_tokens: most placeholders of a picture, and of a frame.
        window: of the sliding layers.
        both_ways: whether the tokens of a picture see each other both ways there.
    """

    name: ClassVar[str] = "gemma4"

    begin: str
    soft: str
    end: str
    pool: int
    image_tokens: int
    video_tokens: int
    window: int
    both_ways: bool

    @classmethod
    def build(cls, config: DataConfig, tokenizer: Tokenizer) -> Self:
        """The family with the settings of the tokeniser's folder and the model's masks."""
        refuse_budgets(config, cls.name)
        files = read_folder(tokenizer.folder)
        window = sliding_window(files, cls.name)
        text = files.text
        if text.get("use_bidirectional_attention") not in (None, "vision"):
            raise ConfigError(
                f"{tokenizer.folder}/config.json: use_bidirectional_attention="
                f"{text['use_bidirectional_attention']!r} is not a causal model's"
            )
        side = int(files.image.get("patch_size", 16))
        names = ("boi_token", "image_token", "eoi_token")
        begin, soft, end = read_named_tokens(tokenizer.folder, *names)
        return cls(
            tokenizer,
            TileSettings(side, 1, _BLACK, _ONE, _BLACK, _ONE),
            begin=begin,
            soft=soft,
            end=end,
            pool=int(files.image.get("pooling_kernel_size", 3)),
            image_tokens=int(files.image.get("max_soft_tokens", 280)),
            video_tokens=int(files.video.get("max_soft_tokens", 70)),
            window=window,
            both_ways=text.get("use_bidirectional_attention") == "vision",
        )

    @property
    def control_tokens(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.begin, self.soft, self.end, _VIDEO)

    @property
    def placeholders(self) -> Mapping[str, str]:  # type: ignore[override]
        return {"image": self.soft, "video": _VIDEO}

    def layout_image(self, height: int, width: int, *, alone: bool = True) -> MediaLayout:
        return self._layout(1, height, width, self.image_tokens)

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
        return self._layout(num_frames, height, width, self.video_tokens)

    def _layout(self, frames: int, height: int, width: int, tokens: int) -> MediaLayout:
        """``get_aspect_ratio_preserving_size`` of transformers 5.24."""
        check_size(height, width)
        block = self.pool * self.tile.side
        scale = math.sqrt(tokens * self.pool**2 * self.tile.side**2 / (height * width))
        down, across = (math.floor(scale * length / block) for length in (height, width))
        if not (down or across):
            raise MediaError(
                f"{width}×{height} pixels have no size of {tokens} tokens",
                stage="layout",
                kind="dropped",
            )
        if not down:
            down, across = 1, min(width // height, tokens)
        elif not across:
            down, across = min(height // width, tokens), 1
        size = (down * block, across * block)
        return MediaLayout(size, (frames, down * self.pool, across * self.pool))

    def views(self, span: MediaSpan) -> tuple[View, ...]:
        return (View((Resize(*span.size),)),)

    def smaller(self, span: MediaSpan) -> Iterator[MediaSpan]:
        for found in super().smaller(span):
            span = found
            yield span
        tokens = self.image_tokens if span.kind == "image" else self.video_tokens
        while tokens > 1:
            tokens //= 2
            try:
                layout = self._layout(span.grid[0], *span.source_size, tokens)
            except MediaError:  # too narrow for so few
                return
            yield replace(span, size=layout.size, grid=layout.grid)

    def block(self, span: MediaSpan) -> NDArray[np.int32]:
        frames, count = span.grid[0], span.grid[1] * span.grid[2] // self.pool**2
        begin, end = self.ids(self.begin), self.ids(self.end)
        inside = self.placeholder(self.placeholders[span.kind], count)
        parts = [begin, inside, end]
        for time in span.pts_seconds[1:frames]:
            parts += [self.ids(f" {_minutes(time)} "), begin, inside, end]
        return np.concatenate(parts)

    def around(self, span: MediaSpan) -> tuple[str, str]:
        return (f"{_minutes(span.pts_seconds[0])} " if span.kind == "video" else ""), ""

    def extra_inputs(
        self, documents: Sequence[Sequence[MediaSpan]]
    ) -> Mapping[str, NDArray[np.generic]]:
        found: dict[str, NDArray[np.generic]] = {}
        for kind, tokens in (("image", self.image_tokens), ("video", self.video_tokens)):
            spans = [span for media in documents for span in media if span.kind == kind]
            if spans:
                most = tokens * self.pool**2
                places = [_places(span, most) for span in spans for _ in range(span.grid[0])]
                found[f"{kind}_position_ids"] = np.stack(places)
            if spans and kind == "video":
                found["num_frames_per_video"] = np.array([s.grid[0] for s in spans], np.int64)
        return found

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        inputs = token_inputs(batch)
        if len(batch.image_grids):  # rescaled by a factor, where clips are divided, as transformers
            values = batch.image_patches.float() * (1 / 255)
            inputs["pixel_values"] = self._padded(values, batch.image_grids, self.image_tokens)
        if len(batch.video_grids):
            values = batch.video_patches.float() / 255
            inputs["pixel_values_videos"] = self._padded(
                values, batch.video_grids, self.video_tokens
            )
        images = batch.input_ids == self.tokenizer.token_id(self.soft)
        videos = batch.input_ids == self.tokenizer.token_id(_VIDEO)
        inputs["mm_token_type_ids"] = images.long() + 2 * videos.long()
        soft = images | videos if self.both_ways else None
        inputs["attention_mask"] = attention_masks(
            batch.seq_idx, soft, self.window, full_both_ways=False
        )
        return inputs

    def _padded(self, rows: torch.Tensor, grids: torch.Tensor, tokens: int) -> torch.Tensor:
        """Patches [n, 3·P·P] as [frames, most, P·P·3], zeros after each frame's own."""
        frames = [high * wide for count, high, wide in grids.tolist() for _ in range(count)]
        last = rows.view(len(rows), 3, -1).transpose(1, 2).reshape(len(rows), -1)
        out = rows.new_zeros(len(frames), tokens * self.pool**2, rows.shape[1])
        at = 0
        for number, count in enumerate(frames):
            out[number, :count] = last[at : at + count]
            at += count
        return out


def _places(span: MediaSpan, most: int) -> NDArray[np.int64]:
    """(across, down) of a frame's patches, then −1: int64 [most, 2]."""
    down, across = np.indices(span.grid[1:]).reshape(2, -1)
    places = np.full((most, 2), -1, np.int64)
    places[: len(down)] = np.stack((across, down), 1)
    return places


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"
