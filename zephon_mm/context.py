"""Context parallelism: a batch cut along its rows' tokens, one slice a rank.

A slice is of the whole batch, so nothing about it is counted anew: positions go on counting where
the slice begins, and a document cut by a boundary stays one document. Labels are shifted before
they are cut, since the last token of a slice has to predict the first of the next.

Slices are runs of ``length / size`` tokens, or, ``balanced``, two runs of half of that, the
``rank``-th from the head and the ``rank``-th from the tail: under a causal mask every rank then has
the same work. That is the order of torch's ``context_parallel`` and of zig-zag ring attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .errors import ConfigError

if TYPE_CHECKING:
    from .batch import Batch

_IGNORE = -100


@dataclass(frozen=True, eq=False, kw_only=True)
class ContextSlice:
    """One rank's tokens of a batch of R rows; n tokens a row.

    Attributes:
        indices: int64 [n], which tokens of each row; `take` cuts other tensors alike.
        input_ids: int64 [R, n].
        shift_labels: int64 [R, n], the label that each token's logits predict, not to be shifted
            again; transformers' losses take them as ``shift_labels``.
        position_ids: int64 [4, R, n], or [1, R, n] for a family without M-RoPE.
        seq_idx: int32 [R, n], which document of its row a token belongs to.
        cu_seq_lens: int32 [runs + 1], ends of the slice's runs of tokens of one document, rows in
            turn: ``cu_seq_lens_q`` of attention over this slice's queries.
        key_starts, key_stops: int32 [runs], the keys that a run's last token sees: its document
            from its first token on, as places in all rows laid end to end. Earlier tokens of the
            run see less by one each: the causal mask of variable-length kernels, aligned at the
            end.
        max_length: tokens of the longest run.
        num_target_tokens: ``shift_labels`` that train; over all slices those of the batch.
    """

    indices: torch.Tensor
    input_ids: torch.Tensor
    shift_labels: torch.Tensor
    position_ids: torch.Tensor
    seq_idx: torch.Tensor
    cu_seq_lens: torch.Tensor
    key_starts: torch.Tensor
    key_stops: torch.Tensor
    max_length: int
    num_target_tokens: int

    def take(self, tensor: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """The slice of another tensor of the whole rows, such as embeddings with media in place.

        Args:
            tensor: of any shape whose dimension ``dim`` is the row's tokens.
            dim: that dimension.
        """
        return tensor.index_select(dim, self.indices.to(tensor.device))


def context_slice(batch: Batch, rank: int, size: int, *, balanced: bool = False) -> ContextSlice:
    """The tokens of context-parallel rank ``rank`` of ``size``.

    Raises:
        ConfigError: the rank is not one of ``size``, or the row can't be cut in equal parts.
    """
    rows, length = batch.input_ids.shape
    parts = 2 * size if balanced else size
    if not 0 <= rank < size:
        raise ConfigError(f"context rank {rank} of {size}: must be from 0 to {size - 1}")
    if length % parts:
        raise ConfigError(
            f"rows of {length} tokens can't be cut in {parts} equal parts for {size} "
            f"context-parallel ranks: make sequence_length a multiple of {parts}"
        )
    indices = _indices(length, rank, size, balanced).to(batch.input_ids.device)
    shifted = torch.full_like(batch.labels, _IGNORE)
    shifted[:, :-1] = batch.labels[:, 1:]
    labels = shifted[:, indices]
    documents = batch.seq_idx[:, indices]
    lengths, starts, stops = _runs(batch.seq_idx.cpu(), indices.cpu())
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(lengths, 0)])
    device = batch.input_ids.device
    return ContextSlice(
        indices=indices,
        input_ids=batch.input_ids[:, indices],
        shift_labels=labels,
        position_ids=batch.position_ids[..., indices],
        seq_idx=documents,
        cu_seq_lens=ends.to(device, torch.int32),
        key_starts=starts.to(device, torch.int32),
        key_stops=stops.to(device, torch.int32),
        max_length=int(lengths.max()) if rows else 0,
        num_target_tokens=int((labels != _IGNORE).sum()),
    )


def _indices(length: int, rank: int, size: int, balanced: bool) -> torch.Tensor:
    if not balanced:
        part = length // size
        return torch.arange(rank * part, (rank + 1) * part)
    part = length // (2 * size)
    tail = 2 * size - 1 - rank
    return torch.cat(
        [torch.arange(at * part, (at + 1) * part) for at in (rank, tail)],
    )


def _runs(
    seq_idx: torch.Tensor, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lengths of the slice's runs of one document, and the keys that each sees; int64 [runs]."""
    rows, length = seq_idx.shape
    places = torch.arange(length).expand(rows, length)
    begins = torch.ones(rows, length, dtype=torch.bool)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    document_starts = torch.where(begins, places, 0).cummax(1).values
    first = begins[:, indices].clone()  # a run begins at a document's start, or after a jump
    first[:, 0] = True
    first[:, 1:] |= indices[1:] != indices[:-1] + 1
    at = first.flatten().nonzero().flatten()
    count = rows * len(indices)
    lengths = torch.diff(at, append=torch.tensor([count]))
    row, column = at // len(indices), at % len(indices)
    offset = row * length
    starts = offset + document_starts[row, indices[column]]
    stops = offset + indices[column] + lengths
    return lengths, starts, stops
