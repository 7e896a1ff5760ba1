"""Qwen2.5-VL: Qwen2-VL with time in the positions.

The temporal positions of a clip are ``int(i · tokens_per_second · second_per_grid)``, in float32 as
transformers computes them, where ``second_per_grid`` = temporal patch / sampled frames a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..sample import MediaSpan
from .qwen2_vl import Qwen2VL


class Qwen2_5VL(Qwen2VL):
    """The family ``qwen2_5_vl``."""

    name: ClassVar[str] = "qwen2_5_vl"

    def _seconds_per_grid(self, span: MediaSpan) -> float:
        """Seconds between two temporal patches; 1 where the frame rate isn't known."""
        return self.patches.temporal_patch_size / span.fps if span.fps > 0 else 1.0

    def _times(self, span: MediaSpan, grid_t: int) -> NDArray[np.int64]:
        if span.kind == "image":
            return np.arange(grid_t)
        per_second = np.float32(self.processor.tokens_per_second)
        interval = per_second * np.float32(self._seconds_per_grid(span))
        return (np.arange(grid_t, dtype=np.float32) * interval).astype(np.int64)

    def extra_inputs(
        self, documents: Sequence[Sequence[MediaSpan]]
    ) -> Mapping[str, NDArray[np.generic]]:
        seconds = [
            self._seconds_per_grid(span)
            for media in documents
            for span in media
            if span.kind == "video"
        ]
        return {"second_per_grid_ts": np.array(seconds, np.float32)} if seconds else {}
