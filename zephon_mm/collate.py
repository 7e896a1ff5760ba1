"""Packed rows to a batch: where tokens, labels, positions and patches are written.

See `batch` for what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .batch import IGNORE, Batch, DocumentSpan
from .errors import ZephonError
from .models.base import ModelFamily
from .patches import adjacent, are_bytes
from .sample import MeasuredDocument, MediaSpan

if TYPE_CHECKING:
    from .patches import Patches


@dataclass(slots=True)
class PackedPiece:
    """Tokens ``[start, stop)`` of a document, which take their turn in a row.

    Attributes:
        damaged: one of its media could not be decoded: it trains nothing.
    """

    document: MeasuredDocument
    start: int
    stop: int
    damaged: bool = False

    @property
    def media(self) -> tuple[MediaSpan, ...]:
        """The media of the piece, their spans counted from its first token."""
        media = self.document.media
        if not media or (self.start == 0 and self.stop == len(self.document.tokens)):
            return media
        return tuple(
            span.at(span.start - self.start, span.stop - self.start)
            for span in media
            if self.start <= span.start and span.stop <= self.stop
        )


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One sequence: pieces in order, and the patches of their media.

    Attributes:
        image_patches, video_patches: uint8 [n, columns], one of each medium, in token order; arrays
            of the CPU, or tensors of a device.
    """

    pieces: Sequence[PackedPiece]
    image_patches: Sequence[Patches] = ()
    video_patches: Sequence[Patches] = ()


def collate(
    rows: Sequence[PackedRow],
    *,
    family: ModelFamily,
    sequence_length: int,
    pad_id: int,
    step: int,
    slots: Sequence[int],
    source_ids: Sequence[str],
) -> Batch:
    """Make the batch of ``rows``; a row without pieces is all padding.

    Args:
        rows: in slot order.
        family: decides positions, patch columns and further inputs.
        sequence_length: tokens a row; pieces that leave some are followed by padding.
        pad_id: token id of padding.
        step: the step.
        slots: of each row, its place in the global batch.
        source_ids: of each source, by `SampleRef.source`.

    Raises:
        ZephonError: a row is too long, or its patches are not those of its media; both are faults
            of the caller.
    """
    if len(rows) != len(slots):
        raise ZephonError(f"{len(rows)} rows for {len(slots)} slots")
    arrays = _Arrays.padding(len(rows), sequence_length, pad_id, family.position_axes)
    lengths: list[int] = []
    documents: list[tuple[DocumentSpan, ...]] = []
    for number, row in enumerate(rows):
        spans, ends = _fill_row(arrays, number, row, family, source_ids)
        documents.append(spans)
        lengths += ends
    media = [span for row_spans in documents for document in row_spans for span in document.media]
    images = [span for span in media if span.kind == "image"]
    videos = [span for span in media if span.kind == "video"]
    columns = family.patches.columns
    extras = family.extra_inputs([d.media for row_spans in documents for d in row_spans])
    return Batch(
        step=step,
        slots=tuple(slots),
        input_ids=torch.from_numpy(arrays.ids),
        labels=torch.from_numpy(arrays.labels),
        position_ids=torch.from_numpy(arrays.positions),
        cu_seq_lens=torch.from_numpy(np.array([*accumulate(lengths, initial=0)], np.int32)),
        max_length=max(lengths, default=0),
        seq_idx=torch.from_numpy(arrays.seq_idx),
        image_patches=_join([p for row in rows for p in row.image_patches], images, columns),
        video_patches=_join([p for row in rows for p in row.video_patches], videos, columns),
        image_grids=_grids(images),
        video_grids=_grids(videos),
        extras={name: torch.from_numpy(value) for name, value in extras.items()},
        documents=tuple(documents),
        num_target_tokens=int(np.count_nonzero(arrays.labels != IGNORE)),
        family=family,
    )


class _Arrays(NamedTuple):
    """The arrays of a batch that `_fill_row` fills, see `Batch`."""

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    seq_idx: NDArray[np.int32]
    positions: NDArray[np.int64]

    @classmethod
    def padding(cls, num_rows: int, length: int, pad_id: int, axes: int) -> _Arrays:
        """Rows of padding; what every row sets whole is left unset."""
        shape = (num_rows, length)
        return cls(
            ids=np.full(shape, pad_id, np.int64),
            labels=np.full(shape, IGNORE, np.int64),
            seq_idx=np.empty(shape, np.int32),
            positions=np.empty((axes, *shape), np.int64),
        )


