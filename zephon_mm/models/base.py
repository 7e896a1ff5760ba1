"""What a model family decides: sizes, placeholder tokens, positions, the model's inputs.

It says which pixels are shown (`View`) and how a batch is handed over; it never touches a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..patches import PatchLayout, View
from ..sample import MeasuredDocument, MediaSpan

if TYPE_CHECKING:
    from ..batch import Batch

Kind = Literal["image", "video"]
Colour = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class MediaLayout:
    """How large a medium is shown to the model.

    Attributes:
        size: (height, width) in pixels after resizing; of a picture that is shown as tiles, what
            the family lays them out by.
        grid: patches along time, height, width; of tiles, (tiles, 1, 1).
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
        patches: how pixels are cut into patches; `PatchLayout` says what a row is.
        position_axes: axes of ``position_ids``: 1 (positions count up in each document), or 4,
            where axes 1 … 3 are M-RoPE.
        placeholders: by kind, what the family's chat templates write for a medium; a kind that is
            not there can't be shown to the model.
        control_tokens: control tokens that the tokeniser must have.
        opening: a control token that every text begins with, written unless it is there already;
            empty: none.
        image_mean, image_std, video_mean, video_std: of each channel, for values in [0, 1].
    """

    @property
    def name(self) -> str: ...
    @property
    def patches(self) -> PatchLayout: ...
    @property
    def position_axes(self) -> int: ...
    @property
    def placeholders(self) -> Mapping[str, str]: ...
    @property
    def control_tokens(self) -> Sequence[str]: ...
    @property
    def opening(self) -> str: ...
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

    def refusal(self, kinds: Sequence[Kind]) -> str | None:
        """Why no document can have media of these kinds, one of each medium; None: it can."""
        ...

    def layout_image(self, height: int, width: int, *, alone: bool = True) -> MediaLayout:
        """Size and grid of a picture of ``height`` × ``width`` pixels as shown.

        ``alone``: it is the only picture of its document. Raises MediaError (kind ``dropped``) for
        one that the family's rule refuses.
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

    def shown_frames(self, frames: tuple[int, ...]) -> tuple[int, ...]:
        """The chosen frames as the model is shown them: some families repeat the last one."""
        ...

    def block(self, span: MediaSpan) -> NDArray[np.int32]:
        """The medium's whole block of token ids, int32 [n]; ``start`` and ``stop`` don't matter."""
        ...

    def around(self, span: MediaSpan) -> tuple[str, str]:
        """Plain text right before and after the block, tokenised with the text next to it."""
        ...

    def views(self, span: MediaSpan) -> tuple[View, ...]:
        """What is made of a picture's pixels; their patches in turn are the medium's."""
        ...

    def positions(self, tokens: NDArray[np.int32], media: Sequence[MediaSpan]) -> NDArray[np.int64]:
        """Further position axes of a document or a piece of one, int64 [position_axes − 1, n].

        For M-RoPE (time, height, width), starting at 0. The spans of ``media`` count from the first
        of ``tokens``.
        """
        ...

    def shrink(self, span: MediaSpan, max_tokens: int, max_patches: int) -> MediaSpan:
        """The medium laid out to fit both capacities; ``stop`` follows from its new block.

        A clip loses every second frame until two are left or it fits; then, and for a picture,
        fewer pixels or tiles are taken. Raises MediaError (kind ``dropped``) if even the least is
        too large.
        """
        ...

    def relayout(
        self, document: MeasuredDocument, max_tokens: int, max_patches: int
    ) -> MeasuredDocument:
        """The document with every medium inside both capacities; itself if they all are."""
        ...

    def extra_inputs(
        self, documents: Sequence[Sequence[MediaSpan]]
    ) -> Mapping[str, NDArray[np.generic]]:
        """Further tensors of the model's forward, from the media of each document of a batch."""
        ...

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        """The keyword arguments of the model's forward, to which only ``use_cache=False`` is added.

        Packed rows need it, and whatever the family's module says of attention.
        """
        ...
