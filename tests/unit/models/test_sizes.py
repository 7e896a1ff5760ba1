"""Sizes and grids equal those of the processors that transformers has."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize as hf_image_size
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as hf_clip_size

from tests.tiny import QWEN, span_of
from zephon_mm.config import DataConfig, ImageSizing, Source, VideoSampling
from zephon_mm.errors import ConfigError, MediaError
from zephon_mm.models import Tokenizer, build_family
from zephon_mm.models.sizes import clip_size, image_size, within


def config(model: str, **changes: Any) -> DataConfig:
    source = Source(id="a", urls="a.tar", format="text")
    return DataConfig(sources=(source,), model=model, tokenizer="t", **changes)


def some_sizes(count: int, seed: int) -> list[tuple[int, int]]:
    draw = random.Random(seed)
    sizes = [(1, 1), (1, 3), (3, 1), (28, 28), (31, 639), (32, 32), (2160, 3840), (42, 14)]
    sizes += [(10, 1900), (1900, 10), (1, 200), (4, 800)]
    sizes += [(draw.randint(1, 400), draw.randint(1, 400)) for _ in range(count)]
    sizes += [(draw.randint(100, 4000), draw.randint(100, 4000)) for _ in range(count)]
    return [(h, w) for h, w in sizes if max(h, w) / min(h, w) <= 200]


@pytest.mark.parametrize("factor", [28, 32])
@pytest.mark.parametrize(
    "budget", [(3136, 1003520), (100352, 602112), (784, 15680), (65536, 10**7)]
)
def test_picture_sizes(factor: int, budget: tuple[int, int]) -> None:
    low, high = budget
    for height, width in some_sizes(300, factor):
        expected = hf_image_size(height, width, factor, min_pixels=low, max_pixels=high)
        found = image_size(height, width, factor=factor, min_pixels=low, max_pixels=high)
        assert found == expected, (height, width)


@pytest.mark.parametrize("budget", [(131072, 786432), (4096, 25165824), (2048, 100000)])
def test_clip_sizes(budget: tuple[int, int]) -> None:
    low, high = budget
    draw = random.Random(1)
    for height, width in some_sizes(300, 2):
        frames = draw.choice([2, 3, 4, 5, 7, 16, 17, 64, 768])
        sizes = {"temporal_factor": 2, "factor": 32, "min_pixels": low, "max_pixels": high}
        expected = hf_clip_size(frames, height, width, **sizes)
        assert clip_size(frames, height, width, **sizes) == expected, (frames, height, width)


@pytest.mark.parametrize("model", QWEN)
@pytest.mark.parametrize("size", [(1, 201), (499, 1), (20, 6000), (9, 8000)])
def test_an_aspect_ratio_over_200_is_dropped(
    model: str, size: tuple[int, int], tokenizer: Tokenizer
) -> None:
    family = build_family(config(model), tokenizer)
    with pytest.raises(MediaError, match="aspect ratio over 200") as caught:
        family.layout_image(*size)
    assert (caught.value.kind, caught.value.stage) == ("dropped", "layout")
    if model in ("qwen2_vl", "qwen2_5_vl"):  # Qwen3-VL's own rule lifts small sides before it looks
        with pytest.raises(MediaError, match="aspect ratio over 200"):
            family.layout_video(8, *size)
    elif min(size) == 9:  # and says the clip's own size
        with pytest.raises(MediaError, match="8000×9 pixels: an aspect ratio over 200"):
            family.layout_video(8, *size)


@pytest.mark.parametrize("model", QWEN)
@pytest.mark.parametrize("blocks", [1, 2, 20, 256])
def test_a_picture_is_inside_its_budget_and_a_multiple_of_a_block(
    model: str, blocks: int, tokenizer: Tokenizer
) -> None:
    """P05, P06: no side rounds to 0, and a narrow picture does not break a small budget."""
    factor = 32 if model.startswith("qwen3") else 28
    budget = blocks * factor**2
    family = build_family(config(model, image=ImageSizing(max_pixels=budget)), tokenizer)
    for height, width in some_sizes(200, 5):
        layout = family.layout_image(height, width)
        high, wide = layout.size
        assert high % factor == 0 and wide % factor == 0
        assert factor <= high and factor <= wide
        assert high * wide <= budget
        assert layout.grid == (1, high // (factor // 2), wide // (factor // 2))
        hf = hf_image_size(height, width, factor, min_pixels=min(3136, budget), max_pixels=budget)
        if hf[0] * hf[1] <= budget:
            assert layout.size == hf


def test_only_an_area_over_the_budget_is_cut() -> None:
    assert within((28, 1708), 28, 15680) == (28, 560)
    assert within((1708, 28), 28, 15680) == (560, 28)
    assert within((56, 56), 28, 3136) == (56, 56)
    assert within((28, 56), 28, 10) == (28, 28)


class Sized(Exception):
    """Carries the size that a processor was about to resize to."""


def hf_frame_size(
    monkeypatch: pytest.MonkeyPatch, model: str, frames: int, size: tuple[int, int], cap: bool
) -> tuple[int, int]:
    """The size that the processor's own ``resize`` asks for; nothing is resized."""
    import torch
    from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
    from transformers.models.qwen2_vl import video_processing_qwen2_vl
    from transformers.models.qwen3_vl import video_processing_qwen3_vl

    cls, module = (
        (Qwen3VLVideoProcessor, video_processing_qwen3_vl)
        if model.startswith("qwen3")
        else (Qwen2VLVideoProcessor, video_processing_qwen2_vl)
    )
    rule = module.smart_resize

    def stop(*args: Any, **options: Any) -> None:
        raise Sized(rule(*args, **options))

    processor: Any = cls()
    with monkeypatch.context() as patched:
        patched.setattr(module, "smart_resize", stop)
        with pytest.raises(Sized) as caught:
            processor.resize(
                videos=torch.empty((1, frames, 3, *size), device="meta"),
                size=processor.size,
                resample=None,
                factor=processor.patch_size * processor.merge_size,
                temporal_factor=processor.temporal_patch_size,
                cap_pixels_per_frame=cap,
            )
    found: tuple[int, int] = caught.value.args[0]
    return found


