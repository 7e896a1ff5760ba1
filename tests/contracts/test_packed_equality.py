"""Packed rows give each document the logits that it has alone (design §3, K04, P11).

Tiny models of the Qwen-VL families, in float32, with the inputs that `Batch.model_inputs` gives and
nothing else; a document alone is one row without padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.tiny import QWEN, tiny_model, write_tokenizer
from zephon_mm.batch import Batch
from zephon_mm.collate import PackedPiece, PackedRow, collate
from zephon_mm.config import DataConfig, ImageSizing, Source, VideoSampling
from zephon_mm.models import (
    ModelFamily,
    Tokenizer,
    build_family,
    load_tokenizer,
    measure_digest,
)
from zephon_mm.sample import MeasuredDocument, MediaSpan, SampleRef

LIMIT = 1e-5

KINDS: dict[str, list[Any]] = {
    "text": ["A man rides a brown horse on the beach."],
    "short text": ["dog"],
    "image": [("image", 1, 60, 100), "Two dogs play."],
    "image last": ["The fox ", ("image", 1, 90, 40)],
    "adjacent images": [("image", 1, 40, 40), ("image", 1, 64, 32), "snow"],
    "video": ["See: ", ("video", 5, 60, 80), " and 12 people watch"],
    "mixed": ["a ", ("video", 4, 40, 90), ("image", 1, 60, 60), " b ", ("video", 1, 64, 64), "c"],
}

ROWS = {
    "text only": [["text", "short text", "text"]],
    "image": [["image", "text", "image last", "adjacent images"]],
    "video": [["video", "text", "video", "short text"]],
    "mixed": [["text", "image", "video", "mixed", "short text", "image last"]],
    "several rows": [["mixed", "text"], ["short text", "text"], ["video", "image", "mixed"], []],
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The models are far too small for threads to help."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return load_tokenizer(folder)


@pytest.fixture(scope="module", params=QWEN)
def family(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> ModelFamily:
    config = DataConfig(
        sources=(Source(id="a", urls="a.tar", format="text"),),
        model=request.param,
        tokenizer="t",
        image=ImageSizing(min_pixels=1024, max_pixels=16 * 1024),
        video=VideoSampling(min_pixels=1024, max_pixels=16 * 1024),
    )
    return build_family(config, tokenizer)


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def model(request: pytest.FixtureRequest, family: ModelFamily, tokenizer: Tokenizer) -> Any:
    return tiny_model(family.name, tokenizer, request.param)


def make_document(
    kind: str, family: ModelFamily, tokenizer: Tokenizer
) -> tuple[MeasuredDocument, dict[str, list[np.ndarray]]]:
    """The document of `KINDS`, with the same random pixels every time."""
    number = list(KINDS).index(kind)
    draw = np.random.default_rng(number)
    tokens: list[int] = []
    media: list[MediaSpan] = []
    patches: dict[str, list[np.ndarray]] = {"image": [], "video": []}
    for part in KINDS[kind]:
        if isinstance(part, str):
            tokens += tokenizer.encode(part, special=False).tolist()
            continue
        medium, frames, height, width = part
        video = medium == "video"
        lay = family.layout_video(frames, height, width) if video else None
        lay = lay or family.layout_image(height, width)
        span = MediaSpan(
            kind=medium,
            member=0,
            start=len(tokens),
            stop=0,
            grid=lay.grid,
            size=lay.size,
            source_size=(height, width),
            frames=tuple(range(frames)) if video else (),
            pts=tuple(range(0, 5 * frames, 5)) if video else (),
            time_base=(1, 10),
            fps=2.0 if video else 0.0,
        )
        block = family.block(span)
        media.append(replace(span, stop=span.start + len(block)))
        tokens += block.tolist()
        shape = (span.num_patches, family.patches.columns)
        patches[medium].append(draw.integers(0, 256, shape, np.uint8))
    ids = np.array(tokens, np.int32)
    loss = np.ones(len(ids), np.bool_)
    ref = SampleRef(0, 0, number, 0, number)
    digest = measure_digest(ids, loss, media)
    document = MeasuredDocument(ref, "a.tar", kind, ids, loss, tuple(media), digest)
    return document, patches


def make_batch(
    rows: list[list[str]], family: ModelFamily, tokenizer: Tokenizer, length: int | None = None
) -> Batch:
    packed = []
    for kinds in rows:
        made = [make_document(kind, family, tokenizer) for kind in kinds]
        packed.append(
            PackedRow(
                pieces=[PackedPiece(document, 0, len(document.tokens)) for document, _ in made],
                image_patches=[array for _, patches in made for array in patches["image"]],
                video_patches=[array for _, patches in made for array in patches["video"]],
            )
        )
    longest = max(sum(p.stop - p.start for p in row.pieces) for row in packed)
    return collate(
        packed,
        family=family,
        sequence_length=length or longest + 7,
        pad_id=tokenizer.pad_id,
        step=0,
        slots=range(len(rows)),
        source_ids=["a"],
    )


def alone(kind: str, family: ModelFamily, tokenizer: Tokenizer) -> Batch:
    document, patches = make_document(kind, family, tokenizer)
    row = PackedRow(
        [PackedPiece(document, 0, len(document.tokens))], patches["image"], patches["video"]
    )
    return collate(
        [row],
        family=family,
        sequence_length=len(document.tokens),
        pad_id=tokenizer.pad_id,
        step=0,
        slots=[0],
        source_ids=["a"],
    )


def by_the_model_itself(batch: Batch, model: Any, tokenizer: Tokenizer) -> torch.Tensor:
    """Logits of one document with the positions that the model makes for it."""
    inputs = batch.model_inputs
    ids = inputs["input_ids"]
    types = torch.zeros_like(ids)
    types[ids == tokenizer.token_id("<|image_pad|>")] = 1
    types[ids == tokenizer.token_id("<|video_pad|>")] = 2
    kept = ("input_ids", "pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw")
    plain = {name: inputs[name] for name in (*kept, *batch.extras) if name in inputs}
    logits: torch.Tensor = model(**plain, mm_token_type_ids=types, use_cache=False).logits
    return logits


class Separate(NamedTuple):
    """What a model makes of one document alone."""

    batch: Batch
    logits: torch.Tensor
    own: torch.Tensor
    loss: float


@pytest.fixture(scope="module")
def separate(model: Any, family: ModelFamily, tokenizer: Tokenizer) -> dict[str, Separate]:
    found = {}
    with torch.no_grad():
        for kind in KINDS:
            batch = alone(kind, family, tokenizer)
            out = model(**batch.model_inputs, use_cache=False)
            own = by_the_model_itself(batch, model, tokenizer)
            found[kind] = Separate(batch, out.logits[0], own[0], float(out.loss))
    return found


@pytest.mark.parametrize("name", list(ROWS))
@torch.no_grad()
def test_packed_logits_equal_separate_ones(
    name: str,
    model: Any,
    family: ModelFamily,
    tokenizer: Tokenizer,
    separate: dict[str, Separate],
) -> None:
    rows = ROWS[name]
    batch = make_batch(rows, family, tokenizer)
    packed = model(**batch.model_inputs, use_cache=False).logits
    assert torch.isfinite(packed).all()
    for number, kinds in enumerate(rows):
        assert len(batch.documents[number]) == len(kinds)
        for kind, span in zip(kinds, batch.documents[number], strict=True):
            found = packed[number, span.start : span.stop]
            for logits in (separate[kind].logits, separate[kind].own):
                assert found.shape == logits.shape
                assert (found - logits).abs().max() <= LIMIT, kind


@torch.no_grad()
def test_the_loss_is_the_mean_over_all_targets(
    model: Any, family: ModelFamily, tokenizer: Tokenizer, separate: dict[str, Separate]
) -> None:
    """The packed loss is that of the documents alone, weighted by their targets."""
    rows = ROWS["several rows"]
    batch = make_batch(rows, family, tokenizer)
    loss = model(**batch.model_inputs, use_cache=False).loss
    parts = [separate[kind] for kind in itertools.chain(*rows)]
    targets = sum(part.batch.num_target_tokens for part in parts)
    assert targets == batch.num_target_tokens > 0
    total = sum(part.loss * part.batch.num_target_tokens for part in parts)
    assert abs(float(loss) - total / targets) < 1e-5


def test_rows_of_padding_have_finite_zero_loss(
    model: Any, family: ModelFamily, tokenizer: Tokenizer
) -> None:
    """A finite run's end (C9), and a batch without a target (K06): loss 0, gradients 0."""
    batch = collate(
        [PackedRow([]), PackedRow([])],
        family=family,
        sequence_length=24,
        pad_id=tokenizer.pad_id,
        step=3,
        slots=[4, 5],
        source_ids=[],
    )
    assert batch.num_target_tokens == 0
    out = model(**batch.model_inputs, use_cache=False)
    assert torch.isfinite(out.logits).all()
    assert out.loss.item() == 0.0
    out.loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients and all(bool((g == 0).all()) for g in gradients)
    model.zero_grad()


