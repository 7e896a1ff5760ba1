"""Documents for the equality suites: as our batch, and as a family's processor has them.

Ours go the whole way: a shard, its index, measuring, decoding, collating.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer

from tests.families import FAMILIES, hf_processor
from zephon_mm.batch import Batch
from zephon_mm.collate import PackedPiece, PackedRow, collate
from zephon_mm.config import DataConfig, ExecutionConfig, Source, VideoSampling
from zephon_mm.demo.sheet import frames_of
from zephon_mm.pipeline.run import Run, open_run
from zephon_mm.sample import MeasuredDocument, MediaSpan, SampleRef
from zephon_mm.stages.materialise import MediaTask

from . import media


class Picture(NamedTuple):
    width: int
    height: int


class Clip(NamedTuple):
    frames: int
    rate: int = 8


Part = str | Picture | Clip

DOCUMENTS: dict[str, list[Part]] = {
    "text": ["A man rides a brown horse on the beach."],
    "word": ["dog"],
    "picture": ["Look: ", Picture(50, 70), " and 12 people watch"],
    "picture first": [Picture(130, 40), "\nTwo dogs play."],
    "newlines": ["The fox:\n", Picture(64, 64), "\n\nThe snow\n"],
    "several": ["a ", Picture(40, 60), Picture(90, 30), " b ", Picture(33, 33), "c"],
    "clip": ["See ", Clip(9), " and then it ends."],
    "odd clip": [Clip(3, 2), "short"],
    "clips": ["one ", Clip(6), Clip(5, 4), " both"],
    "mixed": ["a ", Clip(4), "\nb ", Picture(70, 40), " c"],
}


@dataclass(frozen=True)
class Made:
    """A family, opened over a shard of its documents."""

    name: str
    folder: Path
    run: Run
    processor: Any
    documents: dict[str, MeasuredDocument]
    files: dict[str, list[bytes]]

    def patches(self, name: str, kind: str) -> list[np.ndarray[Any, Any]]:
        """Decoded patches of a document's media of one kind."""
        document = self.documents[name]
        tasks = [MediaTask(document.ref, span) for span in document.media if span.kind == kind]
        results = [self.run.materialise.one(task) for task in tasks]
        assert all(result.damaged is None for result in results)
        return [result.patches for result in results]

    def batch(self, rows: Sequence[Sequence[str]], padding: int = 0) -> Batch:
        """The batch of rows of documents, by name."""
        packed = [
            PackedRow(
                [self.piece(name) for name in row],
                [p for name in row for p in self.patches(name, "image")],
                [p for name in row for p in self.patches(name, "video")],
            )
            for row in rows
        ]
        lengths = [sum(piece.stop for piece in row.pieces) for row in packed]
        return collate(
            packed,
            family=self.run.family,
            sequence_length=max(lengths) + padding,
            pad_id=self.run.tokenizer.pad_id,
            step=0,
            slots=range(len(rows)),
            source_ids=["a"],
        )

    def piece(self, name: str) -> PackedPiece:
        document = self.documents[name]
        return PackedPiece(document, 0, len(document.tokens))

    def text(self, name: str) -> str:
        """The document as the processor is given it."""
        shown = {Picture: "image", Clip: "video"}
        return "".join(
            part if isinstance(part, str) else self.run.family.placeholders[shown[type(part)]]
            for part in DOCUMENTS[name]
        )

    def by_the_processor(self, name: str) -> dict[str, Any]:
        """What the family's own processor makes of a document; clips of our RGB, not resized."""
        text = self.text(name) + "<|endoftext|>"
        if self.processor is None:
            return dict(AutoTokenizer.from_pretrained(str(self.folder))(text, return_tensors="pt"))
        images = [
            Image.open(io.BytesIO(data))
            for data, part in zip(self.files[name], _media(name), strict=True)
            if isinstance(part, Picture)
        ]
        inputs: dict[str, Any] = {"images": [images]} if images else {}
        spans = [span for span in self.documents[name].media if span.kind == "video"]
        if spans:
            frames = zip(self.patches(name, "video"), spans, strict=True)
            inputs["videos"] = [
                torch.from_numpy(self.frames(patches, span)) for patches, span in frames
            ]
            inputs["videos_kwargs"] = {
                "do_resize": False,
                "do_sample_frames": False,
                "video_metadata": [self._metadata(span) for span in spans],
            }
        found = self.processor(text=[text], return_tensors="pt", **inputs)
        return dict(found)

    def _metadata(self, span: MediaSpan) -> dict[str, Any]:
        rate = span.time_base[1] / span.time_base[0] / (span.pts[1] - span.pts[0])
        rate *= span.frames[1] - span.frames[0]
        return {
            "fps": rate,
            "total_num_frames": span.frames[-1] + 1,
            "frames_indices": list(span.frames),
            "duration": (span.frames[-1] + 1) / rate,
        }

    def frames(self, patches: np.ndarray[Any, Any], span: MediaSpan) -> np.ndarray[Any, Any]:
        """A clip's RGB as the model sees it, uint8 [frames, 3, height, width]."""
        layout = self.run.family.patches
        if span.grid[1:] == (1, 1):  # tiles
            return patches.reshape(-1, 3, layout.patch_size, layout.patch_size)
        shown = np.stack(list(frames_of(patches, span.grid, layout)))
        return np.ascontiguousarray(shown.transpose(0, 3, 1, 2))[: len(span.frames)]


