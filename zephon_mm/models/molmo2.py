"""Molmo 2: a picture in one square and in overlapping crops of a larger canvas; a clip in squares.

The canvas is tiled by squares that overlap, as nearly of the picture's size as there are crops for;
of what they share each patch is looked at once. A token pools so many patches: which ones is told
the model as indices into all patches of the batch. A picture is the tokens of the square, row by
row, then those of the canvas; a frame of a clip follows its time, ``0.5``.

The model's forward takes pictures or clips and refuses both, though it then does the same with
either: patches, indices, and how many tokens each medium has. So a batch that holds both is handed
over as pictures: its clips are in ``pixel_values`` too, in the order of the text, as
``get_video_features`` of transformers 5.24 would have given them. One document of both is refused.

All tokens of a document's media see each other both ways; the rows carry that mask, bool
[R, 1, S, S], for ``attn_implementation="sdpa"``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..config import DataConfig
from ..errors import ConfigError
from ..patches import Crop, PatchLayout, Resize, View
from ..sample import MediaSpan
from .base import Kind, MediaLayout
from .inputs import image_rows, media_in_text_order, token_inputs, video_rows
from .overlapping import Pool, canvas_patches, pooled, tiling
from .processor import ModelFolder, read_folder, read_named_tokens
from .tiles import HALF, TileFamily, check_size, read_tiles, refuse_budgets, square
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from ..batch import Batch

_PATCH, _COLUMN, _START, _END = "<im_patch>", "<im_col>", "<im_start>", "<im_end>"
_LOW, _FRAME, _FRAME_END = "<low_res_im_start>", "<frame_start>", "<frame_end>"
_MEDIA_TOKENS = (_PATCH, _COLUMN, _START, _END, _LOW, _FRAME, _FRAME_END)


@dataclass(frozen=True, slots=True)
class Molmo2Settings:
    """What the processor's own settings say.

    Attributes:
        patch: side of a patch in pixels.
        max_crops: most crops of a picture.
        margins: patches at the (left and top, right and bottom) of a crop that its neighbour has.
        image_pool, video_pool: patches that a token is (high, wide).
        columns, low_columns, video_columns: whether a token ends each row of a canvas, a square, a
            frame.
        low_start: whether a square begins with a token of its own.
        frame_tokens: whether frames do.
    """

    patch: int
    max_crops: int
    margins: tuple[int, int]
    image_pool: Pool
    video_pool: Pool
    columns: bool
    low_columns: bool
    video_columns: bool
    low_start: bool
    frame_tokens: bool


@dataclass(frozen=True)
class Molmo2(TileFamily):
    """The family ``molmo2``; a picture's ``size`` is its canvas's, ``grid`` (squares, rows, columns
    of patches in a square).

    Attributes:
        begin: the token that the processor writes before every text.
        image_token, video_token: what the chat template writes for a medium.
        settings_of: of the processor.
    """

    name: ClassVar[str] = "molmo2"

    begin: str
    image_token: str
    video_token: str
    settings_of: Molmo2Settings

    @classmethod
    def build(cls, config: DataConfig, tokenizer: Tokenizer) -> Self:
        """The family with the settings of the tokeniser's folder."""
        refuse_budgets(config, cls.name)
        files = read_folder(tokenizer.folder)
        side = square(files.image.get("size"), 378, files)
        settings = _read_settings(files, side)
        names = tokenizer.special_names
        begin = names.get("bos_token") or names.get("eos_token")
        if not begin:
            raise ConfigError(
                f"tokenizer={tokenizer.path!r} names neither bos_token nor eos_token, one of which "
                "Molmo2 writes first: set it in its tokenizer_config.json"
            )
        given = {"image_token": "<|image|>", "video_token": "<|video|>"}
        image, video = read_named_tokens(tokenizer.folder, *given, defaults=given)
        tile = read_tiles(files, side, 0, HALF, HALF)
        return cls(tokenizer, tile, begin, image, video, settings)

    @property
    def opening(self) -> str:  # type: ignore[override]
        return self.begin

    @property
    def control_tokens(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*_MEDIA_TOKENS, self.image_token, self.video_token)

    @property
    def placeholders(self) -> Mapping[str, str]:  # type: ignore[override]
        return {"image": self.image_token, "video": self.video_token}

    @property
    def patches(self) -> PatchLayout:
        return PatchLayout(self.settings_of.patch, 1, 1)

    @property
    def wide(self) -> int:
        """Patches along a side of a square."""
        return self.tile.side // self.settings_of.patch

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "settings_of": asdict(self.settings_of)}

    def refusal(self, kinds: Sequence[Kind]) -> str | None:
        if len(set(kinds)) > 1:
            return "model 'molmo2' takes pictures or clips, not both in one document"
        if kinds.count("video") > 1:
            return "model 'molmo2' takes one clip a document, as its processor does"
        return None

    def layout_image(self, height: int, width: int, *, alone: bool = True) -> MediaLayout:
        check_size(height, width)
        return self._layout(height, width, self.settings_of.max_crops)

    def _layout(self, height: int, width: int, max_crops: int) -> MediaLayout:
        window, margin = self._window
        down, across = tiling(height - margin, width - margin, window, max_crops)
        size = (down * window + margin, across * window + margin)
        return MediaLayout(size, (1 + down * across, self.wide, self.wide))

    @property
    def _window(self) -> tuple[int, int]:
        """Pixels from one crop to the next, and those that they share."""
        margin = sum(self.settings_of.margins) * self.settings_of.patch
        return self.tile.side - margin, margin

    def layout_video(
        self,
        num_frames: int,
        height: int,
        width: int,
        pts_seconds: Sequence[float] = (),
        fps: float = 0.0,
    ) -> MediaLayout:
        layout = super().layout_video(num_frames, height, width, pts_seconds, fps)
        return MediaLayout(layout.size, (num_frames, self.wide, self.wide))

    def views(self, span: MediaSpan) -> tuple[View, ...]:
        side, (window, margin) = self.tile.side, self._window
        down, across = ((length - margin) // window for length in span.size)
        canvas = Resize(*span.size, "plain_bilinear")
        crops = [
            View((canvas, Crop(row * window, column * window, side, side)))
            for row, column in itertools.product(range(down), range(across))
        ]
        return View((Resize(side, side, "plain_bilinear"),)), *crops

    def smaller(self, span: MediaSpan) -> Iterator[MediaSpan]:
        yield from super().smaller(span)
        max_crops = span.grid[0] - 1
        while span.kind == "image" and max_crops > 1:
            max_crops //= 2
            layout = self._layout(*span.source_size, max_crops)
            yield replace(span, size=layout.size, grid=layout.grid)

    def block(self, span: MediaSpan) -> NDArray[np.int32]:
        own = self.settings_of
        if span.kind == "image":
            (low, high), _ = self._pooled(span)
            start = _LOW if own.low_start else _START
            first = self._rows(start, low, _END, columns=own.low_columns)
            return np.concatenate((first, self._rows(_START, high, _END, columns=own.columns)))
        edges = (_FRAME, _FRAME_END) if own.frame_tokens else (_START, _END)
        (shape,), _ = self._pooled(span)
        frame = self._rows(edges[0], shape, edges[1], columns=own.video_columns)
        parts = [frame]
        for time in span.pts_seconds[1 : span.grid[0]]:
            parts += [self.ids(f" {time:.1f} "), frame]
        return np.concatenate(parts)

    def _rows(
        self, start: str, shape: tuple[int, int], end: str, *, columns: bool
    ) -> NDArray[np.int32]:
        """Placeholders of (rows, columns), and a token after each row, between two others."""
        row = self.placeholder(_PATCH, shape[1])
        if columns:
            row = np.concatenate((row, self.placeholder(_COLUMN, 1)))
        inside = np.tile(row, shape[0])
        return np.concatenate((self.placeholder(start, 1), inside, self.placeholder(end, 1)))

    def around(self, span: MediaSpan) -> tuple[str, str]:
        return (f"{span.pts_seconds[0]:.1f} " if span.kind == "video" else ""), ""

    def _pooled(self, span: MediaSpan) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
        """(rows, columns) of tokens of each part of a medium, and the patches that each pools.

        Indices, int64 [tokens, patches], count from the medium's first patch; −1 is none. The parts
        are a picture's square and its canvas, or one frame of a clip.
        """
        own, wide = self.settings_of, self.wide
        pool = own.image_pool if span.kind == "image" else own.video_pool
        whole = np.arange(wide * wide).reshape(wide, wide)
        shape, inside = pooled(whole, pool)
        if span.kind == "video":
            offsets = np.arange(span.grid[0])[:, None, None] * wide * wide
            frames = np.where(inside >= 0, inside + offsets, -1)
            return [shape], frames.reshape(-1, inside.shape[1])
        window, margin = self._window
        down, across = ((length - margin) // window for length in span.size)
        canvas, further = pooled(canvas_patches(down, across, wide, own.margins), pool)
        further = np.where(further >= 0, further + wide * wide, -1)
        return [shape, canvas], np.concatenate((inside, further))

    def extra_inputs(
        self, documents: Sequence[Sequence[MediaSpan]]
    ) -> Mapping[str, NDArray[np.generic]]:
        spans = [span for media in documents for span in media]
        if not spans:
            return {}
        found = [self._pooled(span) for span in spans]
        most = max(indices.shape[1] for _, indices in found)
        parts, at = [], 0
        for span, (_, indices) in zip(spans, found, strict=True):
            moved = np.where(indices >= 0, indices + at, -1)
            spare = ((0, 0), (0, most - moved.shape[1]))
            parts.append(np.pad(moved, spare, constant_values=-1))
            at += span.num_patches
        pooling, shapes = np.concatenate(parts), [shapes for shapes, _ in found]
        if all(span.kind == "video" for span in spans):
            rows = [(s.grid[0], *shape[0]) for s, shape in zip(spans, shapes, strict=True)]
            return {"video_token_pooling": pooling, "video_grids": np.array(rows, np.int64)}
        grids = [
            (*shape[0], *shape[1])
            if span.kind == "image"
            else (span.grid[0] * shape[0][0], shape[0][1], 0, 0)
            for span, shape in zip(spans, shapes, strict=True)
        ]
        return {
            "image_token_pooling": pooling,
            "image_grids": np.array(grids, np.int64),
            "image_num_crops": np.array([span.grid[0] for span in spans], np.int64),
        }

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        inputs = token_inputs(batch)
        if len(batch.image_grids) and len(batch.video_grids):
            inputs["pixel_values"] = self._squares(media_in_text_order(batch, self))
        elif len(batch.image_grids):
            inputs["pixel_values"] = self._squares(image_rows(batch, self))
        elif len(batch.video_grids):
            inputs["pixel_values_videos"] = self._squares(video_rows(batch, self))
        media = media_tokens(batch.input_ids, [self.tokenizer.token_id(t) for t in _MEDIA_TOKENS])
        inputs["mm_token_type_ids"] = media.long()
        inputs["attention_mask"] = attention_mask(batch.seq_idx, media)
        return inputs

    def _squares(self, rows: torch.Tensor) -> torch.Tensor:
        """Patches [n, 3·P·P] as [squares, patches, P·P·3]."""
        last = rows.view(len(rows), 3, -1).transpose(1, 2)
        return last.reshape(-1, self.wide**2, rows.shape[1])


def media_tokens(tokens: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """Whether each token is one of ``ids``, bool of their shape."""
    import torch

    return torch.isin(tokens, torch.tensor(ids, device=tokens.device))


def attention_mask(seq_idx: torch.Tensor, media: torch.Tensor) -> torch.Tensor:
    """Who sees whom, bool [R, 1, S, S]: in a document, earlier tokens, and media all media.

    Args:
        seq_idx: document of each token, [R, S].
        media: whether a token is of a picture or a frame, [R, S].
    """
    import torch

    at = torch.arange(seq_idx.shape[1], device=seq_idx.device)
    document = seq_idx[:, :, None] == seq_idx[:, None]
    both = media[:, :, None] & media[:, None]
    return (((at[:, None] >= at) | both) & document)[:, None]


def _read_settings(files: ModelFolder, side: int) -> Molmo2Settings:
    image, video, own = files.image, files.video, files.processor
    patch = int(image.get("patch_size", 14))
    if square(video.get("size"), side, files) != side or int(video.get("patch_size", 14)) != patch:
        raise ConfigError(
            f"{files.folder}: pictures of {side} pixels in patches of {patch}, clips of "
            f"size={video.get('size')} in patches of {video.get('patch_size', 14)}: one vision "
            "tower takes one size"
        )
    left, right = _pair(image.get("overlap_margins", (4, 4)))
    if side % patch or side // patch <= left + right:
        raise ConfigError(
            f"{files.folder}: crops of {side} pixels can't be cut into patches of {patch} that "
            f"overlap by {left} and {right}"
        )
    columns = bool(own.get("image_use_col_tokens", True))
    low = own.get("use_single_crop_col_tokens")
    return Molmo2Settings(
        patch=patch,
        max_crops=int(image.get("max_crops", 8)),
        margins=(left, right),
        image_pool=_pair(image.get("pooling_size", (2, 2))),
        video_pool=_pair(video.get("pooling_size", (3, 3))),
        columns=columns,
        low_columns=columns if low is None else bool(low),
        video_columns=bool(own.get("video_use_col_tokens", False)),
        low_start=bool(own.get("use_single_crop_start_token", True)),
        frame_tokens=bool(own.get("use_frame_special_tokens", True)),
    )


def _pair(found: Sequence[Any]) -> tuple[int, int]:
    first, second = (int(value) for value in found)
    return first, second
