"""Frames of noise for ``gpu_check.py``: as planes for the reference, as surfaces for the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

# The frame's size, the result's, depth, matrix, full range, planes, turn, (P, T, merge).
# Triton's interpreter takes the first two, a GPU all.
STRAIGHT, TURNED = (False, False, False), (True, True, False)
CASES: list[tuple[Any, ...]] = [
    ((45, 77), (56, 28), 8, "709", False, "pairs", STRAIGHT, (14, 2, 1)),
    ((45, 77), (32, 64), 10, "2020", False, "pairs", TURNED, (16, 2, 2)),
    ((31, 33), (28, 28), 8, "rgb", False, "planar", STRAIGHT, (14, 1, 1)),
    ((32, 130), (32, 128), 12, "601", True, "planar", STRAIGHT, (16, 2, 1)),
    ((21, 40), (28, 28), 8, "240m", False, "grey", TURNED, (14, 2, 1)),
    ((361, 641), (252, 448), 8, "709", False, "pairs", STRAIGHT, (14, 2, 2)),
    ((360, 640), (352, 640), 10, "601", True, "pairs", TURNED, (16, 2, 2)),
    ((720, 1280), (252, 448), 8, "601", False, "pairs", STRAIGHT, (14, 2, 2)),
]


def surfaces_of(
    size: tuple[int, int], depth: int, kind: str, device: str, count: int, seed: int
) -> tuple[list[Any], list[Any], tuple[int, int], int]:
    """Noise: planes for the reference, surfaces with a pitch, their subsampling and their shift."""
    rng = np.random.default_rng(seed)
    dtype = np.uint8 if depth == 8 else np.uint16
    sub = (1, 1) if kind == "pairs" else (0, 0)
    shift = 16 - depth if kind == "pairs" and depth > 8 else 0
    chroma = (-(-size[0] // (1 << sub[1])), -(-size[1] // (1 << sub[0])))
    shapes = [size] if kind == "grey" else [size, chroma, chroma]
    planes, surfaces = [], []
    for _ in range(count):
        frame = [rng.integers(0, 1 << depth, shape).astype(dtype) for shape in shapes]
        stored = list(frame)
        if kind == "pairs":
            stored[1:] = [np.stack(frame[1:], axis=-1).reshape(chroma[0], -1)]
        surface = []
        for plane in stored:
            pitch = -(-plane.shape[1] // 256) * 256
            room = np.zeros((len(plane), pitch), dtype)
            room[:, : plane.shape[1]] = plane << shift
            signed = room if depth == 8 else room.view(np.int16)
            surface.append(torch.from_numpy(signed).to(device)[:, : plane.shape[1]])
        planes.append(frame)
        surfaces.append(tuple(surface))
    return planes, surfaces, sub, shift
