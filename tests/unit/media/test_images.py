"""Pictures against the installed processors, bit for bit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image, ImageOps

from zephon_mm.errors import MediaError
from zephon_mm.media.images import decode_image, resize_image
from zephon_mm.media.info import ImageInfo
from zephon_mm.media.probe import probe_image
from zephon_mm.media.views import view_patches
from zephon_mm.models.normalise import normalise
from zephon_mm.patches import Filter, PatchLayout, Resize, View

CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def encode(pixels: np.ndarray[Any, np.dtype[np.uint8]], name: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, name, **options)
    return file.getvalue()


def processor(patch: PatchLayout, norm: tuple[tuple[float, ...], tuple[float, ...]]) -> Any:
    from transformers import Qwen2VLImageProcessor

    side = patch.patch_size * patch.merge_size
    return Qwen2VLImageProcessor(
        patch_size=patch.patch_size,
        image_mean=list(norm[0]),
        image_std=list(norm[1]),
        size={"shortest_edge": 4 * side * side, "longest_edge": 300 * side * side},
    )


def check(data: bytes, patch: PatchLayout, norm: Any) -> None:
    info = probe_image(data)
    with Image.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image)
        want = processor(patch, norm)(images=upright, return_tensors="pt")
    _, rows, columns = want["image_grid_thw"][0].tolist()
    size = (rows * patch.patch_size, columns * patch.patch_size)
    patches = view_patches(data, info, [View((Resize(*size),))], patch)
    assert torch.equal(normalise(torch.from_numpy(patches), *norm), want["pixel_values"])


@pytest.mark.parametrize(
    ("patch", "norm"), [(PatchLayout(14, 2, 2), CLIP), (PatchLayout(16, 2, 2), HALF)]
)
def test_pixel_values_equal_the_processors(patch: PatchLayout, norm: Any) -> None:
    rng = np.random.default_rng(patch.patch_size)
    for case in range(20):
        height, width = (int(v) for v in rng.integers(1, 400, 2))
        if max(height, width) / min(height, width) > 150:
            width = height
        kind = ("JPEG", "PNG", "WEBP")[case % 3]
        check(encode(rng.integers(0, 256, (height, width, 3)).astype(np.uint8), kind), patch, norm)


def test_modes_and_orientations_equal_the_processors() -> None:
    rng = np.random.default_rng(9)
    pixels = rng.integers(0, 256, (60, 90, 4)).astype(np.uint8)
    rgba = Image.fromarray(pixels, "RGBA")
    files = []
    for mode in ("L", "LA", "P", "RGBA", "1", "RGB", "I;16"):
        file = io.BytesIO()
        if mode == "I;16":
            Image.fromarray(rng.integers(0, 65536, (60, 90)).astype(np.uint16)).save(file, "PNG")
        else:
            rgba.convert(mode).save(file, "PNG")
        files.append(file.getvalue())
    file = io.BytesIO()
    rgba.convert("CMYK").save(file, "JPEG")
    files.append(file.getvalue())
    for tag in range(2, 9):
        exif = Image.Exif()
        exif[0x0112] = tag
        files.append(encode(pixels[..., :3], "JPEG", exif=exif.tobytes()))
    for data in files:
        check(data, PatchLayout(14, 2, 2), CLIP)


def test_real_pictures_equal_the_processors(cases: Path) -> None:
    checked = 0
    for path in sorted((cases / "media/image").iterdir()):
        data = path.read_bytes()
        info = probe_image(data)
        if info.width * info.height > 178_956_970:  # measuring refuses it; decoding takes 20 GB
            continue
        try:
            decode_image(data, info)
        except MediaError:
            continue
        check(data, PatchLayout(16, 2, 2), HALF)
        checked += 1
    assert checked >= 17


def test_sides_of_one_and_three_pixels_are_never_permuted(cases: Path) -> None:
    for path in sorted((cases / "inputs/P05").iterdir()):
        data = path.read_bytes()
        info = probe_image(data)
        with Image.open(path) as image:
            want = np.asarray(image.convert("RGB"))
        assert (info.height, info.width) == want.shape[:2]
        got = decode_image(data, info)
        assert np.array_equal(got.permute(1, 2, 0).numpy(), want)
        patches = view_patches(data, info, [View((Resize(56, 56),))], PatchLayout(14, 2, 2))
        assert patches.shape == (16, 1176)
    flat = encode(np.full((1, 7, 3), (10, 20, 30), np.uint8))
    patches = view_patches(
        flat, probe_image(flat), [View((Resize(28, 56),))], PatchLayout(14, 2, 2)
    )
    for channel, value in enumerate((10, 20, 30)):
        assert set(patches[:, channel * 392 : (channel + 1) * 392].ravel().tolist()) == {value}


def test_cut_pictures_are_damaged() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (80, 90, 3)).astype(np.uint8)
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"):
        data = encode(pixels, kind)
        whole = probe_image(data)
        decode_image(data, whole)
        with pytest.raises(MediaError) as caught:
            decode_image(data[: len(data) // 2], whole)
        assert caught.value.stage == "decode", kind


def test_a_picture_of_another_size_than_indexed_is_damaged() -> None:
    data = encode(np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(MediaError, match="its header says 4x6"):
        decode_image(data, ImageInfo(4, 6, "PNG", "RGB", 1))
    with pytest.raises(MediaError, match="bad header"):
        decode_image(data, ImageInfo(problem="bad header"))


def test_nothing_is_left_open_or_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    import gc

    for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF"):
        data = encode(np.zeros((8, 8, 3), np.uint8), kind)
        decode_image(data, probe_image(data))
    gc.collect()
    assert not recwarn.list


def test_pixels_of_four_bytes_and_copied_ones_are_resized_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    data = encode(rng.integers(0, 256, (61, 83, 3)).astype(np.uint8))
    info = probe_image(data)
    picture = decode_image(data, info)
    assert picture.stride() == (1, 4 * 83, 4), "Pillow's own memory"
    with monkeypatch.context() as patch:
        patch.setattr(pa, "array", several_blocks)
        copied = decode_image(data, info)
    assert copied.stride() == (1, 3 * 83, 3)
    filters: tuple[Filter, ...] = ("bicubic", "bilinear", "lanczos", "plain_bilinear")
    box = slice(None), slice(20, 50), slice(10, 70)
    for name in filters:
        for one, other in ((picture, copied), (picture[:, 20:], copied[:, 20:])):
            for size in ((61, 83), (28, 56), (200, 10)):
                shown = resize_image(one, size, name)
                wanted = resize_image(other, size, name)
                assert torch.equal(shown, wanted)
                again = resize_image(shown, (8, 9), name)
                assert torch.equal(again, resize_image(wanted, (8, 9), name))
        assert torch.equal(
            resize_image(picture[box], (28, 28), name), resize_image(copied[box], (28, 28), name)
        )


def several_blocks(image: Image.Image) -> Any:
    """As ``pyarrow.array`` of a picture of over 16 MB."""
    raise ValueError("Image rows are not contiguous in memory.")


@pytest.mark.parametrize(
    ("filter", "capability"),
    [("bicubic", "AVX2"), ("lanczos", "AVX2"), ("bilinear", "AVX2"), ("bilinear", "DEFAULT")],
)
def test_resizing_equals_torchvisions_bytes_and_layout(
    filter: Filter, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.transforms.v2 import functional

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    rng = np.random.default_rng(7)
    sides = (1, 2, 3, 8, 28, 31, 64, 100)
    for height in sides:
        for width in sides:
            pixels = torch.from_numpy(rng.integers(0, 256, (height, width, 3), np.uint8))
            picture = pixels.permute(2, 0, 1)
            shown_so = [picture]
            if width > 3:  # ATen refuses some narrow ones that are laid out so
                shown_so += [picture[:, height // 3 :, : width // 2], picture.contiguous()]
            for shown in shown_so:
                size = tuple(int(side) for side in rng.choice(sides, 2))
                mode = functional.InterpolationMode(filter)
                want = functional.resize(shown, list(size), interpolation=mode, antialias=True)
                got = resize_image(shown, (size[0], size[1]), filter)
                assert torch.equal(got, want) and got.stride() == want.stride()
