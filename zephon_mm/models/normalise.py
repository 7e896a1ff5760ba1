"""Pixels from uint8 to float32, as the processors normalise them, bit for bit.

A function of the channel and of one of 256 values, defined by `zephon_mm_kernels.normalise.table`
and applied last, on the device where the patches lie: on a CPU computed anew, on a GPU looked up.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingDependencyError
from ..patches import PatchLayout
from .base import Colour

if TYPE_CHECKING:
    import torch


def normalise(patches: torch.Tensor, mean: Colour, std: Colour) -> torch.Tensor:
    """Patches uint8 [n, columns] to float32 [n, columns]; columns run channel first.

    Raises:
        MissingDependencyError: numba, or on a GPU Triton, isn't installed.
    """
    import torch  # a worker process that only decodes clips never needs it

    if patches.is_cuda:
        return by_table(patches, mean, std)
    if patches.device.type != "cpu":  # the same table, by torch's own indexing
        codes = patches.view(len(patches), 3, -1).long()
        channels = torch.arange(3, device=patches.device)[None, :, None]
        return _table(mean, std, patches.device)[channels, codes].view(patches.shape)
    from zephon_mm_kernels import normalise as kernels

    try:
        return torch.from_numpy(kernels.normalise(patches.contiguous().numpy(), mean, std))
    except ImportError as error:
        raise MissingDependencyError(str(error)) from error


def by_table(
    patches: torch.Tensor, mean: Colour, std: Colour, kernels: ModuleType | None = None
) -> torch.Tensor:
    """The same by a table on the patches' device, queued on its current stream.

    Args:
        patches: uint8 [n, columns], contiguous.
        mean: of each channel.
        std: of each channel.
        kernels: `zephon_mm_kernels.triton`; None imports it.

    Raises:
        MissingDependencyError: Triton isn't installed.
    """
    import torch

    if kernels is None:
        try:
            from zephon_mm_kernels import triton
        except ImportError as error:
            raise MissingDependencyError(
                f"patches lie on {patches.device}, and to normalise them there: {error}"
            ) from error
        kernels = triton
    out = torch.empty(patches.shape, dtype=torch.float32, device=patches.device)
    here = torch.cuda.device(patches.device if patches.is_cuda else -1)  # -1: changes nothing
    with here:  # Triton launches on the current device
        kernels.normalise(patches, _table(mean, std, patches.device), out)
    return out


@lru_cache(maxsize=16)
def _table(mean: Colour, std: Colour, device: torch.device) -> torch.Tensor:
    """`zephon_mm_kernels.normalise.table` on a device: float32 [3, 256]."""
    import torch
    from zephon_mm_kernels.normalise import table

    return torch.from_numpy(table(mean, std)).to(device)


def mean_patches(mean: Colour, num_patches: int, layout: PatchLayout) -> NDArray[np.uint8]:
    """Patches of the mean colour, for a medium that can't be decoded; uint8 [n, columns]."""
    colour = np.array([round(value * 255) for value in mean], np.uint8)
    row = np.repeat(colour, layout.columns // 3)
    return np.tile(row, (num_patches, 1))
