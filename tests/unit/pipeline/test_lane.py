"""Lanes over made-up documents: state at every step, bounds, reads and cuts, without files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from zephon_mm import rng
from zephon_mm.backends import Backend, SerialBackend, open_backend
from zephon_mm.config import DataConfig, Packing, Source, Stop
from zephon_mm.errors import (
    StateError,
    StorageError,
    TooManyQuarantinedError,
    WorkerDiedError,
)
from zephon_mm.pipeline import Lane, count_steps
from zephon_mm.plan import Plan, SourceShape
from zephon_mm.sample import MeasuredDocument, Measurement, Rejected, SampleRef
from zephon_mm.sequencer import Recipe
from zephon_mm.state import LaneState


def a_config(**changes: object) -> DataConfig:
    config = DataConfig(
        sources=(
            Source(id="long", urls="a.tar", format="text", weight=1.0),
            Source(id="short", urls="b.tar", format="text", weight=3.0),
        ),
        model="qwen3_vl",
        tokenizer="none",
        sequence_length=256,
        global_batch=8,
        lanes=4,
        seed=5,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


class FakeMeasure:
    """Documents whose length follows from their reference; every tenth of ``short`` is rejected."""

    def __init__(self, longest: int = 400) -> None:
        self.longest = longest
        self.seen: list[SampleRef] = []
        self.broken: dict[SampleRef, Exception] = {}
        self.salt = ""

    def __call__(self, refs: Sequence[SampleRef]) -> list[Measurement | Exception]:
        self.seen.extend(refs)
        return [self.broken.get(ref) or self.one(ref) for ref in refs]

    def one(self, ref: SampleRef) -> Measurement:
        name = f"{ref.source}/{ref.shard}/{ref.sample}"
        if ref.source == 1 and ref.sample % 10 == 0:
            return Rejected(ref, "shard", name, "quarantined", "format", "made to fail")
        top = self.longest if ref.source == 0 else 60
        length = 2 + rng.below(rng.key("length", name), 0, top)
        tokens = np.arange(length, dtype=np.int32) + ref.sample
        digest = hashlib.blake2b(tokens.tobytes() + self.salt.encode(), digest_size=16).digest()
        return MeasuredDocument(ref, "shard", name, tokens, np.ones(length, np.bool_), (), digest)


def shapes(*sizes: int) -> list[SourceShape]:
    return [
        SourceShape(np.array([n // 2, n - n // 2], np.int64), np.array([256, 256], np.int64))
        for n in sizes
    ]


def make(
    number: int,
    config: DataConfig,
    measure: FakeMeasure,
    backend: Backend | None = None,
    sizes: tuple[int, ...] = (50, 90),
) -> Lane:
    return Lane(
        number,
        config=config,
        plan=Plan(config, shapes(*sizes)),
        measure=measure,
        backend=backend or SerialBackend(),
        relayout=lambda document, tokens, patches: document,
    )


def row(recipe: Recipe | None) -> Any:
    if recipe is None:
        return None
    return [(p.document.ref, p.start, p.stop) for p in recipe.pieces], recipe.digest


def revived(lane: Lane, data: bytes) -> Lane:
    lane.restore(LaneState.decode(data))
    return lane


def test_a_lane_resumes_exactly_after_every_sequence() -> None:
    config, measure = a_config(), FakeMeasure(longest=900)
    lane = make(1, config, measure)
    states, rows = [lane.snapshot().encode()], []
    for step in range(60):
        rows.append(row(lane.next(step)))
        states.append(lane.snapshot().encode())
    for at in range(0, 60, 3):
        again = revived(make(1, config, FakeMeasure(longest=900)), states[at])
        assert again.snapshot().encode() == states[at]
        for step in range(at, min(at + 8, 60)):
            assert row(again.next(step)) == rows[step]
            assert again.snapshot().encode() == states[step + 1]


def waiting_after(steps: int, config: DataConfig, **fake: int) -> tuple[bytes, list[Any]]:
    """A lane's state, and what it gives from there on."""
    lane = make(0, config, FakeMeasure(**fake))
    for step in range(steps):
        lane.next(step)
    return lane.snapshot().encode(), [row(lane.next(step)) for step in range(steps, steps + 60)]


