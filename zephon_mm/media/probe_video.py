"""The packet index of a clip (C5): frames are counted from packets, headers are not believed.

Packets are demuxed without decoding; frame i is the i-th packet, in presentation order, that is
neither discarded (edit lists) nor never shown (VP8 and VP9 say so in the first bytes of a frame).
One frame is decoded, for the size, pixel format, colour and orientation that the codec itself
gives, and to know that the codec can be decoded at all.

That is believed where container and codec promise one shown frame a packet with its own pts:
H.264, HEVC, VP8, VP9 and AV1 in MP4/MOV, Matroska/WebM, MPEG-TS, FLV and IVF, progressive, every
pts there and distinct, and nothing shown before the first keyframe. Otherwise (AVI, raw streams,
MPEG-4, MPEG-2, …) the clip is decoded once from the start: the index holds the order that frames
came out in, and pts are the packets' own times sorted (so AVI's empty slots stay gaps) if those
are all there and distinct, else one frame time each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from ..decoders import pyav_stream as clip
from ..decoders.base import Bytes
from ..errors import MediaError
from .info import VideoInfo
from .limits import MAX_PACKETS, MAX_PIXELS
from .mp4_claims import check_claims

EXACT_CODECS = frozenset(("h264", "hevc", "vp8", "vp9", "av1"))
"""Their decoded planes are defined bit by bit, so any decoder may be used (C7)."""

OTHER_CODECS = frozenset(
    "mpeg4 mpeg1video mpeg2video msmpeg4v1 msmpeg4v2 msmpeg4v3 wmv1 wmv2 wmv3 vc1 h261 h263 h263p "
    "h263i flv1 mjpeg theora prores dnxhd ffv1 huffyuv ffvhuff utvideo rawvideo dvvideo vp6 vp6f "
    "rv30 rv40 svq1 svq3 cinepak indeo5 gif apng png qtrle".split()
)
"""Decoded by the reference decoder only; anything else is refused."""

_TRUSTED = frozenset(("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "mpegts", "flv", "ivf"))
_FFMPEG_NAMES = {"libdav1d": "av1", "libaom-av1": "av1", "libvpx-vp9": "vp9", "libvpx": "vp8"}
_FAR = 1 << 62


@dataclass(slots=True)
class _Table:
    """What demuxing found, one entry a packet."""

    pts: list[int | None] = field(default_factory=list)
    dts: list[int | None] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)
    key: list[bool] = field(default_factory=list)
    shown: list[bool] = field(default_factory=list)
    first: VideoFrame | None = None
    out: list[int] = field(default_factory=list)  # packets of decoded frames, in output order


def probe_video(data: Bytes) -> VideoInfo:
    """The index of a clip; never raises for the clip's own faults: they are ``problem``."""
    try:
        check_claims(memoryview(data).cast("B"))
        container, stream = clip.open_clip(data)
        with contextlib.closing(container):
            codec = codec_name(stream)
            if codec not in EXACT_CODECS | OTHER_CODECS:
                raise MediaError(f"video codec {codec} is not supported", stage="probe")
            table = _demux(container, stream, codec, everything=False)
            if table.first is None:
                raise MediaError(f"no frame of its {codec} stream can be decoded", stage="probe")
            if _trusted(table, container, stream, codec):
                return _from_packets(table, container, stream, codec)
        container, stream = clip.open_clip(data)
        with contextlib.closing(container):
            table = _demux(container, stream, codec, everything=True)
            return _from_output(table, container, stream, codec)
    except MediaError as error:
        return VideoInfo(problem=error.reason)


def codec_name(stream: VideoStream) -> str:
    """FFmpeg's name of the codec, whichever decoder serves it."""
    name = stream.codec_context.codec.canonical_name
    return _FFMPEG_NAMES.get(name, name)


