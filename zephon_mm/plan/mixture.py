"""Which source each draw of a lane comes from.

Draw ``n`` of a lane is a uniform number ``u`` of the stream (seed, lane) at ``n``, and takes the
first source whose cumulative weight is above ``u · total``, over the sources that have draws left
in the lane. So a draw depends on its number and on which sources are left, never on how many were
made at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..config import DataConfig


def mixture_weights(config: DataConfig) -> tuple[float, ...]:
    """Each source's share of the draws, relative to the others.

    Its weight, or with ``mixture="tokens"`` its weight over the tokens of its mean document.
    """
    if config.mixture == "samples":
        return tuple(source.weight for source in config.sources)
    return tuple(source.weight / (source.mean_tokens or 1.0) for source in config.sources)


def choose(uniforms: NDArray[np.float64], weights: Sequence[float]) -> NDArray[np.int64]:
    """The place in ``weights`` (each above 0) that each number of [0, 1) falls on: int64."""
    edges = np.cumsum(np.asarray(weights, dtype=np.float64))
    places = np.searchsorted(edges, uniforms * edges[-1], side="right")
    last: NDArray[np.int64] = np.minimum(places, len(weights) - 1)  # u · total may round to total
    return last
