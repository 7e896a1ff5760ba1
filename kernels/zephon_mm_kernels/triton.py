# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Pixel class planes-v1 on a GPU, with Triton: equal to `reference` bit for bit.

Two passes over a batch of frames, which lie on the last grid axis. `_down` weighs the rows of a
stored plane into int16 (the interleaved chroma of NV12 and P010 is one plane that is twice as
wide); `_across` weighs along the rows of all planes, converts to RGB and stores each byte at its
place in the batch's own tensor. Not fused: an output would take some 144 loads instead of 24.
Turning is mirrored weights and exchanged places, as in `cpu`. Whole numbers only, in 32 bits.

Frames are given as tensors anywhere on the device (NVDEC's surfaces with their pitch, cropped by
slicing); their addresses go to the device in one small tensor, so they must stay alive until the
stream has run. Everything is queued on the current stream; nothing waits.

Memory on the device: 2 bytes × frames × output height × width of each plane, freed in stream order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from .layout import Layout, patch_layout, picture_layout
from .reference import color_coefficients
from .surfaces import Source, Surface, check_surfaces, check_target
from .weights import trimmed_weights

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError as error:
    if error.name != "triton":
        raise
    raise ImportError(
        "the GPU pixel kernels need Triton, which PyTorch brings along on Linux; install it with "
        "`pip install triton`"
    ) from error

_DOWN_BLOCK = {"cuda": (4, 256), "cpu": (64, 128)}
_ACROSS_BLOCK = {"cuda": (8, 64), "cpu": (64, 64)}
_COPY_BLOCK = {"cuda": 1024, "cpu": 1 << 16}
"""Outputs a program, rows × columns. On a CPU only Triton's interpreter runs, and it pays for each
operation whatever its size."""