def _demux(
    container: InputContainer, stream: VideoStream, codec: str, *, everything: bool
) -> _Table:
    table = _Table()
    context = stream.codec_context
    source = clip.packets(container, stream)
    pixels = 0
    while True:
        try:
            packet = next(source, None)
        except clip.PYAV_ERRORS:  # cut or broken: what came so far is the clip
            packet = None
        if packet is not None:
            _record(table, packet, codec)
        if everything or table.first is None:
            pixels += max(1, context.width * context.height)
            _decode(table, stream, packet)
        if packet is None:
            return table
        if len(table.pts) > MAX_PACKETS or pixels > MAX_PIXELS:
            raise MediaError(
                f"more than {MAX_PACKETS} packets or {MAX_PIXELS} pixels to index", stage="probe"
            )


def _record(table: _Table, packet: Packet[VideoStream], codec: str) -> None:
    table.pts.append(packet.pts)
    table.dts.append(packet.dts)
    table.duration.append(packet.duration or 0)
    table.key.append(packet.is_keyframe)
    table.shown.append(not packet.is_discard and is_shown(codec, memoryview(packet)))


def _decode(table: _Table, stream: VideoStream, packet: Packet[VideoStream] | None) -> None:
    """Errors are left to the decoder's verdict, when the frames are asked for."""
    with contextlib.suppress(*clip.PYAV_ERRORS):
        for frame in clip.decode(stream.codec_context, packet):
            if table.first is None:
                table.first = frame
            if (number := clip.number_of(frame)) is not None:
                table.out.append(number)


def is_shown(codec: str, packet: memoryview) -> bool:
    """Whether a packet gives a frame to show. Only VP8 and VP9 have packets that don't."""
    if codec == "vp8":  # RFC 6386, 9.1: bit 4 of the frame tag
        return bool(packet[0] & 0x10)
    if codec != "vp9":
        return True
    last = packet[-1]
    if last & 0xE0 == 0xC0:  # a superframe holds a shown frame (VP9 specification, annex B)
        count, width = (last & 7) + 1, ((last >> 3) & 3) + 1
        size = 2 + count * width
        if len(packet) >= size and packet[len(packet) - size] == last:
            return True
    first = packet[0]
    reserved = 1 if (first >> 4) & 3 == 3 else 0  # profile 3 has one more bit
    if first >> (3 - reserved) & 1:  # show_existing_frame
        return True
    return bool(first >> (1 - reserved) & 1)


def _trusted(table: _Table, container: InputContainer, stream: VideoStream, codec: str) -> bool:
    if container.format.name not in _TRUSTED or codec not in EXACT_CODECS:
        return False
    if int(stream.codec_context.field_order) > 1:  # fields may come in packets of their own
        return False
    pts = table.pts
    if not _usable(pts) or not any(table.shown):
        return False
    if True not in table.key:
        return False
    first_key = table.key.index(True)
    early = [number for number in range(len(pts)) if table.shown[number]]
    return all(n >= first_key and _int(pts[n]) >= _int(pts[first_key]) for n in early)


def _from_packets(
    table: _Table, container: InputContainer, stream: VideoStream, codec: str
) -> VideoInfo:
    pts = np.array(table.pts, np.int64)
    shown = np.flatnonzero(np.array(table.shown, bool))
    frame_packet = shown[np.argsort(pts[shown], kind="stable")]
    times = pts[frame_packet]
    keys = np.flatnonzero(np.array(table.key, bool))
    return _info(
        table, container, stream, codec,
        times=times - times[0],
        start=int(times[0]),
        frame_packet=frame_packet,
        key_packet=keys,
        key_frame=np.searchsorted(times, pts[keys]),
        synthetic=False,
    )  # fmt: skip


