"""Chunks and how they are dealt: exactly once an epoch, whatever the numbers."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_mm.errors import ConfigError, StateError
from zephon_mm.plan.chunks import ChunkTable, SourceShape
from zephon_mm.plan.dealing import Dealing, LaneStream
from zephon_mm.sample import SampleRef


def shape(samples: list[int], largest: int | list[int] = 256) -> SourceShape:
    most = [largest] * len(samples) if isinstance(largest, int) else largest
    return SourceShape(np.array(samples, dtype=np.int64), np.array(most, dtype=np.int64))


def dealing(samples: list[int], lanes: int, epochs: int | None, largest: int = 256) -> Dealing:
    return Dealing("s", ChunkTable("s", shape(samples, largest), lanes), lanes, 3, epochs)


def read(stream: LaneStream, most: int = 10**9, step: int = 37) -> list[SampleRef]:
    refs: list[SampleRef] = []
    while len(refs) < most and not stream.exhausted:
        refs += stream.take(min(stream.fill(step), step, most - len(refs)))
    return refs


odd_shards = st.lists(
    st.one_of(st.just(0), st.integers(0, 40), st.integers(0, 3000)), min_size=1, max_size=12
).filter(any)


@given(odd_shards, st.integers(1, 70), st.sampled_from([1, 2, 7, 100, 256]))
@settings(max_examples=200, deadline=None)
def test_chunks_tile_every_shard(samples: list[int], lanes: int, largest: int) -> None:
    table = ChunkTable("s", shape(samples, largest), lanes)
    shards, first, counts = table.locate(np.arange(table.num_chunks))
    size = min(largest, max(1, min(256, sum(samples) // (64 * lanes))))
    assert table.num_samples == counts.sum() == sum(samples)
    assert counts.min() >= 1 and counts.max() <= size
    tiled = [
        (int(s), int(f) + i)
        for s, f, n in zip(shards, first, counts, strict=True)
        for i in range(n)
    ]
    assert tiled == [(s, i) for s, n in enumerate(samples) for i in range(n)]
    assert table.num_chunks == sum(-(-n // size) for n in samples)


def test_each_shard_keeps_its_own_limit() -> None:
    table = ChunkTable("s", shape([100_000, 10, 0, 10], [256, 4, 1, 1]), 1)
    shards, _, counts = table.locate(np.arange(table.num_chunks))
    assert [int(counts[shards == s].max(initial=0)) for s in range(4)] == [256, 4, 0, 1]


@pytest.mark.parametrize(
    ("samples", "largest"), [([1, 2], [1]), ([-1], [1]), ([1], [0]), ([1], [257]), ([[1]], [[1]])]
)
def test_a_broken_manifest_is_refused(samples: list[int], largest: list[int]) -> None:
    with pytest.raises(ConfigError, match="rebuild its index"):
        ChunkTable("s", SourceShape(np.array(samples), np.array(largest)), 2)


@given(odd_shards, st.integers(1, 70), st.sampled_from([1, 3, 100, 256]), st.integers(1, 3))
@settings(max_examples=300, deadline=None)
def test_every_sample_comes_once_an_epoch(
    samples: list[int], lanes: int, largest: int, epochs: int
) -> None:
    dealt = dealing(samples, lanes, epochs, largest)
    seen: Counter[tuple[int, int, int]] = Counter()
    for lane in range(lanes):
        refs = read(LaneStream(dealt, 0, lane, 0))
        seen.update((ref.epoch, ref.shard, ref.sample) for ref in refs)
        positions = [ref.position for ref in refs]
        assert all(a < b for a, b in itertools.pairwise(positions))
        assert [ref.epoch for ref in refs] == sorted(ref.epoch for ref in refs)
        assert dealt.remaining(lane, 0) == len(refs)
    expected = {(e, s, i) for e in range(epochs) for s, n in enumerate(samples) for i in range(n)}
    assert set(seen) == expected and set(seen.values()) == {1}


@given(odd_shards, st.integers(1, 20), st.data())
@settings(max_examples=100, deadline=None)
def test_a_position_finds_its_draw_and_the_rest(
    samples: list[int], lanes: int, data: st.DataObject
) -> None:
    dealt = dealing(samples, lanes, 3)
    lane = data.draw(st.integers(0, lanes - 1))
    refs = read(LaneStream(dealt, 5, lane, 0))
    for ref in refs[:: max(1, len(refs) // 50)]:
        assert dealt.find(lane, ref.position) == (ref.shard, ref.sample, ref.epoch)
    if refs:
        at = data.draw(st.integers(0, len(refs) - 1))
        position = refs[at].position + 1
        assert read(LaneStream(dealt, 5, lane, position), step=11) == refs[at + 1 :]
        assert dealt.remaining(lane, position) == len(refs) - at - 1


@given(odd_shards, st.integers(1, 20), st.sampled_from([1, 3, 256]))
@settings(max_examples=60, deadline=None)
def test_no_position_but_a_draws_is_found(samples: list[int], lanes: int, largest: int) -> None:
    dealt = dealing(samples, lanes, 1, largest)
    lane = lanes // 2
    true = {ref.position for ref in read(LaneStream(dealt, 0, lane, 0))}
    near = {p + d for p in [*sorted(true)[:20], *sorted(true)[-20:], 0] for d in range(-2, 3)}
    for position in near - true:
        with pytest.raises(StateError, match="no draw at position"):
            dealt.find(lane, position)


def test_windows_are_runs_of_chunks_cut_at_the_epochs_end() -> None:
    dealt = dealing([1000] * 7, 3, None)
    chunks = dealt.table.num_chunks
    j = 0
    for epoch in range(5):
        start, stop = dealt.first_chunk(1, epoch), dealt.first_chunk(1, epoch + 1)
        assert (start * 3 + 1) // chunks == epoch and ((start - 1) * 3 + 1) // chunks == epoch - 1
        number = 0
        while j < stop:
            window = dealt.window(1, j)
            assert window == (epoch, number, j, min(j + dealt.window_chunks, stop))
            assert all(dealt.window(1, k) == window for k in range(j, window.stop))
            j, number = window.stop, number + 1
        assert j == stop


def test_samples_are_shuffled_in_windows_of_chunks_that_are_shuffled_too() -> None:
    dealt = dealing([10_000] * 100, 4, None)
    assert dealt.table.chunk_size == 256
    refs = read(LaneStream(dealt, 0, 2, 0), 4096)
    neighbours = sum(
        a.shard == b.shard and abs(a.sample - b.sample) == 1 for a, b in itertools.pairwise(refs)
    )
    assert neighbours < 12  # expected 2
    assert len({ref.shard for ref in refs[:64]}) > 10
    assert len({(ref.shard, ref.sample // 256) for ref in refs}) <= dealt.window_chunks + 2


def test_lanes_and_epochs_have_orders_of_their_own() -> None:
    dealt = dealing([64], 1, None)
    refs = read(LaneStream(dealt, 0, 0, 0), 256)
    orders = {tuple(ref.sample for ref in refs[i : i + 64]) for i in range(0, 256, 64)}
    assert len(orders) == 4


def test_a_window_far_away_costs_no_more() -> None:
    dealt = dealing([10_000] * 1000, 64, None)
    position = 10**15 * 256
    refs = read(LaneStream(dealt, 0, 5, position), 10_000)
    assert refs[0].position >= position and refs[0].epoch > 10**12
    assert dealt.find(5, refs[5000].position) == refs[5000][1:4]


def test_a_source_smaller_than_the_lanes_reaches_them_in_turn() -> None:
    dealt = dealing([3], 8, 8)
    each = [len(read(LaneStream(dealt, 0, lane, 0))) for lane in range(8)]
    assert each == [3] * 8
    once = dealing([3], 8, 1)
    assert [len(read(LaneStream(once, 0, lane, 0))) for lane in range(8)] == [
        1,
        1,
        1,
        0,
        0,
        0,
        0,
        0,
    ]
