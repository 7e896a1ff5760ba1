"""Text alone: any causal language model of transformers.

Positions count up in each document, and a decoder that takes ``position_ids`` [R, S] finds the
documents by them. A sample with pictures or clips can't be shown, so it is dropped and counted.
Models with recurrent layers (Mamba, gated delta nets) carry a state over documents, whatever the
positions: they are not for packed rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from ..config import DataConfig
from ..errors import MediaError
from ..patches import PatchLayout, View
from ..sample import MeasuredDocument, MediaSpan
from .base import Colour, Kind, MediaLayout
from .inputs import token_inputs
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from ..batch import Batch


@dataclass(frozen=True)
class Text:
    """The family ``text``."""

    name: ClassVar[str] = "text"
    position_axes: ClassVar[int] = 1
    control_tokens: ClassVar[tuple[str, ...]] = ()
    placeholders: ClassVar[Mapping[str, str]] = {}
    opening: ClassVar[str] = ""
    patches: ClassVar[PatchLayout] = PatchLayout(1, 1, 1)
    image_mean: ClassVar[Colour] = (0.0, 0.0, 0.0)
    image_std: ClassVar[Colour] = (1.0, 1.0, 1.0)
    video_mean: ClassVar[Colour] = (0.0, 0.0, 0.0)
    video_std: ClassVar[Colour] = (1.0, 1.0, 1.0)

    @classmethod
    def build(cls, config: DataConfig, tokenizer: Tokenizer) -> Self:
        """The family; nothing of the config or the tokeniser matters to it."""
        return cls()

    def settings(self) -> dict[str, Any]:
        return {"family": self.name}

    def refusal(self, kinds: Sequence[Kind]) -> str | None:
        return None

    def layout_image(self, height: int, width: int, *, alone: bool = True) -> MediaLayout:
        _refuse()

    def layout_video(
        self,
        num_frames: int,
        height: int,
        width: int,
        pts_seconds: Sequence[float] = (),
        fps: float = 0.0,
    ) -> MediaLayout:
        _refuse()

    def shown_frames(self, frames: tuple[int, ...]) -> tuple[int, ...]:
        return frames

    def block(self, span: MediaSpan) -> NDArray[np.int32]:
        _refuse()

    def around(self, span: MediaSpan) -> tuple[str, str]:
        _refuse()

    def views(self, span: MediaSpan) -> tuple[View, ...]:
        _refuse()

    def positions(self, tokens: NDArray[np.int32], media: Sequence[MediaSpan]) -> NDArray[np.int64]:
        return np.empty((0, len(tokens)), np.int64)

    def shrink(self, span: MediaSpan, max_tokens: int, max_patches: int) -> MediaSpan:
        _refuse()

    def relayout(
        self, document: MeasuredDocument, max_tokens: int, max_patches: int
    ) -> MeasuredDocument:
        return document

    def extra_inputs(
        self, documents: Sequence[Sequence[MediaSpan]]
    ) -> Mapping[str, NDArray[np.generic]]:
        return {}

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        return token_inputs(batch)


def _refuse() -> NoReturn:
    raise MediaError(
        "model 'text' takes no pictures and no clips: choose the model's own family, or a format "
        "that reads only the text",
        stage="layout",
        kind="dropped",
    )
