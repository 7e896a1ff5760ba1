"""What a probe knows of a picture or a clip, and its compact form in the index.

A blob is a version byte, a kind byte (``i`` or ``v``), the length of a JSON list, the list, and for
a clip three integer arrays as run-length coded deltas in varints. Nothing is left to a compression
library, so the same bytes give the same blob on every machine: the index digest covers blobs.
A 300-frame clip takes about 150 bytes at a constant rate, under 1 KB with B-frames in 1 ms ticks.
Reading needs no media library.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MediaError

VERSION = 1
IMAGE_EXTENSIONS = frozenset(
    "apng avif bmp gif heic heif j2k jfif jp2 jpe jpeg jpg mpo pbm pgm png pnm ppm tga tif tiff "
    "webp".split()
)
VIDEO_EXTENSIONS = frozenset(
    "264 265 3g2 3gp asf avi flv h264 h265 hevc ivf m1v m2ts m2v m4v mkv mov mp4 mpeg mpg mts obu "
    "ogv ts vob webm wmv".split()
)


def media_kind(member_field: str) -> str | None:
    """``image`` or ``video`` by what follows the field's last dot, else None."""
    extension = member_field.rpartition(".")[2].lower()
    if extension in IMAGE_EXTENSIONS:
        return "image"
    return "video" if extension in VIDEO_EXTENSIONS else None


@dataclass(frozen=True, slots=True)
class Orientation:
    """How stored rows and columns become shown ones: first transpose, then mirror.

    The rule for a display matrix ``[a b; c d]`` (a point (x, y) is shown at (ax+cy, bx+dy)): if
    ``max(|a|, |d|) >= max(|b|, |c|)`` no transpose, mirrored across where a < 0 and down where
    d < 0; else transposed, mirrored across where c < 0 and down where b < 0. All eight
    orientations are covered; other angles go to the nearest of them.
    """

    transpose: bool = False
    mirror_x: bool = False
    mirror_y: bool = False

    @property
    def rotation(self) -> int:
        """Degrees clockwise that the stored frame is turned by (before a mirror across)."""
        if self.transpose:
            return 270 if self.mirror_y else 90
        return 180 if self.mirror_y else 0

    def shown(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) as shown of a stored (height, width), and the reverse."""
        return (width, height) if self.transpose else (height, width)


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """A picture's header.

    Attributes:
        width, height: in pixels as shown, EXIF orientation applied.
        format: Pillow's name of the format.
        mode: Pillow's mode of the stored pixels.
        num_frames: pictures in the file.
        problem: why the file can't be used, or None.
        delays: of an animation, frames in a row that are shown equally long, and for how many
            ticks: (count, ticks); of anything else nothing.
        ticks: ticks a second.
    """

    width: int = 0
    height: int = 0
    format: str = ""
    mode: str = ""
    num_frames: int = 0
    problem: str | None = None
    delays: tuple[tuple[int, int], ...] = ()
    ticks: int = 0


def _no_values() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class VideoInfo:
    """A clip's header and the index of its packets (design, chapter 6).

    Frame i is the i-th shown frame in presentation order. Packets count from 0 in demuxing order,
    empty ones left out.

    Attributes:
        codec, container: FFmpeg's names.
        width, height: as shown: cropped and turned.
        stored_width, stored_height: of the first decoded frame, cropped by the codec's own rule.
        orientation: stored to shown.
        pix_fmt, depth, matrix, full_range: of the first decoded frame; matrix is one of ``601``,
            ``709``, ``2020``, ``240m``, ``rgb``. Unspecified: 601, limited.
        time_base: (numerator, denominator) of a tick, in seconds.
        start_pts: the first shown frame's pts in the stream's ticks.
        pts: int64 [frames], in ticks from the first shown frame, rising.
        last_duration: ticks that the last frame is shown.
        rate: (numerator, denominator) of frames a second if the rate is constant, else None.
        num_packets: packets of the stream.
        frame_packet: int64 [frames], the packet whose frame is shown.
        key_packet: int64 [keys], packets from which decoding can start.
        key_frame: int64 [keys], the first frame not shown before that keyframe.
        synthetic_pts: packets carried no reliable pts: the clip was decoded once, and pts follow
            the order that frames came out in.
        problem: why the clip can't be used, or None.
        clean: what ``index --verify`` found; None if it was not asked. Not in the blob.
    """

    codec: str = ""
    container: str = ""
    width: int = 0
    height: int = 0
    stored_width: int = 0
    stored_height: int = 0
    orientation: Orientation = Orientation()
    pix_fmt: str = ""
    depth: int = 8
    matrix: str = "601"
    full_range: bool = False
    time_base: tuple[int, int] = (1, 1)
    start_pts: int = 0
    pts: NDArray[np.int64] = field(default_factory=_no_values)
    last_duration: int = 0
    rate: tuple[int, int] | None = None
    num_packets: int = 0
    frame_packet: NDArray[np.int64] = field(default_factory=_no_values)
    key_packet: NDArray[np.int64] = field(default_factory=_no_values)
    key_frame: NDArray[np.int64] = field(default_factory=_no_values)
    synthetic_pts: bool = False
    problem: str | None = None
    clean: bool | None = None

    @property
    def num_frames(self) -> int:
        """Frames that are shown."""
        return len(self.pts)

    @property
    def duration(self) -> Fraction:
        """Seconds from the first shown frame to the end of the last."""
        if not self.num_frames:
            return Fraction(0)
        if self.rate:
            return Fraction(self.num_frames * self.rate[1], self.rate[0])
        return Fraction(*self.time_base) * (int(self.pts[-1]) + self.last_duration)

    @property
    def frames_per_second(self) -> float:
        """Shown frames a second, exact where the rate is constant; 0 if nothing is known."""
        if self.rate:
            return self.rate[0] / self.rate[1]
        return float(self.num_frames / self.duration) if self.duration else 0.0


_ARRAYS = ("pts", "frame_packet", "key_packet", "key_frame")
_SCALARS = tuple(
    f.name for f in fields(VideoInfo) if f.name not in (*_ARRAYS, "orientation", "clean")
)


def write_probe(info: ImageInfo | VideoInfo) -> bytes:
    """The blob of an info; equal infos give equal bytes."""
    if isinstance(info, ImageInfo):
        values = [getattr(info, f.name) for f in fields(ImageInfo)]
        values = values if info.delays else values[:-2]
        return bytes((VERSION,)) + b"i" + _pack_json(values)
    turn = info.orientation
    head = [
        [turn.transpose, turn.mirror_x, turn.mirror_y],
        *(getattr(info, name) for name in _SCALARS),
    ]
    arrays = b"".join(_pack_array(getattr(info, name)) for name in _ARRAYS)
    return bytes((VERSION,)) + b"v" + _pack_json(head) + arrays


def is_clip(blob: bytes | None) -> bool:
    """Whether a blob is a clip's."""
    return blob is not None and blob[1:2] == b"v"


