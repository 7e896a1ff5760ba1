"""Families of tiles: sizes, ids and pixels of any picture equal the processors', bit for bit."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from tests.families import FAMILIES, hf_processor
from tests.tiny import span_of
from tests.unit.models.test_sizes import config
from zephon_mm.config import ImageSizing, VideoSampling
from zephon_mm.errors import ConfigError, MediaError
from zephon_mm.media.images import patches_of
from zephon_mm.media.views import apply
from zephon_mm.models import ModelFamily, Tokenizer, build_family, load_tokenizer, measure_digest
from zephon_mm.models.gemma3 import Gemma3, PanAndScan, attention_masks
from zephon_mm.models.normalise import normalise
from zephon_mm.models.smolvlm import number_words
from zephon_mm.sample import MeasuredDocument, MediaSpan, SampleRef

NAMES = ("llava_onevision", "internvl", "idefics3", "smolvlm", "gemma3")
UNIFORM = VideoSampling(mode="uniform", num_frames=4)


class Opened(NamedTuple):
    name: str
    folder: Path
    tokenizer: Tokenizer
    family: Any
    processor: Any


def only(*names: str) -> pytest.MarkDecorator:
    """For tests of some families alone."""
    return pytest.mark.parametrize("opened", names, indirect=True)


@pytest.fixture(scope="module", params=NAMES)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    name = request.param
    with pytest.MonkeyPatch.context() as patched:
        from transformers.models.smolvlm import processing_smolvlm

        patched.setattr(processing_smolvlm, "num2words", number_words)
        folder = FAMILIES[name].write(tmp_path_factory.mktemp(name))
        tokenizer = load_tokenizer(folder)
        family = build_family(config(name, video=UNIFORM), tokenizer)
        yield Opened(name, folder, tokenizer, family, hf_processor(name, folder))


def picture(family: ModelFamily, height: int, width: int, *, alone: bool = True) -> MediaSpan:
    layout = family.layout_image(height, width, alone=alone)
    span = replace(span_of("image", layout.grid), size=layout.size, source_size=(height, width))
    return replace(span, stop=len(family.block(span)))


def tokens_of(span: MediaSpan, opened: Opened, text: str = "") -> list[int]:
    """Ids of a picture and what stands around it, and of text after it."""
    before, after = opened.family.around(span)
    encode = opened.tokenizer.encode
    parts = [encode(before, special=False), opened.family.block(span)]
    return np.concatenate([*parts, encode(after + text, special=False)]).tolist()


def pixels_of(span: MediaSpan, source: np.ndarray[Any, Any], family: ModelFamily) -> torch.Tensor:
    shown = torch.from_numpy(source).permute(2, 0, 1)
    patches = [patches_of(apply(shown, v.steps), family.patches) for v in family.views(span)]
    whole = torch.from_numpy(np.concatenate(patches))
    assert len(whole) == span.num_patches
    side = family.patches.patch_size
    return normalise(whole, family.image_mean, family.image_std).view(-1, 3, side, side)


def sizes(seed: int) -> list[tuple[int, int]]:
    draw = random.Random(seed)
    odd = [(1, 1), (1, 40), (40, 1), (3, 5), (2, 400), (400, 2), (1, 700), (700, 1), (96, 96)]
    return odd + [(draw.randint(8, 300), draw.randint(8, 300)) for _ in range(25)]


def same(opened: Opened, height: int, width: int, **options: Any) -> None:
    source = np.random.default_rng(height * 1000 + width).integers(
        0, 256, (height, width, 3), np.uint8
    )
    text = [opened.family.placeholders["image"] + "x"]
    shown = Image.fromarray(source)  # an array of one row would be taken for channels first
    hf = opened.processor(text=text, images=[[shown]], return_tensors="pt", **options)
    span = picture(opened.family, height, width)
    assert tokens_of(span, opened, "x") == hf["input_ids"][0].tolist(), (height, width)
    side = opened.family.patches.patch_size
    want = hf["pixel_values"].reshape(-1, 3, side, side)
    assert torch.equal(pixels_of(span, source, opened.family), want), (height, width)


def test_pictures_of_any_size(opened: Opened) -> None:
    """P05, P06: a side of 1 pixel, 200:1 and beyond among them."""
    for height, width in sizes(1):
        same(opened, height, width)


@only("gemma3")
def test_pan_and_scan(opened: Opened) -> None:
    scan = PanAndScan(min_side=16, max_crops=4, min_ratio=1.2)
    family = replace(opened.family, pan_and_scan=scan)
    asked = {
        "do_pan_and_scan": True,
        "pan_and_scan_min_crop_size": 16,
        "pan_and_scan_max_num_crops": 4,
        "pan_and_scan_min_ratio_to_activate": 1.2,
    }
    cropped = 0
    for height, width in sizes(2):
        same(opened._replace(family=family), height, width, images_kwargs=asked)
        cropped += family.layout_image(height, width).grid[0] > 1
    assert cropped > 10
    path = opened.folder / "processor_config.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "images_kwargs": asked}))
    try:
        read = build_family(config("gemma3"), load_tokenizer(opened.folder))
    finally:
        path.write_text(before)
    assert isinstance(read, Gemma3) and read.pan_and_scan == scan
    assert read.settings()["pan_and_scan"] == {"min_side": 16, "max_crops": 4, "min_ratio": 1.2}


def test_settings_are_plain_and_the_family_pickles(opened: Opened) -> None:
    settings = opened.family.settings()
    assert json.loads(json.dumps(settings)) is not None and settings["family"] == opened.name
    copy = pickle.loads(pickle.dumps(opened.family))
    span = picture(opened.family, 50, 120)
    assert copy.settings() == settings
    assert copy.block(span).tolist() == opened.family.block(span).tolist()


def test_no_picture_and_no_frames_are_dropped(opened: Opened) -> None:
    calls = [lambda: opened.family.layout_image(0, 9), lambda: opened.family.layout_video(0, 9, 9)]
    for call in calls:
        with pytest.raises(MediaError) as caught:
            call()
        assert caught.value.kind == "dropped"


def test_budgets_of_pixels_are_refused(opened: Opened) -> None:
    with pytest.raises(ConfigError, match=r"image\.min_pixels and image\.max_pixels have no place"):
        build_family(config(opened.name, image=ImageSizing(max_pixels=9999)), opened.tokenizer)


def document(opened: Opened, *spans: MediaSpan) -> MeasuredDocument:
    tokens: list[int] = [9, 9]
    media = []
    for span in spans:
        block = opened.family.block(span).tolist()
        media.append(replace(span, start=len(tokens), stop=len(tokens) + len(block)))
        tokens += [*block, 9]
    ids, loss = np.array(tokens, np.int32), np.array(tokens) == 9
    digest = measure_digest(ids, loss, media)
    return MeasuredDocument(SampleRef(0, 0, 0, 0, 0), "s", "k", ids, loss, tuple(media), digest)


@only("gemma3")
def test_a_picture_of_one_size_fits_or_is_dropped(opened: Opened) -> None:
    whole = document(opened, picture(opened.family, 200, 300))
    length = whole.media[0].stop - whole.media[0].start
    assert opened.family.relayout(whole, length, 100) is whole
    with pytest.raises(MediaError, match="however few are shown"):
        opened.family.relayout(whole, length - 1, 100)


@only(*(name for name in NAMES if name != "gemma3"))
def test_a_picture_is_laid_out_in_fewer_tiles_until_it_fits(opened: Opened) -> None:
    whole = document(opened, picture(opened.family, 200, 300))
    (span,) = whole.media
    length = span.stop - span.start
    assert opened.family.relayout(whole, length, 100) is whole
    seen = set()
    for most in range(length - 1, 5, -5):
        try:
            found = opened.family.relayout(whole, most, 100)
        except MediaError as error:
            assert error.kind == "dropped"
            break
        (fitted,) = found.media
        block = opened.family.block(fitted)
        assert found.tokens[fitted.start : fitted.stop].tolist() == block.tolist()
        assert len(block) <= most and fitted.num_patches < span.num_patches
        source = np.random.default_rng(most).integers(0, 256, (200, 300, 3), np.uint8)
        assert len(pixels_of(fitted, source, opened.family)) == fitted.num_patches
        seen.add(fitted.num_patches)
    assert len(seen) >= 2


def clip_of_eight(opened: Opened) -> tuple[MeasuredDocument, int]:
    """A document of one clip, and how long the clip's block is."""
    times = tuple(n / 2 for n in range(8))
    span = replace(span_of("video", (8, 1, 1), times, 2.0), source_size=(60, 80))
    whole = document(opened, span)
    return whole, whole.media[0].stop - whole.media[0].start