@triton.jit
def _down(
    surfaces, pitch, width, last, first, weights, taps, height, half, depth, shift, out,
    SAMPLE: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One stored plane to int16 [frames, height, width].

    A number is ``(Σ q·(sample >> shift) + half) >> depth``.

    ``weights`` is [taps, height], zero beyond an output's own; rows are held at ``last``.
    """
    frame = tl.program_id(2).to(tl.int64)
    y = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    x = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    base = tl.load(surfaces + frame).to(tl.pointer_type(SAMPLE))
    base = tl.multiple_of(base, ALIGN)
    inside = y < height
    start = tl.load(first + y, mask=inside, other=0)
    used = inside[:, None] & (x < width)[None, :]
    total = tl.full((ROWS, COLUMNS), 0, tl.int32) + half
    for k in range(0, taps):
        row = tl.minimum(start + k, last)
        q = tl.load(weights + k * height + y, mask=inside, other=0).to(tl.int32)
        sample = tl.load(base + row[:, None] * pitch + x[None, :], mask=used, other=0)
        total += q[:, None] * (sample.to(tl.int32) >> shift)
    place = (frame * height + y[:, None]) * width + x[None, :]
    tl.store(out + place, (total >> depth).to(tl.int16), mask=used)


@triton.jit
def _weighed(source, line, step, last, first, weights, taps, width, x, inside, used):
    """``(Σ q·source[line + step·column] + 2**13) >> 14`` for rows × columns of outputs."""
    start = tl.load(first + x, mask=inside, other=0)
    total = (line * 0).to(tl.int32)[:, None] + (x * 0)[None, :] + 8192
    for k in range(0, taps):
        column = tl.minimum(start + k, last) * step
        q = tl.load(weights + k * width + x, mask=inside, other=0).to(tl.int32)
        value = tl.load(source + line[:, None] + column[None, :], mask=used, other=0)
        total += q[None, :] * value.to(tl.int32)
    return total >> 14


@triton.jit
def _byte(value):
    return tl.minimum(tl.maximum((value + 524288) >> 20, 0), 255).to(tl.uint8)


@triton.jit
def _across(
    luma, u, v, luma_width, chroma_row, chroma_step, chroma_width,
    luma_first, luma_weights, luma_taps, chroma_first, chroma_weights, chroma_taps,
    height, width, black, cy, crv, cbu, cgu, cgv,
    bases, row_place, column_place, channel_step, out,
    KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Second pass, colour and store. KIND: 0 is Y, U, V; 1 is grey; 2 is G, B, R.

    ``chroma_row`` is from a row of u (or v) to the next, ``chroma_step`` from a sample to the next.
    """
    frame = tl.program_id(2).to(tl.int64)
    y = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    x = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tall, wide = y < height, x < width
    used = tall[:, None] & wide[None, :]
    line = frame * height + y
    py = _weighed(
        luma, line * luma_width, 1, luma_width - 1, luma_first, luma_weights, luma_taps, width,
        x, wide, used,
    )  # fmt: skip
    if KIND == 1:
        red = cy * (py - black)
        green = red
        blue = red
    else:
        pu = _weighed(
            u, line * chroma_row, chroma_step, chroma_width - 1, chroma_first, chroma_weights,
            chroma_taps, width, x, wide, used,
        )  # fmt: skip
        pv = _weighed(
            v, line * chroma_row, chroma_step, chroma_width - 1, chroma_first, chroma_weights,
            chroma_taps, width, x, wide, used,
        )  # fmt: skip
        if KIND == 2:
            red = cy * pv
            green = cy * py
            blue = cy * pu
        else:
            level = cy * (py - black)
            du = pu - 8192
            dv = pv - 8192
            red = level + crv * dv
            green = level - cgu * du - cgv * dv
            blue = level + cbu * du
    base = tl.load(bases + frame)
    down = tl.load(row_place + y, mask=tall, other=0)
    right = tl.load(column_place + x, mask=wide, other=0)
    place = out + base + down[:, None] + right[None, :]
    tl.store(place, _byte(red), mask=used)
    tl.store(place + channel_step, _byte(green), mask=used)
    tl.store(place + 2 * channel_step, _byte(blue), mask=used)


@triton.jit
def _look_up(patches, table, out, count, per_channel, BLOCK: tl.constexpr):
    """``out[i] = table[channel of i, patches[i]]``."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    used = i < count
    code = tl.load(patches + i, mask=used, other=0).to(tl.int32)
    channel = ((i // per_channel) % 3).to(tl.int32)
    value = tl.load(table + channel * 256 + code, mask=used, other=0)
    tl.store(out + i, value, mask=used)


def write_frames(
    surfaces: Sequence[Surface],
    source: Source,
    size: tuple[int, int],
    patches: torch.Tensor,
    frames: Sequence[int],
    patch_size: int,
    temporal_patch_size: int,
    merge_size: int,
) -> None:
    """Write frames into their places in a clip's patches; see `reference` for the arithmetic.

    Args:
        surfaces: one or more frames, alike in shape and pitch: planes [rows, columns] of uint8, or
            of uint16 (int16 is read as such) where depth is above 8; rows may be padded.
        source: what they have in common.
        size: (height, width) as shown, multiples of patch_size·merge_size.
        patches: uint8 [patches of the clip, 3·T·P·P] on the same device, contiguous.
        frames: the position of each surface in the clip; the same surface may be given twice.
        patch_size: P.
        temporal_patch_size: T.
        merge_size: patches that a group is wide and high.

    Raises:
        ValueError: arguments that don't fit together.
    """
    p, t, m = patch_size, temporal_patch_size, merge_size
    layout = patch_layout((int(size[0]), int(size[1])), p, t, m)
    rows = (size[0] // p) * (size[1] // p)
    room = patches.shape[0] // rows * t if patches.ndim == 2 else 0
    if patches.ndim != 2 or patches.shape[1] != 3 * t * p * p:
        raise ValueError(f"patches {tuple(patches.shape)} must have {3 * t * p * p} columns")
    _write(surfaces, source, layout, patches, frames, room)


def write_pictures(
    surfaces: Sequence[Surface], source: Source, pictures: torch.Tensor, frames: Sequence[int]
) -> None:
    """Write frames as ``pictures[frame]``, uint8 [n, 3, height, width] as shown, contiguous.

    Arguments and errors are those of `write_frames`.
    """
    if pictures.ndim != 4 or pictures.shape[1] != 3:
        raise ValueError(f"pictures {tuple(pictures.shape)} must be [n, 3, height, width]")
    layout = picture_layout((int(pictures.shape[2]), int(pictures.shape[3])))
    _write(surfaces, source, layout, pictures, frames, pictures.shape[0])


def normalise(patches: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """Look patches or pictures up in ``table`` [3, 256], into ``out`` of its type.

    Args:
        patches: uint8 [n, 3·k] or [n, 3, …], contiguous.
        table: float32 or bfloat16 (`normalise.table`, cast), contiguous, on the same device.
        out: of the table's type and the patches' shape, contiguous.

    Raises:
        ValueError: tensors of another kind.
    """
    if patches.dtype != torch.uint8 or patches.ndim < 2 or patches.shape[1] % 3:
        raise ValueError(f"patches must be uint8 [n, 3·k], got {patches.dtype} {patches.shape}")
    if table.shape != (3, 256) or out.dtype != table.dtype or out.shape != patches.shape:
        raise ValueError("table must be [3, 256], out of its type and of the patches' shape")
    if not (patches.is_contiguous() and table.is_contiguous() and out.is_contiguous()):
        raise ValueError("patches, table and out must be contiguous")
    count = patches.numel()
    if count:
        per_channel = count // len(patches) // 3
        block = _COPY_BLOCK[patches.device.type]
        grid = (triton.cdiv(count, block),)
        _look_up[grid](patches, table, out, count, per_channel, BLOCK=block)


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """`trimmed_weights` on a device: first int32 [n], weights int16 [taps, n]."""

    first: torch.Tensor
    weights: torch.Tensor
    taps: int


def _write(
    surfaces: Sequence[Surface], source: Source, layout: Layout, target: torch.Tensor,
    frames: Sequence[int], room: int,
) -> None:  # fmt: skip
    check_target(target, surfaces, frames, room)
    if not surfaces:
        return
    luma_size, chroma_size = check_surfaces(surfaces, source, target.device)
    device = target.device
    transpose, mirror_x, mirror_y = source.orientation
    height, width = layout.size[::-1] if transpose else layout.size
    flip_down, flip_across = (mirror_x, mirror_y) if transpose else (mirror_y, mirror_x)
    across, down = source.subsampling if len(surfaces[0]) > 1 else (0, 0)
    luma_down, chroma_down = (
        _axis(device, size[0], height, luma_size[0], 1 << level, flip_down)
        for size, level in ((luma_size, 0), (chroma_size, down))
    )
    luma, chroma = (
        _axis(device, size[1], width, luma_size[1], 1 << level, flip_across)
        for size, level in ((luma_size, 0), (chroma_size, across))
    )
    levels = [
        _first_pass([frame[k] for frame in surfaces], chroma_down if k else luma_down, source)
        for k in range(len(surfaces[0]))
    ]
    step = 2 if len(levels) == 2 else 1
    u = levels[1] if len(levels) > 1 else levels[0]
    v = levels[2] if len(levels) == 3 else u.view(-1)[step - 1 :]
    places = _places(layout, transpose, device)
    bases = _to_device([layout.base(frame) for frame in frames], device)
    rows, columns = _ACROSS_BLOCK[device.type]
    grid = (triton.cdiv(width, columns), triton.cdiv(height, rows), len(surfaces))
    _across[grid](
        levels[0], u, v, luma_size[1], u.shape[2], step, chroma_size[1],
        luma.first, luma.weights, luma.taps, chroma.first, chroma.weights, chroma.taps,
        height, width, *_coefficients(source.matrix, source.full_range, source.depth),
        bases, *places, layout.step, target,
        KIND=2 if source.matrix == "rgb" else 0 if len(levels) > 1 else 1,
        ROWS=rows, COLUMNS=columns,
    )  # fmt: skip


def _first_pass(planes: list[torch.Tensor], axis: _Axis, source: Source) -> torch.Tensor:
    """One plane of every frame, resized down its columns: int16 [frames, height, columns]."""
    samples, width = planes[0].shape
    pitch, size = planes[0].stride(0), planes[0].element_size()
    height = axis.first.shape[0]
    out = torch.empty((len(planes), height, width), dtype=torch.int16, device=planes[0].device)
    addresses = [plane.data_ptr() for plane in planes]
    aligned = all(address % 16 == 0 for address in addresses)
    rows, columns = _DOWN_BLOCK[out.device.type]
    grid = (triton.cdiv(width, columns), triton.cdiv(height, rows), len(planes))
    _down[grid](
        _to_device(addresses, out.device), pitch, width, samples - 1, axis.first, axis.weights,
        axis.taps, height, 1 << (source.depth - 1), source.depth, source.shift, out,
        SAMPLE=tl.uint8 if size == 1 else tl.uint16, ALIGN=16 if aligned else size,
        ROWS=rows, COLUMNS=columns,
    )  # fmt: skip
    return out


@lru_cache(maxsize=512)
def _axis(
    device: torch.device, samples: int, outputs: int, length: int, unit: int, mirror: bool
) -> _Axis:
    first, _, weights, _ = trimmed_weights(samples, outputs, length, unit, mirror)
    turned = torch.from_numpy(weights.T.copy()).to(device)
    return _Axis(torch.from_numpy(first.copy()).to(device), turned, weights.shape[1])


@lru_cache(maxsize=256)
def _places(
    layout: Layout, transpose: bool, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the stored row and the stored column of a pixel add to its place: int64."""
    across = (layout.run_place[:, None] + np.arange(layout.run)).reshape(-1)
    down = layout.row_place.copy()
    if transpose:
        down, across = across, down
    return torch.from_numpy(down).to(device), torch.from_numpy(across).to(device)


@lru_cache(maxsize=64)
def _coefficients(matrix: str, full_range: bool, depth: int) -> tuple[int, ...]:
    return tuple(int(value) for value in color_coefficients(matrix, full_range, depth))


def _to_device(values: list[int], device: torch.device) -> torch.Tensor:
    """Int64 numbers on the device, without waiting for it."""
    tensor = torch.tensor(values, dtype=torch.int64)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
