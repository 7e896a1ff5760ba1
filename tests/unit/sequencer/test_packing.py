"""Packing against a brute-force reading of its rule."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_mm.sequencer.packing import Order, choose

Docs = list[tuple[int, int]]


def brute_force(docs: Docs, room: int, patch_room: int, order: Order) -> list[int]:
    """The rule of `choose`, word by word."""
    whole, taken = room, []
    ages = list(range(len(docs)))
    if order == "largest":
        ages.sort(key=lambda i: (-docs[i][0], i))

    def take(i: int) -> None:
        nonlocal room, patch_room
        taken.append(i)
        room -= docs[i][0]
        patch_room -= docs[i][1]

    for i in ages:
        if room > whole / 2 and docs[i][0] <= room and docs[i][1] <= patch_room:
            take(i)
    while True:
        left = [i for i in range(len(docs)) if i not in taken]
        fits = [
            (room - sum(docs[k][0] for k in {i, j}), i, j)
            for i in left
            for j in left
            if i <= j
            and sum(docs[k][0] for k in {i, j}) <= room
            and sum(docs[k][1] for k in {i, j}) <= patch_room
        ]
        if not fits:
            return sorted(taken)
        _, i, j = min(fits)
        for k in sorted({i, j}):
            take(k)


docs_of_one_sequence = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 12)), min_size=0, max_size=24
)


@settings(max_examples=400, deadline=None)
@given(docs_of_one_sequence, st.integers(12, 200), st.sampled_from(["oldest", "largest"]))
def test_choose_is_the_written_rule(docs: Docs, patch_room: int, order: Order) -> None:
    lengths, patches = [d[0] for d in docs], [d[1] for d in docs]
    assert choose(lengths, patches, 40, patch_room, order) == brute_force(
        docs, 40, patch_room, order
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=60))
def test_both_searches_agree_where_patches_do_not_bind(lengths: list[int]) -> None:
    none = [0] * len(lengths)
    ones = [1] * len(lengths)
    assert choose(lengths, none, 64, 10**9) == choose(lengths, ones, 64, len(lengths))


def test_the_oldest_document_is_always_taken() -> None:
    assert 0 in choose([1, 50, 50, 50], [9, 0, 0, 0], 100, 9)
    assert choose([100], [9], 100, 9) == [0]
    assert choose([], [], 100, 9) == []


def test_the_two_greatest_are_a_pair_where_each_is_alone() -> None:
    lengths = [1, 1, 18, 4, 4, 7, 10]  # after the first half 20 are free: 10 and 7, not 10 and 4, 4
    assert choose(lengths, [0] * 7, 40, 0) == [0, 1, 2, 5, 6]


def test_ties_go_to_the_older() -> None:
    assert choose([60, 20, 20, 40], [0] * 4, 100, 0) == [0, 1, 2]  # a pair of older ones
    assert choose([60, 40, 20, 20], [0] * 4, 100, 0) == [0, 1]
    assert choose([60, 40, 40], [0] * 3, 100, 0) == [0, 1]


@given(docs_of_one_sequence, st.integers(12, 200))
def test_in_order_takes_neighbours_or_one(docs: Docs, patch_room: int) -> None:
    lengths, patches = [d[0] for d in docs], [d[1] for d in docs]
    taken = choose(lengths, patches, 40, patch_room, "arrival")
    assert taken == list(range(len(taken)))
    assert sum(lengths[: len(taken)]) <= 40 and sum(patches[: len(taken)]) <= patch_room
    more = len(taken) + 1
    assert len(taken) == len(docs) or sum(lengths[:more]) > 40 or sum(patches[:more]) > patch_room
    assert choose(lengths, patches, 40, patch_room, "single") == ([0] if docs else [])
