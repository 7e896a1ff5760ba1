"""What a video decoder gives (C7): exactly the frames asked for, as planes.

Native planes in class ``planes-v1``; in the RGB classes G, B and R as the library made them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import MediaError
from ..media.info import Orientation, VideoInfo

Plane = NDArray[np.uint8] | NDArray[np.uint16]
Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, eq=False)
class DecodedFrame:
    """One frame as stored: neither turned nor resized.

    Attributes:
        index: which shown frame it is, in presentation order.
        pts: in ticks from the first shown frame, as the index has it.
        planes: Y, U, V (grey: Y; matrix ``rgb``: G, B, R); each [rows, columns], uint8, or uint16
            in machine byte order where depth is above 8. May be views with padded rows.
        depth: bits a sample.
        subsampling: (across, down), log2 of how much coarser U and V are: 4:2:0 is (1, 1).
        matrix: ``601``, ``709``, ``2020``, ``240m`` or ``rgb``.
        full_range: whether luma spans all codes.
    """

    index: int
    pts: int
    planes: tuple[Plane, ...]
    depth: int
    subsampling: tuple[int, int]
    matrix: str
    full_range: bool
    orientation: Orientation

    @property
    def height(self) -> int:
        return int(self.planes[0].shape[0])

    @property
    def width(self) -> int:
        return int(self.planes[0].shape[1])

    def md5(self) -> str:
        """MD5 of the planes, tightly packed, one after the other; 16-bit samples little-endian."""
        digest = hashlib.md5(usedforsecurity=False)
        for plane in self.planes:
            digest.update(np.ascontiguousarray(plane, plane.dtype.newbyteorder("<")).data)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class DecodedFrames:
    """Frames in the order they were asked for; one asked for twice is the same object twice."""

    frames: tuple[DecodedFrame, ...]

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[DecodedFrame]:
        return iter(self.frames)

    @property
    def pts(self) -> tuple[int, ...]:
        return tuple(frame.pts for frame in self.frames)


def rgb_frame(picture: NDArray[np.uint8], index: int, info: VideoInfo) -> DecodedFrame:
    """A frame of a library that gives RGB.

    Args:
        picture: uint8 [stored height, stored width, 3], not turned; the planes are views of it.
        index: which shown frame it is.
        info: the clip's probe.

    Raises:
        MediaError: it has another shape.
    """
    if picture.shape != (info.stored_height, info.stored_width, 3) or picture.dtype != np.uint8:
        raise MediaError(
            f"frame {index} came as {picture.dtype} {list(picture.shape)}, expected "
            f"[{info.stored_height}, {info.stored_width}, 3] of uint8",
            stage="decode",
        )
    return DecodedFrame(
        index=index,
        pts=int(info.pts[index]),
        planes=(picture[..., 1], picture[..., 2], picture[..., 0]),
        depth=8,
        subsampling=(0, 0),
        matrix="rgb",
        full_range=True,
        orientation=info.orientation,
    )


class Decoder(Protocol):
    """A decoder library. Stateless and safe to share between threads."""

    name: str
    fingerprint: str
    """Library and versions, for logs; not part of any digest (pixels are defined by C7)."""

    def refusal(self, info: VideoInfo) -> str | None:
        """Why clips with this probe are not decoded; None: they are, as far as the probe tells."""
        ...

    def stream(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> Iterator[DecodedFrame]:
        """The frames asked for, each once, in the order they leave the decoder.

        Memory stays at a few frames if the caller lets go of each.

        Args:
            data: the clip's bytes.
            info: its probe.
            frames: indices of shown frames, any order, repeats allowed.

        Raises:
            MediaError: an index outside the clip; any error, concealment or missing frame.
        """
        ...

    def decode(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> DecodedFrames:
        """All frames asked for, in that order. Raises as `stream` does."""
        ...
