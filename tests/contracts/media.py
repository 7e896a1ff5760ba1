"""Shards made on the spot: texts, pictures, clips and pages, all small and all different."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import webdataset as wds
from PIL import Image

WORDS = (
    "the a dog horse runs rides over under red blue beach snow with three people watching".split()
)


def sentence(seed: int, words: int) -> str:
    raw = np.random.Philox(key=seed).random_raw(words)
    return " ".join(WORDS[int(w) % len(WORDS)] for w in raw) + "."


def picture(seed: int, width: int, height: int, kind: str = "JPEG") -> bytes:
    raw = np.random.Philox(key=seed).random_raw(12).astype(np.uint8).reshape(2, 2, 3)
    out = io.BytesIO()
    Image.fromarray(raw).resize((width, height), Image.Resampling.BILINEAR).save(out, kind)
    return out.getvalue()


def clip(seed: int, frames: int, width: int = 64, height: int = 48, rate: int = 8) -> bytes:
    """H.264 in MP4 with B-frames and several groups of pictures."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(rate))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"g": "6", "bf": "2", "crf": "30", "threads": "1"}
        base = np.random.Philox(key=seed).random_raw(3).astype(np.uint8)
        for number in range(frames):
            pixels = np.empty((height, width, 3), np.uint8)
            pixels[:] = base
            pixels[:, (number * 5) % width :] += np.uint8(40 + number)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    return out.getvalue()


def write(folder: Path, name: str, samples: Iterator[dict[str, object]], shards: int) -> str:
    """Deal samples into ``shards`` tars; the brace expression that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [wds.TarWriter(str(folder / f"{name}-{i}.tar"), mtime=0) for i in range(shards)]
    for number, sample in enumerate(samples):
        files[number % shards].write({"__key__": f"{name}{number:05d}", **sample})
    for file in files:
        file.close()
    return str(folder / f"{name}-{{0..{shards - 1}}}.tar")


def texts(count: int) -> Iterator[dict[str, object]]:
    for i in range(count):
        yield {"txt": sentence(i, 5 + i * 37 % 190)}


def captioned(count: int) -> Iterator[dict[str, object]]:
    for i in range(count):
        kind, field = (("JPEG", "jpg"), ("PNG", "png"))[i % 2]
        yield {field: picture(i, 30 + i * 13 % 90, 40 + i * 29 % 100, kind), "txt": sentence(i, 6)}


def clips(count: int) -> Iterator[dict[str, object]]:
    for i in range(count):
        yield {"mp4": clip(i, 5 + i * 7 % 20), "json": {"caption": sentence(i, 9)}}


def pages(count: int) -> Iterator[dict[str, object]]:
    for i in range(count):
        parts = [
            {"text": sentence(7 * i, 20)},
            {"image": "left.jpg"},
            {"text": sentence(7 * i + 1, 30)},
            {"video": "mp4"},
            {"text": sentence(7 * i + 2, 4)},
        ]
        yield {
            "left.jpg": picture(i, 60, 44),
            "mp4": clip(100 + i, 9),
            "json": json.dumps(parts).encode(),
        }
