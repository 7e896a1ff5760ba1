"""What a model family decides: sizes, placeholder tokens, positions. Pixels are not its matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..patches import PatchLayout
from ..sample import MeasuredDocument, MediaSpan

Kind = Literal["image", "video"]
Colour = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class MediaLayout:
    """How large a medium is shown to the model.

    Attributes:
        size: (height, width) in pixels after resizing.
        grid: patches along time, height, width.
    """

    size: tuple[int, int]
    grid: tuple[int, int, int]

    @property
    def num_patches(self) -> int:
        """Rows of ``pixel_values`` that the medium takes."""
        return self.grid[0] * self.grid[1] * self.grid[2]


class ModelFamily(Protocol):
    """One family of models. Immutable, picklable, safe to share between threads.

    Attributes:
        name: as `DataConfig.model` names it.
        patches: how pixels are cut into patches.
        image_mean, image_std, video_mean, video_std: of each channel, for values in [0, 1].
    """

    @property
    def name(self) -> str: ...
    @property
    def patches(self) -> PatchLayout: ...
    @property
    def image_mean(self) -> Colour: ...
    @property
    def image_std(self) -> Colour: ...
    @property
    def video_mean(self) -> Colour: ...
    @property
    def video_std(self) -> Colour: ...

    def settings(self) -> dict[str, Any]:
        """Everything that decides layouts, as plain values, for the fingerprint."""
        ...

    def layout_image(self, height: int, width: int) -> MediaLayout:
        """Size and grid of a picture of ``height`` × ``width`` pixels as shown.

        Raises MediaError (kind ``dropped``) for one that the family's rule refuses.
        """
        ...

    def layout_video(
        self,
        num_frames: int,
        height: int,
        width: int,
        pts_seconds: Sequence[float] = (),
        fps: float = 0.0,
    ) -> MediaLayout:
        """Size and grid of ``num_frames`` frames. Raises MediaError (kind ``dropped``)."""
        ...

    def block(
        self,
        kind: Kind,
        grid: tuple[int, int, int],
        pts_seconds: Sequence[float] = (),
        fps: float = 0.0,
    ) -> NDArray[np.int32]:
        """The medium's whole block of token ids, wrappers included, int32 [n]."""
        ...

    def positions(self, tokens: NDArray[np.int32], media: Sequence[MediaSpan]) -> NDArray[np.int64]:
        """M-RoPE positions (time, height, width) of a document or a piece of one, int64 [3, n].

        The spans of ``media`` count from the first of ``tokens``; positions start at 0.
        """
        ...

    def shrink(self, span: MediaSpan, max_tokens: int, max_patches: int) -> MediaSpan:
        """The medium laid out to fit both capacities; ``stop`` follows from its new block.

        Every second frame is kept until two are left or it fits; then each frame takes fewer
        pixels. Raises MediaError (kind ``dropped``) if even the least is too large.
        """
        ...

    def relayout(
        self, document: MeasuredDocument, max_tokens: int, max_patches: int
    ) -> MeasuredDocument:
        """The document with every medium inside both capacities; itself if they all are."""
        ...

    def extra_inputs(self, media: Sequence[MediaSpan]) -> Mapping[str, list[float]]:
        """Further inputs of the model's forward, one float32 value a medium of ``media``."""
        ...
