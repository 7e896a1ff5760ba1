from __future__ import annotations

import numpy as np
import pytest

from zephon_mm.demo.sheet import frames_of
from zephon_mm.patches import PatchLayout


@pytest.mark.parametrize("size", [14, 16])
def test_frames_come_back_from_their_patches(size: int) -> None:
    layout = PatchLayout(patch_size=size, temporal_patch_size=2, merge_size=2)
    grid = (2, 4, 6)
    rng = np.random.default_rng(5)
    frames = rng.integers(0, 256, (4, grid[1] * size, grid[2] * size, 3), dtype=np.uint8)
    rows = []  # in the order of PatchLayout, written out
    for t in range(grid[0]):
        for block_y in range(grid[1] // 2):
            for block_x in range(grid[2] // 2):
                for y in (2 * block_y, 2 * block_y + 1):
                    for x in (2 * block_x, 2 * block_x + 1):
                        cut = frames[
                            2 * t : 2 * t + 2,
                            y * size : (y + 1) * size,
                            x * size : (x + 1) * size,
                        ]
                        rows.append(cut.transpose(3, 0, 1, 2).ravel())
    patches = np.stack(rows)
    assert patches.shape[1] == layout.columns
    np.testing.assert_array_equal(frames_of(patches, grid, layout), frames)
