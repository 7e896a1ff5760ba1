"""Which waiting documents share a sequence: pure functions over lengths.

A sequence has two capacities, tokens and vision patches. Documents wait in a pool, oldest first.
`choose` fills one sequence:

1. while more than half of it is free, take the oldest that fits (or, with ``order="largest"``, the
   largest that fits, the older of equals);
2. then, again and again, the single document or pair that leaves the least room, until none fits.

With ``oldest`` the first document is the oldest, so none waits longer than the pool is deep. Ties
go to the older: among candidates that leave equal room, the one whose ages ``(i, j)``, ``i <= j``,
come first (``j = i`` for a single document).

The orders ``arrival`` and ``single`` keep documents in the order in which they came: the first
takes neighbours while they fit, the second one document a sequence.

Cost: sorting the pool once, then a few microseconds a document; only where patches bind is the
pair search quadratic in the pool.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Literal

import numpy as np

Order = Literal["oldest", "largest", "arrival", "single"]


def choose(
    lengths: Sequence[int],
    patches: Sequence[int],
    num_tokens: int,
    max_patches: int,
    order: Order = "oldest",
) -> list[int]:
    """Pick the documents of one sequence.

    Args:
        lengths: tokens of each waiting document, oldest first; each at most ``num_tokens``.
        patches: vision patches of each; each at most ``max_patches``.
        num_tokens: capacity in tokens.
        max_patches: capacity in patches.
        order: what the first half of the sequence is filled with; ``arrival`` and ``single``:
            see the module.

    Returns:
        Their positions, oldest first; empty only for an empty pool.
    """
    if order in ("arrival", "single"):
        return _in_order(
            lengths, patches, num_tokens, max_patches, 1 if order == "single" else None
        )
    taken, room, patch_room = _first_half(lengths, patches, num_tokens, max_patches, order)
    left = set(range(len(lengths))).difference(taken)
    if sum(patches[i] for i in left) <= patch_room:
        taken += _best_fit(lengths, left, room)
    else:
        taken += _best_fit_patches(lengths, patches, sorted(left), room, patch_room)
    return sorted(taken)


def _in_order(
    lengths: Sequence[int], patches: Sequence[int], room: int, patch_room: int, most: int | None
) -> list[int]:
    """The oldest documents up to the first that doesn't fit, at most ``most``."""
    taken: list[int] = []
    for i in range(len(lengths))[:most]:
        room -= lengths[i]
        patch_room -= patches[i]
        if room < 0 or patch_room < 0:
            break
        taken.append(i)
    return taken


def _first_half(
    lengths: Sequence[int], patches: Sequence[int], room: int, patch_room: int, order: Order
) -> tuple[list[int], int, int]:
    half = room / 2
    ages = list(range(len(lengths)))
    if order == "largest":
        ages.sort(key=lambda i: -lengths[i])
    taken: list[int] = []
    for i in ages:
        if room <= half:
            break
        if lengths[i] <= room and patches[i] <= patch_room:
            taken.append(i)
            room -= lengths[i]
            patch_room -= patches[i]
    return taken, room, patch_room


def _best_fit(lengths: Sequence[int], left: set[int], room: int) -> list[int]:
    """Step 2 where patches can't bind: buckets of equal length, searched from both ends."""
    buckets: dict[int, list[int]] = {}
    for i in sorted(left, reverse=True):
        if lengths[i] <= room:
            buckets.setdefault(lengths[i], []).append(i)  # the oldest is last
    values = sorted(buckets)
    taken: list[int] = []
    while values:
        del values[bisect.bisect_right(values, room) :]
        pick = _best_pick(buckets, values, room)
        for i in pick:
            value = lengths[i]
            bucket = buckets[value]
            bucket.remove(i)
            if not bucket:
                del values[bisect.bisect_left(values, value)]
            room -= value
        taken += pick
    return taken


def _best_pick(buckets: dict[int, list[int]], values: list[int], room: int) -> list[int]:
    """The document or pair that leaves the least of ``room``; empty if none fits."""
    if not values:
        return []
    best = values[-1]
    pick: tuple[int, int] = (buckets[best][-1],) * 2
    high = len(values) - 1
    low = max(0, bisect.bisect_right(values, room - best) - 1)  # lower ones leave more room
    if low == high and len(buckets[best]) < 2:
        low = max(0, high - 1)  # there is no second one of the greatest
    while low <= high:
        pair_sum = values[low] + values[high]
        if pair_sum > room:
            high -= 1
            continue
        if low == high and len(buckets[values[low]]) < 2:
            break
        if pair_sum >= best:
            a, b = buckets[values[low]], buckets[values[high]]
            i, j = (a[-1], a[-2]) if low == high else sorted((a[-1], b[-1]))
            if pair_sum > best or (i, j) < pick:
                best, pick = pair_sum, (i, j)
        low += 1
    return [pick[0]] if pick[0] == pick[1] else list(pick)


def _best_fit_patches(
    lengths: Sequence[int], patches: Sequence[int], left: list[int], room: int, patch_room: int
) -> list[int]:
    """Step 2 where patches may bind: every pair is looked at."""
    taken: list[int] = []
    while True:
        left = [i for i in left if lengths[i] <= room and patches[i] <= patch_room]
        if not left:
            return taken
        tokens = np.array([lengths[i] for i in left], np.int64)
        vision = np.array([patches[i] for i in left], np.int64)
        sums = tokens[:, None] + tokens[None, :]
        fits = (sums <= room) & (vision[:, None] + vision[None, :] <= patch_room)
        sums = np.where(np.triu(fits, 1), sums, -1)
        np.fill_diagonal(sums, tokens)
        row, column = divmod(int(sums.argmax()), len(left))
        pick = {left[row], left[column]}
        left = [i for i in left if i not in pick]
        taken += pick
        room -= sum(lengths[i] for i in pick)
        patch_room -= sum(patches[i] for i in pick)
