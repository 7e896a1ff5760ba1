"""The state's bytes: round trips, bounds, damage, and the comparison of configs."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_mm.config import DataConfig, Source, Stop
from zephon_mm.errors import ConfigError, StateError
from zephon_mm.sample import LiveDocument
from zephon_mm.state import (
    LaneState,
    LoaderState,
    check_changes,
    compare,
    fingerprint,
    identity,
    merge_states,
)

u48 = st.integers(0, 2**48 - 1)
small, check = st.integers(0, 2**20), st.binary(min_size=3, max_size=3)


def live_document(start: int, tokens: int, **fields: Any) -> LiveDocument:
    return LiveDocument(start=start, stop=start + tokens, **fields)


live = st.builds(
    live_document,
    source=st.integers(0, 2),
    position=u48,
    start=st.just(0),
    tokens=small,
    fitted=st.just(0),
    patches=st.just(0) | small,
    check=check,
) | st.builds(
    live_document,
    source=st.integers(0, 2),
    position=u48,
    start=u48,
    tokens=u48,
    fitted=st.integers(1, 2**20),
    patches=st.just(0) | u48,
    check=check,
)
lane_states = st.builds(
    LaneState,
    lane=st.integers(0, 2**20),
    num_sequences=u48,
    draw=u48,
    positions=st.tuples(u48, u48, u48),
    counts=st.tuples(*[st.tuples(u48, u48, u48, u48, u48)] * 3),
    quarantined_in_row=st.integers(0, 2**31),
    live=st.lists(live, max_size=40).map(tuple),
    rest=st.none() | live,
    digest=st.binary(min_size=32, max_size=32),
    ended=st.booleans(),
)


def blake(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode()).digest()


def a_lane(lane: int = 0, documents: int = 64, base: int = 10**12) -> LaneState:
    return LaneState(
        lane=lane,
        num_sequences=base,
        draw=base,
        positions=(base, base, base),
        counts=((base,) * 5,) * 3,
        quarantined_in_row=0,
        live=tuple(
            LiveDocument(i % 3, base - 1 - 7 * i, 0, 130 + i, 0, 4 * (i % 2), blake(i)[:3])
            for i in range(documents)
        ),
        rest=None,
        digest=b"d" * 32,
        ended=False,
    )


@settings(max_examples=200, deadline=None)
@given(lane_states)
def test_a_lane_state_round_trips(state: LaneState) -> None:
    assert LaneState.decode(state.encode()) == state


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 7), st.booleans())
def test_a_damaged_lane_state_is_refused(at: int, bit: int, cut: bool) -> None:
    data = bytearray(a_lane().encode())
    at %= len(data)
    if cut:
        del data[at:]
    else:
        data[at] ^= 1 << bit
    with pytest.raises(StateError):
        LaneState.decode(bytes(data))


def test_a_lane_state_is_small_and_flat() -> None:
    assert len(a_lane(documents=64).encode()) <= 1024
    whole = a_lane(documents=1024).encode()
    assert len(zlib.compress(whole)) <= 8192 - 20  # as in the form of fixed size
    assert len(a_lane(base=10**15).encode()) == len(a_lane(base=10**6).encode())


def a_config(**changes: object) -> DataConfig:
    sources = (
        Source(id="a", urls="a.tar", format="text", weight=2.0),
        Source(id="b", urls="b.tar", format="text"),
    )
    config = DataConfig(sources=sources, model="qwen3_vl", tokenizer="t")
    return replace(config, **changes)  # type: ignore[arg-type]


def an_identity(config: DataConfig, **digests: str) -> dict[str, object]:
    found = {source.id: digests.get(source.id, "00") for source in config.sources}
    return identity(config, source_digests=found, parts={"tokenizer": "11"})


def test_paths_are_not_part_of_a_run_but_contents_are() -> None:
    config = a_config()
    moved = replace(config, sources=(replace(config.sources[0], urls="x.tar"), config.sources[1]))
    assert fingerprint(an_identity(config)) == fingerprint(an_identity(moved))
    assert fingerprint(an_identity(config)) != fingerprint(an_identity(config, a="ff"))


@pytest.mark.parametrize(
    ("changed", "field", "allow"),
    [
        (a_config(seed=3), "seed", None),
        (a_config(lanes=4), "lanes", None),
        (a_config(sequence_length=4096), "sequence_length", "sequence_length"),
        (a_config(global_batch=32), "global_batch", "global_batch"),
        (a_config(stop=Stop(num_steps=9)), "stop.num_steps", "stop"),
        (a_config(sources=(*a_config().sources[:1],)), "sources.b.digest", "sources"),
        (
            a_config(sources=(replace(a_config().sources[0], weight=9.0), a_config().sources[1])),
            "sources.a.weight",
            "weights",
        ),
    ],
)
def test_a_changed_field_is_named_and_only_some_can_be_allowed(
    changed: DataConfig, field: str, allow: str | None
) -> None:
    changes = compare(an_identity(a_config()), an_identity(changed))
    with pytest.raises(StateError, match=field.replace(".", r"\.")):
        check_changes(changes, ())
    if allow is not None:
        check_changes(changes, (allow,))
        check_changes(changes, allow)
    else:
        with pytest.raises(StateError):
            check_changes(
                changes, ("weights", "sources", "sequence_length", "global_batch", "stop")
            )


def test_changed_shards_cannot_be_allowed() -> None:
    changes = compare(an_identity(a_config()), an_identity(a_config(), a="ff"))
    with pytest.raises(StateError, match=r"sources\.a\.digest"):
        check_changes(changes, ("sources", "weights"))
    with pytest.raises(ConfigError, match="may hold"):
        check_changes([], ("everything",))


def a_state(lanes: list[int], step: int = 5) -> LoaderState:
    return LoaderState(step, 4, an_identity(a_config()), {i: a_lane(i).encode() for i in lanes})


def test_states_merge_and_pass_through_json() -> None:
    merged = merge_states([a_state([0, 1]).to_dict(), a_state([1, 2, 3]).to_dict()])
    again = LoaderState.from_dict(json.loads(json.dumps(merged)))
    assert again == replace(a_state([0, 1, 2, 3]), identity=again.identity)
    assert again.lane(2) == a_lane(2)


def test_states_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(StateError, match="step"):
        merge_states([a_state([0]).to_dict(), a_state([1], step=6).to_dict()])
    with pytest.raises(StateError, match="merge_states"):
        LoaderState.from_dict(a_state([0]).to_dict()).lane(3)
    with pytest.raises(StateError, match="not a"):
        LoaderState.from_dict({"some": "dict"})
    changed = a_state([0]).to_dict() | {"step": 6}
    with pytest.raises(StateError, match="checksum"):
        LoaderState.from_dict(changed)
    with pytest.raises(StateError, match="version"):
        LoaderState.from_dict(a_state([0]).to_dict() | {"version": 99})
