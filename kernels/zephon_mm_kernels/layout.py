"""Where the bytes of a picture go: patches in a vision tower's order, or whole pictures.

A layout is written as two lists of numbers: what the row of a pixel adds to its place, and what its
run adds, a run being neighbours across that stay neighbours. Every fast path stores by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WORD_RUN = 64
"""No run is longer: strips of stored rows, which are columns of turned pictures, are cut at it."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Places of one frame's bytes, counted from the place of its group of frames.

    Attributes:
        size: (height, width) of the picture as shown.
        row_place: int64 [height].
        run_place: int64 [width / run].
        run: pixels across that lie side by side.
        step: from a channel to the next.
        frame_step: from a frame to the next of its group (time within a patch).
        group: frames in a group.
        group_bytes: bytes of a group.
    """

    size: tuple[int, int]
    row_place: NDArray[np.int64]
    run_place: NDArray[np.int64]
    run: int
    step: int
    frame_step: int
    group: int
    group_bytes: int

    def base(self, frame: int) -> int:
        """The place of a frame's first byte."""
        return frame // self.group * self.group_bytes + frame % self.group * self.frame_step


@lru_cache(maxsize=256)
def patch_layout(size: tuple[int, int], p: int, t: int, m: int) -> Layout:
    """Patches [n, 3·T·P·P]: rows run time, height / merge, width / merge, merge, merge.

    Raises:
        ValueError: a size that is not a positive multiple of P·merge.
    """
    height, width = size
    if min(p, t, m) < 1:
        raise ValueError(
            f"patch_size={p}, temporal_patch_size={t}, merge_size={m} must be positive"
        )
    if min(size) < 1 or height % (p * m) or width % (p * m):
        raise ValueError(f"size={size} must be multiples of {p * m}")
    columns = 3 * t * p * p
    rows = _places(height, p, m, (width // p) * m, m, columns, p)
    places = _places(width, p, m, m * m, 1, columns, 1)
    run = _longest_run(p)
    group = (height // p) * (width // p) * columns
    return _frozen(Layout(size, rows, places[::run].copy(), run, t * p * p, p * p, t, group))


@lru_cache(maxsize=256)
def picture_layout(size: tuple[int, int]) -> Layout:
    """Pictures [n, 3, height, width].

    Raises:
        ValueError: a size that is not positive.
    """
    height, width = size
    if min(size) < 1:
        raise ValueError(f"size={size} must be positive")
    run = _longest_run(width)
    rows = np.arange(height, dtype=np.int64) * width
    runs = np.arange(0, width, run, dtype=np.int64)
    area = height * width
    return _frozen(Layout(size, rows, runs, run, area, 0, 1, 3 * area))


def repeat_last(patches: Any, frames: int, patch_size: int, t: int) -> None:
    """Fill the times after the last frame up to a multiple of T with the last frame.

    ``patches``: uint8 [rows, 3·T·P·P], contiguous: an array, or a torch tensor on any device.
    """
    used = frames % t
    if used:
        groups = patches.reshape(-(-frames // t), -1, 3, t, patch_size**2)
        groups[-1, :, :, used:] = groups[-1, :, :, used - 1 : used]


def _places(
    length: int, p: int, m: int, outer: int, inner: int, columns: int, step: int
) -> NDArray[np.int64]:
    """For each pixel along an axis: what it adds to the place of its byte in the flat patches.

    ``outer`` and ``inner`` are rows of the matrix from one group of m patches to the next, and
    within a group; ``step`` is bytes from a pixel to the next in a patch.
    """
    pixel = np.arange(length, dtype=np.int64)
    patch = pixel // p
    return (patch // m * outer + patch % m * inner) * columns + pixel % p * step


def _longest_run(length: int) -> int:
    return max(run for run in range(1, min(length, _WORD_RUN) + 1) if length % run == 0)


def _frozen(layout: Layout) -> Layout:
    layout.row_place.flags.writeable = False
    layout.run_place.flags.writeable = False
    return layout
