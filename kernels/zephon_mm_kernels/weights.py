"""Integer resampling weights, vectorised; `reference.weights` is the definition they equal."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Weights = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]
Axis = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int16], bool]

_INT64_REACH = 40_000
"""Above this filter reach the cubes outgrow 64 bits and Python's whole numbers are used."""


@lru_cache(maxsize=256)
def resize_weights(samples: int, outputs: int, length: int, unit: int) -> Weights:
    """Weights of one axis of one plane.

    Args:
        samples: samples of the plane.
        outputs: samples wanted.
        length: luma samples of the frame, which all outputs together cover.
        unit: luma samples a sample of this plane covers: 1, 2 (4:2:0 chroma) or 4.

    Returns:
        first: int32 [outputs], first source sample of each output.
        count: int32 [outputs], how many samples it takes.
        weights: int32 [outputs, max(count)], zero beyond count; each row sums to 16384.
    """
    whole = np.int64 if max(2 * length, 2 * unit * outputs) <= _INT64_REACH else object
    d = 2 * unit * outputs
    f = max(2 * length, d)
    centers = (2 * np.arange(outputs, dtype=np.int64) + 1) * length
    first = np.maximum(0, (centers - 2 * f + d // 2) // d)
    count = np.minimum(samples, (centers + 2 * f + d // 2) // d) - first
    k = first[:, None] + np.arange(int(count.max()))
    inside = k < (first + count)[:, None]
    p = np.abs(k * d - centers[:, None] + d // 2).astype(whole)
    near = 3 * p**3 - 5 * p**2 * f + 2 * f**3
    far = -(p**3) + 5 * p**2 * f - 8 * p * f**2 + 4 * f**3
    raw = np.where(p < f, near, np.where(p < 2 * f, far, 0))
    raw = np.where(inside, raw, 0)
    total = raw.sum(axis=1)[:, None]
    q = ((2 * raw * 16384 + total) // (2 * total)).astype(np.int64)
    q = np.where(inside, q, 0)
    ranked = np.where(inside, q, np.iinfo(np.int64).min)
    q[np.arange(outputs), ranked.argmax(axis=1)] += 16384 - q.sum(axis=1)
    arrays = first.astype(np.int32), count.astype(np.int32), q.astype(np.int32)
    for array in arrays:
        array.flags.writeable = False
    return arrays


@lru_cache(maxsize=512)
def trimmed_weights(samples: int, outputs: int, length: int, unit: int, mirror: bool) -> Axis:
    """`resize_weights` as the fast paths take them: no zeros at the ends, mirrored if asked.

    Returns:
        first: int32 [outputs].
        count: int32 [outputs], at least 1.
        weights: int16 [outputs, taps], zero beyond count; taps is even.
        same: whether the axis changes nothing.
    """
    first, count, weights = resize_weights(samples, outputs, length, unit)
    lead = (weights != 0).argmax(axis=1)
    count = weights.shape[1] - (weights[:, ::-1] != 0).argmax(axis=1) - lead
    taps = int(count.max()) + int(count.max()) % 2
    columns = np.minimum(lead[:, None] + np.arange(taps), weights.shape[1] - 1)
    inside = np.arange(taps) < count[:, None]
    kept = np.where(inside, np.take_along_axis(weights, columns, axis=1), 0)
    order = slice(None, None, -1 if mirror else 1)
    starts = (first + lead).astype(np.int32)[order].copy()
    counts = count.astype(np.int32)[order].copy()
    rows = kept.astype(np.int16)[order].copy()
    for array in (starts, counts, rows):
        array.flags.writeable = False
    still = samples == outputs and np.array_equal(starts, np.arange(samples))
    return starts, counts, rows, bool(still and np.all(counts == 1))
