"""Opening a clip with PyAV under this project's rules; shared by the probe and the decoder.

- the stream is the first video stream that is not an attached picture;
- only container formats that hold their own data are opened (no playlists: they name other files);
- one thread, film grain on, exact left crops (``unaligned``), the decoder told to give up on the
  first error (``err_detect=explode``: no clean file of the cases is refused by it, and damage that
  would be concealed is an error), to compare the MD5 sums that an HEVC stream may carry of its
  frames (``crccheck``), and frames tied to packets by number (``copy_opaque``);
- packets are numbered in demuxing order; empty ones (AVI's placeholders) don't count.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, cast

import av
import numpy as np
from av.codec.context import Flags
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Discard, Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane
from av.video.stream import VideoStream

from ..errors import MediaError
from ..media.info import Orientation
from ..media.limits import MAX_FRAME_PIXELS
from .base import Bytes, Plane

PYAV_ERRORS = (FFmpegError, ValueError, IndexError, OSError, MemoryError)
"""What PyAV raises on damaged files (FFmpegError's children are often built-in errors too)."""

FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,asf,ogg,ivf,obu,h264,hevc,m4v,"
    "mpegvideo,gif,apng,mxf,nut,dv,rm,vc1,mjpeg"
)
_OPTIONS = {"err_detect": "explode+crccheck", "max_pixels": str(MAX_FRAME_PIXELS)}
_PLANAR = re.compile(r"(yuvj?|yuva|gray|gbra?)(420|422|444|440|411|410)?p?(9|10|12|14|16)?(le)?")
_SUBSAMPLING = {
    None: (0, 0), "420": (1, 1), "422": (1, 0), "444": (0, 0), "440": (0, 1), "411": (2, 0),
    "410": (2, 2),
}  # fmt: skip
SUBSAMPLING_NAMES = {value: name for name, value in _SUBSAMPLING.items() if name is not None}
_PACKED = {"rgb24": (3, 1, 2, 0), "bgr24": (3, 1, 0, 2), "rgba": (4, 1, 2, 0), "rgb0": (4, 1, 2, 0)}
_PACKED |= {"bgra": (4, 1, 0, 2), "bgr0": (4, 1, 0, 2), "argb": (4, 2, 3, 1), "0rgb": (4, 2, 3, 1)}
_BYTES, _WORDS = np.dtype(np.uint8), np.dtype("<u2")
_MATRICES = {1: "709", 5: "601", 6: "601", 7: "240m", 9: "2020", 10: "2020"}


class _Reader:
    """A file over bytes that are not copied: only the piece that FFmpeg asks for is.

    FFmpeg may read them over and over again (an index of an AVI that points to itself); more than
    64 times over and 1 GiB are an OSError, which counts as damage, the same every time.
    """

    def __init__(self, data: Bytes) -> None:
        self._bytes = memoryview(data).cast("B")
        self._at = 0
        self._left = 64 * len(self._bytes) + (1 << 30)

    def read(self, size: int) -> bytes:
        piece = bytes(self._bytes[self._at : self._at + size])
        self._at += len(piece)
        self._left -= len(piece)
        if self._left < 0:
            raise OSError(errno.EFBIG, "it is read over and over again")
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, len(self._bytes))[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "a place before the first byte")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at


def open_clip(data: Bytes) -> tuple[InputContainer, VideoStream]:
    """Open the bytes; the caller closes the container.

    Raises:
        MediaError: no container of a known kind, no video stream, or no decoder for it.
    """
    try:
        container = av.open(
            _Reader(data),
            mode="r",
            container_options={"format_whitelist": FORMATS},
            metadata_errors="ignore",
            buffer_size=max(4096, min(len(data), 1 << 20)),
        )
    except PYAV_ERRORS as error:
        raise MediaError(f"no readable video container ({why(error)})", stage="probe") from error
    try:
        streams = [
            s for s in container.streams.video if not s.disposition & Disposition.attached_pic
        ]
        if not streams:
            raise MediaError("no video stream in it", stage="probe")
        stream = streams[0]
        context = stream.codec_context
        if context is None or not context.is_decoder:
            raise MediaError("no decoder for its video codec", stage="probe")
        context.thread_type = "NONE"
        context.thread_count = 1
        context.options = dict(_OPTIONS)
        context.flags |= Flags.unaligned
        context.copy_opaque = True
        for other in container.streams:
            if other.index != stream.index and hasattr(other, "discard"):
                other.discard = Discard.all
    except MediaError:
        container.close()
        raise
    except PYAV_ERRORS as error:
        container.close()
        raise MediaError(f"no usable video stream ({why(error)})", stage="probe") from error
    return container, stream


def packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Its packets, numbered (`number_of`). A demuxing error is raised as PyAV gives it.

    PyAV keeps ``opaque`` objects of the whole process in one table by ``id()``. A bare number is
    one object for all threads, which would lose each other's entries: a tuple of its own is not.
    """
    number = 0
    for packet in container.demux(stream):
        if packet.size:
            packet.opaque = (number,)
            number += 1
            yield packet


def decode(context: VideoCodecContext, packet: Packet[VideoStream] | None) -> list[VideoFrame]:
    """Frames that come out, at most one of a packet: the last, which is its finest layer.

    A VP9 superframe may hold a picture in several sizes, all marked as shown; players show one.
    """
    out = context.decode(packet)
    return out if len(out) < 2 else list({_source(f): f for f in out}.values())


def _source(frame: VideoFrame) -> int:
    number = number_of(frame)
    return -id(frame) if number is None else number


def number_of(thing: Packet[VideoStream] | VideoFrame) -> int | None:
    """The number of a packet, or of the packet that a frame came from; None: PyAV lost it."""
    opaque = cast(tuple[int] | None, thing.opaque)
    return None if opaque is None else opaque[0]


def frame_planes(frame: VideoFrame) -> tuple[Plane, ...]:
    """Y, U, V; Y alone; or G, B, R: views into the frame's memory, [rows, columns].

    Raises MediaError for a pixel format that no rule is written for.
    """
    name, width, planes = frame.format.name, frame.width, frame.planes
    if name in _PACKED:
        step, *order = _PACKED[name]
        packed = _rows(planes[0], _BYTES, width * step)
        return tuple(packed[:, c::step] for c in order)
    if name in ("nv12", "nv21"):
        pairs = _rows(planes[1], _BYTES, -(-width // 2) * 2)
        u, v = pairs[:, 0::2], pairs[:, 1::2]
        chroma = (u, v) if name == "nv12" else (v, u)
        return (_rows(planes[0], _BYTES, width), *chroma)
    depth, (across, _), _ = describe(name)
    dtype = _BYTES if depth == 8 else _WORDS
    if name.startswith("gray"):
        return (_rows(planes[0], dtype, width),)
    chroma_width = -(-width // (1 << across))
    return (
        _rows(planes[0], dtype, width),
        _rows(planes[1], dtype, chroma_width),
        _rows(planes[2], dtype, chroma_width),
    )


@lru_cache
def describe(name: str) -> tuple[int, tuple[int, int], str]:
    """(depth, subsampling, ``yuv`` or ``rgb``) of a pixel format. Raises MediaError."""
    if name in _PACKED:
        return 8, (0, 0), "rgb"
    if name in ("nv12", "nv21"):
        return 8, (1, 1), "yuv"
    match = _PLANAR.fullmatch(name)
    if match is None or (match[1].startswith("yuv") and match[2] is None):
        raise MediaError(f"pixel format {name} is not supported", stage="probe")
    kind = "rgb" if match[1].startswith("gbr") else "yuv"
    return int(match[3] or 8), _SUBSAMPLING[match[2]], kind


def color(frame: VideoFrame) -> tuple[str, bool]:
    """(matrix, full range) of a frame. Unspecified, or not known to us: 601 and limited."""
    name = frame.format.name
    if describe(name)[2] == "rgb":
        return "rgb", True
    full = name.startswith("yuvj") or int(frame.color_range) == 2
    return _MATRICES.get(int(frame.colorspace), "601"), full


def orientation(frame: VideoFrame) -> Orientation:
    """From the display matrix that the container attached to the frame."""
    try:
        found = cast(Iterable[Any], frame.side_data)
        sides = [bytes(side) for side in found if side.type.name == "DISPLAYMATRIX"]
    except ValueError:  # PyAV can't name every kind of side data (MV-HEVC's); mirrors are lost
        turn = round(frame.rotation / 90) % 4  # counter-clockwise
        return (
            Orientation(),
            Orientation(True, False, True),
            Orientation(False, True, True),
            Orientation(True, True, False),
        )[turn]
    if not sides or len(sides[0]) < 36:
        return Orientation()
    a, b, _, c, d = (int(v) for v in np.frombuffer(sides[0], "<i4", 5))
    if max(abs(a), abs(d)) >= max(abs(b), abs(c)):
        return Orientation(False, a < 0, d < 0)
    return Orientation(True, c < 0, b < 0)


def _rows(plane: VideoPlane, dtype: np.dtype[Any], width: int) -> Plane:
    """A view of a plane's rows, without what pads them."""
    size, strides = (plane.height, width), (plane.line_size, dtype.itemsize)
    return np.ndarray(size, dtype, cast(Any, plane), strides=strides)


def why(error: BaseException) -> str:
    """One line that is the same every time: PyAV's own text quotes a process-wide log."""
    text = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