@pytest.mark.parametrize("size", [(1, 1), (90, 160), (720, 1280), (1080, 608), (33, 31)])
@pytest.mark.parametrize("cap", [False, True])
@pytest.mark.parametrize("model", QWEN)
def test_clip_grids_are_the_processors(
    model: str,
    size: tuple[int, int],
    cap: bool,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = build_family(config(model), tokenizer)
    family = replace(built, processor=replace(built.processor, cap_pixels_per_frame=cap))
    for frames in (2, 3, 5, 8, 17, 64, 300, 768):
        layout = family.layout_video(frames, *size)
        assert layout.size == hf_frame_size(monkeypatch, model, frames, size, cap)
        sides = (side // family.patches.patch_size for side in layout.size)
        assert layout.grid == ((frames + 1) // 2, *sides)


@pytest.mark.parametrize("model", QWEN)
def test_one_frame_is_laid_out_as_a_full_temporal_patch(model: str, tokenizer: Tokenizer) -> None:
    """P02: Qwen3-VL's processor refuses a clip of one frame, though it would repeat it."""
    family = build_family(config(model), tokenizer)
    assert family.layout_video(1, 360, 640) == family.layout_video(2, 360, 640)


def test_temporal_patches_are_rounded_up(tokenizer: Tokenizer) -> None:
    """P03: 1, 3, 5 and 17 frames at temporal patches of 2 and 4."""
    for model in QWEN:
        built = build_family(config(model), tokenizer)
        for temporal in (2, 4):
            patches = replace(built.patches, temporal_patch_size=temporal)
            family = replace(built, processor=replace(built.processor, patches=patches))
            for frames in (1, 3, 5, 17):
                times = [n / 10 for n in range(frames)]
                layout = family.layout_video(frames, 100, 100, times, 10.0)
                assert layout.grid[0] == -(-frames // temporal)
                block = family.block(span_of("video", layout.grid, times, 10.0))
                pads = int((block == tokenizer.token_id("<|video_pad|>")).sum())
                assert pads * family.patches.merge_size**2 == layout.num_patches


def test_720p_takes_what_the_defaults_say(tokenizer: Tokenizer) -> None:
    family = build_family(config("qwen2_5_vl"), tokenizer)
    layout = family.layout_video(64, 720, 1280)
    assert layout.num_patches // 4 == 23_040


@pytest.mark.parametrize("model", QWEN)
def test_empty_media_are_dropped(model: str, tokenizer: Tokenizer) -> None:
    family = build_family(config(model), tokenizer)
    with pytest.raises(MediaError) as caught:
        family.layout_video(0, 100, 100)
    assert caught.value.kind == "dropped"
    with pytest.raises(MediaError):
        family.layout_image(0, 100)


def test_budgets_of_the_config(tokenizer: Tokenizer) -> None:
    only_max = build_family(
        config("qwen2_5_vl", video=VideoSampling(max_pixels=64 * 784)), tokenizer
    )
    assert only_max.layout_video(4, 20, 20).num_patches // 4 <= 2 * 64
    with pytest.raises(
        ConfigError, match=r"image\.min_pixels=5000 is above image\.max_pixels=4000"
    ):
        build_family(
            config("qwen2_5_vl", image=ImageSizing(min_pixels=5000, max_pixels=4000)), tokenizer
        )
    with pytest.raises(
        ConfigError, match=r"video\.max_pixels=100 holds not even one block of 1024"
    ):
        build_family(config("qwen3_vl", video=VideoSampling(max_pixels=100)), tokenizer)
