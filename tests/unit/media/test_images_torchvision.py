"""Pictures by torchvision: equal to Pillow's, or refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from zephon_mm.errors import MediaError
from zephon_mm.media import images, images_torchvision
from zephon_mm.media.info import ImageInfo
from zephon_mm.media.probe import probe_image
from zephon_mm.patches import Filter

NOISE = np.random.default_rng(5).integers(0, 256, (61, 83, 3), np.uint8)


def encoded(picture: Image.Image, name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, name, **options)
    return file.getvalue()


FILTERS: tuple[Filter, ...] = ("bicubic", "bilinear", "lanczos", "plain_bilinear")


def equal(data: bytes) -> bool:
    """Whether pixels are, and what is resized from them, however they lie in memory."""
    info = probe_image(data)
    bound = info.width * info.height
    got = images_torchvision.decode_image(data, info, max_pixels=bound)
    want = images.decode_image(data, info)
    return torch.equal(got, want) and all(
        torch.equal(images.resize_image(got, size, kind), images.resize_image(want, size, kind))
        for kind in FILTERS
        for size in ((9, 30), (64, 20))
    )


@pytest.mark.parametrize("side", [(1, 1), (1, 40), (17, 3), (61, 83)])
@pytest.mark.parametrize("options", [{"subsampling": n} for n in (0, 1, 2)] + [{"progressive": 1}])
@pytest.mark.parametrize("grey", [False, True])
def test_jpeg_equals_pillow(side: tuple[int, int], options: dict[str, int], grey: bool) -> None:
    pixels = NOISE[: side[0], : side[1]]
    picture = Image.fromarray(pixels[:, :, 0] if grey else pixels)
    data = encoded(picture, "JPEG", quality=60, **options)
    assert images_torchvision.refusal(data, probe_image(data), clean=True) is None
    assert equal(data)


@pytest.mark.parametrize("grey", [False, True])
def test_png_equals_pillow(grey: bool) -> None:
    data = encoded(Image.fromarray(NOISE[:, :, 0] if grey else NOISE), "PNG")
    assert images_torchvision.refusal(data, probe_image(data), clean=True) is None
    assert equal(data)


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(Image.fromarray(NOISE), "JPEG", exif=exif)


def test_what_needs_more_than_decoding_is_refused() -> None:
    rgb = Image.fromarray(NOISE)
    for data, why in (
        (turned(), "turned"),
        (encoded(rgb.convert("RGBA"), "PNG"), "RGBA"),
        (encoded(rgb.convert("CMYK"), "JPEG"), "CMYK"),
        (encoded(rgb.quantize(16), "PNG"), "P of"),
        (encoded(rgb, "PNG", transparency=(1, 2, 3)), "transparent"),
        (encoded(Image.fromarray(NOISE[:, :, 0].astype(np.uint16)), "PNG"), "I;16"),
        (encoded(rgb.convert("1"), "PNG"), "PNG 1"),
        (encoded(rgb, "WEBP"), "WEBP"),
    ):
        reason = images_torchvision.refusal(data, probe_image(data), clean=True)
        assert reason is not None and why in reason


def test_only_verified_pictures_are_taken() -> None:
    data = encoded(Image.fromarray(NOISE), "JPEG")
    reason = images_torchvision.refusal(data, probe_image(data), clean=False)
    assert reason is not None and "--verify" in reason


def test_another_size_or_a_failure_is_an_error() -> None:
    data = encoded(Image.fromarray(NOISE), "JPEG")
    info = ImageInfo(width=80, height=61, format="JPEG", mode="RGB", num_frames=1)
    with pytest.raises(MediaError, match="header says 80x61"):
        images_torchvision.decode_image(data, info, max_pixels=10_000)
    with pytest.raises(MediaError, match="more than 100"):
        images_torchvision.decode_image(data, info, max_pixels=100)
    with pytest.raises(MediaError, match="torchvision can't decode"):
        images_torchvision.decode_image(b"nothing", info, max_pixels=10_000)


def test_jpeg_is_refused_where_the_libraries_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = images_torchvision._decode
    monkeypatch.setattr(images_torchvision, "_decode", lambda data: decode(data) ^ 1)
    assert not images_torchvision.jpegs_agree.__wrapped__()


def test_every_picture_of_the_cases_is_equal_or_refused(cases: Path) -> None:
    taken = 0
    for path in sorted((cases / "media" / "image").iterdir()):
        data = path.read_bytes()
        info = probe_image(data)
        if images_torchvision.refusal(data, info, clean=True) is not None:
            continue
        try:
            images.decode_image(data, info)
        except MediaError:
            continue  # not clean: never routed here
        assert equal(data), path.name
        taken += 1
    assert taken >= 3
