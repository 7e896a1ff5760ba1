"""Animated pictures as clips: their times, their frames as shown, what is damaged, what is work."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from zephon_mm.errors import MediaError
from zephon_mm.media.animation import AnimationDecoder
from zephon_mm.media.animation_times import clip_of, read_delays
from zephon_mm.media.info import ImageInfo, VideoInfo, read_probe, write_probe
from zephon_mm.media.probe import probe_image, probe_member
from zephon_mm.media.verify import verify_member

Pixels = np.ndarray[Any, Any]
SIZE = (20, 30)
FORMATS = ("GIF", "WEBP", "PNG", "AVIF")


def drawn(count: int) -> list[Pixels]:
    """Frames of few colours, of which most stays the same from one to the next."""
    frames = []
    for number in range(count):
        frame = np.zeros((*SIZE, 3), np.uint8)
        frame[...] = (40, 80, 120)
        frame[3 + number : 9 + number, 2 * number : 2 * number + 5] = (250, 10 * number, 30)
        frames.append(frame)
    return frames


def encoded(name: str, frames: Sequence[Pixels], **options: Any) -> bytes:
    first, *rest = (Image.fromarray(frame) for frame in frames)
    exact: dict[str, Any] = {
        "WEBP": {"lossless": True},
        "AVIF": {"quality": 100, "subsampling": "4:4:4"},
    }
    file = io.BytesIO()
    made = {**exact.get(name, {}), **options}
    first.save(file, name, save_all=True, append_images=rest, **made)
    return file.getvalue()


def clip(data: bytes) -> VideoInfo:
    info = read_probe(write_probe(probe_image(data)))
    assert isinstance(info, ImageInfo) and info.problem is None
    found = clip_of(info)
    assert found is not None
    return found


def shown(data: bytes, wanted: Sequence[int] | None = None) -> list[Pixels]:
    info = clip(data)
    order = range(info.num_frames) if wanted is None else wanted
    frames = AnimationDecoder().decode(data, info, order)
    return [np.stack((f.planes[2], f.planes[0], f.planes[1]), 2) for f in frames]


def seconds(info: VideoInfo) -> list[Fraction]:
    return [int(pts) * Fraction(*info.time_base) for pts in info.pts]


@pytest.mark.parametrize("name", FORMATS)
def test_frames_and_times(name: str) -> None:
    frames = drawn(5)
    data = encoded(name, frames, duration=[40, 40, 120, 200, 80])
    info = clip(data)
    assert (info.num_frames, info.height, info.width) == (5, *SIZE)
    assert seconds(info) == [Fraction(at, 1000) for at in (0, 40, 80, 200, 400)]
    assert info.duration == Fraction(480, 1000) and info.rate is None
    for found, want in zip(shown(data), frames, strict=True):
        assert np.abs(found.astype(int) - want).max() <= (4 if name == "AVIF" else 0)
    for found, at in zip(shown(data, [4, 0, 2, 2]), [4, 0, 2, 2], strict=True):
        assert np.array_equal(found, shown(data)[at])
    assert verify_member(name.lower(), data, probe_member(name.lower(), data))


@pytest.mark.parametrize("name", FORMATS)
def test_a_constant_rate_is_exact(name: str) -> None:
    info = clip(encoded(name, drawn(4), duration=50))
    assert info.rate == (20, 1) and info.frames_per_second == 20.0
    assert seconds(info)[-1] == Fraction(150, 1000)


@pytest.mark.parametrize("name", FORMATS)
def test_ten_milliseconds_or_less_are_a_hundred(name: str) -> None:
    info = clip(encoded(name, drawn(4), duration=[10, 0, 20, 5]))
    at = [Fraction(0), Fraction(1, 10), Fraction(2, 10), Fraction(22, 100)]
    assert seconds(info) == at and info.duration == Fraction(32, 100)


@pytest.mark.parametrize("name", FORMATS)
def test_one_frame_is_a_picture(name: str) -> None:
    info = probe_image(encoded(name, drawn(1), duration=40))
    assert info.num_frames == 1 and not info.delays and clip_of(info) is None


def test_pages_are_no_animation() -> None:
    info = probe_image(encoded("TIFF", drawn(3)))
    assert info.num_frames == 3 and clip_of(info) is None


def gif(parts: Sequence[tuple[Pixels, tuple[int, int], int, int | None]]) -> bytes:
    """A GIF of pieces: indices of four grey levels, (top, left), disposal, transparent index."""
    palette = bytes(value for level in (0, 90, 180, 255) for value in (level,) * 3)
    out = b"GIF89a" + struct.pack("<HHBBB", SIZE[1], SIZE[0], 0x81, 0, 0) + palette
    for pixels, (top, left), disposal, clear in parts:
        flags = disposal << 2 | (clear is not None)
        out += b"\x21\xf9\x04" + struct.pack("<BHBB", flags, 7, clear or 0, 0)
        height, width = pixels.shape
        out += b"\x2c" + struct.pack("<HHHHB", left, top, width, height, 0)
        codes = [4]  # of two bits a pixel, each code three, cleared before the table grows
        for number, value in enumerate(pixels.reshape(-1).tolist()):
            codes += [4, value] if number % 2 == 0 else [value]
        bits = "".join(f"{code:03b}"[::-1] for code in [*codes, 5])
        bits += "0" * (-len(bits) % 8)
        data = bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
        out += b"\x02"
        for at in range(0, len(data), 255):
            out += bytes((len(data[at : at + 255]),)) + data[at : at + 255]
        out += b"\0"
    return out + b";"


def test_disposal_is_respected() -> None:
    """Left, cleared, and put back, with transparent pixels; what is never drawn is white."""
    levels = np.array([0, 90, 180, 255], np.uint8)
    whole = np.full(SIZE, 1, np.uint8)
    whole[:, :10] = 3
    square, other = np.full((8, 8), 2, np.uint8), np.zeros((6, 9), np.uint8)
    holed = square.copy()
    holed[2:5, 2:5] = 3
    parts = [
        (whole, (0, 0), 1, 3),
        (square, (2, 2), 3, 3),  # put back
        (other, (9, 12), 2, 3),  # cleared
        (holed, (8, 10), 1, 3),  # left
        (other[:2, :2], (0, 0), 1, 3),
    ]
    canvas = np.full(SIZE, 255, np.uint8)
    want = []
    for pixels, (top, left), disposal, clear in parts:
        box = np.s_[top : top + pixels.shape[0], left : left + pixels.shape[1]]
        before = canvas.copy()
        canvas[box] = np.where(pixels == clear, canvas[box], levels[pixels])
        want.append(canvas.copy())
        if disposal == 3:
            canvas = before
        elif disposal == 2:
            canvas[box] = 255
    data = gif(parts)
    assert clip(data).rate == (100, 7)
    for number, (found, expected) in enumerate(zip(shown(data), want, strict=True)):
        assert np.array_equal(found, np.repeat(expected[..., None], 3, 2)), number
        assert np.array_equal(shown(data, [number])[0], found), number


@pytest.mark.parametrize("name", ["PNG", "WEBP"])
def test_alpha_is_laid_over_white(name: str) -> None:
    frames = [np.dstack((frame, np.full(SIZE, 255, np.uint8))) for frame in drawn(3)]
    for frame in frames:
        frame[:5, :5, 3] = 0
    data = encoded(name, frames, duration=40)
    for found, frame in zip(shown(data), frames, strict=True):
        want = frame[..., :3].copy()
        want[:5, :5] = 255
        assert np.array_equal(found, want)


def apng(parts: Sequence[tuple[Pixels, tuple[int, int], int, int]], mode: str) -> bytes:
    """An APNG of pieces: RGBA, (top, left), disposal, blend; saved in ``mode``."""
    out = b"\x89PNG\r\n\x1a\n"
    number = 0
    for at, (pixels, (top, left), disposal, blend) in enumerate(parts):
        file = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(file, "PNG")
        single = file.getvalue()
        start = single.index(b"IDAT") - 4
        body = single[start + 8 : start + 8 + int.from_bytes(single[start : start + 4], "big")]
        height, width = pixels.shape[:2]
        if at == 0:
            out += single[8:start] + chunk(b"acTL", struct.pack(">II", len(parts), 0))
        place = struct.pack(">IIIIIHHBB", number, width, height, left, top, 1, 30, disposal, blend)
        out += chunk(b"fcTL", place)
        number += 1
        out += chunk(b"fdAT", struct.pack(">I", number) + body) if at else chunk(b"IDAT", body)
        number += at > 0
    return out + chunk(b"IEND", b"")


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_disposal_and_blending_of_apngs(mode: str) -> None:
    """Every pair of them; a frame is the same whichever others are asked for."""
    random = np.random.default_rng(3)
    opaque = random.integers(0, 256, (*SIZE, 4), np.uint8)
    opaque[..., 3] = 255
    parts = [(opaque, (0, 0), 0, 0)]
    for disposal in (2, 1, 0):
        for blend in (1, 0):
            piece = random.integers(0, 256, (8, 9, 4), np.uint8)
            piece[..., 3] = 255 * random.integers(0, 2, (8, 9)) if mode == "RGBA" else 255
            parts.append((piece, (2 * disposal, 3 + 5 * blend), disposal, blend))
    canvas = np.zeros((*SIZE, 4), np.uint8)
    want = []
    for pixels, (top, left), disposal, blend in parts:
        box = np.s_[top : top + pixels.shape[0], left : left + pixels.shape[1]]
        before = canvas.copy()
        canvas[box] = np.where((pixels[..., 3:] == 0) & (blend == 1), canvas[box], pixels)
        want.append(np.where(canvas[..., 3:] == 0, 255, canvas[..., :3]))
        if disposal == 2:
            canvas = before
        elif disposal == 1:
            canvas[box] = 0
    data = apng(parts, mode)
    assert clip(data).rate == (30, 1)
    for number, expected in enumerate(want):
        assert np.array_equal(shown(data)[number], expected), number
        assert np.array_equal(shown(data, [number])[0], expected), number


def test_a_picture_before_an_apngs_animation_is_no_frame() -> None:
    still, *frames = drawn(4)
    data = encoded("PNG", [still, *frames], duration=40, default_image=True)
    assert probe_image(data).num_frames == 4 and clip(data).num_frames == 3
    for found, want in zip(shown(data), frames, strict=True):
        assert np.array_equal(found, want)


@pytest.mark.parametrize("name", ["PNG", "WEBP"])
def test_exif_orientation_turns_every_frame(name: str) -> None:
    exif = Image.Exif()
    exif[274] = 6
    frames = drawn(3)
    data = encoded(name, frames, duration=40, exif=exif.tobytes())
    assert (clip(data).height, clip(data).width) == (SIZE[1], SIZE[0])
    for found, want in zip(shown(data), frames, strict=True):
        assert np.array_equal(found, np.rot90(want, -1))


@pytest.mark.parametrize("name", ["GIF", "PNG"])
def test_a_cut_file_has_the_frames_before_the_cut(name: str) -> None:
    random = np.random.default_rng(0)
    frames = [random.integers(0, 256, (*SIZE, 3), np.uint8) for _ in range(6)]
    whole = encoded(name, frames, duration=40)
    want = shown(whole)
    seen = set()
    for stop in range(len(whole) // 3, len(whole) - 20, 193):
        data = whole[:stop]
        info = probe_image(data)
        animation = clip_of(info)
        if animation is None:
            continue
        seen.add(animation.num_frames)
        last = animation.num_frames - 1
        for found, expected in zip(shown(data, range(last)), want, strict=False):
            assert np.array_equal(found, expected)
        try:
            assert np.array_equal(shown(data, [last])[0], want[last])
        except MediaError as error:
            assert error.stage == "decode" and f"frame {last} of" in error.reason
            assert not verify_member(name.lower(), data, write_probe(info))
    assert len(seen) > 2
    data = whole[: len(whole) * 3 // 4]
    with pytest.raises(MediaError, match="can't be decoded"):
        shown(data, [clip(data).num_frames - 1])


def test_a_cut_webp_is_no_picture() -> None:
    data = encoded("WEBP", drawn(4), duration=40)
    assert probe_image(data[: len(data) * 2 // 3]).problem is not None


def test_broken_pixels_are_damage() -> None:
    data = bytearray(encoded("PNG", drawn(4), duration=40))
    at = data.rfind(b"fdAT") + 8
    data[at : at + 6] = b"\xff" * 6
    assert np.array_equal(shown(bytes(data), [0, 1])[1], drawn(2)[1])
    with pytest.raises(MediaError, match="frame 3 of the animation can't be decoded"):
        shown(bytes(data), [3])


def bomb(frames: int, size: tuple[int, int]) -> bytes:
    """A GIF of a huge canvas whose frames draw one pixel each."""
    head = b"GIF89a" + struct.pack("<HHBBB", size[1], size[0], 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return head + frame * frames + b";"


def test_a_bomb_of_frames_is_refused_from_its_header() -> None:
    for data in (bomb(18_000, (8000, 8000)), bomb(3, (20_000, 9000))):
        info = read_probe(write_probe(probe_image(data)))
        assert isinstance(info, ImageInfo) and len(write_probe(info)) < 200
        animation = clip_of(info)
        assert animation is not None and animation.problem is not None
        assert "more work" in animation.problem
    few = clip(bomb(9000, (10, 10)))
    assert few.num_frames == 9000 and few.rate == (10, 1) and few.problem is None


def test_an_apng_that_claims_more_frames_than_it_has() -> None:
    data = encoded("PNG", drawn(3), duration=40)
    at = data.index(b"acTL")
    changed = data[: at - 4] + chunk(b"acTL", struct.pack(">II", 1 << 30, 0)) + data[at + 16 :]
    assert clip(changed).num_frames == 3 and len(shown(changed)) == 3


def test_delays_of_broken_files_are_none_or_whole() -> None:
    """Any bytes: no error, nothing without end."""
    random = np.random.default_rng(1)
    for name in FORMATS:
        whole = encoded(name, drawn(3), duration=40)
        for _ in range(80):
            data = bytearray(whole[: random.integers(0, len(whole))])
            for at in random.integers(0, max(1, len(data)), 6):
                data[at : at + 1] = bytes((int(random.integers(0, 256)),))
            delays = read_delays(name, bytes(data))
            assert all(count >= 1 and ticks >= 1 for count, ticks in delays.runs)


def test_probes_of_stills_are_as_they_were() -> None:
    assert write_probe(ImageInfo(3, 4, "PNG", "RGB", 1)).endswith(b'[3,4,"PNG","RGB",1,null]')
    animated = ImageInfo(3, 4, "GIF", "P", 9, None, ((8, 1), (1, 30)), 100)
    assert read_probe(write_probe(animated)) == animated


def test_a_frame_outside_is_refused() -> None:
    data = encoded("GIF", drawn(3), duration=40)
    with pytest.raises(MediaError, match="frame 3 of an animation of 3"):
        shown(data, [3])
    assert AnimationDecoder().refusal(clip(data)) is None


def test_animations_of_the_cases(cases: Path) -> None:
    """Real files: every frame of a GIF as FFmpeg composes it; the same times in GIF and WebP."""
    folder = cases / "media" / "image"
    data = (folder / "iss634.gif").read_bytes()
    with av.open(io.BytesIO(data), format="gif") as file:
        rgba = [frame.to_ndarray(format="rgba").astype(int) for frame in file.decode(video=0)]
    found = shown(data)
    assert len(found) == len(rgba) == 42
    for ours, theirs in zip(found, rgba, strict=True):
        over_white = np.where(theirs[..., 3:] == 0, 255, theirs[..., :3])
        assert np.array_equal(ours, over_white)
    other = (folder / "iss634.webp").read_bytes()
    assert seconds(clip(other)) == seconds(clip(data))
    for name in ("iss634.webp", "mode_16bit.png"):
        whole = (folder / name).read_bytes()
        assert verify_member(name, whole, probe_member(name, whole)), name


def test_an_avif_without_a_scale_of_time_is_damage() -> None:
    data = bytearray(encoded("AVIF", drawn(3)))
    at = data.index(b"mdhd")
    scale = at + (24 if data[at + 4] else 16)
    data[scale : scale + 4] = bytes(4)
    with pytest.raises(MediaError, match="ZeroDivisionError"):
        shown(bytes(data))
