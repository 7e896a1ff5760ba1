"""Shares of the sources, and which number falls on which."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon_mm.config import DataConfig, Source
from zephon_mm.plan.mixture import choose, mixture_weights


def config(**changes: object) -> DataConfig:
    sources = (
        Source(id="a", urls="a.tar", format="text", weight=3, mean_tokens=600),
        Source(id="b", urls="b.tar", format="text", weight=1, mean_tokens=50),
    )
    return DataConfig(sources=sources, model="qwen3_vl", tokenizer="t", **changes)  # type: ignore[arg-type]


def test_weights_are_of_samples_or_of_tokens() -> None:
    assert mixture_weights(config()) == (3.0, 1.0)
    assert mixture_weights(config(mixture="tokens")) == (3 / 600, 1 / 50)


def test_the_first_edge_above_the_number_wins() -> None:
    numbers = np.array([0.0, 0.2499999, 0.25, 0.7499999, 0.75, 1 - 2.0**-53])
    assert choose(numbers, (1.0, 2.0, 1.0)).tolist() == [0, 0, 1, 1, 2, 2]


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=9))
def test_every_number_falls_on_a_source(weights: list[float]) -> None:
    numbers = np.array([0.0, 0.5, 1 - 2.0**-53])
    places = choose(numbers, weights)
    assert 0 <= places.min() and places.max() < len(weights)
    edges = np.cumsum(weights)
    assert places[0] == int(np.flatnonzero(edges > 0)[0])
