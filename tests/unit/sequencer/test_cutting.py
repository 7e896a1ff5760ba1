"""Cutting documents: whole media, no token lost, every piece trains if it can be helped."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_mm.sample import MeasuredDocument, MediaSpan, SampleRef
from zephon_mm.sequencer.cutting import has_targets, next_cut, num_patches, truncate

parts = st.lists(
    st.tuples(st.sampled_from(["text", "media"]), st.integers(1, 12)), min_size=1, max_size=14
)


def document(parts: list[tuple[str, int]]) -> MeasuredDocument:
    length = sum(n for _, n in parts)
    loss = np.ones(length, np.bool_)
    media, at = [], 0
    for kind, n in parts:
        if kind == "media":
            loss[at : at + n] = False
            media.append(MediaSpan("image", 0, at, at + n, (1, 2, 2 * n), (28, 28), (28, 28)))
        at += n
    tokens = np.arange(length, dtype=np.int32)
    return MeasuredDocument(
        SampleRef(0, 0, 0, 0, 0), "shard", "key", tokens, loss, tuple(media), b"d" * 16
    )


def cuts(found: MeasuredDocument, room: int, patches: int) -> list[int]:
    at = [0]
    while at[-1] < len(found.tokens):
        at.append(next_cut(found, at[-1], room, patches))
    return at


@settings(max_examples=400, deadline=None)
@given(parts, st.integers(12, 30), st.integers(48, 200))
def test_pieces_are_whole_media_within_both_capacities(
    made: list[tuple[str, int]], room: int, patches: int
) -> None:
    found = document(made)
    at = cuts(found, room, patches)
    assert at[-1] == len(found.tokens) and all(a < b for a, b in pairwise(at))
    for start, stop in pairwise(at):
        assert stop - start <= room
        assert num_patches(found, start, stop) <= patches
    for span in found.media:
        assert not any(span.start < cut < span.stop for cut in at)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 400), st.integers(8, 60))
def test_every_piece_of_a_text_trains_something(length: int, room: int) -> None:
    found = document([("text", length)])
    assert all(has_targets(found, a, b) for a, b in pairwise(cuts(found, room, 0)))


def test_a_medium_alone_over_a_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        next_cut(document([("text", 3), ("media", 20)]), 3, 16, 10**6)
    with pytest.raises(ValueError, match="does not fit"):
        next_cut(document([("media", 4)]), 0, 16, 15)


@settings(max_examples=200, deadline=None)
@given(parts, st.integers(14, 30))
def test_truncating_keeps_whole_media_and_the_end_token(
    made: list[tuple[str, int]], room: int
) -> None:
    found = document([*made, ("text", 1)])
    end = int(found.tokens[-1])
    short = truncate(found, room, 10**6, frozenset([end]))
    assert len(short.tokens) <= room
    assert short.tokens[-1] == end and short.loss[-1]
    assert all(span.stop < len(short.tokens) for span in short.media)
    assert np.array_equal(short.tokens[:-1], found.tokens[: len(short.tokens) - 1])
