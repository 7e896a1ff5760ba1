"""Rows of one array that media were decoded into."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zephon_mm.patches import adjacent

WHOLE = np.arange(60, dtype=np.uint8).reshape(10, 6)


@pytest.mark.parametrize(("start", "cuts"), [(0, [10]), (0, [3, 4, 10]), (2, [3, 9]), (5, [5])])
def test_rows_that_lie_together_are_theirs(start: int, cuts: list[int]) -> None:
    whole = WHOLE.copy()
    edges = [start, *cuts]
    found = adjacent([whole[a:b] for a, b in zip(edges, cuts, strict=False)])
    assert found is not None and np.array_equal(found, whole[start : cuts[-1]])
    assert found.size == 0 or np.shares_memory(found, whole)


def test_others_are_not_taken_for_it() -> None:
    whole, other = WHOLE.copy(), WHOLE.copy()
    sealed = WHOLE.copy()
    sealed.flags.writeable = False
    words = np.zeros((10, 6), np.uint32)
    for parts in (
        [whole[3:5], whole[:3]],
        [whole[:3], whole[4:]],
        [whole[:3], whole[:3]],
        [whole[:3], other[3:]],
        [whole[:3], np.array(whole[3:])],
        [whole[:6:2], whole[6:]],
        [whole[:3, :3], whole[3:, :3]],
        [whole[:3, 2:], whole[3:, 2:]],
        [whole],
        [sealed[:3], sealed[3:]],
        [WHOLE.reshape(-1).copy()[:30].reshape(5, 6)],
        [words.view(np.uint8)[:3]],
        [np.asfortranarray(whole)[:3]],
        [torch.from_numpy(whole)[:3]],
        [whole[:3], torch.from_numpy(whole)[3:]],
    ):
        assert adjacent(parts) is None
