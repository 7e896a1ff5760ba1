"""What the CPU kernels cost: ``python kernels/bench/bench_pixels.py [--rounds 15] [--out FILE]``.

One JSON row a case. Each round runs ours and the peer one after the other, on one thread, in CPU
time; a row gives the middle of both and the ratio's 20th, 50th and 80th percentile over rounds.

- pixel stage: planes of a frame → resized RGB → patches; the peer is what a Hugging Face pipeline
  does: FFmpeg's RGB (PyAV's ``reformat``), torchvision's resize, patches by torch;
- normalise + patchify of 16 frames of 352×640; the peer is the installed Qwen2-VL video processor
  without its resize, whose result ours equals bit for bit (checked).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from zephon_mm_kernels import cpu
from zephon_mm_kernels.normalise import normalise

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
STAGES = [
    ("720p to 252x448", (720, 1280), (252, 448), 14, 0.8),
    ("1080p to 420x756", (1080, 1920), (420, 756), 14, 0.8),
    ("1080p to 756x1344", (1080, 1920), (756, 1344), 14, None),
    ("360p to 352x640", (360, 640), (352, 640), 16, 1.15),
    ("352x640, 1:1", (352, 640), (352, 640), 16, 1.15),
]


def main() -> None:
    """Run all cases and print their rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="a file to write the rows to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [stage(*case, options.rounds) for case in STAGES]
    rows += [normalising(options.rounds, "float32"), normalising(options.rounds, "bfloat16")]
    lines = [json.dumps({**row, **versions()}) for row in rows]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


def stage(
    name: str, frame: tuple[int, int], size: tuple[int, int], p: int, limit: float | None,
    rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """The pixel stage of one frame."""
    picture = smooth(frame)
    planes = [
        np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]
        for plane in picture.planes
    ]
    out = np.zeros((size[0] * size[1] // p**2, 6 * p * p), np.uint8)
    turn = (False, False, False)

    def ours() -> None:
        cpu.write_frame(planes, (1, 1), 8, "601", False, turn, size, out, 0, p, 2, 2)

    def peer() -> None:
        rgb = torch.from_numpy(picture.reformat(format="rgb24").to_ndarray()).permute(2, 0, 1)
        small = tv.resize(rgb, list(size), InterpolationMode.BICUBIC, antialias=True)
        cut = small.view(3, size[0] // p // 2, 2, p, size[1] // p // 2, 2, p)
        cut.permute(1, 4, 2, 5, 0, 3, 6).contiguous()

    return {"case": f"pixel stage, {name}", "limit": limit, **paired(ours, peer, rounds, 10)}


def normalising(rounds: int, kind: str) -> dict[str, Any]:
    """Normalise and patchify 16 frames of 352 × 640."""
    from transformers import Qwen2VLVideoProcessor

    p = 16
    processor = Qwen2VLVideoProcessor(
        do_resize=False, patch_size=p, temporal_patch_size=2, merge_size=2, image_mean=list(MEAN),
        image_std=list(STD),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (16, 3, 352, 640)).astype(np.uint8)
    clip = torch.from_numpy(frames)

    def ours() -> Any:
        patches = cpu.patchify(frames, p, 2, 2)
        out = np.empty(patches.shape, np.float32 if kind == "float32" else np.uint16)
        return normalise(patches, MEAN, STD, out=out)

    def peer() -> Any:
        done = processor(videos=[clip], return_tensors="pt", do_sample_frames=False)
        return done["pixel_values_videos"]

    want = peer()
    got = torch.from_numpy(ours())
    got = got if kind == "float32" else got.view(torch.bfloat16)
    if not torch.equal(got, want.to(got.dtype)):
        raise SystemExit("normalise differs from the processor")
    name = f"normalise + patchify, 16x352x640, {kind}"
    return {"case": name, "limit": 0.2, **paired(ours, peer, rounds, 2)}


def smooth(size: tuple[int, int]) -> av.VideoFrame:
    """A frame of slow waves and a little noise, yuv420p."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[: size[0] * 3 // 2, : size[1]]
    waves = 128 + 60 * np.sin(x / 37) * np.cos(y / 23) + rng.normal(0, 6, y.shape)
    return av.VideoFrame.from_ndarray(waves.clip(16, 235).astype(np.uint8), format="yuv420p")


def paired(
    ours: Callable[[], Any], peer: Callable[[], Any], rounds: int, repeats: int
) -> dict[str, Any]:
    """Milliseconds of CPU time of both and their ratio, round by round."""
    ours()
    peer()
    times = np.array([[cost(ours, repeats), cost(peer, repeats)] for _ in range(rounds)])
    low, middle, high = np.percentile(times[:, 0] / times[:, 1], [20, 50, 80])
    return {
        "ours_ms": round(float(np.median(times[:, 0])), 3),
        "peer_ms": round(float(np.median(times[:, 1])), 3),
        "ratio_p20": round(float(low), 3),
        "ratio_p50": round(float(middle), 3),
        "ratio_p80": round(float(high), 3),
        "rounds": rounds,
    }


def cost(function: Callable[[], Any], repeats: int) -> float:
    """Milliseconds of CPU time a call; process time, so that hidden threads count."""
    start = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - start) / repeats * 1e3


def versions() -> dict[str, str]:
    """What the figures depend on."""
    names = ("numba", "torch", "torchvision", "av", "transformers")
    found = {name: importlib.metadata.version(name) for name in names}
    return {**found, "machine": platform.machine(), "python": platform.python_version()}


if __name__ == "__main__":
    main()
