"""Molmo 2: pictures of any size as its processor has them, and batches of pictures and clips."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.families import FAMILIES, hf_processor, tiny_model
from tests.tiny import span_of
from tests.unit.models.test_sizes import config
from zephon_mm.collate import PackedPiece, PackedRow, collate
from zephon_mm.config import ImageSizing
from zephon_mm.errors import ConfigError, MediaError
from zephon_mm.media.images import patches_of
from zephon_mm.media.views import rendered
from zephon_mm.models import build_family, load_tokenizer, measure_digest
from zephon_mm.models.molmo2 import Molmo2
from zephon_mm.models.normalise import normalise
from zephon_mm.models.overlapping import tiling
from zephon_mm.sample import MeasuredDocument, MediaSpan, SampleRef


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES["molmo2"].write(tmp_path_factory.mktemp("molmo2"))


@pytest.fixture(scope="module")
def family(folder: Path) -> Molmo2:
    made = build_family(config("molmo2"), load_tokenizer(folder))
    assert isinstance(made, Molmo2)
    return made


@pytest.fixture(scope="module")
def processor(folder: Path) -> Any:
    return hf_processor("molmo2", folder)


def picture(family: Molmo2, height: int, width: int) -> MediaSpan:
    layout = family.layout_image(height, width)
    span = replace(span_of("image", layout.grid), size=layout.size, source_size=(height, width))
    return replace(span, stop=len(family.block(span)))


def pixels(height: int, width: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(height * 1000 + width)
    return random.integers(0, 256, (height, width, 3), np.uint8)


def patches(family: Molmo2, span: MediaSpan) -> np.ndarray[Any, Any]:
    shown = torch.from_numpy(pixels(*span.source_size)).permute(2, 0, 1)
    made = [patches_of(view, family.patches) for view in rendered(shown, family.views(span))]
    return np.concatenate(made)


def sizes(seed: int, count: int, most: int) -> Iterator[tuple[int, int]]:
    draw = random.Random(seed)
    yield from [(1, 1), (1, 40), (40, 1), (2, 400), (1, 700), (700, 1), (12, 12), (36, 84)]
    for _ in range(count):
        yield draw.randint(1, most), draw.randint(1, most)


def test_pictures_of_any_size(family: Molmo2, processor: Any) -> None:
    """P05, P06: sides of one pixel, and of no more than the crops share."""
    for height, width in sizes(1, 8, 300):
        span = picture(family, height, width)
        shown = Image.fromarray(pixels(height, width))
        theirs = processor(text=["<|image|>"], images=[[shown]], return_tensors="pt")
        assert theirs["input_ids"][0, 1:].tolist() == family.block(span).tolist()
        whole = torch.from_numpy(patches(family, span))
        ours = normalise(whole, family.image_mean, family.image_std)
        assert torch.equal(family._squares(ours), theirs["pixel_values"]), (height, width)
        for name, value in family.extra_inputs([[span]]).items():
            assert value.tolist() == theirs[name].tolist(), name


def test_layouts_with_the_classes_own_settings(family: Molmo2) -> None:
    """378 pixels in patches of 14, four shared on each side, eight crops."""
    from transformers import Molmo2ImageProcessor

    theirs = Molmo2ImageProcessor()
    own = replace(family.settings_of, patch=14, max_crops=8, margins=(4, 4), image_pool=(2, 2))
    real = replace(family, tile=replace(family.tile, side=378), settings_of=own)
    for height, width in [*sizes(2, 150, 4000), (112, 5000), (100, 100), (378, 378)]:
        span = picture(real, height, width)
        grid, crops = theirs.get_image_grid_and_crops(height, width)
        extra = real.extra_inputs([[span]])
        assert extra["image_grids"].tolist() == [grid], (height, width)
        assert extra["image_num_crops"].tolist() == [crops]
    span = picture(real, 500, 900)
    found = theirs([Image.fromarray(pixels(500, 900))], return_tensors="pt")
    ours = normalise(torch.from_numpy(patches(real, span)), real.image_mean, real.image_std)
    assert torch.equal(real._squares(ours), found["pixel_values"])
    assert real.extra_inputs([[span]])["image_token_pooling"].tolist() == (
        found["image_token_pooling"].tolist()
    )


def clip(family: Molmo2, frames: int) -> MediaSpan:
    layout = family.layout_video(frames, 60, 80)
    times = [number / 4 for number in range(frames)]
    span = replace(span_of("video", layout.grid, times), size=layout.size)
    return replace(span, stop=len(family.block(span)))


def document(family: Molmo2, spans: list[MediaSpan], number: int) -> MeasuredDocument:
    """Media with a few words after each."""
    words = family.tokenizer.encode("and then it ends", special=False)
    parts, media, at = [], [], 0
    for span in spans:
        block = family.block(span)
        parts += [block, words]
        media.append(replace(span, start=at, stop=at + len(block)))
        at += len(block) + len(words)
    tokens = np.concatenate(parts)
    loss = np.zeros(len(tokens), np.bool_)
    loss[-len(words) :] = True
    digest = measure_digest(tokens, loss, media)
    ref = SampleRef(0, 0, number, 0, number)
    return MeasuredDocument(ref, "s", str(number), tokens, loss, tuple(media), digest)


def bytes_of(span: MediaSpan, seed: int, family: Molmo2) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (span.num_patches, family.patches.columns), np.uint8)


@torch.no_grad()
def test_pictures_and_clips_in_a_batch(family: Molmo2, folder: Path) -> None:
    """The forward refuses both; handed over as pictures, each document has its own logits."""
    model = tiny_model("molmo2", folder)
    media = [[picture(family, 50, 90)], [clip(family, 3)], [picture(family, 20, 20)] * 2]
    documents = [document(family, spans, number) for number, spans in enumerate(media)]
    made = [
        [bytes_of(span, 10 * number + at, family) for at, span in enumerate(spans)]
        for number, spans in enumerate(media)
    ]

    def batch(*numbers: int) -> Any:
        kinds = {
            kind: [
                one
                for n in numbers
                for one, span in zip(made[n], media[n], strict=True)
                if span.kind == kind
            ]
            for kind in ("image", "video")
        }
        pieces = [PackedPiece(documents[n], 0, len(documents[n].tokens)) for n in numbers]
        row = PackedRow(pieces, kinds["image"], kinds["video"])
        length = sum(piece.stop for piece in pieces) + 3
        return collate(
            [row],
            family=family,
            sequence_length=length,
            pad_id=0,
            step=0,
            slots=[0],
            source_ids=["a"],
        )

    whole = batch(0, 1, 2)
    inputs = whole.model_inputs
    assert "pixel_values_videos" not in inputs and "video_grids" not in inputs
    assert inputs["image_num_crops"].tolist() == [s.grid[0] for spans in media for s in spans]
    logits = model(**inputs, use_cache=False).logits[0]
    for number, span in enumerate(whole.documents[0]):
        alone = batch(number).model_inputs
        assert ("pixel_values_videos" in alone) == (number == 1)
        found = model(**alone, use_cache=False).logits[0]
        length = span.stop - span.start
        assert (found[:length] - logits[span.start : span.stop]).abs().max() <= 1e-5
    clips = {name: value for name, value in batch(1).model_inputs.items() if "video" in name}
    pictures = batch(0).model_inputs
    with pytest.raises(ValueError, match="provided at the same time"):
        model(**pictures | clips)


def test_documents_that_the_model_has_no_place_for(family: Molmo2) -> None:
    reason = family.refusal(["image", "video"])
    assert reason is not None and "not both in one document" in reason
    reason = family.refusal(["video", "video"])
    assert reason is not None and "one clip a document" in reason
    assert family.refusal(["image", "image"]) is family.refusal(["video"]) is None
    assert family.refusal([]) is None


def test_too_large_media_take_fewer_crops_and_frames(family: Molmo2) -> None:
    span = picture(family, 60, 200)
    shrunk = family.shrink(span, span.stop - 1, 10**6)
    assert 1 < shrunk.grid[0] < span.grid[0] and shrunk.stop == len(family.block(shrunk))
    assert len(family.views(shrunk)) == shrunk.grid[0]
    long = clip(family, 8)
    assert family.shrink(long, long.stop // 2, 10**6).grid[0] == 4
    with pytest.raises(MediaError, match="however few"):
        family.shrink(span, 9, 10**6)


def test_settings_that_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="have no place"):
        build_family(config("molmo2", image=ImageSizing(max_pixels=4096)), load_tokenizer(folder))
    for part, change, message in (
        ("video_processor", {"size": {"height": 64, "width": 64}}, "one vision tower"),
        ("image_processor", {"overlap_margins": [4, 4]}, "can't be cut"),
    ):
        copy = FAMILIES["molmo2"].write(tmp_path / part)
        path = copy / "processor_config.json"
        settings = json.loads(path.read_text())
        settings[part] |= change
        path.write_text(json.dumps(settings))
        with pytest.raises(ConfigError, match=message):
            build_family(config("molmo2"), load_tokenizer(copy))


def test_tilings_of_pictures_smaller_than_what_crops_share() -> None:
    from transformers.models.molmo2.image_processing_molmo2 import select_tiling

    for height, width in [(0, 0), (-5, 0), (0, 9), (-100, -3), (-1, 500), (266, 266), (1, 1)]:
        assert tiling(height, width, 266, 8) == select_tiling(height, width, 266, 8)
