"""How far planes-v1 lies from a processor fed with FFmpeg's RGB: ``difference.py CLIP…``.

Eight frames of each clip (8 bits, 4:2:0), evenly chosen. One way: planes → `cpu.write_picture`. The
other: PyAV's ``reformat`` to RGB, then the resize of the installed Qwen2-VL video processor
(torchvision, bicubic, antialiased, on bytes). Both are also held against a resize in float64 of the
same planes (the same cubic, exact colour). Prints a JSON row a clip and size: mean and 99th
percentile of the absolute difference in codes of 0 to 255, and the PSNR to float64.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from zephon_mm_kernels import cpu, reference

SIZES = [(252, 448), None]  # None: as large as the clip, in whole patches of 14 × 2


def main() -> None:
    """Compare every clip named on the command line."""
    for name in sys.argv[1:]:
        with av.open(name) as container:
            frames = [f for f in container.decode(video=0) if f.format.name == "yuv420p"]
        chosen = [frames[int(k)] for k in np.linspace(0, len(frames) - 1, 8)]
        for size in SIZES:
            height, width = size or (v // 28 * 28 for v in (frames[0].height, frames[0].width))
            print(json.dumps({"clip": Path(name).name, **compare(chosen, (height, width))}))


def compare(frames: list[av.VideoFrame], size: tuple[int, int]) -> dict[str, Any]:
    """Over all frames and channels."""
    ours, theirs, truth = (np.concatenate(parts) for parts in zip(
        *(one(frame, size) for frame in frames), strict=True
    ))  # fmt: skip
    apart = np.abs(ours - theirs)
    return {
        "from": f"{frames[0].height}x{frames[0].width}",
        "to": f"{size[0]}x{size[1]}",
        "mean": round(float(apart.mean()), 3),
        "p99": round(float(np.percentile(apart, 99)), 2),
        "bias_of_theirs": round(float((theirs - truth).mean()), 3),
        "bias_of_ours": round(float((ours - truth).mean()), 3),
        "psnr_ours": psnr(ours - truth),
        "psnr_theirs": psnr(theirs - truth),
    }


def one(frame: av.VideoFrame, size: tuple[int, int]) -> tuple[NDArray[np.float64], ...]:
    """Ours, theirs and the truth of a frame: float64 [3, height, width] each."""
    planes = [
        np.frombuffer(p, np.uint8).reshape(p.height, p.line_size)[:, : p.width]
        for p in frame.planes
    ]
    matrix = "709" if frame.colorspace == 1 else "601"
    full = frame.color_range == 2
    out = np.zeros((1, 3, *size), np.uint8)
    cpu.write_picture(planes, (1, 1), 8, matrix, full, (False, False, False), out, 0)
    rgb = torch.from_numpy(frame.reformat(format="rgb24").to_ndarray()).permute(2, 0, 1)
    small = tv.resize(rgb, list(size), InterpolationMode.BICUBIC, antialias=True)
    return out[0].astype(float), small.numpy().astype(float), truth_of(planes, matrix, full, size)


def truth_of(
    planes: list[NDArray[np.uint8]], matrix: str, full: bool, size: tuple[int, int]
) -> NDArray[np.float64]:
    """The same cubic and colour in float64, rounded nowhere before the end."""
    frame = planes[0].shape
    resized = []
    for plane, unit in zip(planes, (1, 2, 2), strict=True):
        down = cubic(plane.shape[0], size[0], frame[0], unit)
        across = cubic(plane.shape[1], size[1], frame[1], unit)
        resized.append(down @ plane.astype(float) @ across.T)
    kr, kb = (float(v) for v in reference.KR_KB[matrix])
    low, luma, chroma = (0, 255, 255) if full else (16, 219, 224)
    y = (resized[0] - low) * 255 / luma
    u, v = ((c - 128) * 255 / chroma for c in resized[1:])
    red, blue = y + 2 * (1 - kr) * v, y + 2 * (1 - kb) * u
    green = (y - kr * red - kb * blue) / (1 - kr - kb)
    return np.stack([red, green, blue]).clip(0, 255)


def cubic(samples: int, outputs: int, length: int, unit: int) -> NDArray[np.float64]:
    """Keys' weights (a = −1/2), antialiased: float64 [outputs, samples]."""
    scale = length / outputs
    centers = (np.arange(outputs) + 0.5) * scale
    places = (np.arange(samples) + 0.5) * unit
    p = np.abs(places[None, :] - centers[:, None]) / max(scale, unit)
    near = 1.5 * p**3 - 2.5 * p**2 + 1
    far = -0.5 * p**3 + 2.5 * p**2 - 4 * p + 2
    weights = np.where(p < 1, near, np.where(p < 2, far, 0))
    return weights / weights.sum(axis=1, keepdims=True)


def psnr(error: NDArray[np.float64]) -> float:
    """Decibels."""
    return round(float(10 * np.log10(255**2 / np.mean(error**2))), 1)


if __name__ == "__main__":
    main()
