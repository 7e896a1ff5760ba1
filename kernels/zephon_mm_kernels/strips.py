# mypy: disable-error-code="call-arg"
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""The compiled inside of `cpu`: planes of one frame to RGB bytes at their places.

A frame is made in strips of up to 64 output rows, so that what lies between the steps stays in the
cache. A strip of a plane is weighed down the columns, transposed, weighed across (64 rows side by
side), and transposed back, unless the picture is stored turned: then the bytes already lie as they
are shown. A pass that changes nothing is skipped. Colour is a loop that the compiler vectorises.
Bytes are stored in runs: as long as they lie side by side both in the picture and in its layout.

Nothing checks bounds here; `cpu` checks everything before.
"""

from __future__ import annotations

import numpy as np
from numba import int32, njit, types

from .vector import copy_word, turn_block, weigh


@njit(nogil=True)
def _turn(source, pitch, target, target_pitch, rows, columns):
    """int16 [rows, columns] to [columns, rows], in blocks of 8: both sides are rounded up."""
    for y in range(0, rows, 8):
        for x in range(0, columns, 8):
            turn_block(source, y * pitch + x, pitch, target, x * target_pitch + y, target_pitch)


@njit(nogil=True)
def _down(plane, axis, row, rows, half, depth, target, target_pitch):
    """Rows ``row … row + rows − 1`` of the first pass. The plane is at least 64 wide."""
    source, pitch, width = plane
    first, count, weights = axis[:3]
    taps = weights.shape[1]
    flat = weights.reshape(-1)
    for r in range(rows):
        at = first[row + r] * pitch
        for block in range(0, width, 64):
            x = min(block, width - 64)
            weigh(
                source, at + x, pitch, flat, (row + r) * taps, count[row + r],
                half, depth, target, r * target_pitch + x,
            )  # fmt: skip


@njit(nogil=True)
def _across(source, axis, target):
    """The second pass of a strip lying on its side, [columns, 64] both before and after."""
    first, count, weights = axis[:3]
    taps = weights.shape[1]
    flat = weights.reshape(-1)
    for j in range(len(first)):
        weigh(
            source, first[j] * 64, 64, flat, j * taps, count[j],
            int32(8192), int32(14), target, j * 64,
        )  # fmt: skip


@njit(nogil=True)
def _strip(plane, down, across, row, rows, half, depth, turned, work, out, pitch):
    """A strip of a resized plane at 14 bits: ``out`` is [rows, columns], or [columns, 64] turned.

    ``work`` is three buffers of int16, each of 64 × the wider of source and result, rounded up.
    """
    width = (plane[2] + 7) // 8 * 8
    columns = len(across[0])
    same = across[3]
    if same and not turned:
        _down(plane, down, row, rows, half, depth, out, pitch)
        return
    _down(plane, down, row, rows, half, depth, work[0], width)
    if same:
        _turn(work[0], width, out, 64, 64, columns)
        return
    _turn(work[0], width, work[1], 64, 64, plane[2])
    if turned:
        _across(work[1], across, out)
    else:
        _across(work[1], across, work[2])
        _turn(work[2], 64, out, pitch, columns, 64)


@njit(nogil=True)
def _clip(value):
    return min(max(value >> int32(20), int32(0)), int32(255))


@njit(nogil=True)
def _colour(y, u, v, color, kind, red, green, blue):
    """Planes at 14 bits to bytes. kind: 0 is Y, U, V; 1 is grey; 2 is G, B, R."""
    black, cy, crv = color[0], color[1], color[2]
    cbu, cgu, cgv = color[3], color[4], color[5]
    half = int32(1 << 19)
    if kind == 0:
        for x in range(len(red)):
            luma = int32(int32(cy * int32(int32(y[x]) - black)) + half)
            du = int32(int32(u[x]) - int32(8192))
            dv = int32(int32(v[x]) - int32(8192))
            red[x] = _clip(int32(luma + int32(crv * dv)))
            green[x] = _clip(int32(int32(luma - int32(cgu * du)) - int32(cgv * dv)))
            blue[x] = _clip(int32(luma + int32(cbu * du)))
    elif kind == 1:
        for x in range(len(red)):
            level = _clip(int32(int32(cy * int32(int32(y[x]) - black)) + half))
            red[x] = level
            green[x] = level
            blue[x] = level
    else:
        for x in range(len(red)):
            red[x] = _clip(int32(int32(cy * int32(v[x])) + half))
            green[x] = _clip(int32(int32(cy * int32(y[x])) + half))
            blue[x] = _clip(int32(int32(cy * int32(u[x])) + half))


@njit(nogil=True)
def _store(source, pitch, rows, columns, row_place, run_place, run, target, to):
    """[rows, columns] bytes to ``to`` + what their row and their run add."""
    for k in range(columns // run):
        for r in range(rows):
            at = r * pitch + k * run
            place = to + run_place[k] + row_place[r]
            if run < 8:
                for x in range(run):
                    target[place + x] = source[at + x]
            else:
                for x in range(0, run - 8, 8):
                    copy_word(source, at + x, target, place + x)
                copy_word(source, at + run - 8, target, place + run - 8)


def write(
    planes, axes, half, depth, color, kind, turned, row_place, run_place, run, step, base, target
):
    """Write a frame: three planes (samples, pitch, width), each with two axes (down, across).

    An axis is (first, count, weights, whether it changes nothing). ``step`` is from a channel to
    the next, ``base`` the place of the frame. Of a grey frame only the first plane is looked at.
    """
    height, width = len(axes[0][0][0]), len(axes[0][1][0])
    widest = (max(planes[0][2], planes[1][2], width, 64) + 7) // 8 * 8
    pitch = 64 if turned else max((width + 7) // 8 * 8, 64)
    lines = (width + 7) // 8 * 8 if turned else 64
    work = np.empty((3, 64 * widest), np.int16)
    levels = np.empty((3, lines * pitch), np.int16)
    rgb = np.empty((3, lines * pitch), np.uint8)
    tall = 64 // run * run if turned else 64
    for row in range(0, height, tall):
        rows = min(tall, height - row)
        for k in range(1 if kind == 1 else 3):
            down, across = axes[k]
            _strip(planes[k], down, across, row, rows, half, depth, turned, work, levels[k], pitch)
        used = (width if turned else rows) * pitch
        _colour(
            levels[0], levels[1], levels[2], color, kind,
            rgb[0, :used], rgb[1, :used], rgb[2, :used],
        )  # fmt: skip
        for channel in range(3):
            to = base + channel * step
            _store(
                rgb[channel], pitch, width if turned else rows, rows if turned else width,
                row_place[0 if turned else row :], run_place[row // run if turned else 0 :], run,
                target, to,
            )  # fmt: skip


def store(pictures, layout, target):
    """Whole pictures to their places; ``layout`` is (bases, row_place, run_place, run, step)."""
    bases, row_place, run_place, run, step = layout
    height, width = pictures.shape[2:]
    for frame in range(len(pictures)):
        for channel in range(3):
            _store(
                pictures[frame, channel].reshape(-1), width, height, width, row_place, run_place,
                run, target, bases[frame] + channel * step,
            )  # fmt: skip


def _array(dtype, ndim, readonly=True):
    return types.Array(dtype, ndim, "C", readonly=readonly)


_AXIS = types.Tuple(
    (_array(types.int32, 1), _array(types.int32, 1), _array(types.int16, 2), types.boolean)
)
_PLACES = _array(types.int64, 1)


def _signature(sample):
    plane = types.Tuple((_array(sample, 1), types.int64, types.int64))
    return types.void(
        types.UniTuple(plane, 3), types.UniTuple(types.UniTuple(_AXIS, 2), 3), types.int32,
        types.int32, _array(types.int32, 1), types.int64, types.boolean, _PLACES, _PLACES,
        types.int64, types.int64, types.int64, _array(types.uint8, 1, readonly=False),
    )  # fmt: skip


SIGNATURES = (_signature(types.uint8), _signature(types.int16))
"""`write` is compiled for these and no others: planes of 8 bits, and of up to 15."""

STORE_SIGNATURES = (
    types.void(
        _array(types.uint8, 4),
        types.Tuple((_PLACES, _PLACES, _PLACES, types.int64, types.int64)),
        _array(types.uint8, 1, readonly=False),
    ),
)
