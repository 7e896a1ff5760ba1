"""Rows and logs made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zephon_mm.batch import DocumentSpan, RowContents
from zephon_mm.digests import RowRecord, record
from zephon_mm.digests.writing import DigestLog
from zephon_mm.sample import MediaSpan, SampleRef

LENGTH = 300


def contents(slot: int = 0, key: str = "clip", seed: int = 1) -> RowContents:
    """A row of a clip of 200 tokens and a text of 60, then padding."""
    tokens = np.random.Philox(key=seed).random_raw(LENGTH).astype(np.int64) % 1000
    span = MediaSpan("video", 3, 10, 150, (2, 4, 4), (64, 64), (48, 48), (0, 5, 9), (0, 5, 9))
    ref = SampleRef(0, 1, 4, 0, 7)
    clip = DocumentSpan("clips", "clips-1.tar", key, ref, 0, 200, 0, 200, (span,), False)
    ref = SampleRef(1, 0, 2, 0, 3)
    text = DocumentSpan("texts", "texts-0.tar", "text", ref, 200, 260, 64, 124, (), False)
    patches = np.full((32, 48), seed, np.uint8)
    positions = np.tile(np.arange(LENGTH), (4, 1))
    return RowContents(slot, tokens, tokens.copy(), positions, (clip, text), (patches,))


def row(step: int = 0, slot: int = 0, **options: Any) -> RowRecord:
    return record(step, contents(slot, **options))


def write(
    folder: Path,
    rows: list[RowRecord],
    rank: int = 0,
    size: int = 1,
    identity: dict[str, Any] | None = None,
) -> Path:
    """Append a session of a rank to a log; the file's path."""
    log = DigestLog(str(folder), identity or {"seed": 1}, rank, size)
    shards = {("clips", 1): "clips-1.tar", ("texts", 0): "texts-0.tar"}
    for step in dict.fromkeys(r.step for r in rows):
        log._ready[step] = [r for r in rows if r.step == step], shards
        log.write(step)
    log.close()
    return folder / f"{rank}-of-{size}.jsonl"
