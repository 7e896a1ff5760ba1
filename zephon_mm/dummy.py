"""A picture that trains nothing, for trainers that shard a model and must run all of it.

Where weights are gathered layer by layer (FSDP, ZeRO-3), a rank whose rows have neither a picture
nor a clip leaves the vision tower out, and the others wait for it for ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .batch import IGNORE, Batch
from .collate import PackedPiece, PackedRow, collate
from .errors import ConfigError
from .models.base import ModelFamily
from .models.normalise import mean_patches
from .sample import MeasuredDocument, MediaSpan, SampleRef

_NAME = "dummy"


def with_dummy_image(batch: Batch) -> Batch:
    """The batch, and if it has neither pictures nor clips one more row that holds a small picture.

    All labels of that row are −100, so the loss and its gradients stay as they are; its slot is −1
    and its document's source ``dummy``. A batch of a family that takes no pictures is given back.

    Raises:
        ConfigError: the family's smallest picture is longer than a row.
    """
    family = batch.family
    if len(batch.image_grids) or len(batch.video_grids) or "image" not in family.placeholders:
        return batch
    extra = _row(batch, family).to(batch.input_ids.device)
    ends = torch.cat([batch.cu_seq_lens, extra.cu_seq_lens[1:] + batch.cu_seq_lens[-1]])
    documents = (*batch.documents, *extra.documents)
    media = [document.media for row in documents for document in row]
    extras = family.extra_inputs(media)
    joined: dict[str, Any] = {
        name: torch.cat([getattr(batch, name), getattr(extra, name)])
        for name in ("input_ids", "labels", "seq_idx")
    }
    return replace(
        batch,
        slots=(*batch.slots, -1),
        position_ids=torch.cat([batch.position_ids, extra.position_ids], dim=1),
        cu_seq_lens=ends,
        max_length=max(batch.max_length, extra.max_length),
        image_patches=extra.image_patches,
        image_grids=extra.image_grids,
        extras={name: torch.from_numpy(value).to(ends.device) for name, value in extras.items()},
        documents=documents,
        **joined,
    )


def _row(batch: Batch, family: ModelFamily) -> Batch:
    """A batch of one row, the picture and padding."""
    layout = family.layout_image(1, 1)
    span = MediaSpan(
        kind="image",
        member=0,
        start=0,
        stop=0,
        grid=layout.grid,
        size=layout.size,
        source_size=(1, 1),
    )
    tokens = family.block(span)
    length = batch.input_ids.shape[1]
    if len(tokens) > length:
        raise ConfigError(
            f"the smallest picture of model {family.name!r} takes {len(tokens)} tokens, and a row "
            f"has {length}: raise sequence_length"
        )
    span = replace(span, stop=len(tokens))
    loss = np.zeros(len(tokens), np.bool_)
    ref = SampleRef(0, 0, 0, 0, 0)
    document = MeasuredDocument(ref, "", _NAME, tokens, loss, (span,), b"")
    patches = mean_patches(family.image_mean, span.num_patches, family.patches)
    targets = batch.input_ids[batch.labels != IGNORE]  # never a placeholder of a medium
    return collate(
        [PackedRow([PackedPiece(document, 0, len(tokens), damaged=True)], [patches])],
        family=family,
        sequence_length=length,
        pad_id=int(targets[0]) if len(targets) else 0,
        step=batch.step,
        slots=[-1],
        source_ids=[_NAME],
    )