@pytest.mark.parametrize("backend", ["serial", "threads"])
@pytest.mark.parametrize("longest", [400, 3000])  # many pieces of one document wait
def test_restoring_reads_nothing_and_then_each_waiting_document_once(
    backend: str, longest: int
) -> None:
    config = a_config()
    data, rows = waiting_after(300, config, longest=longest)
    state, fresh = LaneState.decode(data), FakeMeasure(longest=longest)
    workers = open_backend(backend, workers=2)
    lane = make(0, config, fresh, workers)
    lane.restore(state)
    assert fresh.seen == []
    assert lane.snapshot().encode() == data
    found = [lane.next(300)]
    waiting = [*state.live, *([state.rest] if state.rest else [])]
    live = {lane._plan.ref(0, one.source, one.position) for one in waiting}
    if backend == "serial":  # no worker measures ahead: the first sequence and the piece it cuts
        assert found[0] is not None
        packed = {piece.document.ref for piece in found[0].pieces}
        rest = {lane._plan.ref(0, one.source, one.position) for one in waiting if one is state.rest}
        seen = live.intersection(fresh.seen)
        assert seen <= packed | rest
        assert seen < live
    found += [lane.next(step) for step in range(301, 360)]
    assert [row(recipe) for recipe in found] == rows
    assert len(live) <= 64
    assert sorted(ref for ref in fresh.seen if ref in live) == sorted(live), "each once"
    lane.close()
    workers.close()


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_a_failure_of_the_world_at_a_waiting_document_stays_in_its_place(backend: str) -> None:
    config = a_config()
    data, rows = waiting_after(20, config)
    fresh = FakeMeasure()
    workers = open_backend(backend, workers=2)
    lane = make(0, config, fresh, workers)
    lane.restore(LaneState.decode(data))
    for one in LaneState.decode(data).live[4:12]:
        ref = lane._plan.ref(0, one.source, one.position)
        fresh.broken[ref] = StorageError("the disk is gone")
    found: list[object] = []
    failures = 0
    while len(found) < len(rows):
        try:
            found.append(row(lane.next(20 + len(found))))
        except StorageError:  # the disk is there again for one document more
            failures += 1
            assert failures < 20
            if fresh.broken:
                fresh.broken.popitem()
    assert found == rows
    assert failures > 1
    lane.close()
    workers.close()


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_a_waiting_document_that_workers_die_of_is_told_from_its_neighbours(backend: str) -> None:
    class Dying(FakeMeasure):
        def __call__(self, refs: Sequence[SampleRef]) -> list[Measurement | Exception]:
            if deadly in refs:
                raise WorkerDiedError("3 worker processes died of it")
            return super().__call__(refs)

    config = a_config()
    data, rows = waiting_after(20, config)
    one = LaneState.decode(data).live[6]
    workers = open_backend(backend, workers=2)
    lane = make(0, config, Dying(), workers)
    deadly = lane._plan.ref(0, one.source, one.position)
    lane.restore(LaneState.decode(data))
    found: list[object] = []
    with pytest.raises(WorkerDiedError, match=str(deadly.sample)):
        while len(found) < len(rows):
            found.append(row(lane.next(20 + len(found))))
    assert found == rows[: len(found)]
    assert any(deadly == place[0] for place in rows[len(found)][0])
    lane.close()
    workers.close()


