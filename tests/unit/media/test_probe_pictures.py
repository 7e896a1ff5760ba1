"""Probes of real and made pictures."""

from __future__ import annotations

import hashlib
import io
import tracemalloc
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image, ImageOps

from tests.unit.media.clips import manifest
from zephon_mm.errors import MediaError
from zephon_mm.media.image_file import open_image
from zephon_mm.media.images import decode_image
from zephon_mm.media.info import ImageInfo, write_probe
from zephon_mm.media.probe import probe_image, probe_member, read_probe
from zephon_mm.media.verify import verify_member


def test_pictures_of_the_cases(cases: Path) -> None:
    for row in manifest(cases, "image"):
        data = (cases / "media" / row["file"]).read_bytes()
        blob = probe_member(row["file"], data)
        assert blob is not None and blob == probe_member(row["file"], bytearray(data))
        info = read_probe(blob)
        assert isinstance(info, ImageInfo)
        right = row["right"]
        if "error" in right:
            clean = verify_member(row["file"], data, blob)
            assert not clean, row["file"]
            if info.problem is None:
                with pytest.raises(MediaError, match="can't be decoded"):
                    decode_image(data, info)
            continue
        assert [info.width, info.height] == right["size_after_exif"], row["file"]
        assert (info.format, info.num_frames) == (right["format"], right["n_frames"])
        picture = decode_image(data, info).permute(1, 2, 0).numpy()
        found = hashlib.sha256(np.ascontiguousarray(picture).tobytes()).hexdigest()
        want = right.get("rgb_on_white_sha256", right["rgb_convert_sha256"])
        assert found == want, row["file"]  # what is transparent is laid over white
        assert verify_member(row["file"], data, blob)


def test_bombs_are_refused_without_memory(cases: Path) -> None:
    bombs = [
        cases / "inputs/P10/30000x30000_1bit.png",
        cases / "media/image/decompression_bomb.gif",
        cases / "media/image/65536-uint32-limit.png",
    ]
    for path in bombs:
        data = path.read_bytes()
        probe_image(data)
        before = psutil.Process().memory_info().rss
        tracemalloc.start()
        info = probe_image(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if path.suffix == ".gif":  # Pillow's own reader refuses it, header and all
            assert info.problem and "pixels" in info.problem
        else:  # measuring judges the size, and verifying decodes nothing so large
            assert info.problem is None and info.width * info.height > 178_956_970
            assert not verify_member(path.name, data, write_probe(info))
        assert peak < 3 * len(data) + 1_000_000
        assert psutil.Process().memory_info().rss - before < 16_000_000


def test_the_bound_is_an_argument_and_the_global_stays() -> None:
    file = io.BytesIO()
    Image.new("RGB", (100, 100)).save(file, "PNG")
    before = Image.MAX_IMAGE_PIXELS
    with open_image(file.getvalue(), 10_000) as image:
        assert image.size == (100, 100)
    with pytest.raises(ValueError, match="more than 9999"):
        open_image(file.getvalue(), 9_999)
    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "MPO"])
def test_size_in_the_header_is_the_size_as_shown(format_name: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 10, 3)).astype(np.uint8)
    for tag in range(1, 9):
        file, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = tag
        extra = {"tiffinfo": {274: tag}} if format_name == "TIFF" else {"exif": exif.tobytes()}
        Image.fromarray(pixels).save(file, format_name, **extra)
        data = file.getvalue()
        info = probe_image(data)
        assert (info.height, info.width) == ((10, 6) if tag > 4 else (6, 10))
        with Image.open(io.BytesIO(data)) as image:
            want = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        assert np.array_equal(decode_image(data, info).permute(1, 2, 0).numpy(), want)


def test_png_orientation_after_the_pixels() -> None:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (10, 6)).save(file, "PNG", exif=exif.tobytes())
    data = file.getvalue()
    at = data.index(b"eXIf") - 4
    size = 12 + int.from_bytes(data[at : at + 4], "big")
    end = data.index(b"IEND") - 4
    moved = data[:at] + data[at + size : end] + data[at : at + size] + data[end:]
    info = probe_image(moved)
    assert (info.width, info.height) == (6, 10)
    assert tuple(decode_image(moved, info).shape) == (3, 10, 6)


def test_orientation_that_makes_no_sense_is_ignored() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 10, 3)).astype(np.uint8)
    for tag in (0, 9, 65535):
        file, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = tag
        Image.fromarray(pixels).save(file, "PNG", exif=exif.tobytes())
        info = probe_image(file.getvalue())
        assert (info.height, info.width) == (6, 10)
        assert tuple(decode_image(file.getvalue(), info).shape) == (3, 6, 10)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", exif=b"Exif\0\0" + b"rubbish" * 9)
    info = probe_image(file.getvalue())
    assert info.problem is None and verify_member("jpg", file.getvalue(), write_probe(info))
