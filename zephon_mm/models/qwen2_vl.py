"""Qwen2-VL: patches of 14 pixels, a budget a frame.

A clip is one run of ``<|video_pad|>`` between ``<|vision_start|>`` and ``<|vision_end|>``; its
temporal positions count its temporal patches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
"""Those of transformers 5.24's ``Qwen2VLImageProcessor`` and ``Qwen2VLVideoProcessor``; the last is
Qwen2.5-VL's."""


class Qwen2VL(QwenFamily):
    """The family ``qwen2_vl``; the budget of a clip is that of a frame."""

    name: ClassVar[str] = "qwen2_vl"
    defaults: ClassVar[ProcessorSettings] = DEFAULTS

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

    def _times(self, span: MediaSpan, grid_t: int) -> NDArray[np.int64]:
        return np.arange(grid_t)