def _from_output(
    table: _Table, container: InputContainer, stream: VideoStream, codec: str
) -> VideoInfo:
    if not table.out or table.first is None:
        raise MediaError(f"no frame of its {codec} stream can be decoded", stage="probe")
    order = list(dict.fromkeys(table.out))
    frame_packet = np.array(order, np.int64)
    times = _output_times(table, order, stream)
    place = {packet: i for i, packet in enumerate(order)}
    keys = [n for n, key in enumerate(table.key) if key and n in place]
    return _info(
        table, container, stream, codec,
        times=times - times[0],
        start=int(times[0]),
        frame_packet=frame_packet,
        key_packet=np.array(keys, np.int64),
        key_frame=np.array([place[n] for n in keys], np.int64),
        synthetic=True,
    )  # fmt: skip


def _output_times(table: _Table, order: list[int], stream: VideoStream) -> NDArray[np.int64]:
    for column in (table.pts, table.dts):
        times = [column[packet] for packet in order]
        if _usable(times):
            return np.array(sorted(_int(time) for time in times), np.int64)
    rate = stream.average_rate or stream.base_rate or Fraction(25)
    base = Fraction(stream.time_base or Fraction(1, 1000))
    step = max(1, round(1 / (rate * base))) if rate > 0 else 1
    return np.arange(len(order), dtype=np.int64) * step


def _info(
    table: _Table, container: InputContainer, stream: VideoStream, codec: str, *,
    times: NDArray[np.int64], start: int, frame_packet: NDArray[np.int64],
    key_packet: NDArray[np.int64], key_frame: NDArray[np.int64], synthetic: bool,
) -> VideoInfo:  # fmt: skip
    frame = table.first
    if frame is None:
        raise MediaError("no frame can be decoded", stage="probe")
    depth, _, _ = clip.describe(frame.format.name)
    matrix, full_range = clip.color(frame)
    turn = clip.orientation(frame)
    height, width = turn.shown(frame.height, frame.width)
    base = Fraction(stream.time_base or Fraction(1, 1000))
    rate = constant_rate(times, base, _hints(stream))
    last = table.duration[int(frame_packet[-1])]
    if last <= 0 and len(times) > 1:
        last = int(np.median(np.diff(times)))
    return VideoInfo(
        codec=codec, container=container.format.name,
        width=width, height=height, stored_width=frame.width, stored_height=frame.height,
        orientation=turn, pix_fmt=frame.format.name, depth=depth, matrix=matrix,
        full_range=full_range, time_base=(base.numerator, base.denominator),
        start_pts=start, pts=times, last_duration=last,
        rate=None if rate is None else (rate.numerator, rate.denominator),
        num_packets=len(table.pts), frame_packet=frame_packet, key_packet=key_packet,
        key_frame=key_frame, synthetic_pts=synthetic,
    )  # fmt: skip


def _hints(stream: VideoStream) -> list[Fraction]:
    rates = (stream.average_rate, stream.base_rate, stream.guessed_rate)
    return [Fraction(rate) for rate in rates if rate]


def constant_rate(
    times: NDArray[np.int64], base: Fraction, hints: Iterable[Fraction]
) -> Fraction | None:
    """Frames a second, if every frame lies on a constant grid; else None.

    The grid's rate is the header's if the pts agree with it, else the mean of the pts. A frame is
    on the grid if it is off by at most one tick, and by at most a quarter of a frame. One frame
    has the header's rate.
    """
    count = len(times)
    if count < 2:
        return next(iter(hints), None)
    span = int(times[-1])
    for rate in (*hints, Fraction(count - 1) / (span * base)):
        step = 1 / (rate * base)  # ticks a frame
        if max(step.numerator * count, step.denominator * span) >= _FAR:
            continue
        off = np.abs(times * step.denominator - np.arange(count) * step.numerator)
        if int(off.max()) * 4 <= min(4 * step.denominator, step.numerator):
            return rate
    return None


def _usable(times: list[int | None]) -> bool:
    """Whether times are all there, distinct, and no further apart than whole numbers allow."""
    known = {time for time in times if time is not None}
    return 0 < len(known) == len(times) and max(known) - min(known) < _FAR


def _int(value: int | None) -> int:
    return 0 if value is None else value
