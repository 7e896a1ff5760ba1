"""Rows of packed documents as the tensors that an unmodified transformers model takes.

Several documents share a row and must not see each other. The model knows them apart by
``position_ids`` [4, rows, length]: axis 0 counts 0, 1, … in each document, and transformers builds
its mask from where that restarts; axes 1–3 are M-RoPE, restarting too. Families without M-RoPE have
axis 0 alone. The padding tail counts on its own, as one more document. For attention kernels of
variable length, ``cu_seq_lens_q/k`` and ``max_length_q/k`` say the same over all rows laid end to
end. There is no ``attention_mask``: one of ones makes documents see each other, as does a cache,
hence ``use_cache=False``.

``labels`` are not shifted (the model does that): −100 on the first token of each document, which
the last token of its neighbour would have to predict, on media, on padding, on what the document
itself leaves out, and on all of a document with a medium that could not be decoded.

Pixels stay uint8 patches until `Batch.model_inputs`, which normalises them where they lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .context import ContextSlice, context_slice
from .models.base import ModelFamily
from .models.relay import span_identity
from .sample import MediaSpan, SampleRef

IGNORE = -100
"""The label of a token that trains nothing."""


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """A document, or a piece of one, in a row of a batch.

    Attributes:
        source: id of its source.
        shard: path or URL of its shard.
        key: its sample's key.
        ref: the draw.
        start, stop: its tokens in the row.
        token_start, token_stop: which of its own tokens those are.
        media: its media, their spans counted in the row.
        damaged: one of its media could not be decoded: it trains nothing here.
    """

    source: str
    shard: str
    key: str
    ref: SampleRef
    start: int
    stop: int
    token_start: int
    token_stop: int
    media: tuple[MediaSpan, ...]
    damaged: bool

    @property
    def epoch(self) -> int:
        """Pass over the source, from 0."""
        return self.ref.epoch

    @property
    def frame_pts(self) -> tuple[tuple[float, ...], ...]:
        """Of each medium, the times of its frames in seconds; empty for a picture."""
        return tuple(span.pts_seconds for span in self.media)


class RowContents(NamedTuple):
    """One row of a batch as arrays of the CPU: all that training sees of it, and its origin.

    Attributes:
        slot: its place in the global batch.
        input_ids, labels: int64 [S].
        position_ids: int64 [4, S] or [1, S].
        documents: its documents.
        patches: uint8 [n, columns], of each medium of the documents in turn.
    """

    slot: int
    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    documents: tuple[DocumentSpan, ...]
    patches: tuple[NDArray[np.uint8], ...]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Batch:
    """A rank's rows of one step; R rows of S tokens.

    Attributes:
        step: the step, from 0.
        slots: the rows' places in the global batch.
        input_ids: int64 [R, S].
        labels: int64 [R, S], not shifted.
        position_ids: int64 [4, R, S], or [1, R, S] for a family without M-RoPE.
        cu_seq_lens: int32 [documents + 1], ends of all documents and padding tails, rows in turn.
        max_length: the longest of them.
        seq_idx: int32 [R, S], which document of its row a token belongs to; the padding tail is
            one more. For linear-attention layers.
        image_patches, video_patches: uint8 [n, columns]; a row is a patch, or a whole tile.
        image_grids, video_grids: int64 [media, 3], patches along time, height, width.
        extras: what else the family's models take, such as ``second_per_grid_ts``.
        documents: of each row, its documents.
        num_target_tokens: labels that train.
        family: how it becomes the inputs of a model.
    """

    step: int
    slots: tuple[int, ...]
    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    cu_seq_lens: torch.Tensor
    max_length: int
    seq_idx: torch.Tensor
    image_patches: torch.Tensor
    video_patches: torch.Tensor
    image_grids: torch.Tensor
    video_grids: torch.Tensor
    extras: dict[str, torch.Tensor] = field(default_factory=dict)
    documents: tuple[tuple[DocumentSpan, ...], ...]
    num_target_tokens: int
    family: ModelFamily

    def __len__(self) -> int:
        """Rows."""
        return len(self.slots)

    def __repr__(self) -> str:
        """One line: what it holds, not its tensors."""
        rows, length = self.input_ids.shape
        return (
            f"Batch(step={self.step}, rows={rows}×{length}, "
            f"documents={sum(map(len, self.documents))}, pictures={len(self.image_grids)}, "
            f"clips={len(self.video_grids)}, targets={self.num_target_tokens}, "
            f"device={self.input_ids.device})"
        )

    @property
    def num_items_in_batch(self) -> int:
        """What the summed loss is divided by: at least 1, so that no loss is NaN."""
        return max(1, self.num_target_tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens of documents: padding is left out."""
        return sum(span.stop - span.start for row in self.documents for span in row)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors of the batch."""
        values = [getattr(self, entry.name) for entry in fields(self)]
        return tuple(v for v in (*values, *self.extras.values()) if isinstance(v, torch.Tensor))

    @property
    def model_inputs(self) -> dict[str, Any]:
        """Keyword arguments of the model's forward, to which only ``use_cache=False`` is added.

        Patches are normalised at every call, to float32, on their device. A batch without a
        picture has no pixel inputs of pictures, and likewise for clips.
        """
        return self.family.model_inputs(self)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The batch with every tensor on ``device``."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory; itself on a machine without a GPU.

        Tensors that lie on a GPU stay there.
        """
        if not torch.cuda.is_available():
            return self
        return self._map(lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory())

    def _map(self, change: Any) -> Batch:
        changed: dict[str, Any] = {
            entry.name: change(value)
            for entry in fields(self)
            if isinstance(value := getattr(self, entry.name), torch.Tensor)
        }
        extras = {name: change(value) for name, value in self.extras.items()}
        return replace(self, extras=extras, **changed)

    def rows(self) -> Iterator[RowContents]:
        """Each row for itself, in the order of ``slots``."""
        ids, labels = self.input_ids.cpu().numpy(), self.labels.cpu().numpy()
        positions = self.position_ids.cpu().numpy()
        patches = {
            "image": self.image_patches.cpu().numpy(),
            "video": self.video_patches.cpu().numpy(),
        }
        at = {"image": 0, "video": 0}
        for row, documents in enumerate(self.documents):
            found = []
            for document in documents:
                for span in document.media:
                    start = at[span.kind]
                    at[span.kind] = stop = start + span.num_patches
                    found.append(patches[span.kind][start:stop])
            yield RowContents(
                slot=self.slots[row],
                input_ids=ids[row],
                labels=labels[row],
                position_ids=positions[:, row],
                documents=documents,
                patches=tuple(found),
            )

    def context_slice(self, rank: int, size: int, *, balanced: bool = False) -> ContextSlice:
        """The tokens of one context-parallel rank of ``size``, see `context`.

        Args:
            rank: the context-parallel rank.
            size: ranks that share the rows.
            balanced: a run from the head and one from the tail, as torch's ``context_parallel``.

        Raises:
            ConfigError: the rows can't be cut in equal parts.
        """
        return context_slice(self, rank, size, balanced=balanced)

    def row_digests(self, pixels: bool = False) -> list[bytes]:
        """32 bytes of each row over all that training sees of it, and where it came from.

        Args:
            pixels: also over the bytes of its patches.
        """
        return [_row_digest(row, pixels) for row in self.rows()]


def _row_digest(row: RowContents, pixels: bool) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for array in (row.input_ids, row.labels, row.position_ids):
        digest.update(np.ascontiguousarray(array, dtype="<i8").data)
    patches = iter(row.patches)
    for document in row.documents:
        digest.update(_identity(document))
        for _ in document.media:
            medium = next(patches)
            if pixels:
                digest.update(medium.data)
    return digest.digest()


def _identity(document: DocumentSpan) -> bytes:
    """A document's origin and media as bytes; its shard by number, since paths may differ."""
    origin = (
        document.source,
        document.key,
        tuple(map(int, document.ref)),
        (document.start, document.stop, document.token_start, document.token_stop),
        bool(document.damaged),
    )
    return repr(origin).encode() + b"".join(span_identity(span) for span in document.media)
