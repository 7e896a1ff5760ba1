"""Patches of decoded frames, and the normalisation table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from zephon_mm_kernels import reference

from tests.unit.media.clips import make_clip, manifest
from zephon_mm.decoders import load_decoder
from zephon_mm.decoders.base import DecodedFrames
from zephon_mm.media.info import VideoInfo
from zephon_mm.media.pixels import stream_patches, video_patches
from zephon_mm.media.probe import probe_member, read_probe
from zephon_mm.patches import PatchLayout

QWEN2 = PatchLayout(14, 2, 2)
QWEN3 = PatchLayout(16, 2, 2)
DECODER = load_decoder("pyav")
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def info_of(data: bytes) -> VideoInfo:
    info = read_probe(probe_member("mp4", data) or b"")
    assert isinstance(info, VideoInfo) and info.problem is None
    return info


def by_reference(
    decoded: DecodedFrames, size: tuple[int, int], patch: PatchLayout
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    pictures = []
    for frame in decoded:
        turn = frame.orientation
        pictures.append(
            reference.frame_rgb(
                frame.planes, frame.subsampling, frame.depth, frame.matrix, frame.full_range,
                (turn.transpose, turn.mirror_x, turn.mirror_y), size,
            )
        )  # fmt: skip
    sizes = patch.patch_size, patch.temporal_patch_size, patch.merge_size
    return reference.patchify(np.stack(pictures), *sizes)


@pytest.mark.parametrize("count", [1, 3, 5, 17])
@pytest.mark.parametrize("temporal", [2, 4])
def test_last_frame_is_repeated_to_a_multiple(count: int, temporal: int) -> None:
    data = make_clip(frames=count, size=(32, 32))
    patch = PatchLayout(8, temporal, 2)
    decoded = DECODER.decode(data, info_of(data), range(count))
    got = video_patches(decoded, (32, 48), patch)
    groups = -(-count // temporal)
    assert got.shape == (groups * 24, 3 * temporal * 64) and got.dtype == np.uint8
    assert np.array_equal(got, by_reference(decoded, (32, 48), patch))
    padded = [*range(count), *[count - 1] * (groups * temporal - count)]
    whole = DECODER.decode(data, info_of(data), padded)
    assert np.array_equal(got, video_patches(whole, (32, 48), patch))


def test_every_clean_real_clip_equals_the_reference(cases: Path) -> None:
    seen = set()
    for number, row in enumerate(manifest(cases, "video")):
        if row["right"]["cli_error_lines"] or not row["right"]["frames"]:
            continue
        data = (cases / "media" / row["file"]).read_bytes()
        info = info_of(data)
        large = info.stored_width * info.stored_height > 500_000
        decoded = DECODER.decode(data, info, [0] if large else [0, info.num_frames - 1])
        patch, size = ((QWEN2, (84, 56)), (QWEN3, (64, 96)))[number % 2]
        got = video_patches(decoded, size, patch)
        assert np.array_equal(got, by_reference(decoded, size, patch)), row["file"]
        seen.add((info.pix_fmt, info.matrix, info.full_range, info.orientation))
    assert len(seen) > 9


def test_streaming_gives_the_same_patches_in_any_order() -> None:
    data = make_clip(frames=20, options={"bf": "2", "g": "6"})
    info = info_of(data)
    for frames in ([0, 3, 3, 19], [19, 0, 7], list(range(20))):
        whole = video_patches(DECODER.decode(data, info, frames), (56, 56), QWEN2)
        got = stream_patches(DECODER, data, info, frames, (56, 56), QWEN2)
        assert np.array_equal(got, whole)


def test_turned_clips_are_upright(cases: Path) -> None:
    """rot90 and rot270 hold one picture turned: shown, they must look alike from above."""
    patch = PatchLayout(4, 1, 1)
    shown = {}
    for name in ("rot90", "rot180", "rot270"):
        data = (cases / f"inputs/V13/{name}.mp4").read_bytes()
        info = info_of(data)
        decoded = DECODER.decode(data, info, [0])
        got = video_patches(decoded, (info.height // 4 * 4, info.width // 4 * 4), patch)
        assert np.array_equal(
            got, by_reference(decoded, (info.height // 4 * 4, info.width // 4 * 4), patch)
        )
        shown[name] = (info.height, info.width)
    assert shown == {"rot90": (320, 180), "rot180": (180, 320), "rot270": (320, 180)}


def float_rgb(planes: list[np.ndarray], kr: float, kb: float, full: bool, depth: int) -> np.ndarray:  # type: ignore[type-arg]
    """The textbook conversion of 4:4:4 planes, in float64."""
    y, u, v = (p.astype(np.float64) for p in planes)
    top = 2.0**depth - 1
    if full:
        y, u, v = y / top, (u - 2 ** (depth - 1)) / top, (v - 2 ** (depth - 1)) / top
    else:
        step = 2.0 ** (depth - 8)
        y = (y - 16 * step) / (219 * step)
        u, v = ((c - 128 * step) / (224 * step) for c in (u, v))
    r = y + 2 * (1 - kr) * v
    b = y + 2 * (1 - kb) * u
    g = (y - kr * r - kb * b) / (1 - kr - kb)
    return np.clip(np.stack([r, g, b], -1) * 255, 0, 255)


def halved(plane: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Means of blocks of 2 x 2."""
    rows, columns = plane.shape[0] // 2 * 2, plane.shape[1] // 2 * 2
    cut = plane[:rows, :columns].astype(np.float64)
    return (cut[::2, ::2] + cut[1::2, ::2] + cut[::2, 1::2] + cut[1::2, 1::2]) / 4


