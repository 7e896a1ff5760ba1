"""Molmo 2's arithmetic of overlapping crops and pooled patches, as transformers 5.24 has it.

Source: ``models/molmo2/image_processing_molmo2.py``. Divisions are float32 there, so here.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Pool = tuple[int, int]


@lru_cache(maxsize=4096)
def tiling(height: int, width: int, window: int, max_crops: int) -> tuple[int, int]:
    """(rows, columns) of crops: the least enlargement, else the least reduction; ``select_tiling``.

    ``height`` and ``width`` are the picture's less the margins, and may be 0 or negative.
    """
    numbers = range(1, max_crops + 1)
    found = [(r, c) for r, c in itertools.product(numbers, repeat=2) if r * c <= max_crops]
    found.sort(key=lambda pair: (pair[0] * pair[1], pair[0]))
    with np.errstate(divide="ignore"):
        each = np.float32(np.array(found) * window) / np.array([height, width], np.float32)
    scales = each.min(1)
    if (scales < 1).all():
        return found[int(scales.argmax())]
    return found[int(np.where(scales < 1, np.float32(10e9), scales).argmin())]


def canvas_patches(
    down: int, across: int, wide: int, margins: tuple[int, int]
) -> NDArray[np.int64]:
    """For each patch of the canvas the patch that shows it, of all crops' in turn; int64 [h, w].

    Args:
        down: rows of crops.
        across: columns of crops.
        wide: patches along a crop's side.
        margins: patches that a crop leaves to its neighbour before and after it.
    """
    left, right = margins
    index = np.arange(down * across * wide * wide).reshape(down, across, wide, wide)
    rows = [r for r in range(down) for _ in _kept(r, down, wide, left, right)]
    columns = [c for c in range(across) for _ in _kept(c, across, wide, left, right)]
    high = [at for r in range(down) for at in _kept(r, down, wide, left, right)]
    broad = [at for c in range(across) for at in _kept(c, across, wide, left, right)]
    shown: NDArray[np.int64] = index[
        np.array(rows)[:, None], np.array(columns), np.array(high)[:, None], np.array(broad)
    ]
    return shown


def _kept(number: int, count: int, wide: int, left: int, right: int) -> range:
    """Which patches along a side are looked at in crop ``number`` of ``count``."""
    return range(left if number else 0, wide - right if number + 1 < count else wide)


def pooled(patches: NDArray[np.int64], pool: Pool) -> tuple[tuple[int, int], NDArray[np.int64]]:
    """(rows, columns) of tokens, and what each pools: int64 [tokens, high · wide], −1 is none.

    Where the patches are no multiple of ``pool``, what lacks is put half before and half after
    them.
    """
    high, wide = pool
    spare = [(-(-n // p) * p - n) for n, p in zip(patches.shape, pool, strict=True)]
    edges = [(missing // 2, (missing + 1) // 2) for missing in spare]
    full = np.pad(patches, edges, constant_values=-1)
    rows, columns = full.shape[0] // high, full.shape[1] // wide
    cut = full.reshape(rows, high, columns, wide).transpose(0, 2, 1, 3)
    return (rows, columns), cut.reshape(rows * columns, high * wide)
