"""What frames on a device look like, and whether they fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

Surface = Sequence[torch.Tensor]
"""Planes of a frame: Y; Y and interleaved UV; or Y, U, V (matrix ``rgb``: G, B, R)."""


@dataclass(frozen=True, slots=True)
class Source:
    """What the frames of a batch have in common.

    Attributes:
        subsampling: (across, down) of chroma, log2.
        depth: bits a sample, 8 to 16.
        shift: how far samples are shifted to the left: 6 for P010, 4 for P012, else 0.
        matrix: one of `reference.MATRICES`.
        full_range: whether luma spans all codes.
        orientation: transpose, mirror across, mirror down.
    """

    subsampling: tuple[int, int]
    depth: int
    shift: int
    matrix: str
    full_range: bool
    orientation: tuple[bool, bool, bool]


def surface_of(planes: Sequence[torch.Tensor]) -> Surface:
    """Planes as a decoder library gives them, one tensor a component, as a surface.

    U and V of NV12 and P010 are views with every other sample of one plane: they become that plane.

    Raises:
        ValueError: views that are neither whole rows nor interleaved in pairs.
    """
    if len(planes) != 3 or all(plane.stride(1) == 1 for plane in planes):
        return tuple(planes)
    y, u, v = planes
    together = v.data_ptr() == u.data_ptr() + u.element_size() and u.stride() == v.stride()
    if y.stride(1) != 1 or u.stride(1) != 2 or not together:
        strides = [plane.stride() for plane in planes]
        raise ValueError(f"planes must be whole rows, or U and V in turn; strides are {strides}")
    size = (u.shape[0], 2 * u.shape[1])
    return y, u.as_strided(size, (u.stride(0), 1), u.storage_offset())


def check_target(
    target: torch.Tensor, surfaces: Sequence[Surface], frames: Sequence[int], room: int
) -> None:
    """Raise ValueError unless ``target`` has a place for each of ``frames``, below ``room``."""
    if target.dtype != torch.uint8 or not target.is_contiguous():
        raise ValueError(f"the result must be a contiguous uint8 tensor, got {target.dtype}")
    if len(frames) != len(surfaces):
        raise ValueError(f"{len(surfaces)} surfaces for {len(frames)} positions")
    if frames and not 0 <= min(frames) <= max(frames) < room:
        raise ValueError(f"frames {min(frames)} to {max(frames)}: there is room for {room}")


def check_surfaces(
    surfaces: Sequence[Surface], source: Source, device: torch.device
) -> tuple[tuple[int, int], tuple[int, int]]:
    """(rows, columns) of luma and of chroma samples. Raises ValueError."""
    depth = source.depth
    if not 8 <= depth <= 16 or not 0 <= source.shift <= 16 - depth:
        raise ValueError(f"depth={depth}, shift={source.shift} don't fit in 16 bits")
    if depth == 8 and source.shift:
        raise ValueError("samples of 8 bits have no shift")
    kinds = (torch.uint8,) if depth == 8 else (torch.uint16, torch.int16)
    shapes = {tuple((tuple(p.shape), p.stride()) for p in frame) for frame in surfaces}
    if len(shapes) != 1:
        raise ValueError(f"surfaces of a batch must be alike, got {sorted(shapes)}")
    planes = surfaces[0]
    for plane in (plane for frame in surfaces for plane in frame):
        if plane.ndim != 2 or plane.stride(1) != 1 or plane.stride(0) < plane.shape[1]:
            raise ValueError(f"planes must be [rows, columns], got {tuple(plane.shape)}")
        if plane.dtype not in kinds or plane.device != device:
            raise ValueError(f"planes of {depth} bits must be {kinds[0]} on {device}")
    if len(planes) not in (1, 2, 3) or (source.matrix == "rgb" and len(planes) != 3):
        raise ValueError(f"a surface is one, two or three planes, got {len(planes)}")
    rows, columns = (int(n) for n in planes[0].shape)
    if min(rows, columns) < 1:
        raise ValueError(f"planes: at least one sample each, got {(rows, columns)}")
    if len(planes) == 1:
        return (rows, columns), (rows, columns)
    across, down = source.subsampling
    chroma = (-(-rows // (1 << down)), -(-columns // (1 << across)))
    expected = (chroma[0], chroma[1] * (2 if len(planes) == 2 else 1))
    if any(tuple(plane.shape) != expected for plane in planes[1:]):
        raise ValueError(f"chroma is {tuple(planes[1].shape)}; expected {expected}")
    return (rows, columns), chroma
