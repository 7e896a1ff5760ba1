"""Runs of packets as small clips of their own, for libraries that take a clip and frame numbers.

Such libraries (decord, DALI) have frame lists and seeks of their own, which are wrong in open GOPs,
under edit lists, where timestamps lie, and in the second video stream. So they are given neither:
the packets that the wanted frames need are muxed anew, from a keyframe on, into a clip of one
stream, whose timestamps count 0, 1, 2, … in presentation order, without edit list or rotation.
Frame n of it is the n-th to come out, and the library decodes all of it or the run has failed.

A clip is cut at its *closed* keyframes only: those before and after which packets and frames are
the same ones. So a run needs nothing from outside and gives as many frames as it has packets that
show one. Where a keyframe is not what it says (a recovery point whose picture builds up slowly)
frames are missing, and the caller takes the run that starts at the first packet.

Cost: one pass of the demuxer, and the run's encoded bytes three times in memory. The frames wanted
of a run are held as RGB until all of it is decoded, at most `MAX_HELD_BYTES` of them in one go:
more take another decode from the run's start.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar, cast

import av
import numpy as np
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.video.stream import VideoStream
from numpy.typing import NDArray

from ..errors import MediaError
from ..media.info import VideoInfo
from ..media.limits import MAX_HELD_BYTES, MAX_PACKETS, MAX_PIXELS
from ..media.probe_video import is_shown
from . import pyav_stream as clip
from .base import Bytes
from .frame_size import written_sizes

P = TypeVar("P")
F = TypeVar("F")

INTRA_CODECS = frozenset(("mjpeg",))
"""Every packet is a picture of its own: a run is just the packets wanted."""

RATE = 25
"""Frames a second of the small clips; means nothing."""

_NOT_THE_CLIPS = (
    "out of memory",
    "allocate memory",
    "allocation failed",
    "bad_alloc",
    "libnvcuvid",
)
"""In what a library says when this machine is at fault, in lower case."""


class RunFailedError(Exception):
    """A library did not give all of a run, or gave an error; says why in one line."""


@dataclass(frozen=True, slots=True)
class Run:
    """A small clip.

    Attributes:
        data: its bytes: MP4, or Matroska for VP8.
        num_frames: frames that it must give, all of them.
        frames: (place in it, frame of the whole clip), by place: those that are wanted.
    """

    data: bytes
    num_frames: int
    frames: tuple[tuple[int, int], ...]


def decode_runs(
    name: str,
    read: Callable[[Run], Sequence[P]],
    data: Bytes,
    info: VideoInfo,
    frames: Sequence[int],
    frame_of: Callable[[P, int, VideoInfo], F],
) -> Iterator[F]:
    """Frames of a clip by a library that gives RGB.

    Args:
        name: the library's, for messages.
        read: the wanted pictures of a run, in its order, [H, W, 3]; raises RunFailedError.
        data: the clip's bytes.
        info: its probe.
        frames: indices of shown frames, any order, repeats allowed.
        frame_of: a picture and its index as a frame, as `base.rgb_frame`; raises MediaError.

    Yields each frame once, in rising order within a run. Raises MediaError.
    """
    wanted = sorted(set(frames))
    try:
        if not wanted:
            return
        if not 0 <= wanted[0] <= wanted[-1] < info.num_frames:
            bad = wanted[0] if wanted[0] < 0 else wanted[-1]
            raise refused(f"frame {bad} was asked of a clip of {info.num_frames} frames")
        at_once = max(1, MAX_HELD_BYTES // (3 * info.stored_width * info.stored_height))
        with contextlib.closing(Cutter(data, info)) as cutter:
            for group in cutter.groups(wanted):
                for first in range(0, len(group), at_once):
                    some = group[first : first + at_once]
                    yield from _decode(read, cutter, info, some, frame_of)
    except MediaError as error:
        raise refused(f"{name} doesn't decode this clip: {error.reason}") from error


def _decode(
    read: Callable[[Run], Sequence[P]],
    cutter: Cutter,
    info: VideoInfo,
    frames: Sequence[int],
    frame_of: Callable[[P, int, VideoInfo], F],
) -> Iterator[F]:
    reason = ""
    for run in cutter.runs(frames):
        try:
            pictures = read(run)
        except RunFailedError as error:
            reason = str(error)
            continue
        for (_, index), picture in zip(run.frames, pictures, strict=True):
            yield frame_of(picture, index, info)
        return
    raise refused(reason)


class Cutter:
    """A clip's packets, to be cut into runs. It holds the clip open: close it.

    Args:
        data: the clip's bytes.
        info: its probe.

    Raises:
        MediaError: the packets are not those of the index, or can't be told from their frames.
    """

    def __init__(self, data: Bytes, info: VideoInfo) -> None:
        self._info = info
        self._container, self._stream = clip.open_clip(data)
        try:
            found = _all_packets(self._container, self._stream)
            order = _output_order(found, info)
        except MediaError:
            self.close()
            raise
        self._packets = [bytes(packet) for packet in found]
        size = (info.stored_width, info.stored_height)
        if any(other != size for p in self._packets for other in written_sizes(info.codec, p)):
            self.close()
            raise refused("its frames change size")
        self._place = np.full(len(found), -1, np.int64)  # in output order; -1: shows nothing
        self._place[order] = np.arange(len(order))
        self._starts = _closed(self._place, info.key_packet)

    def close(self) -> None:
        self._container.close()

    def groups(self, frames: Sequence[int]) -> list[list[int]]:
        """Wanted frames (sorted, distinct) by the run that they are in."""
        if self._info.codec in INTRA_CODECS:
            return [list(frames)]
        found: dict[int, list[int]] = {}
        for frame in frames:
            found.setdefault(self._start(frame), []).append(frame)
        return list(found.values())

    def runs(self, frames: Sequence[int]) -> Iterator[Run]:
        """The run of a group of frames; then, if there is another, the one from packet 0.

        Raises:
            MediaError: it takes too much work, or the packets can't be muxed.
        """
        wanted = self._info.frame_packet[list(frames)]
        if self._info.codec in INTRA_CODECS:
            yield self._run(np.sort(wanted), frames)
            return
        for first in dict.fromkeys((self._start(frames[0]), 0)):
            yield self._run(np.arange(first, wanted.max() + 1), frames)

    def _start(self, frame: int) -> int:
        packet = self._info.frame_packet[frame]
        return int(self._starts[np.searchsorted(self._starts, packet, side="right") - 1])

    def _run(self, packets: NDArray[np.int64], frames: Sequence[int]) -> Run:
        pixels = len(packets) * self._info.stored_width * self._info.stored_height
        if len(packets) > MAX_PACKETS or pixels > MAX_PIXELS:
            raise refused(f"it takes {len(packets)} packets: above the limits on packets or pixels")
        place = self._place[packets]
        shown = np.sort(place[place >= 0])
        at = np.searchsorted(shown, self._place[self._info.frame_packet[list(frames)]])
        return Run(
            data=self._mux(packets, place),
            num_frames=len(shown),
            frames=tuple(zip(at.tolist(), frames, strict=True)),
        )

    def _mux(self, packets: NDArray[np.int64], place: NDArray[np.int64]) -> bytes:
        """These packets as a clip; those that show nothing get the latest times."""
        rank = np.argsort(np.argsort(np.where(place < 0, 1 << 60, place), kind="stable"))
        delay = int((np.arange(len(rank)) - rank).max())
        target = io.BytesIO()
        try:
            with _writer(target, self._info, self._stream) as (out, track):
                for at, number in enumerate(packets):
                    packet = Packet(self._packets[number])
                    packet.stream = track
                    packet.time_base = Fraction(1, RATE)
                    packet.dts = at
                    packet.pts = int(rank[at]) + delay
                    packet.duration = 1
                    packet.is_keyframe = at == 0
                    out.mux_one(packet)
        except clip.PYAV_ERRORS as error:
            raise refused(f"its packets can't be cut out ({clip.why(error)})") from error
        return target.getvalue()


def _all_packets(container: InputContainer, stream: VideoStream) -> list[Packet[VideoStream]]:
    found = []
    try:
        for packet in clip.packets(container, stream):
            if packet.has_sidedata("new_extradata") or packet.has_sidedata("palette"):
                raise refused("its codec's parameters change on the way")
            found.append(packet)
    except clip.PYAV_ERRORS as error:
        raise refused(f"its packets can't be read ({clip.why(error)})") from error
    return found


@contextlib.contextmanager
def _writer(
    target: io.BytesIO, info: VideoInfo, stream: VideoStream
) -> Iterator[tuple[OutputContainer, VideoStream]]:
    """MP4 tells its number of frames, which decord wants; VP8 is not allowed in it."""
    if info.codec == "vp8":
        with av.open(target, "w", format="matroska") as out:
            size = {"width": info.stored_width, "height": info.stored_height}
            yield out, cast(VideoStream, out.add_mux_stream("vp8", rate=RATE, **size))
        return
    with av.open(target, "w", format="mp4") as out:
        track = out.add_stream_from_template(stream)
        track.set_display_rotation(0)
        yield out, track


def _output_order(packets: Sequence[Packet[VideoStream]], info: VideoInfo) -> NDArray[np.int64]:
    """The packets whose frames come out of a decoder, in that order; edit lists cut nothing."""
    if len(packets) != info.num_packets:
        raise refused(f"it has {len(packets)} packets, the index says {info.num_packets}")
    if info.synthetic_pts:
        if info.num_frames != info.num_packets:
            raise refused("its packets carry no reliable pts, and some show no frame")
        return info.frame_packet
    times = [packet.pts for packet in packets]
    shown = [n for n, packet in enumerate(packets) if is_shown(info.codec, memoryview(packet))]
    if any(times[number] is None for number in shown):
        raise refused("its packets lack pts, the index has them all")
    order = np.array(sorted(shown, key=lambda number: times[number] or 0), np.int64)
    kept = [n for n in order.tolist() if not packets[n].is_discard]
    if not np.array_equal(kept, info.frame_packet) or any(
        times[number] != info.start_pts + at for number, at in zip(kept, info.pts, strict=True)
    ):
        raise refused("its packets are not those of the index")
    return order


def _closed(place: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Packets at which a clip may be cut: 0, and the keyframes that are closed."""
    count = len(place)
    latest = np.maximum.accumulate(np.append(-1, place))  # of packets before each
    hidden = np.where(place < 0, count, place)
    earliest = np.minimum.accumulate(hidden[::-1])[::-1]  # of each and those after it
    keys = keys[(place[keys] == earliest[keys]) & (latest[keys] < earliest[keys])]
    return np.union1d(keys, [0])


def refused(reason: str) -> MediaError:
    """The error of a run that can't be made or didn't come whole."""
    return MediaError(reason, stage="decode")


def is_the_machines(error: Exception) -> bool:
    """Whether a library failed for want of memory or of a part of the driver.

    That must not become damage: it says nothing of the clip, and nothing falls back here.
    """
    return any(words in str(error).lower() for words in _NOT_THE_CLIPS)
