"""Qwen3-VL: patches of 16 pixels, a budget a clip, time written as text.

A clip is ``<|vision_start|>``, then for each temporal patch its time, ``<1.5 seconds>``, and a run
of ``<|video_pad|>`` between ``<|vision_start|>`` and ``<|vision_end|>``, then ``<|vision_end|>``.
This is what transformers 5.24's processor makes of ``<|vision_start|><|video_pad|><|vision_end|>``.
The time is the mean of the patch's first and last frame; positions have no time of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..patches import PatchLayout
from .processor import Budget, ProcessorSettings
from .qwen import QwenFamily
from .sizes import clip_size

_HALF = (0.5, 0.5, 0.5)

DEFAULTS = ProcessorSettings(
    patches=PatchLayout(patch_size=16, temporal_patch_size=2, merge_size=2),
    image=Budget(56 * 56, 1280 * 28 * 28, _HALF, _HALF),
    video=Budget(128 * 32 * 32, 768 * 32 * 32, _HALF, _HALF),
    cap_pixels_per_frame=False,
    max_video_tokens=768,
    tokens_per_second=1.0,
)
"""Those of transformers 5.24's ``Qwen3VLVideoProcessor``, and of its ``Qwen2VLImageProcessor`` with
the patch, mean and deviation that the models use."""


class Qwen3VL(QwenFamily):
    """The family ``qwen3_vl``; the budget of a clip counts frames × height × width."""

    name: ClassVar[str] = "qwen3_vl"
    defaults: ClassVar[ProcessorSettings] = DEFAULTS

    def _frame_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        low, high = self.processor.video.min_pixels, self.processor.video.max_pixels
        if self.processor.cap_pixels_per_frame:
            cap = self.processor.max_video_tokens * self.factor**2
            high = max(min(cap, high // num_frames), int(low * 1.05)) * num_frames
        return clip_size(
            num_frames,
            height,
            width,
            factor=self.factor,
            temporal_factor=self.patches.temporal_patch_size,
            min_pixels=low,
            max_pixels=high,
        )

    def _video_block(
        self, grid: tuple[int, int, int], pts_seconds: Sequence[float]
    ) -> NDArray[np.int32]:
        grid_t, high, wide = grid
        frames = self._wrapped(self.vision.video, high * wide // self.patches.merge_size**2)
        texts = [f"<{t:.1f} seconds>" for t in self._patch_times(grid_t, pts_seconds)]
        times = self.tokenizer.encode_batch(texts)
        parts = [np.array([self.vision.start], np.int32)]
        for time in times:
            parts += [time, frames]
        parts.append(np.array([self.vision.end], np.int32))
        return np.concatenate(parts)

    def _patch_times(self, grid_t: int, pts_seconds: Sequence[float]) -> list[float]:
        """Seconds of each temporal patch: the mean of its first and last frame's."""
        size = self.patches.temporal_patch_size
        if not (grid_t - 1) * size < len(pts_seconds) <= grid_t * size:
            raise ValueError(
                f"{len(pts_seconds)} frame times for {grid_t} temporal patches of {size} frames"
            )
        times = [*pts_seconds, *[pts_seconds[-1]] * (grid_t * size - len(pts_seconds))]
        return [(times[i] + times[i + size - 1]) / 2 for i in range(0, len(times), size)]
