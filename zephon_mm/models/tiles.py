"""What families share whose vision tower takes whole tiles: ``pixel_values`` [n, 3, side, side].

A tile is one row of pixels, ``grid`` is (tiles, 1, 1), and positions count up in each document, as
there is no M-RoPE. A clip's frame is one tile. A family adds how a picture becomes tiles and how
media are written.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..config import DataConfig
from ..errors import ConfigError, MediaError
from ..patches import PatchLayout, View
from ..sample import MeasuredDocument, MediaSpan
from .base import Colour, Kind, MediaLayout
from .inputs import media_in_text_order, tiles, token_inputs
from .processor import ModelFolder, colour
from .relay import capacities, relayout_document
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from ..batch import Batch

CLIP_MEAN: Colour = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Colour = (0.26862954, 0.26130258, 0.27577711)
HALF: Colour = (0.5, 0.5, 0.5)


@dataclass(frozen=True, slots=True)
class TileSettings:
    """What is common to the processors of these families.

    Attributes:
        side: of a tile, in pixels.
        tokens: placeholders a tile.
        image_mean, image_std, video_mean, video_std: of each channel, for values in [0, 1].
    """

    side: int
    tokens: int
    image_mean: Colour
    image_std: Colour
    video_mean: Colour
    video_std: Colour


def read_tiles(
    files: ModelFolder, side: int, tokens: int, mean: Colour = HALF, std: Colour = HALF
) -> TileSettings:
    """The settings of a folder, over the defaults of the family."""
    return TileSettings(
        side,
        tokens,
        colour(files.image.get("image_mean"), mean),
        colour(files.image.get("image_std"), std),
        colour(files.video.get("image_mean"), mean),
        colour(files.video.get("image_std"), std),
    )


def square(size: Mapping[str, Any] | None, default: int, where: ModelFolder) -> int:
    """The side of a processor's ``size``. Raises ConfigError unless it is a square."""
    if not size:
        return default
    sides = {int(side) for side in size.values()}
    if len(sides) != 1:
        raise ConfigError(
            f"{where.folder}: size={dict(size)} is not a square, which tiles are: is it the folder "
            "of a model of another family?"
        )
    return sides.pop()


def refuse_budgets(config: DataConfig, name: str) -> None:
    """Raise ConfigError where the config sets budgets of pixels: the model's tiles are fixed."""
    for field, part in (("image", config.image), ("video", config.video)):
        if part.min_pixels is not None or part.max_pixels is not None:
            raise ConfigError(
                f"{field}.min_pixels and {field}.max_pixels have no place with model={name!r}, "
                "whose tiles have one size: leave them out"
            )


@dataclass(frozen=True)
class TileFamily(ABC):
    """The base of these families."""

    name: ClassVar[str]
    position_axes: ClassVar[int] = 1
    control_tokens: ClassVar[tuple[str, ...]]
    placeholders: ClassVar[Mapping[str, str]]
    opening: ClassVar[str] = ""

    tokenizer: Tokenizer
    tile: TileSettings

    @property
    def patches(self) -> PatchLayout:
        return PatchLayout(self.tile.side, 1, 1)

    @property
    def image_mean(self) -> Colour:
        return self.tile.image_mean

    @property
    def image_std(self) -> Colour:
        return self.tile.image_std

    @property
    def video_mean(self) -> Colour:
        return self.tile.video_mean

    @property
    def video_std(self) -> Colour:
        return self.tile.video_std

    def settings(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name != "tokenizer"}
        tokens = {name: self.tokenizer.token_id(name) for name in self.control_tokens}
        return {"family": self.name, **fields, "tile": asdict(self.tile), "tokens": tokens}

    def refusal(self, kinds: Sequence[Kind]) -> str | None:
        return None

    @abstractmethod
    def layout_image(self, height: int, width: int, *, alone: bool = True) -> MediaLayout:
        """Tiles of a picture of ``height`` × ``width`` pixels as shown."""

    def layout_video(
        self,
        num_frames: int,
        height: int,
        width: int,
        pts_seconds: Sequence[float] = (),
        fps: float = 0.0,
    ) -> MediaLayout:
        check_size(height, width)
        if num_frames < 1:
            raise MediaError("a clip without frames", stage="layout", kind="dropped")
        return MediaLayout((self.tile.side, self.tile.side), (num_frames, 1, 1))

    def shown_frames(self, frames: tuple[int, ...]) -> tuple[int, ...]:
        return frames

    @abstractmethod
    def block(self, span: MediaSpan) -> NDArray[np.int32]:
        """The medium's whole block of token ids, int32 [n]."""

    def around(self, span: MediaSpan) -> tuple[str, str]:
        return "", ""

    @abstractmethod
    def views(self, span: MediaSpan) -> tuple[View, ...]:
        """What is made of a picture's pixels."""

    def positions(self, tokens: NDArray[np.int32], media: Sequence[MediaSpan]) -> NDArray[np.int64]:
        return np.empty((0, len(tokens)), np.int64)

    def smaller(self, span: MediaSpan) -> Iterator[MediaSpan]:
        """Ever smaller layouts of a medium; of a clip, with half the frames each."""
        while span.kind == "video" and len(span.frames) > 1:
            frames, pts = span.frames[::2], span.pts[::2]
            grid = (len(frames), *span.grid[1:])
            span = replace(span, frames=frames, pts=pts, grid=grid, fps=span.fps / 2)
            yield span

    def shrink(self, span: MediaSpan, max_tokens: int, max_patches: int) -> MediaSpan:
        for found in itertools.chain((span,), self.smaller(span)):
            length = len(self.block(found))
            if length <= max_tokens and found.num_patches <= max_patches:
                return replace(found, stop=found.start + length)
        raise MediaError(
            f"the {span.kind} of {span.source_size[1]}×{span.source_size[0]} pixels takes more "
            f"than {capacities(max_tokens, max_patches, 'tiles')} however few are shown",
            stage="layout",
            kind="dropped",
        )

    def relayout(
        self, document: MeasuredDocument, max_tokens: int, max_patches: int
    ) -> MeasuredDocument:
        return relayout_document(document, max_tokens, max_patches, family=self)

    def extra_inputs(
        self, documents: Sequence[Sequence[MediaSpan]]
    ) -> Mapping[str, NDArray[np.generic]]:
        return {}

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        inputs = token_inputs(batch)
        if len(batch.image_grids) or len(batch.video_grids):
            inputs["pixel_values"] = tiles(media_in_text_order(batch, self), self.tile.side)
        return inputs

    def ids(self, text: str) -> NDArray[np.int32]:
        """Token ids of text, control tokens recognised."""
        return self.tokenizer.encode(text, special=True)

    def placeholder(self, token: str, count: int) -> NDArray[np.int32]:
        """``count`` times one control token."""
        return np.full(count, self.tokenizer.token_id(token), np.int32)


def check_size(height: int, width: int) -> None:
    """Raise MediaError (kind ``dropped``) for a picture without pixels."""
    if height < 1 or width < 1:
        raise MediaError(
            f"a size of {width}×{height} pixels holds no picture", stage="layout", kind="dropped"
        )
