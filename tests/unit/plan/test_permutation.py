"""Permutations: bijective for any n, the same for ever, and shuffled."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_mm import rng
from zephon_mm.plan.permutation import LARGEST, SMALL, Permutation

SIZES = [
    *range(1, 70),
    *(SMALL + i for i in range(-2, 3)),
    *(2**14 + i for i in range(-1, 2)),
    *(73**2 + i for i in range(-1, 2)),
    *(72 * 73 + i for i in range(-1, 2)),
    10_007,
]


@pytest.mark.parametrize("n", SIZES)
def test_every_value_comes_once(n: int) -> None:
    values = Permutation(rng.key("test", n), n).all()
    assert values.dtype == np.int64
    assert np.array_equal(np.sort(values), np.arange(n))


@given(st.integers(0, 2**128 - 1), st.integers(1, 40_000))
@settings(max_examples=100, deadline=None)
def test_any_key_and_size_permute(key: int, n: int) -> None:
    assert np.array_equal(np.sort(Permutation(key, n).all()), np.arange(n))


@given(
    st.integers(0, 2**128 - 1),
    st.one_of(st.integers(1, 9000), st.integers(1, LARGEST), st.just(LARGEST)),
    st.data(),
)
@settings(deadline=None)
def test_one_value_equals_many(key: int, n: int, data: st.DataObject) -> None:
    permutation = Permutation(key, n)
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True))
    many = permutation.take(np.array(places)).tolist()
    assert many == [permutation.at(place) for place in places]
    assert len(set(many)) == len(many)
    assert all(0 <= value < n for value in many)
    assert pickle.loads(pickle.dumps(permutation)).take(np.array(places)).tolist() == many


def test_the_order_is_the_same_for_ever() -> None:
    key = rng.key("golden")
    assert Permutation(key, 1).all().tolist() == [0]
    assert Permutation(key, 10).all().tolist() == [3, 0, 5, 1, 4, 9, 8, 2, 6, 7]
    assert [Permutation(key, 5000).at(i) for i in range(6)] == [2502, 1261, 1227, 2774, 3400, 2573]
    assert [Permutation(key, 10**9).at(i) for i in range(4)] == [
        859342176,
        151201195,
        316141362,
        925449640,
    ]
    assert [Permutation(key, 2**62).at(i) for i in range(3)] == [
        3650036354169479188,
        499694788471283528,
        1080561640388375808,
    ]


@pytest.mark.parametrize("n", [0, -1, LARGEST + 1])
def test_a_size_out_of_range_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="expected 1"):
        Permutation(1, n)


@pytest.mark.parametrize("n", [5, 5000])
@pytest.mark.parametrize("outside", [-1, 0])
def test_a_place_out_of_range_is_refused(n: int, outside: int) -> None:
    with pytest.raises(IndexError):
        Permutation(1, n).at(outside if outside < 0 else n)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_small_sizes_reach_every_order_evenly(n: int) -> None:
    tries, orders = 6000, math.factorial(n)
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(tries):
        order = tuple(Permutation(rng.key("even", seed), n).all().tolist())
        seen[order] = seen.get(order, 0) + 1
    expected = tries / orders
    assert len(seen) == orders
    chi = sum((count - expected) ** 2 / expected for count in seen.values())
    assert chi < orders + 5 * math.sqrt(2 * orders)


@pytest.mark.parametrize("n", [64, SMALL + 1, 100_000])
def test_where_a_value_lands_is_even(n: int) -> None:
    """First, middle and last place over many keys, in 16 bins of values; and no fixed points."""
    tries, bins = 4000, 16
    places = np.array([0, n // 2, n - 1])
    landed = np.array([Permutation(rng.key("land", i), n).take(places) for i in range(tries)])
    for column in landed.T:
        counts = np.bincount(column * bins // n, minlength=bins)
        assert ((counts - tries / bins) ** 2 / (tries / bins)).sum() < 45  # p < 1e-4, 15 degrees
    steps = (landed[:, 1] - landed[:, 0]) % n * bins // n
    counts = np.bincount(steps, minlength=bins)
    assert ((counts - tries / bins) ** 2 / (tries / bins)).sum() < 45


@pytest.mark.parametrize("n", [SMALL, 20_000])
def test_neighbours_are_torn_apart(n: int) -> None:
    values = Permutation(rng.key("apart"), n).all()
    correlation = np.corrcoef(values[:-1], values[1:])[0, 1]
    assert abs(correlation) < 5 / math.sqrt(n)
    assert abs(np.corrcoef(np.arange(n), values)[0, 1]) < 5 / math.sqrt(n)
    assert (np.abs(np.diff(values)) == 1).sum() < 12  # expected 2
    assert (values == np.arange(n)).sum() < 10  # expected 1
