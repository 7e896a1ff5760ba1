"""Medians and percentiles of values and of paired ratios."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Spread = tuple[float, float, float]
"""20th percentile, median, 80th percentile."""


def spread(values: Sequence[float]) -> Spread:
    """Of one or more values.

    Raises:
        ValueError: there is none.
    """
    if not values:
        raise ValueError("no values: a spread needs at least one")
    low, middle, high = np.percentile(np.asarray(values, np.float64), [20, 50, 80])
    return float(low), float(middle), float(high)


def paired_ratios(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float]:
    """``ours ÷ theirs`` round by round; rounds in which one has no value are left out.

    Raises:
        ValueError: they are not of the same rounds.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds beside {len(theirs)}: pairs are of the same round")
    return [a / b for a, b in zip(ours, theirs, strict=True) if a is not None and b]
