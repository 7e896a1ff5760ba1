"""Qwen2.5-VL: patches of 14 pixels, a budget a frame, time in the positions.

A clip is one run of ``<|video_pad|>`` between ``<|vision_start|>`` and ``<|vision_end|>``. Its
temporal positions are ``int(i · tokens_per_second · second_per_grid)``, in float32 as transformers
computes them, where ``second_per_grid`` = temporal patch / sampled frames a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..patches import PatchLayout
from ..sample import MediaSpan
from .processor import Budget, ProcessorSettings
from .qwen import QwenFamily
from .sizes import image_size

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)

DEFAULTS = ProcessorSettings(
    patches=PatchLayout(patch_size=14, temporal_patch_size=2, merge_size=2),
    image=Budget(56 * 56, 1280 * 28 * 28, _MEAN, _STD),
    video=Budget(128 * 28 * 28, 768 * 28 * 28, _MEAN, _STD),
    cap_pixels_per_frame=False,
    max_video_tokens=128_000,
    tokens_per_second=4.0,
)
"""Those of transformers 5.24's ``Qwen2VLImageProcessor``, ``Qwen2VLVideoProcessor`` and
``Qwen2_5_VLVisionConfig``."""


class Qwen2_5VL(QwenFamily):
    """The family ``qwen2_5_vl``; the budget of a clip is that of a frame."""

    name: ClassVar[str] = "qwen2_5_vl"

    def _frame_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        low, high = self.processor.video.min_pixels, self.processor.video.max_pixels
        if self.processor.cap_pixels_per_frame:
            total = int(self.processor.max_video_tokens * self.factor**2 * 0.9)
            share = total * self.patches.temporal_patch_size // num_frames
            high = max(min(high, share), int(low * 1.05))
        return image_size(height, width, factor=self.factor, min_pixels=low, max_pixels=high)

    def _video_block(
        self, grid: tuple[int, int, int], pts_seconds: Sequence[float]
    ) -> NDArray[np.int32]:
        return self._wrapped(self.vision.video, math.prod(grid) // self.patches.merge_size**2)

    def _seconds_per_grid(self, span: MediaSpan) -> float:
        """Seconds between two temporal patches; 1 where the frame rate isn't known."""
        return self.patches.temporal_patch_size / span.fps if span.fps > 0 else 1.0

    def _times(self, span: MediaSpan, grid_t: int) -> NDArray[np.int64]:
        if span.kind == "image":
            return np.arange(grid_t)
        per_second = np.float32(self.processor.tokens_per_second)
        interval = per_second * np.float32(self._seconds_per_grid(span))
        return (np.arange(grid_t, dtype=np.float32) * interval).astype(np.int64)

    def extra_inputs(self, media: Sequence[MediaSpan]) -> Mapping[str, list[float]]:
        seconds = [self._seconds_per_grid(span) for span in media if span.kind == "video"]
        return {"second_per_grid_ts": seconds} if seconds else {}
