"""How pixels are cut into patches, and which pixels of a picture are shown.

A medium's pixels are rows of bytes. For Qwen-style vision towers a row is a patch; for towers that
take whole tiles ([n, 3, side, side]) it is a tile, that is a patch as large as the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Patches = NDArray[np.uint8] | torch.Tensor
    """Rows of bytes, uint8 [n, columns]: an array of the CPU, or a tensor on a device."""

Filter = Literal["bicubic", "bilinear", "lanczos", "plain_bilinear"]
"""Antialiased, but for ``plain_bilinear``, which looks at four pixels only."""


@dataclass(frozen=True, slots=True)
class PatchLayout:
    """Sizes of a patch.

    Rows of a patch matrix run time, height / merge, width / merge, merge, merge; its columns run
    channel, time within the patch, row, column. With a temporal patch and a merge of 1, rows run
    time, height, width, and a row is a [3, side, side] picture.
    """

    patch_size: int
    temporal_patch_size: int
    merge_size: int

    @property
    def columns(self) -> int:
        """Values a patch: 3 channels × temporal patch × patch²."""
        return 3 * self.temporal_patch_size * self.patch_size**2


@dataclass(frozen=True, slots=True)
class Crop:
    """Keep a box, cut off where it leaves the picture; in pixels."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize to (height, width)."""

    height: int
    width: int
    filter: Filter = "bicubic"


@dataclass(frozen=True, slots=True)
class Pad:
    """Lay the picture on a canvas of (height, width) in one colour, its corner at (top, left)."""

    top: int
    left: int
    height: int
    width: int
    colour: tuple[int, int, int] = (0, 0, 0)


def are_bytes(patches: Patches) -> bool:
    """Whether an array or a tensor is of uint8; torch isn't imported for it."""
    if isinstance(patches, np.ndarray):
        return patches.dtype == np.uint8
    return str(patches.dtype) == "torch.uint8"


def adjacent(parts: Sequence[Any]) -> NDArray[np.uint8] | None:
    """The rows of one array that all parts (`Patches`) are, one after another; None: they aren't.

    Only of an array that may be written to.
    """
    whole: Any = getattr(parts[0], "base", None)
    flags = getattr(whole, "flags", None)
    if flags is None or whole.ndim != 2 or whole.dtype != parts[0].dtype:
        return None
    if not (flags.c_contiguous and flags.writeable):
        return None
    start = end = _address(parts[0])
    columns = whole.shape[1]
    for part in parts:
        same = getattr(part, "base", None) is whole and part.shape[1:] == (columns,)
        if not same or not part.flags.c_contiguous or _address(part) != end:
            return None
        end += part.nbytes
    first = (start - _address(whole)) // columns
    rows: NDArray[np.uint8] = whole[first : first + (end - start) // columns]
    return rows


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


Step = Crop | Resize | Pad


@dataclass(frozen=True, slots=True)
class View:
    """One rendering of a picture: steps in order, from its pixels as shown; then cut into patches.

    What they give has sides that are multiples of ``patch_size · merge_size``.
    """

    steps: tuple[Step, ...]
