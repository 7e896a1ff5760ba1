"""Clips made on the spot with PyAV, and how their frames are compared."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from zephon_mm.decoders.base import DecodedFrame

# Codecs whose planes are defined bit by bit; MPEG-4's may differ by 1 from build to build.
NOT_EXACT = ("testsrc2_mpeg4.avi", "bbb_176x144_192kbps_15fps_mpeg4.mp4", "counting.mp4")
NOT_EXACT += ("sync_test.avi",)


def make_clip(
    *,
    codec: str = "libx264",
    container: str = "mp4",
    frames: int = 24,
    size: tuple[int, int] = (48, 64),
    pix_fmt: str = "yuv420p",
    rate: int = 24,
    options: dict[str, str] | None = None,
    pts: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    rotation: int | None = None,
    flip: tuple[bool, bool] = (False, False),
    seed: int = 0,
) -> bytes:
    """A clip of (height, width) ``size`` whose frames all differ; ``pts`` in ``time_base``."""
    file = io.BytesIO()
    height, width = size
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3)).astype(np.uint8)
    with av.open(file, "w", format=container) as out:
        stream: Any = out.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        stream.codec_context.thread_count = 1  # libvpx's threads spin when CPUs are few
        if time_base is not None:
            stream.codec_context.time_base = time_base
            stream.time_base = time_base
        if rotation is not None:
            stream.set_display_rotation(rotation, hflip=flip[0], vflip=flip[1])
        for i in range(frames):
            picture = np.kron(np.roll(base, i, 1), np.ones((8, 8, 1), np.uint8))
            picture = np.ascontiguousarray(picture[:height, :width])
            wide = max(1, width * (i + 1) // (frames + 1))
            picture[: max(1, height // 4), :wide] = 255 - i % 256
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pix_fmt)
            frame.pts = i if pts is None else pts[i]
            frame.time_base = time_base or Fraction(1, rate)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


def all_frames(data: bytes) -> list[str]:
    """Digests of every frame in order, by PyAV alone, from the start."""
    digests = []
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        for frame in container.decode(stream):
            planes = []
            for plane in frame.planes[:3]:
                depth = 2 if frame.format.components[0].bits > 8 else 1
                rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
                planes.append(rows[: plane.height, : plane.width * depth])
            digests.append(digest(planes))
    return digests


def digest(planes: Sequence[np.ndarray[Any, Any]]) -> str:
    """MD5 over tightly packed planes."""
    found = hashlib.md5()
    for plane in planes:
        found.update(np.ascontiguousarray(plane).tobytes())
    return found.hexdigest()


def frame_digest(frame: DecodedFrame) -> str:
    """MD5 of a decoded frame; FFmpeg packs GBR as G, B, R too."""
    return digest(frame.planes)


def manifest(cases: Path, kind: str) -> list[dict[str, Any]]:
    """Rows of the cases' manifest."""
    lines = (cases / "media" / "manifest.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def recorded(cases: Path, row: dict[str, Any]) -> list[list[Any]]:
    """[pts, duration, size, md5] of every shown frame."""
    with gzip.open(cases / "media" / row["right"]["framemd5"]) as file:
        frames: list[list[Any]] = json.load(file)["frames"]
    return frames