@torch.no_grad()
def test_a_leak_would_be_seen(family: ModelFamily, tokenizer: Tokenizer) -> None:
    """The check itself can fail: with an attention mask of ones, documents see each other."""
    model = tiny_model(family.name, tokenizer, "sdpa")
    batch = make_batch([["text", "image"]], family, tokenizer)
    inputs = batch.model_inputs
    right = model(**inputs, use_cache=False).logits
    leaked = model(
        **inputs, use_cache=False, attention_mask=torch.ones_like(inputs["input_ids"])
    ).logits
    span = batch.documents[0][1]
    assert (right - leaked)[0, span.start : span.stop].abs().max() > 100 * LIMIT


@torch.no_grad()
def test_rows_laid_end_to_end_and_cut_by_cu_seq_lens(
    family: ModelFamily, tokenizer: Tokenizer
) -> None:
    """What a kernel of variable length does with ``cu_seq_lens``, emulated: equal logits."""
    from transformers import AttentionInterface

    def varlen(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        cu_seq_lens_q: torch.Tensor | None = None,
        max_length_q: int | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        groups = query.shape[1] // key.shape[1]
        if cu_seq_lens_q is None:  # the vision tower, which cuts its own
            weights = torch.softmax(query @ key.transpose(2, 3) * scaling, -1)
            return (weights @ value).transpose(1, 2).contiguous(), None
        rows, heads, length, width = query.shape
        q, k, v = (
            tensor.repeat_interleave(copies, 1).transpose(1, 2).reshape(-1, heads, width)
            for tensor, copies in ((query, 1), (key, groups), (value, groups))
        )
        ends = cu_seq_lens_q.tolist()
        assert ends[-1] == len(q)
        assert max_length_q == max(np.diff(ends))
        out = torch.empty_like(q)
        for start, stop in itertools.pairwise(ends):
            parts = (t[start:stop].transpose(0, 1)[None] for t in (q, k, v))
            attended = torch.nn.functional.scaled_dot_product_attention(
                *parts, is_causal=True, scale=scaling
            )
            out[start:stop] = attended[0].transpose(0, 1)
        return out.reshape(rows, length, heads, width), None

    AttentionInterface.register("varlen_emulated", varlen)
    batch = make_batch(ROWS["several rows"], family, tokenizer)
    expected = tiny_model(family.name, tokenizer, "sdpa")
    emulated = tiny_model(family.name, tokenizer, "varlen_emulated")
    inputs = batch.model_inputs
    right = expected(**inputs, use_cache=False).logits
    found = emulated(**inputs, use_cache=False).logits
    assert (right - found).abs().max() <= LIMIT
