"""States in files and as arrays of fixed size: round trips, and every kind of damage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zephon_mm.errors import StateError
from zephon_mm.state import LoaderState, merge_states, read_state, to_fixed, write_state
from zephon_mm.state.fixed import LANE_BYTES, RUN_BYTES, is_fixed

from .test_state import a_config, a_lane, an_identity


@pytest.fixture
def state() -> LoaderState:
    """Two of four lanes; a float and words that JSON can write in several ways."""
    table = {**an_identity(a_config()), "rate": 1e-07, "name": "é\x1b"}
    lanes = {lane: a_lane(lane, documents=3).encode() for lane in (1, 2)}
    return LoaderState(7, 4, table, lanes, changes=(("seed", 1, 2, 3),))


def test_a_file_round_trips_and_nothing_else_is_left(tmp_path: Path, state: LoaderState) -> None:
    path = tmp_path / "state.json"
    path.write_text("an older one")
    write_state(path, state.to_dict())
    assert read_state(path) == state.to_dict() == json.loads(path.read_text("utf-8"))
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]
    path.write_text(json.dumps(state.to_dict(), indent=2))  # a user's own way to write it
    assert read_state(path) == state.to_dict()


def test_each_changed_byte_of_a_file_is_refused(tmp_path: Path, state: LoaderState) -> None:
    path = tmp_path / "state.json"
    write_state(path, state.to_dict())
    whole = path.read_bytes()
    for at in range(len(whole)):
        mask = (0x20, 0xFF, 0x01)[at % 3]  # 0x20 is e and E, and other letters
        path.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
        with pytest.raises(StateError, match=r"state\.json"):
            read_state(path)


def test_a_file_cut_short_is_refused(tmp_path: Path, state: LoaderState) -> None:
    path = tmp_path / "state.json"
    write_state(path, state.to_dict())
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(StateError, match="cut short"):
            read_state(path)


def test_other_files_are_refused_and_named(tmp_path: Path, state: LoaderState) -> None:
    path = tmp_path / "state.json"
    for text in ("[]", "null", '{"step": 3}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(StateError, match=r"state\.json"):
            read_state(path)
    with pytest.raises(StateError, match="can't be read"):
        read_state(tmp_path / "none.json")
    with pytest.raises(StateError, match="can't be written"):
        write_state(tmp_path / "none" / "state.json", state.to_dict())
    with pytest.raises(StateError, match="checksum"):
        write_state(path, state.to_dict() | {"step": 8})
    older = state.to_dict() | {"version": 0}
    path.write_text(json.dumps(older))
    with pytest.raises(StateError, match="version 0"):
        read_state(path)


def tensors(state: LoaderState) -> dict[str, Any]:
    fixed = to_fixed(state)
    lanes = {number: torch.from_numpy(array) for number, array in fixed["lanes"].items()}
    return {"run": torch.from_numpy(fixed["run"]), "lanes": lanes}


def test_arrays_of_fixed_size_round_trip(state: LoaderState) -> None:
    fixed = to_fixed(state)
    assert is_fixed(fixed) and not is_fixed(state.to_dict())
    assert fixed["run"].shape == (RUN_BYTES,) and list(fixed["lanes"]) == ["00001", "00002"]
    assert all(a.shape == (LANE_BYTES,) and a.dtype == np.uint8 for a in fixed["lanes"].values())
    for form in (fixed, tensors(state)):
        assert LoaderState.from_dict(form).to_dict() == state.to_dict()
    assert merge_states([tensors(state), state.to_dict()], partial=True) == state.to_dict()


def test_each_changed_byte_of_the_arrays_is_refused(state: LoaderState) -> None:
    fixed = to_fixed(state)
    for array in (fixed["run"], fixed["lanes"]["00002"]):
        used = int(array.nonzero()[0].max()) + 1
        for at in [*range(0, used, 3), used, len(array) - 1]:
            array[at] ^= 1 << at % 8
            with pytest.raises(StateError):
                read = LoaderState.from_dict(fixed)
                [read.lane(number) for number in read.lanes]
            array[at] ^= 1 << at % 8
    assert LoaderState.from_dict(fixed).to_dict() == state.to_dict()


def test_arrays_of_another_step_run_or_size_are_refused(state: LoaderState) -> None:
    later = to_fixed(replace(state, step=8))
    mixed = to_fixed(state) | {"lanes": later["lanes"]}
    with pytest.raises(StateError, match="another run or step"):
        LoaderState.from_dict(mixed)
    with pytest.raises(StateError, match=r"uint8 \[8000\], expected uint8 \[8192\]"):
        LoaderState.from_dict(to_fixed(state) | {"lanes": {"00001": np.zeros(8000, np.uint8)}})
    empty = {"run": np.zeros(RUN_BYTES, np.uint8), "lanes": {}}
    with pytest.raises(StateError, match="empty, or not a state"):
        LoaderState.from_dict(empty)


def test_a_lane_of_many_sources_is_packed_and_one_of_too_many_refused(state: LoaderState) -> None:
    lane = a_lane(documents=1024)
    many = replace(lane, positions=(10**9,) * 150, counts=((5, 4, 3, 2, 10**7),) * 150)
    wide = replace(state, lanes={0: many.encode()})
    assert len(many.encode()) > LANE_BYTES
    assert LoaderState.from_dict(to_fixed(wide)).lane(0) == many
    noise = np.random.Generator(np.random.Philox(1)).bytes(2 * LANE_BYTES)
    with pytest.raises(StateError, match="gather_state"):
        to_fixed(replace(state, lanes={0: noise}))
