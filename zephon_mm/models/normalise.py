"""Pixels from uint8 to float32, as the processors normalise them, bit for bit.

``m = mean / rescale``, ``s = std / rescale`` and ``(v − m) / s``, every step in float32: a function
of the channel and of one of 256 values, applied last, on the device where the patches lie: on a
GPU by a table of these values.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..patches import PatchLayout
from .base import Colour

if TYPE_CHECKING:
    import torch

_RESCALE = 1 / 255


def normalise(patches: torch.Tensor, mean: Colour, std: Colour) -> torch.Tensor:
    """Patches uint8 [n, columns] to float32 [n, columns]; columns run channel first."""
    import torch  # a worker process that only decodes clips never needs it

    if patches.is_cuda:
        return by_table(patches, mean, std)
    scale = 1.0 / _RESCALE
    shift = torch.tensor(mean, dtype=torch.float32, device=patches.device) * scale
    divide = torch.tensor(std, dtype=torch.float32, device=patches.device) * scale
    values = patches.to(torch.float32)
    by_channel = values.view(len(patches), 3, patches.shape[1] // 3)
    by_channel.sub_(shift[None, :, None]).div_(divide[None, :, None])
    return values


def by_table(
    patches: torch.Tensor, mean: Colour, std: Colour, kernels: ModuleType | None = None
) -> torch.Tensor:
    """The same by a table on the patches' device, queued on its current stream.

    Args:
        patches: uint8 [n, columns], contiguous.
        mean: of each channel.
        std: of each channel.
        kernels: `zephon_mm_kernels.triton`; None imports it.
    """
    import torch

    if kernels is None:
        from zephon_mm_kernels import triton

        kernels = triton
    out = torch.empty(patches.shape, dtype=torch.float32, device=patches.device)
    kernels.normalise(patches, _table(mean, std, patches.device), out)
    return out


@lru_cache(maxsize=16)
def _table(mean: Colour, std: Colour, device: torch.device) -> torch.Tensor:
    """What each byte of each channel becomes, float32 [3, 256] on a device."""
    import torch

    codes = torch.arange(256).to(torch.uint8).repeat(1, 3)
    return normalise(codes, mean, std).view(3, 256).to(device)


def mean_patches(mean: Colour, num_patches: int, layout: PatchLayout) -> NDArray[np.uint8]:
    """Patches of the mean colour, for a medium that can't be decoded; uint8 [n, columns]."""
    colour = np.array([round(value * 255) for value in mean], np.uint8)
    row = np.repeat(colour, layout.columns // 3)
    return np.tile(row, (num_patches, 1))
