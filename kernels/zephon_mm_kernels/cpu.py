"""Pixel class planes-v1 with numba: equal to `reference` bit for bit, one thread, GIL released.

`write_frame` fills a clip's patches, `write_picture` a batch of whole pictures. Turning costs next
to nothing: mirrored axes are mirrored lists of weights, and a transposed picture is one that isn't
transposed back (`strips`). Safe to call from many threads at once. Compiled at the first call and
kept on disk (`compiled`); everything is checked here before compiled code runs.

Memory: about 64 rows of the wider of source and result, twice over, a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .layout import Layout, patch_layout, picture_layout, repeat_last
from .reference import color_coefficients
from .weights import trimmed_weights

try:
    from .compiled import Compiled
    from .strips import SIGNATURES, STORE_SIGNATURES, store, write
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in ("numba", "llvmlite"):
        raise
    raise ImportError(
        "the fast pixel kernels need numba; install it with `pip install numba` "
        "(zephon_mm_kernels.reference does the same without it, about a thousand times slower)"
    ) from error

_Plane = NDArray[np.uint8] | NDArray[np.uint16]
_Planes = Sequence[_Plane]

_WRITE = Compiled(write, SIGNATURES)
_STORE = Compiled(store, STORE_SIGNATURES)
_BLOCK = 64


def load() -> None:
    """Load what the first `write_frame` would, which takes a second or more: before a fork, say."""
    _WRITE.load()


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
        planes: as decoded and cropped, [rows, columns] each, uint8, or uint16 with samples below
            2**depth. Views with padded rows are read in place.
        subsampling: (across, down) of the second and third plane, log2.
        depth: bits a sample, 8 to 16.
        matrix: one of `reference.MATRICES`.
        full_range: whether luma spans all codes.
        orientation: transpose, mirror across, mirror down.
        size: (height, width) as shown, multiples of patch_size·merge_size.
        patches: uint8 [patches of the whole clip, 3·T·P·P], C-contiguous; written in place.
        frame: position of the frame in the clip.
        patch_size: P.
        temporal_patch_size: T.
        merge_size: patches that a group is wide and high.

    Raises:
        ValueError: arguments that don't fit together.
    """
    p, t, m = patch_size, temporal_patch_size, merge_size
    layout = patch_layout((int(size[0]), int(size[1])), p, t, m)
    needed = (frame // t + 1) * (size[0] // p) * (size[1] // p)
    if frame < 0 or patches.ndim != 2 or len(patches) < needed:
        raise ValueError(f"patches {patches.shape} have no room for frame {frame}: {needed} rows")
    if patches.shape[1] != 3 * t * p * p:
        raise ValueError(f"patches {patches.shape} must have {3 * t * p * p} columns")
    _write(planes, subsampling, depth, matrix, full_range, orientation, layout, patches, frame)


def write_picture(
    planes: _Planes,
    subsampling: tuple[int, int],
    depth: int,
    matrix: str,
    full_range: bool,
    orientation: tuple[bool, bool, bool],
    pictures: NDArray[np.uint8],
    frame: int,
) -> None:
    """Write one frame as ``pictures[frame]``, uint8 [n, 3, height, width] as shown, C-contiguous.

    Arguments and errors are those of `write_frame`; the size is that of ``pictures``.
    """
    if pictures.ndim != 4 or pictures.shape[1] != 3 or not 0 <= frame < len(pictures):
        raise ValueError(
            f"pictures {pictures.shape} must be [n, 3, height, width], with a frame {frame}"
        )
    layout = picture_layout((pictures.shape[2], pictures.shape[3]))
    _write(planes, subsampling, depth, matrix, full_range, orientation, layout, pictures, frame)


def patchify(
    pictures: NDArray[np.uint8], patch_size: int, temporal_patch_size: int, merge_size: int
) -> NDArray[np.uint8]:
    """`reference.patchify` of pictures given as planes, uint8 [frames, 3, height, width].

    Raises:
        ValueError: another kind of array, no frame, or a size that isn't a multiple of P·merge.
    """
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[1] != 3:
        raise ValueError(
            f"pictures must be uint8 [n, 3, height, width], got {pictures.dtype} {pictures.shape}"
        )
    frames, _, height, width = pictures.shape
    if frames < 1:
        raise ValueError("no pictures: a clip needs at least one")
    p, t, m = patch_size, temporal_patch_size, merge_size
    layout = patch_layout((height, width), p, t, m)
    rows = -(-frames // t) * (height // p) * (width // p)
    out = np.empty((rows, 3 * t * p * p), np.uint8)
    source = np.ascontiguousarray(pictures).view()
    bases = np.array([layout.base(frame) for frame in range(frames)], np.int64)
    source.flags.writeable = bases.flags.writeable = False
    places = bases, layout.row_place, layout.run_place, layout.run, layout.step
    _STORE(source, places, out.reshape(-1))
    repeat_last(out, frames, p, t)
    return out


def _write(
    planes: _Planes, subsampling: tuple[int, int], depth: int, matrix: str, full_range: bool,
    orientation: tuple[bool, bool, bool], layout: Layout, target: NDArray[np.uint8], frame: int,
) -> None:  # fmt: skip
    if target.dtype != np.uint8 or not target.flags.c_contiguous or not target.flags.writeable:
        raise ValueError(
            f"the result must be a contiguous, writeable uint8 array, got {target.dtype}"
        )
    _check_planes(planes, subsampling, depth)
    transpose, mirror_x, mirror_y = (bool(flag) for flag in orientation)
    height, width = layout.size
    stored = (width, height) if transpose else (height, width)
    mirror = (mirror_x, mirror_y) if transpose else (mirror_y, mirror_x)
    frame_size = planes[0].shape
    level = subsampling if len(planes) == 3 else (0, 0)
    luma, chroma = (
        tuple(
            trimmed_weights(plane.shape[k], stored[k], frame_size[k], 1 << units[k], mirror[k])
            for k in range(2)
        )
        for plane, units in ((planes[0], (0, 0)), (planes[-1], (level[1], level[0])))
    )
    signed = depth == 16
    y = _samples(planes[0], signed)
    u, v = (
        (_samples(planes[1], signed), _samples(planes[2], signed)) if len(planes) == 3 else (y, y)
    )
    half = (1 << (depth - 1)) + (1 << 29 if signed else 0)
    kind = 2 if matrix == "rgb" else 0 if len(planes) == 3 else 1
    color = _coefficients(matrix, bool(full_range), depth)
    _WRITE(
        (y, u, v), (luma, chroma, chroma), half, depth, color, kind, transpose,
        layout.row_place, layout.run_place, layout.run, layout.step, layout.base(frame),
        target.reshape(-1),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _coefficients(matrix: str, full_range: bool, depth: int) -> NDArray[np.int32]:
    values = color_coefficients(matrix, full_range, depth)
    values.flags.writeable = False
    return values


def _samples(plane: NDArray[Any], signed: bool) -> tuple[NDArray[Any], int, int]:
    """The plane as one read-only line of samples, its pitch and its width, both in samples.

    Decoders pad their rows; such a plane is seen through, not copied, and the padding isn't read.
    Copied: planes narrower than 64, and those whose samples are not side by side. Samples of 16
    bits become signed by taking off 2**15, which is given back in the rounding of the first pass:
    weights sum to 2**14, so it makes 2**29 of every sum.
    """
    size = plane.itemsize
    if signed:
        plane = np.bitwise_xor(plane, 1 << 15, dtype=np.uint16)
    rows, width = plane.shape
    pitch = plane.strides[0]
    if width < _BLOCK:
        plane = np.pad(plane, ((0, 0), (0, _BLOCK - width)))
    elif plane.strides[1] != size or pitch < width * size or pitch % size:
        plane = plane.copy(order="C")
    pitch, width = plane.strides[0] // size, plane.shape[1]
    line = np.lib.stride_tricks.as_strided(
        plane, ((rows - 1) * pitch + width,), (size,), writeable=False
    )
    return (line if size == 1 else line.view(np.int16)), pitch, width


def _check_planes(planes: _Planes, subsampling: tuple[int, int], depth: int) -> None:
    if len(planes) not in (1, 3) or any(plane.ndim != 2 for plane in planes):
        raise ValueError(f"planes: one or three [rows, columns] arrays, got {len(planes)}")
    if not 8 <= depth <= 16:
        raise ValueError(f"depth={depth} must be between 8 and 16")
    if {plane.dtype for plane in planes} != {np.dtype(np.uint8 if depth == 8 else np.uint16)}:
        raise ValueError(f"planes of {depth} bits must all be uint{8 if depth == 8 else 16}")
    height, width = planes[0].shape
    if min(height, width) < 1:
        raise ValueError(f"planes: at least one sample each, got {planes[0].shape}")
    if len(planes) == 3:
        if min(subsampling) < 0 or max(subsampling) > 4:
            raise ValueError(f"subsampling={subsampling} must be (across, down), each 0 to 4")
        coarse = (-(-height // (1 << subsampling[1])), -(-width // (1 << subsampling[0])))
        if planes[1].shape != coarse or planes[2].shape != coarse:
            raise ValueError(f"chroma is {planes[1].shape}, {planes[2].shape}; expected {coarse}")
