"""Gemma 3: a picture in one square, and with "pan and scan" in crops of a long one, too.

A picture is two newlines, ``<start_of_image>``, its ``<image_soft_token>``, ``<end_of_image>``, two
newlines; the newlines are text and are tokenised with what stands next to them. It takes no clips.

The tokens of a picture see each other both ways. So the rows carry their masks with them:
``attention_mask`` is a dictionary of two boolean masks [R, 1, S, S], for the model's full and
sliding layers, which keep documents apart as well. They suit ``attn_implementation="sdpa"``; eager
attention would add them as numbers, and flash attention has no place for them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..config import DataConfig
from ..errors import MediaError
from ..patches import Crop, Resize, View
from ..sample import MediaSpan
from .base import MediaLayout
from .processor import read_folder, sliding_window
from .tiles import TileFamily, check_size, read_tiles, refuse_budgets, square
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from ..batch import Batch

_BEGIN, _END, _SOFT = "<start_of_image>", "<end_of_image>", "<image_soft_token>"
_CROPS = " and here are some crops to help you see better "


@dataclass(frozen=True, slots=True)
class PanAndScan:
    """When a long picture is cut into crops besides, and into how many.

    Attributes:
        min_side: no crop has a shorter side.
        max_crops: most crops.
        min_ratio: aspect ratio from which it is done.
    """

    min_side: int
    max_crops: int
    min_ratio: float

    def boxes(self, height: int, width: int) -> tuple[Crop, ...]:
        """The crops of Gemma 3's processor in transformers 5.24; the last may be smaller."""
        long, short = max(height, width), min(height, width)
        if long / short < self.min_ratio:
            return ()
        count = min(long // self.min_side, math.floor(long / short + 0.5))
        count = min(self.max_crops, max(2, count))
        down, across = (1, count) if width >= height else (count, 1)
        high, wide = math.ceil(height / down), math.ceil(width / across)
        if min(high, wide) < self.min_side:
            return ()
        places = itertools.product(range(down), range(across))
        return tuple(Crop(row * high, column * wide, high, wide) for row, column in places)


@dataclass(frozen=True)
class Gemma3(TileFamily):
    """The family ``gemma3``; a picture's ``size`` is that of the square."""

    name: ClassVar[str] = "gemma3"
    control_tokens: ClassVar[tuple[str, ...]] = (_BEGIN, _END, _SOFT)
    placeholders: ClassVar[Mapping[str, str]] = {"image": _BEGIN}

    window: int
    pan_and_scan: PanAndScan | None

    @classmethod
    def build(cls, config: DataConfig, tokenizer: Tokenizer) -> Self:
        """The family with the settings of the tokeniser's folder and the model's window."""
        refuse_budgets(config, cls.name)
        files = read_folder(tokenizer.folder)
        side = square(files.image.get("size"), 896, files)
        tokens = int(files.processor.get("image_seq_length", 256))
        asked = files.images_kwargs
        scan = PanAndScan(
            min_side=int(asked.get("pan_and_scan_min_crop_size", 256)),
            max_crops=int(asked.get("pan_and_scan_max_num_crops", 4)),
            min_ratio=float(asked.get("pan_and_scan_min_ratio_to_activate", 1.2)),
        )
        return cls(
            tokenizer,
            read_tiles(files, side, tokens),
            window=sliding_window(files, cls.name),
            pan_and_scan=scan if asked.get("do_pan_and_scan") else None,
        )

    def settings(self) -> dict[str, Any]:
        scan = None if self.pan_and_scan is None else asdict(self.pan_and_scan)
        return {**super().settings(), "pan_and_scan": scan}

    def layout_image(self, height: int, width: int, *, alone: bool = True) -> MediaLayout:
        check_size(height, width)
        crops = self.pan_and_scan.boxes(height, width) if self.pan_and_scan is not None else ()
        return MediaLayout((self.tile.side, self.tile.side), (1 + len(crops), 1, 1))

    def layout_video(
        self,
        num_frames: int,
        height: int,
        width: int,
        pts_seconds: Sequence[float] = (),
        fps: float = 0.0,
    ) -> MediaLayout:
        raise MediaError("gemma3 takes no clips", stage="layout", kind="dropped")

    def views(self, span: MediaSpan) -> tuple[View, ...]:
        square = Resize(*span.size, "bilinear")
        if span.grid[0] == 1 or self.pan_and_scan is None:
            return (View((square,)),)
        boxes = self.pan_and_scan.boxes(*span.source_size)
        return View((square,)), *(View((box, square)) for box in boxes)

    def smaller(self, span: MediaSpan) -> Iterator[MediaSpan]:
        """None: a picture has one size, and the text around it says whether there are crops."""
        return iter(())

    def block(self, span: MediaSpan) -> NDArray[np.int32]:
        soft = self.placeholder(_SOFT, self.tile.tokens)
        picture = np.concatenate((self.ids(_BEGIN), soft, self.ids(_END)))
        parts = [picture]
        for number in range(1, span.grid[0]):
            between = f"\n\n{_CROPS}\n\n" if number == 1 else "\n\n \n\n"
            parts += [self.ids(between), picture]
        return np.concatenate(parts)

    def around(self, span: MediaSpan) -> tuple[str, str]:
        return ("\n\n" if span.grid[0] == 1 else "Here is the original image \n\n"), "\n\n"

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        inputs = super().model_inputs(batch)
        soft = batch.input_ids == self.tokenizer.token_id(_SOFT)
        inputs["token_type_ids"] = soft.long()
        inputs["attention_mask"] = attention_masks(batch.seq_idx, soft, self.window)
        return inputs


def attention_masks(
    seq_idx: torch.Tensor,
    soft: torch.Tensor | None,
    window: int,
    *,
    full_both_ways: bool = True,
) -> dict[str, torch.Tensor]:
    """Who sees whom, bool [R, 1, S, S]: within a document, earlier tokens and its own picture.

    Sliding layers see ``window`` tokens back, and of their own picture no more than that, but what
    comes after, as transformers 5.24 composes its masks.

    Args:
        seq_idx: document of each token, [R, S].
        soft: whether a token is of a picture, [R, S]; None: all layers are causal.
        window: of the sliding layers.
        full_both_ways: whether a picture's tokens see each other both ways in full layers, too.
    """
    import torch

    length = seq_idx.shape[1]
    at = torch.arange(length, device=seq_idx.device)
    document = seq_idx[:, :, None] == seq_idx[:, None]
    causal = (at[:, None] >= at) & document
    near = at > at[:, None] - window
    if soft is None:
        return {"full_attention": causal[:, None], "sliding_attention": (causal & near)[:, None]}
    starts = soft & ~torch.nn.functional.pad(soft, (1, 0))[:, :-1]
    picture = torch.where(soft, starts.cumsum(1), -1)
    same = (picture[:, :, None] == picture[:, None]) & soft[:, :, None]
    sees = causal | (same & document)
    full = sees if full_both_ways else causal
    return {"full_attention": full[:, None], "sliding_attention": (sees & near)[:, None]}
