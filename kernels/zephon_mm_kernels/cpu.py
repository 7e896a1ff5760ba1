"""Pixel class planes-v1 with numba: equal to `reference` bit for bit, one thread, GIL released.

A frame is made in strips of 64 output rows, so that intermediate rows stay in the cache: down pass
into int16 rows, a transposition, across pass over 64 rows at once, colour, and a store of each byte
straight into the patch matrix. Turning costs nothing: a byte's place is the sum of a number for its
row and one for its column, and a turn only changes these two lists.

numba does not check bounds: `write_frame` checks shapes before the compiled code runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reference import color_coefficients
from .weights import resize_weights

try:
    from numba import int32, njit, uint64
except ImportError as error:
    raise ImportError(
        "the fast pixel kernels need numba; install it with `pip install numba` "
        "(zephon_mm_kernels.reference does the same without it, about a thousand times slower)"
    ) from error

_coefficients = lru_cache(maxsize=64)(color_coefficients)

_Plane = NDArray[np.uint8] | NDArray[np.uint16]
_Planes = Sequence[_Plane]


@njit(nogil=True, cache=True)
def _transpose(source, target, blocks):  # type: ignore[no-untyped-def]
    """int16 [64, 4·blocks] to [4·blocks, 64], both seen as uint64: four by four at a time."""
    even = uint64(0x0000FFFF0000FFFF)
    odd = uint64(0xFFFF0000FFFF0000)
    low = uint64(0x00000000FFFFFFFF)
    high = uint64(0xFFFFFFFF00000000)
    s16 = uint64(16)
    s32 = uint64(32)
    for x in range(blocks):
        for r in range(16):
            a, b = source[4 * r, x], source[4 * r + 1, x]
            c, d = source[4 * r + 2, x], source[4 * r + 3, x]
            ab0 = (a & even) | ((b & even) << s16)
            ab1 = ((a >> s16) & even) | (b & odd)
            cd0 = (c & even) | ((d & even) << s16)
            cd1 = ((c >> s16) & even) | (d & odd)
            target[4 * x, r] = (ab0 & low) | (cd0 << s32)
            target[4 * x + 1, r] = (ab1 & low) | (cd1 << s32)
            target[4 * x + 2, r] = (ab0 >> s32) | (cd0 & high)
            target[4 * x + 3, r] = (ab1 >> s32) | (cd1 & high)


@njit(nogil=True, cache=True)
def _resize_strip(  # type: ignore[no-untyped-def]
    source, width, down_first, down_count, down, row, rows, depth,
    across_first, across_count, across, line, strip, turned, out,
):  # fmt: skip
    """Rows ``row … row + rows − 1`` of a resized plane into ``out`` [columns, 64]."""
    half = int32(1 << (depth - 1))
    for r in range(rows):
        first = down_first[row + r]
        count = down_count[row + r]
        for x in range(width):
            line[x] = half
        k = 0
        while k + 4 <= count:
            q0, q1 = down[row + r, k], down[row + r, k + 1]
            q2, q3 = down[row + r, k + 2], down[row + r, k + 3]
            s0, s1 = source[first + k], source[first + k + 1]
            s2, s3 = source[first + k + 2], source[first + k + 3]
            for x in range(width):
                a = int32(q0 * int32(s0[x])) + int32(q1 * int32(s1[x]))
                b = int32(q2 * int32(s2[x])) + int32(q3 * int32(s3[x]))
                line[x] = int32(line[x] + int32(a) + int32(b))
            k += 4
        while k < count:
            q = down[row + r, k]
            s = source[first + k]
            for x in range(width):
                line[x] = int32(line[x] + int32(q * int32(s[x])))
            k += 1
        for x in range(width):
            strip[r, x] = line[x] >> depth
    _transpose(strip.view(np.uint64), turned.view(np.uint64), (width + 3) // 4)
    for j in range(len(across_first)):
        first = across_first[j]
        count = across_count[j]
        for r in range(64):
            line[r] = int32(8192)
        k = 0
        while k + 4 <= count:
            q0, q1 = across[j, k], across[j, k + 1]
            q2, q3 = across[j, k + 2], across[j, k + 3]
            t0, t1 = turned[first + k], turned[first + k + 1]
            t2, t3 = turned[first + k + 2], turned[first + k + 3]
            for r in range(64):
                a = int32(q0 * int32(t0[r])) + int32(q1 * int32(t1[r]))
                b = int32(q2 * int32(t2[r])) + int32(q3 * int32(t3[r]))
                line[r] = int32(line[r] + int32(a) + int32(b))
            k += 4
        while k < count:
            q = across[j, k]
            t = turned[first + k]
            for r in range(64):
                line[r] = int32(line[r] + int32(q * int32(t[r])))
            k += 1
        for r in range(64):
            out[j, r] = line[r] >> 14


@njit(nogil=True, cache=True)
def _color_line(y, u, v, color, kind, red, green, blue):  # type: ignore[no-untyped-def]
    """64 pixels at 14 bits to R, G, B. kind: 0 YUV, 1 grey, 2 GBR. The compiler vectorises it."""
    black, cy, crv = color[0], color[1], color[2]
    cbu, cgu, cgv = color[3], color[4], color[5]
    half = int32(1 << 19)
    top = int32(255)
    none = int32(0)
    if kind == 0:
        for r in range(64):
            luma = int32(int32(cy * int32(int32(y[r]) - black)) + half)
            du = int32(int32(u[r]) - int32(8192))
            dv = int32(int32(v[r]) - int32(8192))
            a = int32(int32(luma + int32(crv * dv)) >> int32(20))
            b = int32(int32(int32(luma - int32(cgu * du)) - int32(cgv * dv)) >> int32(20))
            c = int32(int32(luma + int32(cbu * du)) >> int32(20))
            red[r] = min(max(a, none), top)
            green[r] = min(max(b, none), top)
            blue[r] = min(max(c, none), top)
    elif kind == 1:
        for r in range(64):
            luma = int32(int32(cy * int32(int32(y[r]) - black)) + half)
            a = int32(luma >> int32(20))
            red[r] = min(max(a, none), top)
            green[r] = red[r]
            blue[r] = red[r]
    else:
        for r in range(64):
            a = int32(int32(int32(cy * int32(v[r])) + half) >> int32(20))
            b = int32(int32(int32(cy * int32(y[r])) + half) >> int32(20))
            c = int32(int32(int32(cy * int32(u[r])) + half) >> int32(20))
            red[r] = min(max(a, none), top)
            green[r] = min(max(b, none), top)
            blue[r] = min(max(c, none), top)


@njit(nogil=True, cache=True)
def _color_strip(  # type: ignore[no-untyped-def]
    y, u, v, color, kind, rows, row, row_place, column_place, step, flat, rgb
):
    """14-bit planes [columns, 64] to bytes at their places in the flat patches."""
    red, green, blue = rgb[0], rgb[1], rgb[2]
    for x in range(len(column_place)):
        _color_line(y[x], u[x], v[x], color, kind, red, green, blue)
        place = column_place[x]
        for r in range(rows):
            at = place + row_place[row + r]
            flat[at] = red[r]
            flat[at + step] = green[r]
            flat[at + 2 * step] = blue[r]


@njit(nogil=True, cache=True)
def _write(  # type: ignore[no-untyped-def]
    y, u, v, widths, luma_down, luma_across, chroma_down, chroma_across, depth, color, kind,
    row_place, column_place, step, flat,
):  # fmt: skip
    height, width = len(row_place), len(column_place)
    widest = (max(widths[0], widths[1], 64) + 3) // 4 * 4
    line = np.empty(widest, np.int32)
    strip = np.zeros((64, widest), np.int16)
    turned = np.zeros((widest, 64), np.int16)
    out = np.empty((3, width, 64), np.int16)
    rgb = np.empty((3, 64), np.uint8)
    for row in range(0, height, 64):
        rows = min(64, height - row)
        _resize_strip(
            y, widths[0], luma_down[0], luma_down[1], luma_down[2], row, rows, depth,
            luma_across[0], luma_across[1], luma_across[2], line, strip, turned, out[0],
        )  # fmt: skip
        if kind != 1:
            _resize_strip(
                u, widths[1], chroma_down[0], chroma_down[1], chroma_down[2], row, rows, depth,
                chroma_across[0], chroma_across[1], chroma_across[2], line, strip, turned, out[1],
            )  # fmt: skip
            _resize_strip(
                v, widths[1], chroma_down[0], chroma_down[1], chroma_down[2], row, rows, depth,
                chroma_across[0], chroma_across[1], chroma_across[2], line, strip, turned, out[2],
            )  # fmt: skip
        _color_strip(
            out[0], out[1], out[2], color, kind, rows, row, row_place, column_place, step, flat, rgb
        )


def write_frame(
    planes: _Planes,
    subsampling: tuple[int, int],
    depth: int,
    matrix: str,
    full_range: bool,
    orientation: tuple[bool, bool, bool],
    size: tuple[int, int],
    patches: NDArray[np.uint8],
    frame: int,
    patch_size: int,
    temporal_patch_size: int,
    merge_size: int,
) -> None:
    """Write one frame into its place in a clip's patches; see `reference` for the arithmetic.

    Args:
        planes: as decoded, [rows, columns] each, uint8 or uint16.
        subsampling: (across, down) of the second and third plane, log2.
        depth: bits a sample.
        matrix: one of `reference.MATRICES`.
        full_range: whether luma spans all codes.
        patch_size: P.
        temporal_patch_size: T.
        merge_size: patches that a group is wide and high.
        orientation: transpose, mirror across, mirror down.
        size: (height, width) as shown, multiples of patch_size·merge_size.
        patches: uint8 [patches of the whole clip, 3·T·P·P], C-contiguous; written in place.
        frame: position of the frame in the clip.

    Raises:
        ValueError: shapes that do not fit together.
    """
    p, t, m = patch_size, temporal_patch_size, merge_size
    height, width = size
    a_frame = (height // p) * (width // p)
    _check(planes, subsampling, depth, size, patches, frame, p, t, m)
    stored_height, stored_width = (width, height) if orientation[0] else (height, width)
    rows = _places(height, p, m, (width // p) * m, m, 3 * t * p * p, p)
    columns = _places(width, p, m, m * m, 1, 3 * t * p * p, 1)
    if orientation[1]:
        columns = columns[::-1]
    if orientation[2]:
        rows = rows[::-1]
    base = (frame // t) * a_frame * 3 * t * p * p + (frame % t) * p * p
    down, across = (columns, rows) if orientation[0] else (rows, columns)
    y = _whole_rows(planes[0])
    u, v = (_whole_rows(planes[1]), _whole_rows(planes[2])) if len(planes) == 3 else (y, y)
    frame_height, frame_width = planes[0].shape
    chroma = planes[1].shape if len(planes) == 3 else planes[0].shape
    level = subsampling if len(planes) == 3 else (0, 0)
    kind = 2 if matrix == "rgb" else 0 if len(planes) == 3 else 1
    _write(
        y, u, v, np.array([frame_width, chroma[1]]),
        resize_weights(frame_height, stored_height, frame_height, 1),
        resize_weights(frame_width, stored_width, frame_width, 1),
        resize_weights(chroma[0], stored_height, frame_height, 1 << level[1]),
        resize_weights(chroma[1], stored_width, frame_width, 1 << level[0]), depth,
        _coefficients(matrix, full_range, depth), kind,
        np.ascontiguousarray(down) + base, np.ascontiguousarray(across), t * p * p,
        patches.reshape(-1),
    )  # fmt: skip


def repeat_last(patches: NDArray[np.uint8], frames: int, patch_size: int, t: int) -> None:
    """Fill the times after the last frame up to a multiple of T with the last frame."""
    used = frames % t
    if used:
        groups = patches.reshape(-(-frames // t), -1, 3, t, patch_size**2)
        groups[-1, :, :, used:] = groups[-1, :, :, used - 1 : used]


def _places(
    length: int, p: int, m: int, outer: int, inner: int, columns: int, step: int
) -> NDArray[np.int64]:
    """For each pixel along an axis: what it adds to the place of its byte in the flat patches.

    ``outer`` and ``inner`` are rows of the matrix from one group of m patches to the next, and
    within a group; ``step`` is bytes from a pixel to the next in a patch.
    """
    pixel = np.arange(length, dtype=np.int64)
    patch = pixel // p
    return (patch // m * outer + patch % m * inner) * columns + pixel % p * step


def _check(
    planes: _Planes, subsampling: tuple[int, int], depth: int, size: tuple[int, int],
    patches: NDArray[np.uint8], frame: int, p: int, t: int, m: int,
) -> None:  # fmt: skip
    if len(planes) not in (1, 3) or any(plane.ndim != 2 for plane in planes):
        raise ValueError(f"planes: one or three [rows, columns] arrays, got {len(planes)}")
    kinds = {plane.dtype for plane in planes}
    if len(kinds) > 1 or kinds.pop() != np.dtype(np.uint8 if depth == 8 else np.uint16):
        raise ValueError(f"planes of {depth} bits must all be uint{8 if depth == 8 else 16}")
    if not 8 <= depth <= 16:
        raise ValueError(f"depth={depth} must be between 8 and 16")
    height, width = planes[0].shape
    if len(planes) == 3:
        coarse = (-(-height // (1 << subsampling[1])), -(-width // (1 << subsampling[0])))
        if planes[1].shape != coarse or planes[2].shape != coarse:
            raise ValueError(f"chroma is {planes[1].shape}, {planes[2].shape}; expected {coarse}")
    if min(height, width, *size) < 1 or size[0] % (p * m) or size[1] % (p * m):
        raise ValueError(f"size={size} must be multiples of {p * m}")
    needed = (frame // t + 1) * (size[0] // p) * (size[1] // p)
    if frame < 0 or patches.ndim != 2 or patches.dtype != np.uint8 or len(patches) < needed:
        raise ValueError(f"patches {patches.shape} have no room for frame {frame}: {needed} rows")
    if patches.shape[1] != 3 * t * p * p or not patches.flags.c_contiguous:
        raise ValueError(f"patches {patches.shape} must be contiguous with {3 * t * p * p} columns")


def _whole_rows(plane: _Plane) -> NDArray[Any]:
    """The plane as a contiguous read-only array, rows padded to their pitch: one compiled variant.

    Decoders pad their rows; the padding is part of the view and never read.
    """
    size = plane.itemsize
    pitch = plane.strides[0]
    if plane.strides[1] != size or pitch < plane.shape[1] * size or pitch % size:
        packed: NDArray[Any] = plane.copy(order="C")
        packed.flags.writeable = False
        return packed
    return np.lib.stride_tricks.as_strided(
        plane, (plane.shape[0], pitch // size), (pitch, size), writeable=False
    )
