"""Pixel class planes-v1, as slow and readable numpy: the definition of every fast path.

From one decoded frame (planes of whole numbers, ``depth`` bits) to a resized RGB picture:

1. each plane is resized on its own, down first and across second, with a Keys cubic (a = −1/2),
   antialiased, in whole numbers (`weights`, `resize_plane`);
2. Y, U, V at 14 bits become R, G, B at 8 (`to_rgb`);
3. the picture is turned as the container says (`turn`);
4. pictures are cut into patches (`patchify`).

``//`` and ``>>`` round down; nothing is clamped before step 2 ends. Chroma is taken as centred.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor

import numpy as np
from numpy.typing import NDArray

KR_KB = {
    "601": (Fraction(299, 1000), Fraction(114, 1000)),
    "709": (Fraction(2126, 10000), Fraction(722, 10000)),
    "2020": (Fraction(2627, 10000), Fraction(593, 10000)),
    "240m": (Fraction(212, 1000), Fraction(87, 1000)),
}
"""Luma weights of red and blue: ITU-R BT.601, BT.709, BT.2020, SMPTE 240M."""

MATRICES = (*KR_KB, "rgb")


def weights(samples: int, outputs: int, length: int, unit: int) -> list[tuple[int, list[int]]]:
    """For each output: its first source sample, and the weights from there on; they sum to 16384.

    Args:
        samples: samples of the plane along the axis.
        outputs: samples wanted.
        length: luma samples of the frame: sample k of the plane covers luma ``unit·k`` to
            ``unit·(k + 1)``, and the outputs share ``[0, length)`` evenly. For planes of odd-sized
            frames the last sample reaches past the end.
        unit: 1, or 2 or 4 for coarser chroma.
    """
    rows = []
    d = 2 * unit * outputs  # a source sample, in the unit that positions are counted in
    f = max(2 * length, d)  # the filter's unit: an output sample if that is larger
    for j in range(outputs):
        center = (2 * j + 1) * length
        first = max(0, (center - 2 * f + d // 2) // d)
        stop = min(samples, (center + 2 * f + d // 2) // d)
        raw = [_cubic(abs(k * d - center + d // 2), f) for k in range(first, stop)]
        total = sum(raw)
        row = [(2 * w * 16384 + total) // (2 * total) for w in raw]
        row[row.index(max(row))] += 16384 - sum(row)
        rows.append((first, row))
    return rows


def _cubic(p: int, f: int) -> int:
    """2f³ times Keys' cubic (1981) with a = −1/2 at distance p/f."""
    if p < f:
        return 3 * p**3 - 5 * p**2 * f + 2 * f**3
    if p < 2 * f:
        return -(p**3) + 5 * p**2 * f - 8 * p * f**2 + 4 * f**3
    return 0


def resize_plane(
    plane: NDArray[np.uint8] | NDArray[np.uint16],
    frame_size: tuple[int, int],
    size: tuple[int, int],
    subsampling: tuple[int, int],
    depth: int,
) -> NDArray[np.int32]:
    """A plane at 14 bits, int32 [size]; 2**depth of the source is 16384 here.

    Args:
        plane: [rows, columns], uint8 or uint16.
        frame_size: (height, width) of the frame in luma samples.
        size: (height, width) wanted.
        subsampling: (across, down), log2 of how much coarser the plane is than luma.
        depth: bits a sample of the plane.
    """
    across, down = subsampling
    source = plane.astype(np.int64)
    tall = np.zeros((size[0], plane.shape[1]), np.int64)
    for y, (first, row) in enumerate(weights(plane.shape[0], size[0], frame_size[0], 1 << down)):
        for k, q in enumerate(row):
            tall[y] += q * source[first + k]
    tall = (tall + (1 << (depth - 1))) >> depth
    out = np.zeros(size, np.int64)
    for x, (first, row) in enumerate(weights(plane.shape[1], size[1], frame_size[1], 1 << across)):
        for k, q in enumerate(row):
            out[:, x] += q * tall[:, first + k]
    return ((out + (1 << 13)) >> 14).astype(np.int32)


