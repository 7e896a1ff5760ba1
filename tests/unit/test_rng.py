"""Keys that never collide, and streams that are the same for ever."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_mm import rng

parts = st.lists(
    st.one_of(st.integers(-(2**70), 2**70), st.text("0123456789:,si-", max_size=4)), max_size=4
)


@given(parts, parts)
def test_different_parts_give_different_keys(one: list[int | str], two: list[int | str]) -> None:
    same = [(type(p), p) for p in one] == [(type(p), p) for p in two]
    assert (rng.key("x", *one) == rng.key("x", *two)) == same


def test_the_purpose_counts_and_numpy_numbers_are_numbers() -> None:
    assert rng.key("order", 1) != rng.key("draw", 1)
    assert rng.key("order", np.int64(1)) == rng.key("order", 1)  # type: ignore[arg-type]
    assert rng.key("order", "1") != rng.key("order", 1)
    assert 0 <= rng.key("order") < 2**128


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**60), st.integers(0, 40))
def test_a_word_does_not_depend_on_where_reading_started(key: int, first: int, count: int) -> None:
    whole = rng.words(key, first, count)
    assert whole.dtype == np.uint64 and whole.shape == (count,)
    assert whole.tolist() == [int(rng.words(key, first + i, 1)[0]) for i in range(count)]


def test_streams_are_the_same_for_ever() -> None:
    key = rng.key("golden", 7, "clips", 2**40)
    assert f"{key:032x}" == "e814e7380492841a865fc925a7391e85"
    assert [f"{word:016x}" for word in rng.words(key, 5, 3).tolist()] == [
        "731dd86536f525f4",
        "b95e46b525355cbd",
        "42433a880a6d6d8b",
    ]
    assert rng.uniforms(key, 5, 2).tolist() == [0.44967415305196257, 0.7240947906731966]
    assert [rng.below(key, i, 1000) for i in range(5)] == [449, 535, 713, 502, 958]


def test_uniforms_fill_the_unit_interval() -> None:
    numbers = rng.uniforms(rng.key("spread"), 3, 100_000)
    assert numbers.dtype == np.float64
    assert 0 <= numbers.min() and numbers.max() < 1
    counts = np.bincount((numbers * 16).astype(int), minlength=16)
    assert ((counts - 6250) ** 2 / 6250).sum() < 45  # chi-squared, 15 degrees: p < 1e-4 above


def test_below_stays_below() -> None:
    for limit, index in itertools.product((1, 2, 3, 2**62), range(50)):
        assert 0 <= rng.below(9, index, limit) < limit


def test_a_negative_word_is_refused() -> None:
    with pytest.raises(ValueError):
        rng.words(1, -5, 1)