@pytest.mark.parametrize("what", ["longer", "shorter", "rejected"])
def test_a_waiting_document_that_gives_another_is_noticed_where_it_is_packed(what: str) -> None:
    class Changed(FakeMeasure):
        def one(self, ref: SampleRef) -> Measurement:
            document = super().one(ref)
            if ref != changed:
                return document
            assert isinstance(document, MeasuredDocument)
            if what == "rejected":
                return Rejected(ref, "shard", "k", "filtered", "filter", "too short now")
            tokens = np.arange(len(document.tokens) + (1 if what == "longer" else -1))
            return replace(
                document, tokens=tokens.astype(np.int32), loss=np.ones(len(tokens), np.bool_)
            )

    config = a_config()
    data, rows = waiting_after(20, config)
    last = LaneState.decode(data).live[-1]
    lane = make(0, config, Changed())
    changed = lane._plan.ref(0, last.source, last.position)
    lane.restore(LaneState.decode(data))
    found: list[object] = []
    with pytest.raises(StateError, match="waited to be packed"):
        while len(found) < len(rows):
            found.append(row(lane.next(20 + len(found))))
    assert found == rows[: len(found)]
    assert any(changed == place[0] for place in rows[len(found)][0])


def test_state_does_not_grow() -> None:
    config, measure = a_config(), FakeMeasure()
    lane = make(0, config, measure)
    sizes = []
    for step in range(2000):
        lane.next(step)
        sizes.append(len(lane.snapshot().encode()))
    assert max(sizes[100:]) <= 1024
    assert max(sizes[1000:]) <= max(sizes[100:1000]) + 64  # a unit of padding


@pytest.mark.parametrize("backend", ["serial", "threads"])
@pytest.mark.parametrize("over_long", ["split", "truncate", "drop"])
def test_every_sample_is_accounted_for_once(backend: str, over_long: str) -> None:
    config = a_config(
        stop=Stop(epochs=2),
        packing=Packing(over_long=over_long),  # type: ignore[arg-type]
    )
    measure = FakeMeasure(longest=700)
    workers = open_backend(backend, workers=2)
    tokens: dict[SampleRef, list[tuple[int, int]]] = {}
    totals = np.zeros((2, 5), np.int64)
    for number in range(config.lanes):
        lane = make(number, config, measure, workers)
        step = 0
        while (recipe := lane.next(step)) is not None:
            step += 1
            for piece in recipe.pieces:
                tokens.setdefault(piece.document.ref, []).append((piece.start, piece.stop))
        totals += np.array(lane.snapshot().sequencer.counts)
        lane.close()
    workers.close()
    assert totals[:, :4].sum(axis=1).tolist() == [100, 180]
    assert totals[1, 3] == 2 * sum(
        measure.one(SampleRef(1, s, i, 0, 0)).__class__ is Rejected
        for s in (0, 1)
        for i in range(45)
    )
    for ref, spans in tokens.items():
        document = measure.one(ref)
        assert isinstance(document, MeasuredDocument)
        spans.sort()
        assert all(a[1] == b[0] for a, b in pairwise(spans)), "pieces meet"
        length = len(document.tokens)
        covered = min(length, 256) if over_long == "truncate" else length
        assert (spans[0][0], spans[-1][1]) == (0, covered)