def config(name: str, folder: Path, urls: str, **changes: Any) -> DataConfig:
    """The config of a family's documents."""
    source = Source(id="a", urls=urls, format=changes.pop("format", "interleaved"))
    video = VideoSampling(mode="uniform", num_frames=4)
    return DataConfig(sources=(source,), model=name, tokenizer=str(folder), video=video, **changes)


def takes(name: str, document: str) -> bool:
    """Whether the family takes the document."""
    parts = DOCUMENTS[document]
    clips = any(isinstance(part, Clip) for part in parts)
    pictures = any(isinstance(part, Picture) for part in parts)
    made = FAMILIES[name]
    if document in made.refused:
        return False
    return (not clips or made.video) and (made.processor is not None or not (clips or pictures))


def make(name: str, folder: Path) -> Made:
    """Write the family's folder and a shard of its documents, and open them."""
    model = FAMILIES[name].write(folder / "model")
    names = [document for document in DOCUMENTS if takes(name, document)]
    files = {
        document: [_file(document, n) for n in range(len(_media(document)))] for document in names
    }
    urls = media.write(folder, "docs", iter(_sample(d, files[d]) for d in names), 1)
    run = open_run(config(name, model, urls), ExecutionConfig(backend="serial"))
    measured = run.measure([SampleRef(0, 0, at, 0, at) for at in range(len(names))])
    for found in measured:
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, MeasuredDocument), found
    documents = dict(zip(names, measured, strict=True))
    processor = hf_processor(name, model) if FAMILIES[name].processor is not None else None
    return Made(name, model, run, processor, documents, files)  # type: ignore[arg-type]


def sample_of(name: str) -> dict[str, object]:
    """A document of `DOCUMENTS` as a sample of a shard."""
    return _sample(name, [_file(name, number) for number in range(len(_media(name)))])


def _media(name: str) -> list[Picture | Clip]:
    return [part for part in DOCUMENTS[name] if not isinstance(part, str)]


def _file(name: str, number: int) -> bytes:
    seed = 100 * list(DOCUMENTS).index(name) + number
    part = _media(name)[number]
    if isinstance(part, Clip):
        return media.clip(seed, part.frames, rate=part.rate)
    pixels = np.random.default_rng(seed).integers(0, 256, (part.height, part.width, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def _sample(name: str, files: list[bytes]) -> dict[str, object]:
    sample: dict[str, object] = {}
    parts = []
    for part in DOCUMENTS[name]:
        if isinstance(part, str):
            parts.append({"text": part})
            continue
        kind, extension = ("image", "png") if isinstance(part, Picture) else ("video", "mp4")
        field = f"{len(sample)}.{extension}"
        sample[field] = files[len(sample)]
        parts.append({kind: field})
    return {**sample, "json": json.dumps(parts)}
