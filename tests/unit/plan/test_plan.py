"""The plan: mixture, ends, cursors, and that nothing but the config moves it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_mm.config import DataConfig, Source, Stop
from zephon_mm.errors import ConfigError, StateError
from zephon_mm.plan import LaneCursor, Plan, SourceShape
from zephon_mm.sample import SampleRef


def shape(samples: Sequence[int], largest: int = 256) -> SourceShape:
    return SourceShape(
        np.array(samples, dtype=np.int64), np.full(len(samples), largest, dtype=np.int64)
    )


def source(name: str, weight: float = 1.0, **changes: Any) -> Source:
    return Source(id=name, urls=f"{name}.tar", format="text", weight=weight, **changes)


def plan(
    samples: dict[str, Sequence[int]],
    weights: Sequence[float] | None = None,
    *,
    lanes: int = 4,
    largest: int = 256,
    epochs: Sequence[int | None] | None = None,
    **changes: Any,
) -> Plan:
    sources = tuple(
        source(
            name,
            weights[i] if weights else 1.0,
            epochs=epochs[i] if epochs else None,
            mean_tokens=100,
        )
        for i, name in enumerate(samples)
    )
    config = DataConfig(
        sources=sources,
        model="qwen3_vl",
        tokenizer="t",
        lanes=lanes,
        global_batch=lanes,
        **changes,
    )
    return Plan(config, [shape(counts, largest) for counts in samples.values()])


def lane(made: Plan, number: int, count: int | None = None) -> list[SampleRef]:
    return list(itertools.islice(made.draws(made.cursor(number)), count))


def everything(made: Plan) -> Counter[tuple[int, int, int, int]]:
    return Counter(
        (ref.source, ref.shard, ref.sample, ref.epoch)
        for number in range(made.lanes)
        for ref in lane(made, number)
    )


def expected(samples: dict[str, Sequence[int]], epochs: Sequence[int]) -> set[tuple[int, ...]]:
    return {
        (source, shard, sample, epoch)
        for source, counts in enumerate(samples.values())
        for shard, count in enumerate(counts)
        for sample in range(count)
        for epoch in range(epochs[source])
    }


odd_sources = st.lists(
    st.lists(st.one_of(st.integers(0, 5), st.integers(0, 1500)), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
).filter(lambda sources: any(map(any, sources)))


@given(
    odd_sources,
    st.integers(1, 24),
    st.sampled_from([1, 5, 256]),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_every_sample_of_every_source_comes_once_an_epoch(
    counts: list[list[int]], lanes: int, largest: int, epochs: int, random: Any
) -> None:
    samples: dict[str, Sequence[int]] = {f"s{i}": c for i, c in enumerate(counts)}
    own = [random.choice([None, 1, 2]) for _ in counts]
    weights = [random.choice([0.01, 1.0, 50.0]) for _ in counts]
    made = plan(
        samples, weights, lanes=lanes, largest=largest, epochs=own, stop=Stop(epochs=epochs)
    )
    seen = everything(made)
    assert set(seen) == expected(samples, [e or epochs for e in own])
    assert set(seen.values()) == {1}
    assert made.finite
    assert made.empty_sources == tuple(name for name, c in samples.items() if not any(c))


@given(odd_sources, st.integers(1, 9), st.sampled_from([None, 1, 3]), st.data())
@settings(max_examples=80, deadline=None)
def test_any_cursor_goes_on_as_if_nothing_had_stopped(
    counts: list[list[int]], lanes: int, epochs: int | None, data: st.DataObject
) -> None:
    samples: dict[str, Sequence[int]] = {f"s{i}": c for i, c in enumerate(counts)}
    when = data.draw(st.sampled_from(["all_exhausted", "first_exhausted"]))
    made = plan(samples, lanes=lanes, stop=Stop(epochs=epochs, when=when))
    number = data.draw(st.integers(0, lanes - 1))
    whole = lane(made, number, 150 if epochs is None else 3000)
    cursor, done = made.cursor(number), 0
    for stop in sorted(data.draw(st.lists(st.integers(0, len(whole)), min_size=1, max_size=4))):
        before = cursor.copy()
        for ref in whole[done:stop]:
            made.advance(cursor, ref)
        rest = list(itertools.islice(made.draws(cursor), len(whole) - stop))
        assert rest == whole[stop:]
        assert cursor.draw == stop and (cursor == before) == (stop == done)
        if epochs is not None and len(whole) < 3000:
            left = Counter(ref.source for ref in made.draws(cursor))
            remaining = made.remaining(cursor)
            assert all(left[i] <= (n or 0) for i, n in enumerate(remaining))
            if when == "all_exhausted":
                assert [left[i] for i in range(len(counts))] == remaining
        done = stop
    for ref in whole[:: max(1, len(whole) // 40)]:
        assert made.ref(number, ref.source, ref.position) == ref


def test_resuming_at_every_draw_of_a_small_stream() -> None:
    """D03, D04, D11: also a cursor copied without a draw between."""
    samples = {"a": [7, 0, 5], "b": [3], "c": [29]}
    made = plan(samples, [1, 1, 5], lanes=2, stop=Stop(epochs=2))
    for number in range(2):
        whole = lane(made, number)
        cursor = made.cursor(number)
        for at, ref in enumerate(whole):
            again = plan(samples, [1, 1, 5], lanes=2, stop=Stop(epochs=2))
            assert list(again.draws(cursor.copy().copy())) == whole[at:]
            made.advance(cursor, ref)
        assert list(made.draws(cursor)) == [] and made.remaining(cursor) == [0, 0, 0]


def test_draws_do_not_move_the_cursor_and_read_it_once() -> None:
    made = plan({"a": [500], "b": [70]})
    cursor = made.cursor(1)
    ahead = made.draws(cursor)
    first = list(itertools.islice(ahead, 100))
    assert cursor == made.cursor(1)
    for ref in first[:60]:
        made.advance(cursor, ref)
    assert list(itertools.islice(ahead, 100)) == lane(made, 1, 200)[100:]
    assert list(itertools.islice(made.draws(cursor), 40)) == first[60:]


def test_first_draws_are_the_same_for_ever() -> None:
    made = plan({"text": [1000, 0, 3000], "clips": [90, 10]}, [3, 1], lanes=4, seed=17)
    golden = [
        (1, 0, 76, 0, 0),
        (1, 1, 1, 0, 1),
        (1, 0, 84, 0, 2),
        (0, 0, 541, 0, 0),
        (0, 2, 2963, 0, 1),
        (1, 0, 63, 0, 3),
        (0, 0, 547, 0, 2),
        (1, 0, 19, 0, 4),
    ]
    assert [tuple(ref) for ref in lane(made, 2, 8)] == golden
    refs = lane(made, 3, 20_000)
    assert tuple(refs[-1]) == (0, 2, 1799, 15, 256311)


def test_the_seed_the_lane_and_the_epoch_matter() -> None:
    orders = {
        tuple(ref[:3] for ref in lane(plan({"a": [5000]}, seed=seed), number, 50))
        for seed in range(3)
        for number in range(4)
    }
    assert len(orders) == 12


@pytest.mark.parametrize("weights", [(0.7, 0.2, 0.1), (5.0, 5.0, 90.0)])
def test_shares_follow_the_weights(weights: tuple[float, ...]) -> None:
    made = plan({"a": [900], "b": [40, 2], "c": [300]}, weights)
    draws = 20_000
    counts = Counter(ref.source for n in range(4) for ref in lane(made, n, draws // 4))
    for i, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(counts[i] / draws - share) < 5 * (share * (1 - share) / draws) ** 0.5


def test_shares_of_tokens_follow_the_weights() -> None:
    sources = (
        source("short", 1.0, mean_tokens=50),
        source("long", 3.0, mean_tokens=1000),
    )
    config = DataConfig(
        sources=sources, model="qwen3_vl", tokenizer="t", mixture="tokens", global_batch=8
    )
    made = Plan(config, [shape([1000]), shape([1000])])
    counts = Counter(ref.source for n in range(8) for ref in lane(made, n, 20_000))
    tokens = (counts[0] * 50, counts[1] * 1000)
    assert abs(tokens[1] / sum(tokens) - 0.75) < 0.01


def test_a_source_added_moves_no_other() -> None:
    one = plan({"a": [700, 30], "b": [4000]}, lanes=3)
    two = plan({"new": [90], "b": [4000], "a": [700, 30]}, lanes=3)
    for number in range(3):
        before, after = lane(one, number, 8000), lane(two, number, 8000)
        for old, new in ((0, 2), (1, 1)):
            a = [ref[1:] for ref in before if ref.source == old]
            b = [ref[1:] for ref in after if ref.source == new]
            n = min(len(a), len(b))
            assert n > 1000 and a[:n] == b[:n]


def test_weights_move_no_sources_own_order() -> None:
    one, two = plan({"a": [700], "b": [4000]}), plan({"a": [700], "b": [4000]}, [1, 9])
    a, b = ([ref for ref in lane(p, 1, 3000) if ref.source == 1] for p in (one, two))
    assert a[:1000] == b[:1000]


def test_a_source_that_runs_out_leaves_the_lane_and_the_rest_goes_on() -> None:
    made = plan({"a": [40], "b": [4000]}, lanes=2, epochs=[1, None])
    assert not made.finite
    for number in range(2):
        refs = lane(made, number, 5000)
        last = max(i for i, ref in enumerate(refs) if ref.source == 0)
        assert last < 100 and {ref.source for ref in refs[last + 1 :]} == {1}
        assert made.lane_samples(number, 0) == 20 and made.lane_samples(number, 1) is None


def test_draws_before_a_source_runs_out_do_not_know_that_it_will() -> None:
    short = plan({"a": [40], "b": [400], "c": [9000]}, lanes=2, epochs=[1, 1, None])
    endless = plan({"a": [40], "b": [400], "c": [9000]}, lanes=2)
    one, two = lane(short, 0, 60), lane(endless, 0, 60)
    last = max(i for i, ref in enumerate(one) if ref.source == 0)
    assert one[: last + 1] == two[: last + 1]


@pytest.mark.parametrize("order", list(itertools.permutations([0, 2, 1])))
def test_an_empty_source_is_left_out(order: tuple[int, ...]) -> None:
    """D08."""
    samples: dict[str, Sequence[int]] = {f"s{n}": [n] for n in order}
    made = plan(samples, lanes=4, stop=Stop(epochs=1))
    assert everything(made) == Counter(expected(samples, [1, 1, 1]))
    assert made.empty_sources == ("s0",)
    assert made.epochs(order.index(0)) == 0


def test_an_empty_source_changes_no_share() -> None:
    """D08: weights are those of the sources with data; none stands in for the empty one."""
    made = plan({"none": [0, 0], "a": [50], "b": [50]}, [8, 1, 1])
    counts = Counter(ref.source for ref in lane(made, 0, 10_000))
    assert counts[0] == 0 and abs(counts[1] / 10_000 - 0.5) < 0.025
    without = plan({"a": [50], "b": [50]}, [1, 1])
    assert [r[1:] for r in lane(made, 0, 500)] == [r[1:] for r in lane(without, 0, 500)]


@pytest.mark.parametrize("weights", [None, [1, 0]])
def test_nothing_but_empty_sources_is_refused(weights: list[float] | None) -> None:
    full = 0 if weights is None else 7  # a full one of weight 0 is no help
    with pytest.raises(ConfigError, match=r"nothing to draw.*'a'"):
        plan({"a": [0], "b": [full]}, weights)


def test_a_source_without_shards_is_empty() -> None:
    made = plan({"a": [], "b": [3]}, stop=Stop(epochs=1))
    assert made.empty_sources == ("a",) and sum(everything(made).values()) == 3


@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
def test_all_exhausted_gives_every_sample(lanes: int) -> None:
    """D09: sources of 3, 4 and 3 at 0.2, 0.6 and 0.2."""
    samples = {"a": [3], "b": [4], "c": [3]}
    made = plan(samples, [0.2, 0.6, 0.2], lanes=lanes, stop=Stop(epochs=1))
    assert everything(made) == Counter(expected(samples, [1, 1, 1]))


def test_first_exhausted_ends_a_lane_right_after_the_draw_that_exhausts() -> None:
    samples = {"a": [300], "b": [4000], "c": [1]}
    ends = Stop(epochs=1, when="first_exhausted")
    made, whole = plan(samples, stop=ends), plan(samples, stop=Stop(epochs=1))
    assert made.finite
    for number in range(4):
        refs = lane(made, number)
        counts = Counter(ref.source for ref in refs)
        shares = [made.lane_samples(number, i) for i in range(3)]
        out = [i for i in range(3) if shares[i] and counts[i] == shares[i]]
        assert out == [refs[-1].source]
        assert refs == lane(whole, number)[: len(refs)]
        assert shares[2] == (number == 0) and (out == [2]) == (number == 0)


def test_a_lane_that_a_small_source_does_not_reach_is_not_ended_by_it() -> None:
    made = plan({"a": [2], "b": [9]}, lanes=8, stop=Stop(epochs=1, when="first_exhausted"))
    each = [lane(made, number) for number in range(8)]
    assert all(refs for refs in each)
    assert all(refs[-1].source == 1 for refs in each[2:])


def test_first_exhausted_that_would_never_end_is_refused() -> None:
    samples = {"tiny": [2], "big": [900]}
    when = "first_exhausted"
    with pytest.raises(ConfigError, match=r"6 of 8 lanes: 'tiny'.*'big'"):
        plan(samples, lanes=8, epochs=[1, None], stop=Stop(when=when))
    assert plan(samples, lanes=2, epochs=[1, None], stop=Stop(when=when)).finite
    made = plan(samples, lanes=8, epochs=[1, None], stop=Stop(when=when, num_steps=9))
    assert not made.finite
    assert not plan(samples, lanes=8, stop=Stop(when=when)).finite


def test_a_source_of_weight_0_is_never_drawn_but_can_be_found() -> None:
    samples = {"a": [30], "b": [30]}
    drained = plan(samples, [1, 0], lanes=2, stop=Stop(epochs=1))
    assert everything(drained) == Counter(expected(samples, [1, 0]))
    ref = next(ref for ref in lane(plan(samples, lanes=2), 0, 99) if ref.source == 1)
    assert drained.ref(0, 1, ref.position) == ref


@pytest.mark.parametrize(("samples", "lanes"), [([1], 4), ([5, 5, 5], 16), ([100], 8)])
def test_few_shards_leave_no_lane_without_work(samples: list[int], lanes: int) -> None:
    """S01: fewer shards, and fewer samples, than anything that runs them."""
    made = plan({"a": samples}, lanes=lanes)
    counts = [len(lane(made, number, 80)) for number in range(lanes)]
    assert counts == [80] * lanes
    finite = plan({"a": samples}, lanes=lanes, stop=Stop(epochs=lanes))
    assert {len(lane(finite, number)) for number in range(lanes)} == {sum(samples)}


@pytest.mark.parametrize("lanes", [1, 8, 64])
def test_a_source_smaller_than_the_lanes_keeps_its_share_everywhere(lanes: int) -> None:
    """S04: 100 samples and 1."""
    made = plan({"big": [100], "one": [1]}, lanes=lanes)
    counts = Counter(
        ref.source for number in range(lanes) for ref in lane(made, number, 3200 // lanes)
    )
    assert abs(counts[1] / 3200 - 0.5) < 0.05
    once = plan({"big": [100], "one": [1]}, lanes=lanes, stop=Stop(epochs=1))
    assert sum(everything(once).values()) == 101


def test_a_plan_over_a_billion_samples_finds_any_of_them() -> None:
    made = plan({"a": [10_000] * 100_000, "b": [11] * 100_000}, lanes=64)
    assert made.num_samples(0) == 10**9
    position = 10**12 * 256
    cursor = LaneCursor(63, 10**14, [position, position])
    refs = list(itertools.islice(made.draws(cursor), 5000))
    assert all(ref.position >= position for ref in refs) and refs[0].epoch > 10**6
    assert len({ref.shard for ref in refs if ref.source == 0}) >= 16
    assert made.ref(63, refs[-1].source, refs[-1].position) == refs[-1]
    made.advance(cursor, refs[0])
    assert list(itertools.islice(made.draws(cursor), 4999)) == refs[1:]
    assert all(isinstance(value, int) for value in refs[0])


def test_wrong_calls_are_refused() -> None:
    made = plan({"a": [30], "b": [0]}, lanes=2, stop=Stop(epochs=1))
    refs = lane(made, 0)
    cursor = made.cursor(0)
    made.advance(cursor, refs[0])
    with pytest.raises(StateError, match="already made"):
        made.advance(cursor, refs[0])
    for bad in (LaneCursor(2, 0, [0, 0]), LaneCursor(-1, 0, [0, 0]), LaneCursor(0, 0, [0])):
        with pytest.raises(StateError, match="2 lanes and 2 sources"):
            made.draws(bad)
    for number, place, position in ((0, 0, 10**6), (0, 1, 0), (0, 2, 0), (2, 0, 0), (0, 0, -1)):
        with pytest.raises(StateError, match="no draw"):
            made.ref(number, place, position)
    with pytest.raises(ConfigError, match="1 manifests"):
        Plan(
            DataConfig(sources=(source("a"), source("b")), model="qwen3_vl", tokenizer="t"),
            [shape([1])],
        )