def test_colour_follows_the_tags(cases: Path) -> None:
    """V15: a mean absolute error of at most 2 codes against float, at the chroma's resolution."""
    tags = {
        "bt709_full_range.mp4": (0.2126, 0.0722, True),
        "bt601_full_range.mp4": (0.299, 0.114, True),
        "bt601_limited_range.mp4": (0.299, 0.114, False),
        "bt2020_10bit.mp4": (0.2627, 0.0593, False),
        "testsrc2.mp4": (0.299, 0.114, False),  # untagged: 601, limited
    }
    for name, (kr, kb, full) in tags.items():
        data = (cases / "media/video" / name).read_bytes()
        info = info_of(data)
        frame = DECODER.decode(data, info, [info.num_frames // 2]).frames[0]
        y, u, v = frame.planes
        want = float_rgb([halved(y), u, v], kr, kb, full, frame.depth)
        got = reference.frame_rgb(
            frame.planes, (1, 1), frame.depth, frame.matrix, frame.full_range, (False,) * 3,
            (frame.height, frame.width),
        )  # fmt: skip
        small = np.stack([halved(got[..., c]) for c in range(3)], axis=-1)
        assert np.abs(small - want).mean() <= 2, name
        wrong = float_rgb([halved(y), u, v], kr, kb, not full, frame.depth)
        assert np.abs(small - wrong).mean() > 4, name


def test_table_equals_the_processors_arithmetic() -> None:
    import torch
    from transformers import Qwen2VLImageProcessor
    from zephon_mm_kernels.normalise import table

    for mean, std in (CLIP, ((0.5,) * 3, (0.5,) * 3)):
        processor = Qwen2VLImageProcessor(image_mean=list(mean), image_std=list(std))
        codes = torch.arange(256, dtype=torch.uint8).repeat(3, 1).reshape(1, 3, 1, 256)
        want = processor.rescale_and_normalize(
            codes, True, 1 / 255, True, tuple(mean), tuple(std)
        ).reshape(3, 256)
        assert np.array_equal(table(mean, std), want.numpy())


def test_wrong_sizes_are_told() -> None:
    data = make_clip(frames=2)
    decoded = DECODER.decode(data, info_of(data), [0])
    with pytest.raises(ValueError, match="multiples of 28"):
        video_patches(decoded, (56, 57), QWEN2)
    with pytest.raises(ValueError, match="no frames"):
        video_patches(DecodedFrames(()), (56, 56), QWEN2)


def test_a_missing_numba_is_named() -> None:
    import subprocess
    import sys

    code = (
        "from zephon_mm.errors import MissingDependencyError\n"
        "from zephon_mm.media.pixels import video_patches\n"
        "from zephon_mm.decoders.base import DecodedFrames\n"
        "from zephon_mm.patches import PatchLayout\n"
        "try:\n    video_patches(DecodedFrames(()), (28, 28), PatchLayout(14, 2, 2))\n"
        "except MissingDependencyError as error:\n    print(error)\n"
    )
    paths = [p for p in sys.path if p]
    head = f"import sys; sys.path[:0] = {paths!r}; sys.modules['numba'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code], capture_output=True, text=True, check=True
    )
    assert "pip install numba" in done.stdout