def read_probe(blob: bytes) -> ImageInfo | VideoInfo:
    """The info in a blob. Raises MediaError if the blob is of another version or damaged."""
    try:
        if blob[0] != VERSION:
            raise ValueError(f"version {blob[0]}, this release reads {VERSION}")
        if blob[1:2] == b"i":
            return _read_picture(blob) if len(blob) <= _KEPT_BYTES else _picture(blob)
        values, at = _unpack_json(blob, 2)
        if blob[1:2] != b"v":
            raise ValueError(f"kind {blob[1:2]!r}")
        known = dict(zip(_SCALARS, values[1:], strict=True))
        for name in ("time_base", "rate"):
            known[name] = None if known[name] is None else tuple(known[name])
        for name in _ARRAYS:
            known[name], at = _unpack_array(blob, at)
        return VideoInfo(orientation=Orientation(*values[0]), **known)
    except (IndexError, ValueError, TypeError) as error:
        raise MediaError(
            f"the index holds a probe that can't be read ({error}); build the index again with "
            "`zephon-mm index --force`",
            stage="probe",
        ) from error


def _picture(blob: bytes) -> ImageInfo:
    info = ImageInfo(*_unpack_json(blob, 2)[0])
    runs = tuple((int(count), int(ticks)) for count, ticks in info.delays)
    return replace(info, delays=runs) if runs else info


_read_picture = lru_cache(maxsize=4096)(_picture)  # measured, and soon decoded
_KEPT_BYTES = 128  # longer blobs, of animations, are not kept


def _pack_json(values: list[object]) -> bytes:
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=True).encode()
    return len(text).to_bytes(4, "little") + text


def _unpack_json(blob: bytes, at: int) -> tuple[list[Any], int]:
    stop = at + 4 + int.from_bytes(blob[at : at + 4], "little")
    return json.loads(blob[at + 4 : stop]), stop


def _pack_array(array: NDArray[np.int64]) -> bytes:
    """Count, then differences zigzagged; runs of equal ones as (value, length)."""
    first = np.diff(array, prepend=0)
    zigzag = (first << 1) ^ (first >> 63)
    starts = np.flatnonzero(np.diff(zigzag, prepend=-1)) if len(array) else np.zeros(0, np.int64)
    runs = np.diff(np.append(starts, len(array)))
    if 2 * len(starts) > len(array):
        body, kind = _varints(zigzag), 0
    else:
        body, kind = _varints(zigzag[starts]) + _varints(runs), 1
    head = _varints(np.array([len(array), kind, len(starts), len(body)], np.int64))
    return bytes((len(head),)) + head + body


def _unpack_array(blob: bytes, at: int) -> tuple[NDArray[np.int64], int]:
    head = _read_varints(blob[at + 1 : at + 1 + blob[at]])
    count, kind, num_runs, size = (int(v) for v in head)
    start = at + 1 + blob[at]
    values = _read_varints(blob[start : start + size])
    if kind == 1:
        values = np.repeat(values[:num_runs], values[num_runs:])
    if len(values) != count:
        raise ValueError(f"{len(values)} of {count} values")
    array = np.cumsum((values >> 1) ^ -(values & 1))
    array.flags.writeable = False
    return array, start + size


def _varints(values: NDArray[np.int64]) -> bytes:
    """Seven bits a byte, low first; the top bit says that more follow."""
    out = bytearray()
    for value in values.tolist():
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


def _read_varints(data: bytes) -> NDArray[np.int64]:
    raw = np.frombuffer(data, np.uint8).astype(np.int64)
    if not len(raw):
        return raw
    ends = np.flatnonzero(raw < 128)
    starts = np.concatenate(([0], ends[:-1] + 1))
    place = np.arange(len(raw)) - np.repeat(starts, ends - starts + 1)
    return np.add.reduceat((raw & 127) << (7 * place), starts)
