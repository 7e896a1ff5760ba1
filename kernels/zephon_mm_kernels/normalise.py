"""Bytes to the numbers a vision tower takes: by a table, float32 or bfloat16, bit for bit.

The processors of transformers fold the rescaling into mean and deviation, all in float32:
``m = mean · (1/rescale)``, ``s = std · (1/rescale)``, then ``(v − m) / s``. So what a byte becomes
depends on its channel and its value only: `table` holds all 3 × 256 results and defines them, and a
GPU reads them from it. On a CPU `normalise` repeats the two float32 operations instead, which
vectorise; both roundings are IEEE's, so the bits are the table's. bfloat16 is
the float32 result rounded to nearest, ties to even, as torch casts; numpy has no such type, so the
bits are given as uint16 (``torch.from_numpy(out).view(torch.bfloat16)``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


def table(
    mean: Sequence[float], std: Sequence[float], rescale: float = 1 / 255
) -> NDArray[np.float32]:
    """What each byte of each channel becomes: float32 [3, 256].

    Raises:
        ValueError: other than three channels, a deviation of zero, a rescale that isn't positive.
    """
    shift, divide = _affine(mean, std, rescale)
    codes = np.arange(256, dtype=np.float32)
    result: NDArray[np.float32] = (codes[None, :] - shift[:, None]) / divide[:, None]
    return result


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of finite float32 values rounded to bfloat16, ties to even: uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def normalise(
    patches: NDArray[np.uint8],
    mean: Sequence[float],
    std: Sequence[float],
    rescale: float = 1 / 255,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Patches or pictures to numbers of the same shape, one thread, GIL released.

    Args:
        patches: uint8 [n, 3·k] or [n, 3, …], C-contiguous: the channel is the slowest within a row.
        mean: of each channel, as in the processor's config.
        std: deviations, likewise.
        rescale: what the processor multiplies bytes by.
        out: float32, or uint16 for the bits of bfloat16, C-contiguous, of the same shape; float32
            is made if none is given.

    Raises:
        ValueError: arrays of another kind.
        ImportError: numba isn't installed.
    """
    try:
        from .affine import HALF, SINGLE
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("numba", "llvmlite"):
            raise
        raise ImportError(
            "normalising needs numba; install it with `pip install numba`, or take `table`"
        ) from error
    shift, divide = _affine(mean, std, rescale)
    if patches.dtype != np.uint8 or patches.ndim < 2 or not patches.flags.c_contiguous:
        raise ValueError(f"patches must be contiguous uint8 [n, 3·k], got {patches.dtype}")
    if patches.shape[1] % 3:
        raise ValueError(f"patches {patches.shape}: the second axis must be a multiple of 3")
    if out is None:
        out = np.empty(patches.shape, np.float32)
    if out.dtype not in (np.float32, np.uint16) or out.shape != patches.shape:
        raise ValueError(
            f"out must be float32 or uint16 {patches.shape}, got {out.dtype} {out.shape}"
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError("out must be contiguous and writeable")
    if patches.size:
        source = patches.reshape(len(patches), 3, -1)
        source.flags.writeable = False  # numba compiles for read-only arrays apart: one is enough
        run = SINGLE if out.dtype == np.float32 else HALF
        run(source, shift, divide, out.reshape(source.shape))
    return out


@lru_cache(maxsize=64)
def _of(mean: tuple[float, ...], std: tuple[float, ...], rescale: float) -> Any:
    if len(mean) != 3 or len(std) != 3:
        raise ValueError(f"mean and std: three channels each, got {len(mean)} and {len(std)}")
    if not rescale > 0 or not all(value > 0 for value in std):
        raise ValueError(f"std={std} and rescale={rescale} must be positive")
    back = np.float32(1.0 / rescale)
    arrays = np.asarray(mean, np.float32) * back, np.asarray(std, np.float32) * back
    for array in arrays:
        array.flags.writeable = False
    return arrays


def _affine(
    mean: Sequence[float], std: Sequence[float], rescale: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Float32 [3] each: what is taken off a byte, and what it is then divided by."""
    shift, divide = _of(tuple(map(float, mean)), tuple(map(float, std)), float(rescale))
    return shift, divide
