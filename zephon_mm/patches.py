"""How pixels are cut into patches: the order that Qwen-style vision towers read them in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PatchLayout:
    """Sizes of a patch.

    Rows of a patch matrix run time, height / merge, width / merge, merge, merge; its columns run
    channel, time within the patch, row, column.
    """

    patch_size: int
    temporal_patch_size: int
    merge_size: int

    @property
    def columns(self) -> int:
        """Values a patch: 3 channels × temporal patch × patch²."""
        return 3 * self.temporal_patch_size * self.patch_size**2
