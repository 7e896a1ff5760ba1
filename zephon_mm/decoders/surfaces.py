"""What a decoder on a GPU gives: frames as tensors in the device's memory (C7).

The contract is `base.Decoder`'s: exactly the frames asked for, or a MediaError. Frames are made on
the device's current stream, so work queued there sees them whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..media.info import Orientation, VideoInfo
from .base import Bytes

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceFrame:
    """One frame as stored, on a device; `base.DecodedFrame` says the rest.

    Attributes:
        planes: Y and interleaved UV (NV12, P010), or Y, U, V; matrix ``rgb``: G, B, R. Each
            [rows, columns] of uint8, or of 16 bits where depth is above 8; rows may be padded.
        shift: how far samples are shifted to the left: 6 in P010, 0 in bytes.
        owner: keeps the memory of the planes.
    """

    index: int
    pts: int
    planes: tuple[torch.Tensor, ...]
    depth: int
    shift: int
    subsampling: tuple[int, int]
    matrix: str
    full_range: bool
    orientation: Orientation
    owner: object = None


class SurfaceDecoder(Protocol):
    """A decoder library on a GPU. Safe to share between threads."""

    name: str
    fingerprint: str
    """Library and version, for logs."""

    def refusal(self, info: VideoInfo) -> str | None:
        """See `base.Decoder.refusal`; the device is asked, too."""
        ...

    def surfaces(
        self, data: Bytes, info: VideoInfo, frames: Sequence[int]
    ) -> Iterator[SurfaceFrame]:
        """See `base.Decoder.stream`."""
        ...
