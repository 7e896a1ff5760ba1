"""Normalisation: all 768 entries, both types, whatever the shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from zephon_mm_kernels.normalise import normalise, table, to_bfloat16

CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(("mean", "std"), [CLIP, HALVES, IMAGENET])
def test_table_is_the_fused_float32_arithmetic_of_torch(mean: Any, std: Any) -> None:
    shift = torch.tensor(mean) * (1.0 / (1 / 255))
    divide = torch.tensor(std) * (1.0 / (1 / 255))
    want = (torch.arange(256).to(torch.float32)[None] - shift[:, None]) / divide[:, None]
    entries = table(mean, std)
    assert np.array_equal(entries.view(np.uint32), want.numpy().view(np.uint32))
    half = torch.from_numpy(to_bfloat16(entries)).view(torch.bfloat16)
    assert torch.equal(half, want.to(torch.bfloat16))


@pytest.mark.parametrize("shape", [(5, 3 * 256), (2, 3, 40, 33), (1, 3), (3, 3 * 1030), (0, 6)])
@pytest.mark.parametrize(("mean", "std"), [CLIP, IMAGENET])
def test_normalise_is_the_table(shape: tuple[int, ...], mean: Any, std: Any) -> None:
    codes = np.arange(int(np.prod(shape))).reshape(shape).astype(np.uint8)
    cut = codes.reshape(len(codes), 3, -1) if codes.size else codes.reshape(0, 3, 2)
    entries = table(mean, std)
    want = np.stack([entries[c][cut[:, c]] for c in range(3)], axis=1).reshape(shape)
    got = normalise(codes, mean, std)
    assert got.shape == shape and np.array_equal(got.view(np.uint32), want.view(np.uint32))
    half = normalise(codes, mean, std, out=np.empty(shape, np.uint16))
    assert np.array_equal(half, to_bfloat16(want))
    assert codes.flags.writeable


def test_wrong_arguments_are_refused() -> None:
    codes = np.zeros((4, 6), np.uint8)
    for patches, mean, out, match in (
        (codes.astype(np.float32), (0, 0, 0), None, "uint8"),
        (codes[:, ::2], (0, 0, 0), None, "contiguous"),
        (codes[:, :4].copy(), (0, 0, 0), None, "multiple of 3"),
        (codes, (0, 0), None, "three channels"),
        (codes, (0, 0, 0), np.zeros((4, 6)), "float32 or uint16"),
        (codes, (0, 0, 0), np.zeros((4, 12), np.float32)[:, ::2], "contiguous"),
    ):
        with pytest.raises(ValueError, match=match):
            normalise(patches, mean, (1, 1, 1), out=out)
    with pytest.raises(ValueError, match="positive"):
        table((0, 0, 0), (1, 0, 1))
