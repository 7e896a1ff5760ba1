"""How full the sequences are, and what packing costs: ``python benchmarks/bench_packing.py``.

Feeds the lengths of ``data/mixed_lengths.json``, shuffled, to one lane's sequencer, and prints one
JSON row a case: fill (packed tokens ÷ room, the draining tail left out), microseconds of CPU time
a document, and what was cut or dropped. The three one-kind rows stand beside the mixed ones;
next-fit without look-ahead is the peer.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from zephon_mm.config import Packing
from zephon_mm.models.relay import measure_digest
from zephon_mm.sample import MeasuredDocument, Measurement, MediaSpan, SampleRef
from zephon_mm.sequencer import Sequencer

DATA = Path(__file__).with_name("data") / "mixed_lengths.json"
MIXES = {
    "mixed": {"caption", "text", "image", "video", "interleaved"},
    "text only": {"text"},
    "image only": {"image"},
    "video only": {"video"},
}


def measured(number: int, parts: list[tuple[str, int]]) -> MeasuredDocument:
    """A document of the given lengths; a media token stands for four patches."""
    length = sum(n for _, n in parts)
    loss = np.ones(length, np.bool_)
    media, at = [], 0
    for kind, tokens in parts:
        if kind == "media":
            loss[at : at + tokens] = False
            grid = (1, 2, 2 * tokens)
            media.append(MediaSpan("image", 0, at, at + tokens, grid, (28, 28), (28, 28)))
        at += tokens
    ids = np.zeros(length, np.int32)
    digest = measure_digest(ids, loss, tuple(media))
    ref = SampleRef(0, 0, number, 0, number)
    return MeasuredDocument(ref, "shard", str(number), ids, loss, tuple(media), digest)


def shrink_media(document: MeasuredDocument, max_tokens: int, max_patches: int) -> MeasuredDocument:
    """Stands in for a model's re-laying rule: a medium that is too large gets the most it may."""
    if all(s.stop - s.start <= max_tokens for s in document.media):
        return document
    parts, at = [], 0
    for span in document.media:
        parts.append(("text", span.start - at))
        parts.append(("media", min(span.stop - span.start, max_tokens)))
        at = span.stop
    parts.append(("text", len(document.tokens) - at))
    return measured(document.ref.sample, parts)


def shuffled(kinds: set[str], passes: int) -> Iterator[MeasuredDocument]:
    """The documents of the given kinds, in another order in each pass."""
    rows = [parts for kind, parts in json.loads(DATA.read_text()) if kind in kinds]
    documents = [measured(i, [(k, n) for k, n in parts]) for i, parts in enumerate(rows)]
    for number in range(passes):
        order = np.argsort(np.random.Philox(key=number).random_raw(len(documents)), kind="stable")
        yield from (documents[i] for i in order)


def next_fit(documents: list[MeasuredDocument], room: int) -> float:
    """Fill of the plain rule: open a new sequence when a document does not fit the last one."""
    bins, free, tokens = 0, 0, 0
    for document in documents:
        left = len(document.tokens)
        tokens += left
        while left:
            if (left > free and left <= room) or free == 0:
                bins, free = bins + 1, room
            left, free = max(0, left - free), max(0, free - left)
    return tokens / (bins * room)


def run(mix: str, room: int, packing: Packing, passes: int) -> dict[str, Any]:
    """Pack one mix; the row to print."""
    documents = list(shuffled(MIXES[mix], passes))
    stream = iter(documents)
    pulled = 0

    def pull() -> Measurement | None:
        nonlocal pulled
        document = next(stream, None)
        pulled += document is not None
        return document

    rejected: list[str] = []
    lane = Sequencer(
        lane=0,
        num_sources=1,
        packing=packing,
        pull=pull,
        relayout=shrink_media,
        again=lambda live: [],  # nothing is restored
        on_rejected=lambda r: rejected.append(r.reason),
    )
    used = sequences = 0
    start = time.process_time()
    while pulled < len(documents):
        recipe = lane.next(room)
        if recipe is None:
            break
        if pulled < len(documents):
            used += sum(piece.num_tokens for piece in recipe.pieces)
            sequences += 1
    seconds = time.process_time() - start
    return {
        "mix": mix,
        "sequence_length": room,
        "order": packing.order,
        "pool": packing.pool,
        "fill": round(used / (sequences * room), 6),
        "next_fit": round(next_fit(documents, room), 4),
        "sequences": sequences,
        "us_per_document": round(1e6 * seconds / pulled, 2),
        "pieces_without_targets": len(rejected),
        "dropped": lane.counts[0].dropped,
    }


def main() -> None:
    """Print a row for each mix and length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=1, help="passes over the 20,000 documents")
    passes = parser.parse_args().passes
    for room in (8192, 32768):
        for mix in MIXES:
            print(json.dumps(run(mix, room, Packing(), passes)), flush=True)
    deep = Packing(order="largest", pool=256)
    print(json.dumps(run("video only", 8192, deep, passes)), flush=True)


if __name__ == "__main__":
    main()
