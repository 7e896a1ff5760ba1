"""Token ids, grids, pixels and positions equal the processors' and models' of transformers."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import QWEN, hf_processor, span_of, tiny_model
from tests.unit.models.test_sizes import config
from zephon_mm.models import ModelFamily, Tokenizer, build_family
from zephon_mm.models.normalise import mean_patches, normalise
from zephon_mm.sample import MediaSpan

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def processors(tokenizer_folder: Path) -> dict[str, Any]:
    return {model: hf_processor(model, tokenizer_folder) for model in QWEN}


@pytest.fixture(scope="module")
def models(tokenizer: Tokenizer) -> dict[str, Any]:
    return {model: tiny_model(model, tokenizer).model for model in QWEN}


@pytest.fixture(scope="module")
def families(tokenizer: Tokenizer) -> dict[str, ModelFamily]:
    return {model: build_family(config(model), tokenizer) for model in QWEN}


Part = str | tuple[str, int, int, int, float]
"""Text, or (kind, frames, height, width, source frame rate); every second frame is shown."""

DOCUMENTS: dict[str, list[Part]] = {
    "text": ["A man rides a horse."],
    "image": [("image", 1, 100, 200, 0), "A man rides a horse."],
    "image only": [("image", 1, 64, 64, 0)],
    "image last": ["Look: ", ("image", 1, 33, 99, 0)],
    "adjacent images": [("image", 1, 60, 90, 0), ("image", 1, 90, 60, 0), "Two of them."],
    "video": ["See ", ("video", 8, 90, 160, 30.0), " and then it ends."],
    "odd video": [("video", 7, 120, 80, 25.0), "short"],
    "two frames": [("video", 2, 120, 80, 24.0), "short"],
    "slow video": [("video", 6, 64, 64, 0.5), "A slow one, of few frames."],
    "broadcast rate": [("video", 9, 64, 96, 30000 / 1001), "text"],
    "adjacent videos": [("video", 4, 60, 80, 10.0), ("video", 6, 80, 60, 50.0), "both"],
    "mixed": [
        "First ",
        ("image", 1, 90, 200, 0),
        ("video", 5, 64, 64, 12.0),
        " then ",
        ("image", 1, 28, 28, 0),
        " and ",
        ("video", 4, 300, 30, 60.0),
        "the end",
    ],
}


def by_transformers(parts: list[Part], processor: Any) -> Any:
    draw = np.random.default_rng(0)
    text, images, videos, metadata = "", [], [], []
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        kind, frames, height, width, fps = part
        pixels = draw.integers(0, 256, (frames, height, width, 3), np.uint8)
        if kind == "image":
            text += IMAGE
            images.append(pixels[0])
        else:
            text += VIDEO
            videos.append(pixels)
            shown = list(range(0, 2 * frames, 2))
            metadata.append({"fps": fps, "total_num_frames": 2 * frames, "frames_indices": shown})
    media: dict[str, Any] = {"images": images} if images else {}
    if videos:
        media |= {"videos": videos, "video_metadata": metadata, "do_sample_frames": False}
    return processor(text=[text], return_tensors="pt", **media)


def by_zephon(
    parts: list[Part], family: ModelFamily, tokenizer: Tokenizer
) -> tuple[np.ndarray, list[MediaSpan]]:
    tokens: list[int] = []
    spans = []
    for part in parts:
        if isinstance(part, str):
            tokens += tokenizer.encode(part, special=False).tolist()
            continue
        kind, frames, height, width, fps = part
        if kind == "image":
            layout, shown, pts, base = family.layout_image(height, width), (), (), (1, 1)
        else:
            layout = family.layout_video(frames, height, width)
            shown = tuple(range(0, 2 * frames, 2))
            base = (1001, 30000) if fps == 30000 / 1001 else (1, 1000)
            ticks = 1 if base[0] == 1001 else 1000 / fps
            pts = tuple(int(index * ticks) for index in shown)
        span = MediaSpan(
            kind=kind,  # type: ignore[arg-type]
            member=0,
            start=len(tokens),
            stop=0,
            grid=layout.grid,
            size=layout.size,
            source_size=(height, width),
            frames=shown,
            pts=pts,
            time_base=base,
            fps=fps / 2,
        )
        block = family.block(span)
        spans.append(replace(span, stop=span.start + len(block)))
        tokens += block.tolist()
    return np.array(tokens, np.int32), spans


@pytest.mark.parametrize("model", QWEN)
@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_ids_grids_and_positions(
    name: str,
    model: str,
    processors: dict[str, Any],
    models: dict[str, Any],
    families: dict[str, ModelFamily],
    tokenizer: Tokenizer,
) -> None:
    parts, family = DOCUMENTS[name], families[model]
    hf = by_transformers(parts, processors[model])
    tokens, spans = by_zephon(parts, family, tokenizer)
    assert tokens.tolist() == hf["input_ids"][0].tolist()
    for kind in ("image", "video"):
        grids = [list(span.grid) for span in spans if span.kind == kind]
        assert grids == hf.get(f"{kind}_grid_thw", torch.empty(0, 3)).tolist()
    extras = family.extra_inputs([spans])
    if "second_per_grid_ts" in hf:
        found = torch.from_numpy(extras["second_per_grid_ts"])
        assert torch.equal(found, torch.as_tensor(hf["second_per_grid_ts"], dtype=torch.float32))
    else:
        assert extras == {}
    positions = family.positions(tokens, spans)
    if not spans:
        assert positions.tolist() == [list(range(len(tokens)))] * 3
        return
    inputs = {
        key: hf[key]
        for key in ("mm_token_type_ids", "image_grid_thw", "video_grid_thw", "second_per_grid_ts")
        if key in hf
    }
    expected, _ = models[model].get_rope_index(hf["input_ids"], **inputs)
    assert positions.dtype == np.int64
    assert positions.tolist() == expected[:, 0].tolist()


@pytest.mark.parametrize("model", QWEN)
def test_positions_of_many_clips(
    model: str, models: dict[str, Any], families: dict[str, ModelFamily], tokenizer: Tokenizer
) -> None:
    """Grids, rates and neighbours drawn at random, checked against ``get_rope_index`` alone."""
    family = families[model]
    draw = random.Random(3)
    for _ in range(40):
        parts: list[Part] = []
        for _ in range(draw.randint(1, 5)):
            if draw.random() < 0.4:
                parts.append("some words")
            size = (draw.randint(30, 300), draw.randint(30, 300))
            if draw.random() < 0.5:
                parts.append(("image", 1, *size, 0.0))
            else:
                rate = draw.choice([0.3, 1.0, 2.0, 3.7, 23.976, 30.0, 59.94])
                parts.append(("video", draw.randint(1, 12), *size, rate))
        tokens, spans = by_zephon(parts, family, tokenizer)
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        types = torch.zeros_like(ids)
        types[ids == tokenizer.token_id("<|image_pad|>")] = 1
        types[ids == tokenizer.token_id("<|video_pad|>")] = 2
        inputs: dict[str, Any] = {}
        for kind in ("image", "video"):
            if grids := [span.grid for span in spans if span.kind == kind]:
                inputs[f"{kind}_grid_thw"] = torch.tensor(grids)
        if model == "qwen2_5_vl" and "video_grid_thw" in inputs:
            seconds = family.extra_inputs([spans])["second_per_grid_ts"]
            inputs["second_per_grid_ts"] = torch.from_numpy(seconds)
        expected, _ = models[model].get_rope_index(ids, mm_token_type_ids=types, **inputs)
        assert family.positions(tokens, spans).tolist() == expected[:, 0].tolist()


def test_a_patchs_time_is_the_mean_of_its_first_and_last_frame(
    families: dict[str, ModelFamily], tokenizer: Tokenizer
) -> None:
    block = families["qwen3_vl"].block(span_of("video", (2, 2, 2), (0.0, 0.5, 61.25), 2.0))
    assert tokenizer.decode(block) == (
        "<|vision_start|><0.2 seconds><|vision_start|><|video_pad|><|vision_end|>"
        "<61.2 seconds><|vision_start|><|video_pad|><|vision_end|><|vision_end|>"
    )
    with pytest.raises(ValueError, match="3 frame times for 1 temporal patches"):
        families["qwen3_vl"].block(span_of("video", (1, 2, 2), (0.0, 0.5, 1.0), 2.0))


def test_an_unknown_frame_rate_counts_as_one_patch_a_second(
    families: dict[str, ModelFamily], tokenizer: Tokenizer
) -> None:
    _, spans = by_zephon([("video", 1, 60, 60, 30.0)], families["qwen2_5_vl"], tokenizer)
    still = [replace(spans[0], fps=0.0)]
    extras = families["qwen2_5_vl"].extra_inputs([still])
    assert extras["second_per_grid_ts"].tolist() == [1.0]


@pytest.mark.parametrize("model", QWEN)
@pytest.mark.parametrize("kind", ["image", "video"])
def test_normalisation_is_the_processors(
    model: str, kind: str, families: dict[str, ModelFamily], processors: dict[str, Any]
) -> None:
    """Every value of every channel, bit for bit; patches of one value a frame."""
    family = families[model]
    factor = family.patches.patch_size * family.patches.merge_size
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    colours = np.stack([ramp, ramp[::-1], ramp.T], axis=-1)
    pixels = np.repeat(np.repeat(colours, factor, 0), factor, 1)
    processor = processors[model]
    if kind == "image":
        hf = processor.image_processor(pixels, do_resize=False, return_tensors="pt")
        expected, mean, std = hf["pixel_values"], family.image_mean, family.image_std
    else:
        hf = processor.video_processor(
            [pixels[None].repeat(2, 0)],
            do_resize=False,
            do_sample_frames=False,
            return_tensors="pt",
        )
        expected, mean, std = hf["pixel_values_videos"], family.video_mean, family.video_std
    size, merge = family.patches.patch_size, family.patches.merge_size
    cut = pixels.reshape(16, merge, size, 16, merge, size, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    patches = np.repeat(cut.reshape(-1, 3, 1, size * size), 2, axis=2).reshape(len(expected), -1)
    found = normalise(torch.from_numpy(patches), mean, std)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_mean_patches_are_nearest_to_zero(families: dict[str, ModelFamily]) -> None:
    for family in families.values():
        patches = mean_patches(family.image_mean, 5, family.patches)
        assert patches.shape == (5, family.patches.columns) and patches.dtype == np.uint8
        values = normalise(torch.from_numpy(patches), family.image_mean, family.image_std)
        assert values.abs().max() < 0.5 / 255 / min(family.image_std) + 1e-6
    empty = torch.empty((0, 1176), dtype=torch.uint8)
    family = families["qwen2_5_vl"]
    assert normalise(empty, family.image_mean, family.image_std).shape == (0, 1176)