def test_counting_finds_the_last_step() -> None:
    config = a_config(stop=Stop(epochs=1))
    end = count_steps(config, lambda n: make(n, config, FakeMeasure()), range(4))
    used = [sum(make_all(config, number)) for number in range(4)]
    assert end == -(-max(used) // 2)  # two sequences a lane and step


def make_all(config: DataConfig, number: int) -> list[int]:
    lane = make(number, config, FakeMeasure())
    found = []
    while lane.next(len(found) // 2) is not None:
        found.append(1)
    return found


def test_a_failure_of_the_world_stays_in_its_place() -> None:
    config, measure = a_config(), FakeMeasure()
    plan = Plan(config, shapes(50, 90))
    refs = iter(plan.draws(plan.cursor(2)))
    bad = [next(refs) for _ in range(40)][-1]
    clean = make(2, config, FakeMeasure())
    measure.broken[bad] = StorageError("the disk is gone")
    lane = make(2, config, measure)
    step = 0
    with pytest.raises(StorageError, match="the disk"):
        while True:
            assert row(lane.next(step)) == row(clean.next(step))
            step += 1
    with pytest.raises(StorageError, match="the disk"):
        lane.next(step)  # it is not skipped
    measure.broken.clear()


def test_too_many_failures_in_a_row_stop_the_lane() -> None:
    class AllBad(FakeMeasure):
        def one(self, ref: SampleRef) -> Measurement:
            return Rejected(ref, "shard", "k", "quarantined", "format", "made to fail")

    lane = make(0, a_config(max_consecutive_quarantined=20), AllBad())
    with pytest.raises(TooManyQuarantinedError, match=r"21 samples in a row"):
        lane.next(0)


def test_a_document_that_measures_otherwise_is_noticed() -> None:
    config = a_config()
    lane = make(0, config, FakeMeasure())
    lane.next(0)
    changed = FakeMeasure()
    changed.salt = "another tokenizer"
    restored = revived(make(0, config, changed), lane.snapshot().encode())
    with pytest.raises(StateError, match="does not measure as it did"):
        restored.next(1)


def test_a_falling_sequence_length_never_strands_a_document() -> None:
    config = a_config(sequence_length=((0, 512), (40, 128), (80, 1024)))
    lane = make(3, config, FakeMeasure(longest=1500))
    for step in range(120):
        recipe = lane.next(step)
        assert recipe is not None
        assert sum(p.num_tokens for p in recipe.pieces) <= config.sequence_length_at(step)


@pytest.mark.parametrize(("capacity", "some"), [(64, True), (256, False), (1024, False)])
def test_other_lengths_measure_what_they_make_too_long(capacity: int, some: bool) -> None:
    config = a_config()
    data, _ = waiting_after(40, config, longest=900)
    state, fresh = LaneState.decode(data), FakeMeasure(longest=900)
    lane = make(0, config, fresh)
    lane.restore(state, capacity)
    waiting = [*state.live, *([state.rest] if state.rest else [])]
    long = {
        lane._plan.ref(0, one.source, one.position) for one in waiting if one.num_tokens > capacity
    }
    assert set(fresh.seen) == long and bool(long) == some
    pool = lane.snapshot().sequencer.pool
    assert sum(one.num_tokens for one in pool) == sum(one.num_tokens for one in waiting)
    assert all(one.num_tokens <= capacity for one in pool)


def test_a_document_behind_the_last_pass_is_refused_before_anything_is_made() -> None:
    data, _ = waiting_after(60, a_config())
    lane = make(0, a_config(stop=Stop(epochs=1)), FakeMeasure())
    with pytest.raises(StateError, match=r"of its pass \d+ waits to be packed, .*ends it after 1"):
        lane.restore(LaneState.decode(data))


def test_another_source_may_be_added_and_removed() -> None:
    config, measure = a_config(), FakeMeasure()
    lane = make(0, config, measure)
    for step in range(5):
        lane.next(step)
    state = LaneState.decode(lane.snapshot().encode())
    moved = state.for_sources(["long", "short"], ["new", "short", "long"])
    assert moved.for_sources(["new", "short", "long"], ["long", "short"]) == state
    with pytest.raises(StateError, match="waiting to be packed"):
        state.for_sources(["long", "short"], ["long"])


@pytest.mark.parametrize("order", ["oldest", "largest"])
def test_no_document_waits_for_ever(order: str) -> None:
    config = a_config(packing=Packing(order=order, pool=16))  # type: ignore[arg-type]
    lane, arrived = make(0, config, FakeMeasure(longest=250)), {}
    for step in range(400):
        recipe = lane.next(step)
        assert recipe is not None
        for piece in lane.snapshot().sequencer.pool:
            arrived.setdefault(piece.document.ref, step)
        for piece in recipe.pieces:
            assert step - arrived.pop(piece.document.ref, step) <= 4 * 16