@only(*(name for name in NAMES if not FAMILIES[name].video))
def test_clips_are_not_taken(opened: Opened) -> None:
    with pytest.raises(MediaError, match="takes no clips"):
        opened.family.layout_video(4, 60, 80)


@only("llava_onevision", "smolvlm")
def test_a_clip_whose_number_of_frames_is_told_fits_or_is_dropped(opened: Opened) -> None:
    """One number of frames for all clips; a text that tells it."""
    whole, length = clip_of_eight(opened)
    with pytest.raises(MediaError, match="however few are shown"):
        opened.family.relayout(whole, length - 1, 100)


@only("internvl")
def test_a_clip_loses_every_second_frame(opened: Opened) -> None:
    whole, length = clip_of_eight(opened)
    found = opened.family.relayout(whole, length - 1, 100).media[0]
    assert (found.frames, found.fps, found.grid) == ((0, 2, 4, 6), 1.0, (4, 1, 1))
    assert len(opened.family.relayout(whole, 9, 100).media[0].frames) == 1


@only("llava_onevision")
def test_several_pictures_of_llava_onevision(opened: Opened) -> None:
    """One tile each, padded to a square in the mean colour; the document is whole or dropped."""
    draw = np.random.default_rng(0)
    sources = [
        draw.integers(0, 256, (h, w, 3), np.uint8) for h, w in ((40, 90), (91, 40), (48, 48))
    ]
    hf = opened.processor(text=["<image>" * 3], images=[sources], return_tensors="pt")
    spans = [picture(opened.family, *s.shape[:2], alone=False) for s in sources]
    found = [pixels_of(s, image, opened.family) for s, image in zip(spans, sources, strict=True)]
    assert torch.equal(torch.stack(found), hf["pixel_values"])
    assert sum(len(opened.family.block(span)) for span in spans) == hf["input_ids"].shape[1]
    whole = document(opened, *spans)
    assert opened.family.relayout(whole, 100, 100) is whole
    with pytest.raises(MediaError, match="can't split a document of several pictures"):
        opened.family.relayout(whole, len(whole.tokens) - 1, 100)


