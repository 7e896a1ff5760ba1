"""A batch as keyword arguments of a model's forward: the parts that families share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .normalise import normalise

if TYPE_CHECKING:
    import torch

    from ..batch import Batch
    from .base import ModelFamily


def token_inputs(batch: Batch) -> dict[str, Any]:
    """Tokens, labels, positions, and the ends of documents for attention of variable length.

    ``position_ids`` is [4, R, S] for M-RoPE, else [R, S]; transformers finds the documents by where
    its first axis restarts, as long as there is neither a cache nor an ``attention_mask``.
    """
    positions = batch.position_ids
    return {
        "input_ids": batch.input_ids,
        "labels": batch.labels,
        "position_ids": positions if len(positions) > 1 else positions[0],
        "cu_seq_lens_q": batch.cu_seq_lens,
        "cu_seq_lens_k": batch.cu_seq_lens,
        "max_length_q": batch.max_length,
        "max_length_k": batch.max_length,
        "num_items_in_batch": batch.num_items_in_batch,
        **batch.extras,
    }


def image_rows(batch: Batch, family: ModelFamily) -> torch.Tensor:
    """Normalised patches of the pictures, float32 [n, columns]."""
    return normalise(batch.image_patches, family.image_mean, family.image_std)


def video_rows(batch: Batch, family: ModelFamily) -> torch.Tensor:
    """Normalised patches of the clips, float32 [n, columns]."""
    return normalise(batch.video_patches, family.video_mean, family.video_std)


def tiles(rows: torch.Tensor, side: int) -> torch.Tensor:
    """Rows of tiles as pictures: [n, 3, side, side]."""
    return rows.view(-1, 3, side, side)


def media_in_text_order(batch: Batch, family: ModelFamily) -> torch.Tensor:
    """Normalised patches of pictures and clips as they come in the text, float32 [n, columns]."""
    import torch

    images, videos = image_rows(batch, family), video_rows(batch, family)
    if not len(videos):
        return images
    if not len(images):
        return videos
    rows = {"image": images, "video": videos}
    at = {"image": 0, "video": 0}
    parts = []
    for documents in batch.documents:
        for document in documents:
            for span in document.media:
                start = at[span.kind]
                at[span.kind] = start + span.num_patches
                parts.append(rows[span.kind][start : at[span.kind]])
    return torch.cat(parts)
