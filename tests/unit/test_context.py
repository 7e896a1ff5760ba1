"""Slices along the sequence: with them put together again nothing differs from the whole batch."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import numpy as np
import pytest
import torch

from zephon_mm.batch import Batch
from zephon_mm.errors import ConfigError
from zephon_mm.models import ModelFamily


def batch_of(rows: list[list[int]], length: int) -> Batch:
    """Rows of documents of the given lengths, and a padding tail where they leave some."""
    rng = np.random.default_rng(0)
    ids = rng.integers(10, 99, (len(rows), length))
    labels = np.where(rng.random(ids.shape) < 0.8, ids, -100)
    seq_idx = np.zeros(ids.shape, np.int32)
    positions = np.zeros((4, *ids.shape), np.int64)
    lengths = []
    for row, documents in enumerate(rows):
        at = 0
        tail = [length - sum(documents)] if sum(documents) < length else []
        for number, size in enumerate([*documents, *tail]):
            seq_idx[row, at : at + size] = number
            positions[:, row, at : at + size] = np.arange(size)
            labels[row, at] = -100
            lengths.append(size)
            at += size
        if tail:
            labels[row, length - tail[0] :] = -100
    none = torch.empty(0, 4, dtype=torch.uint8)
    return Batch(
        step=0,
        slots=tuple(range(len(rows))),
        input_ids=torch.from_numpy(ids),
        labels=torch.from_numpy(labels),
        position_ids=torch.from_numpy(positions),
        cu_seq_lens=torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)),
        max_length=max(lengths),
        seq_idx=torch.from_numpy(seq_idx),
        image_patches=none,
        video_patches=none,
        image_grids=torch.empty(0, 3, dtype=torch.int64),
        video_grids=torch.empty(0, 3, dtype=torch.int64),
        documents=tuple(() for _ in rows),
        num_target_tokens=int((labels != -100).sum()),
        family=cast(ModelFamily, None),
    )


def visible(batch: Batch) -> torch.Tensor:
    """Bool [R·S, R·S]: which tokens each token sees, over all rows laid end to end."""
    ends = batch.cu_seq_lens.long()
    document = torch.bucketize(torch.arange(int(ends[-1])), ends, right=True)
    return (document[:, None] == document[None]).tril()


ROWS = [[7, 1, 20, 4], [32], [5, 5], [1, 30]]


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_slices_are_the_batch(size: int, balanced: bool) -> None:
    batch = batch_of(ROWS, 32)
    slices = [batch.context_slice(rank, size, balanced=balanced) for rank in range(size)]
    order = torch.cat([s.indices for s in slices])
    back = order.argsort()
    assert back.tolist() == order.sort().indices.tolist() and sorted(order.tolist()) == [*range(32)]
    assert torch.equal(torch.cat([s.input_ids for s in slices], 1)[:, back], batch.input_ids)
    assert torch.equal(torch.cat([s.seq_idx for s in slices], 1)[:, back], batch.seq_idx)
    positions = torch.cat([s.position_ids for s in slices], 2)[..., back]
    assert torch.equal(positions, batch.position_ids)
    labels = torch.cat([s.shift_labels for s in slices], 1)[:, back]
    assert torch.equal(labels[:, :-1], batch.labels[:, 1:]) and (labels[:, -1] == -100).all()
    assert sum(s.num_target_tokens for s in slices) == batch.num_target_tokens
    whole = torch.arange(4 * 32 * 3).reshape(4, 32, 3)
    assert torch.equal(torch.cat([s.take(whole) for s in slices], 1)[:, back], whole)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_the_runs_of_a_slice_give_its_rows_of_the_mask(size: int, balanced: bool) -> None:
    batch = batch_of(ROWS, 32)
    mask = visible(batch)
    for rank in range(size):
        part = batch.context_slice(rank, size, balanced=balanced)
        tokens = (torch.arange(4)[:, None] * 32 + part.indices).flatten()
        found = torch.zeros(len(tokens), 4 * 32, dtype=torch.bool)
        ends = part.cu_seq_lens.tolist()
        keys = zip(part.key_starts.tolist(), part.key_stops.tolist(), strict=True)
        for (begin, end), (start, stop) in zip(pairwise(ends), keys, strict=True):
            for query in range(begin, end):
                found[query, start : stop - (end - 1 - query)] = True
        assert torch.equal(found, mask[tokens])
        assert part.max_length == max(np.diff(ends)) and ends[-1] == len(tokens)


@pytest.mark.parametrize("size", [2, 4])
def test_balanced_slices_are_those_of_torch(size: int) -> None:
    balancer = pytest.importorskip(
        "torch.distributed.tensor.experimental._context_parallel._load_balancer"
    )
    expected = balancer._HeadTailLoadBalancer(32, size, "cpu")._generate_indices()[0]
    batch = batch_of(ROWS, 32)
    found = torch.cat([batch.context_slice(r, size, balanced=True).indices for r in range(size)])
    assert found.tolist() == expected.tolist()


def test_the_losses_of_the_slices_are_that_of_the_row() -> None:
    batch = batch_of(ROWS, 32)
    logits = torch.randn(4, 32, 100, generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy
    shifted = (logits[:, :-1].reshape(-1, 100), batch.labels[:, 1:].reshape(-1))
    whole = loss(*shifted, reduction="sum")
    parts = 0.0
    for rank in range(4):
        part = batch.context_slice(rank, 4, balanced=True)
        own = part.take(logits).reshape(-1, 100)
        parts += float(loss(own, part.shift_labels.reshape(-1), reduction="sum"))
    assert parts == pytest.approx(float(whole), rel=1e-6)


def test_rows_that_can_not_be_cut_are_refused() -> None:
    batch = batch_of(ROWS, 32)
    with pytest.raises(ConfigError, match="sequence_length a multiple of 6"):
        batch.context_slice(0, 3, balanced=True)
    with pytest.raises(ConfigError, match="from 0 to 1"):
        batch.context_slice(2, 2)