@only("llava_onevision")
def test_clips_of_llava_onevision_have_one_number_of_frames(opened: Opened) -> None:
    assert opened.family.shown_frames((0, 3)) == (0, 3, 3, 3)
    assert opened.family.shown_frames((0, 3, 5, 9)) == (0, 3, 5, 9)
    family = build_family(config(opened.name), opened.tokenizer)
    with pytest.raises(ConfigError, match=r"set video\.mode to 'uniform'"):
        family.layout_video(4, 60, 80)


@only("gemma3")
def test_gemma3_needs_the_models_window(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text((opened.folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        (opened.folder / "tokenizer_config.json").read_text()
    )
    with pytest.raises(ConfigError, match="sliding_window"):
        build_family(config("gemma3"), load_tokenizer(tmp_path))


def test_masks_of_two_documents_by_hand() -> None:
    soft = torch.tensor([[0, 1, 1, 0, 1, 1]]).bool()
    masks = attention_masks(torch.tensor([[0, 0, 0, 0, 1, 1]]), soft, 2)
    full = masks["full_attention"][0, 0].int().tolist()
    assert full == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 1, 1],
    ]
    sliding = masks["sliding_attention"][0, 0].int().tolist()
    assert sliding[2:4] == [[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0]]
    assert sliding[1] == full[1] and sliding[4:] == full[4:]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "one"),
        (13, "thirteen"),
        (20, "twenty"),
        (42, "forty-two"),
        (100, "one hundred"),
        (768, "seven hundred and sixty-eight"),
        (1000, "one thousand"),
        (1005, "one thousand and five"),
        (2345, "two thousand, three hundred and forty-five"),
    ],
)
def test_numbers_in_words(number: int, words: str) -> None:
    """As num2words 0.5 writes them."""
    assert number_words(number) == words


def test_sizes_of_gemma4_are_its_processors(tmp_path: Path) -> None:
    from transformers.models.gemma4.image_processing_gemma4 import get_aspect_ratio_preserving_size

    tokenizer = load_tokenizer(FAMILIES["gemma4"].write(tmp_path))
    family: Any = build_family(config("gemma4"), tokenizer)
    for height, width in [*sizes(3), (3000, 4000), (1, 5000), (5000, 2)]:
        want = get_aspect_ratio_preserving_size(height, width, 4, 70 * 4, 2)
        layout = family.layout_image(height, width)
        assert layout.size == want and layout.grid == (1, want[0] // 4, want[1] // 4)
        assert family.layout_video(5, height, width).grid == (5, *layout.grid[1:])
    span = picture(family, 300, 200)
    whole = span.stop
    for most in (whole - 1, 40, 10, 5):
        found = family.shrink(span, most, 10**6)
        assert found.stop == len(family.block(found)) <= most
        assert found.size[0] % 8 == found.size[1] % 8 == 0
    assert json.loads(json.dumps(family.settings()))["both_ways"] is True
    path = tmp_path / "config.json"
    text = json.loads(path.read_text())
    text["text_config"]["use_bidirectional_attention"] = "all"
    path.write_text(json.dumps(text))
    with pytest.raises(ConfigError, match="use_bidirectional_attention='all'"):
        build_family(config("gemma4"), tokenizer)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="sliding_window"):
        build_family(config("gemma4"), tokenizer)