def color_coefficients(matrix: str, full_range: bool, depth: int) -> NDArray[np.int32]:
    """int32 [6]: what is taken off Y, then cy, crv, cbu, cgu, cgv, in 1/2**20 of a code.

    Raises:
        ValueError: an unknown matrix.
    """
    if matrix not in MATRICES:
        raise ValueError(f"matrix={matrix!r} must be one of {', '.join(MATRICES)}")
    peak = (1 << depth) - 1
    luma = Fraction(peak if full_range or matrix == "rgb" else 219 << (depth - 8))
    chroma = Fraction(peak if full_range else 224 << (depth - 8))
    scale = Fraction(2**20 * 255) / Fraction(2) ** (14 - depth)
    if matrix == "rgb":
        return np.array([0, _round(scale / luma), 0, 0, 0, 0], np.int32)
    kr, kb = KR_KB[matrix]
    kg = 1 - kr - kb
    values = (
        scale / luma,
        scale / chroma * 2 * (1 - kr),
        scale / chroma * 2 * (1 - kb),
        scale / chroma * 2 * (1 - kb) * kb / kg,
        scale / chroma * 2 * (1 - kr) * kr / kg,
    )
    return np.array([0 if full_range else 1024, *map(_round, values)], np.int32)


def _round(value: Fraction) -> int:
    return floor(value + Fraction(1, 2))


def to_rgb(
    planes: Sequence[NDArray[np.int32]], matrix: str, full_range: bool, depth: int
) -> NDArray[np.uint8]:
    """Planes at 14 bits to uint8 [height, width, 3].

    Args:
        planes: Y, U, V; Y alone (grey); or G, B, R with matrix ``rgb``, always full range.
        matrix: one of MATRICES.
        full_range: whether luma spans all codes.
        depth: bits of a source sample.
    """
    black, cy, crv, cbu, cgu, cgv = (int(v) for v in color_coefficients(matrix, full_range, depth))
    if matrix == "rgb":
        green, blue, red = (_clip8(cy * plane.astype(np.int64)) for plane in planes)
        picture: NDArray[np.uint8] = np.stack((red, green, blue), axis=-1)
        return picture
    y = cy * (planes[0].astype(np.int64) - black)
    u, v = (planes[1], planes[2]) if len(planes) > 1 else (np.int64(8192), np.int64(8192))
    u, v = np.int64(1) * u - 8192, np.int64(1) * v - 8192
    channels = (y + crv * v, y - cgu * u - cgv * v, y + cbu * u)
    return np.stack([_clip8(channel) for channel in channels], axis=-1)


def _clip8(value: NDArray[np.int64]) -> NDArray[np.uint8]:
    clipped: NDArray[np.uint8] = np.clip((value + (1 << 19)) >> 20, 0, 255).astype(np.uint8)
    return clipped


def turn(
    picture: NDArray[np.uint8], transpose: bool, mirror_x: bool, mirror_y: bool
) -> NDArray[np.uint8]:
    """Stored [height, width, 3] to shown: transpose first, then mirror across and down."""
    if transpose:
        picture = picture.swapaxes(0, 1)
    if mirror_x:
        picture = picture[:, ::-1]
    if mirror_y:
        picture = picture[::-1]
    return np.ascontiguousarray(picture)


def frame_rgb(
    planes: Sequence[NDArray[np.uint8] | NDArray[np.uint16]],
    subsampling: tuple[int, int],
    depth: int,
    matrix: str,
    full_range: bool,
    orientation: tuple[bool, bool, bool],
    size: tuple[int, int],
) -> NDArray[np.uint8]:
    """One decoded frame as a shown RGB picture: uint8 [height, width, 3].

    Args:
        planes: as decoded: [rows, columns] each, cropped.
        subsampling: (across, down) of the second and third plane.
        depth: bits a sample.
        matrix: one of MATRICES.
        full_range: whether luma spans all codes.
        orientation: transpose, mirror across, mirror down.
        size: (height, width) as shown.
    """
    height, width = planes[0].shape
    stored = (size[1], size[0]) if orientation[0] else size
    coarse = [(0, 0)] if len(planes) == 1 else [(0, 0), subsampling, subsampling]
    resized = [
        resize_plane(plane, (height, width), stored, level, depth)
        for plane, level in zip(planes, coarse, strict=True)
    ]
    return turn(to_rgb(resized, matrix, full_range, depth), *orientation)


def patchify(
    pictures: NDArray[np.uint8], patch_size: int, temporal_patch_size: int, merge_size: int
) -> NDArray[np.uint8]:
    """uint8 [frames, height, width, 3] to patches, uint8 [patches, 3·T·P·P].

    The last frame is repeated up to a multiple of T. Rows run time, height / merge, width / merge,
    merge, merge; columns run channel, time, row, column. Height and width are multiples of P·merge.
    """
    p, t, m = patch_size, temporal_patch_size, merge_size
    missing = -len(pictures) % t
    if missing:
        pictures = np.concatenate([pictures, np.repeat(pictures[-1:], missing, axis=0)])
    frames, height, width, channels = pictures.shape
    cut = pictures.reshape(frames // t, t, height // p // m, m, p, width // p // m, m, p, channels)
    ordered = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return np.ascontiguousarray(ordered).reshape(-1, channels * t * p * p)