def _fill_row(
    arrays: _Arrays,
    number: int,
    row: PackedRow,
    family: ModelFamily,
    source_ids: Sequence[str],
) -> tuple[tuple[DocumentSpan, ...], list[int]]:
    """Write row ``number``; returns its documents, and the lengths of them and of its padding."""
    length = arrays.ids.shape[1]
    tokens = [piece.document.tokens[piece.start : piece.stop] for piece in row.pieces]
    loss = [piece.document.loss[piece.start : piece.stop] for piece in row.pieces]
    edges = list(accumulate(map(len, tokens), initial=0))
    end = edges[-1]
    if end > length:
        raise ZephonError(f"row {number} has {end} tokens for {length}")
    ids, labels = arrays.ids[number, :end], arrays.labels[number, :end]
    positions = arrays.positions[:, number]
    if tokens:  # all documents at once: rows of many short ones cost little more than others
        np.concatenate(tokens, out=ids)
        np.copyto(labels, ids, where=np.concatenate(loss))
        labels[[at for at in edges[:-1] if at < end]] = IGNORE
    if end < length:
        edges.append(length)
    bounds = np.array(edges, np.int64)
    starts, lengths = bounds[:-1], bounds[1:] - bounds[:-1]
    arrays.seq_idx[number] = np.arange(len(lengths), dtype=np.int32).repeat(lengths)
    np.subtract(np.arange(length), starts.repeat(lengths), out=positions[0])
    positions[1:, end:] = positions[0, end:]
    spans: list[DocumentSpan] = []
    for piece, part, at in zip(row.pieces, tokens, edges, strict=False):
        media = piece.media
        if len(positions) > 1:
            positions[1:, at : at + len(part)] = family.positions(part, media)
        if media:
            media = tuple([span.at(span.start + at, span.stop + at) for span in media])
        for span in media:
            labels[span.start : span.stop] = IGNORE
        if piece.damaged:
            labels[at : at + len(part)] = IGNORE
        spans.append(_document_span(piece, media, at, source_ids))
    return tuple(spans), lengths.tolist()


def _document_span(
    piece: PackedPiece, media: tuple[MediaSpan, ...], at: int, source_ids: Sequence[str]
) -> DocumentSpan:
    """``media``: counted in the row. Arguments by place: by name they cost twice as much."""
    document, start, stop = piece.document, piece.start, piece.stop
    place = source_ids[document.ref.source], document.shard, document.key, document.ref
    return DocumentSpan(*place, at, at + stop - start, start, stop, media, piece.damaged)


def _grids(media: Sequence[MediaSpan]) -> torch.Tensor:
    if not media:
        return torch.from_numpy(np.empty((0, 3), np.int64))
    return torch.from_numpy(np.array([span.grid for span in media], np.int64))


def _join(patches: Sequence[Patches], media: Sequence[MediaSpan], columns: int) -> torch.Tensor:
    """The patches of all media in one tensor, each checked against its grid; uint8 [n, columns].

    It lies on the device that any of them lies on. What lies together already is not copied.
    """
    if len(patches) != len(media):
        raise ZephonError(f"patches of {len(patches)} media for {len(media)} media")
    if not media:
        return torch.from_numpy(np.empty((0, columns), np.uint8))
    for array, span in zip(patches, media, strict=True):
        if array.shape != (span.num_patches, columns) or not are_bytes(array):
            raise ZephonError(
                f"a {span.kind} of grid {span.grid} came as {array.dtype} {array.shape} instead of "
                f"uint8 {(span.num_patches, columns)}"
            )
    if (together := adjacent(patches)) is not None:
        return torch.from_numpy(together)
    device = next((p.device for p in patches if isinstance(p, torch.Tensor)), torch.device("cpu"))
    shape = (sum(span.num_patches for span in media), columns)
    if device.type == "cpu":  # by NumPy, which asks for huge pages: few faults as it is filled
        joined = torch.from_numpy(np.empty(shape, np.uint8))
    else:
        joined = torch.empty(shape, dtype=torch.uint8, device=device)
    at = 0
    for array in patches:
        part = joined[at : at + len(array)]
        if isinstance(array, torch.Tensor):
            part.copy_(array)
        elif device.type == "cpu":
            part.numpy()[...] = array
        else:
            part.copy_(torch.from_numpy(np.require(array, requirements=("C", "W"))))
        at += len(array)
    return joined
