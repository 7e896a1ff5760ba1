"""The reference video decoder: PyAV, one thread, only the packets that are needed (design §6).

For the wanted frames: each run starts at the last keyframe packet that is not shown after the
frame (a keyframe need not be an IDR: this is what makes open GOPs right), runs that touch merge,
packets of frames that are not wanted are sent with ``skip_frame="NONREF"``, so the codec drops
those that nothing refers to (of VP9 they are found here, see `vp9`), and each run is drained and
flushed. Frames are told apart by their packet's number, and every pts is checked against the index.
The whole file lies in memory, so packets are read from the first on and those outside the runs are
let go: no seek can miss.

If an attempt fails, the frames still missing are tried with every run one keyframe earlier and
nothing dropped, then from the first packet; if that fails too the clip is damaged: MediaError.
An attempt fails on any error of the demuxer or the codec (``err_detect=explode``), on any frame
that FFmpeg marks corrupt or concealed (``AVFrame.decode_error_flags``, ``AV_FRAME_FLAG_CORRUPT``),
also of frames that were not asked for but may be referred to, on a pts that is not the index's,
and on a frame that doesn't come. (``ec=0``, no concealment, is no use: it marks clean frames after
a change of size as corrupt. Log lines are process-global and not looked at.) Which attempts are
made depends on the bytes and the wanted frames only, so the verdict is the same every time.

Limits count work, never seconds: packets and decoded pixels.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import av
import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from ..errors import MediaError
from ..media.info import VideoInfo
from ..media.limits import MAX_PACKETS, MAX_PIXELS
from . import pyav_stream as clip
from .base import Bytes, DecodedFrame, DecodedFrames
from .vp9 import Vp9Frame, needed_packets, vp9_frames


class _Failed(Exception):
    """An attempt did not work; the next one may."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Packets ``first … last`` are sent; frames before ``shown_from`` may be broken leaders."""

    first: int
    last: int
    shown_from: int


def plan_runs(info: VideoInfo, wanted: Sequence[int], back_off: int = 0) -> list[_Run]:
    """Runs of packets that give the wanted frames (sorted, distinct), in packet order.

    ``back_off``: start so many keyframes earlier than is needed; beyond the first, at packet 0.
    """
    runs: list[_Run] = []
    packets = info.frame_packet[list(wanted)]
    places = np.searchsorted(info.key_packet, packets, side="right") - 1
    for frame, packet, at in zip(wanted, packets.tolist(), places.tolist(), strict=True):
        while at >= 0 and info.key_frame[at] > frame:
            at -= 1
        at -= back_off
        start = int(info.key_packet[at]) if at >= 0 else 0
        shown_from = int(info.key_frame[at]) if at >= 0 else 0
        runs.append(_Run(start, packet, shown_from))
    runs.sort(key=lambda run: (run.first, run.last))
    merged: list[_Run] = []
    for run in runs:
        if merged and run.first <= merged[-1].last + 1:
            last = merged.pop()
            run = _Run(last.first, max(last.last, run.last), min(last.shown_from, run.shown_from))
        merged.append(run)
    return merged


class PyAVDecoder:
    """Decodes with PyAV; holds no state, so one object serves all threads."""

    name = "pyav"
    fingerprint = f"pyav {av.__version__}, " + ", ".join(
        f"{name} {'.'.join(map(str, version))}"
        for name, version in sorted(av.library_versions.items())
        if name in ("libavcodec", "libavformat")
    )

    def refusal(self, info: VideoInfo) -> str | None:
        """See `Decoder.refusal`."""
        return info.problem

    def stream(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> Iterator[DecodedFrame]:
        """See `Decoder.stream`."""
        if info.problem is not None:
            raise _damaged(info.problem)
        missing = sorted(set(frames))
        if missing and not 0 <= missing[0] <= missing[-1] < info.num_frames:
            bad = missing[0] if missing[0] < 0 else missing[-1]
            raise _damaged(f"frame {bad} was asked of a clip of {info.num_frames} frames")
        reason = ""
        for back_off in (0, 1, 1 << 40):
            if not missing:
                return
            left = set(missing)
            try:
                yield from _attempt(data, info, missing, left, back_off)
            except _Failed as failure:
                reason = str(failure)
            missing = sorted(left)
        if missing:
            reason = reason or f"{len(missing)} frames never came out, the first is {missing[0]}"
            raise _damaged(reason)

    def decode(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> DecodedFrames:
        """See `Decoder.decode`."""
        found = {frame.index: frame for frame in self.stream(data, info, frames)}
        return DecodedFrames(tuple(found[index] for index in frames))


def _damaged(reason: str) -> MediaError:
    return MediaError(f"video can't be decoded as indexed: {reason}", stage="decode")


def _attempt(
    data: Bytes, info: VideoInfo, wanted: Sequence[int], left: set[int], back_off: int
) -> Iterator[DecodedFrame]:
    """Yield wanted frames and take them out of ``left``. Raises _Failed."""
    runs = plan_runs(info, wanted, back_off)
    _limit(sum(run.last - run.first + 1 for run in runs), info.stored_width * info.stored_height)
    frames = np.full(info.num_packets, -1, np.int64)  # by packet; -1: shows none
    frames[info.frame_packet] = np.arange(info.num_frames)
    frame_of = frames.data  # a memoryview, which gives plain ints
    try:
        container, stream = clip.open_clip(data)
    except MediaError as error:
        raise _Failed(error.reason) from error
    with contextlib.closing(container):
        base = stream.time_base
        if base is not None and (base.numerator, base.denominator) != info.time_base:
            raise _Failed(f"its time base is {base}, the index says {info.time_base}")
        context = stream.codec_context
        sent = largest = 0
        all_kept = True
        found = clip.packets(container, stream)
        asked = None if back_off else lambda number: frame_of[number] in left
        try:
            for run, number, packet, keep in _to_send(found, runs, asked, info.codec):
                if keep != all_kept:
                    context.skip_frame, all_kept = "DEFAULT" if keep else "NONREF", keep
                last = number == run.last
                out = clip.decode(context, packet)
                sent, largest = sent + 1, max(largest, context.width * context.height)
                _limit(sent, largest)
                if last:
                    context.skip_frame, all_kept = "DEFAULT", True
                    out += clip.decode(context, None)
                for frame in out:
                    source = clip.number_of(frame)
                    index = -1 if source is None else frame_of[source]
                    if index < run.shown_from:
                        continue
                    _check(frame, index, info)
                    if index in left:
                        decoded = _describe(frame, index, info)
                        left.discard(index)
                        yield decoded
                del out
                if last:
                    if run is runs[-1]:
                        return
                    context.flush_buffers()
        except clip.PYAV_ERRORS as error:
            raise _Failed(clip.why(error)) from error
    raise _Failed(f"the clip ended before packet {runs[-1].last} of its index")


def _to_send(
    packets: Iterable[Packet[VideoStream]],
    runs: Sequence[_Run],
    asked: Callable[[int], bool] | None,
    codec: str,
) -> Iterator[tuple[_Run, int, Packet[VideoStream], bool]]:
    """The packets to send: run, number, packet, and whether the codec must keep its frame.

    Args:
        packets: of the clip, from the first on.
        runs: see `plan_runs`.
        asked: whether the packet of this number shows a wanted frame; None: all are kept.
        codec: a run of VP9 is held until its end, and packets that nothing needs are left out.
    """
    left = iter(runs)
    run = next(left)
    held: list[tuple[int, Packet[VideoStream], bool]] = []
    for number, packet in enumerate(packets):
        if number < run.first:
            continue
        held.append((number, packet, asked is None or asked(number)))
        if number < run.last and asked is not None and codec == "vp9":
            continue
        for each in _without_needless(held) if len(held) > 1 else held:
            yield run, *each
        held.clear()
        if number == run.last:
            following = next(left, None)
            if following is None:
                return
            run = following


def _without_needless(
    held: Sequence[tuple[int, Packet[VideoStream], bool]],
) -> Iterator[tuple[int, Packet[VideoStream], bool]]:
    headers: list[list[Vp9Frame]] = []
    for _, packet, _ in held:
        try:
            headers.append(vp9_frames(memoryview(packet)))
        except IndexError:  # the decoder will tell
            headers.append([])
    return itertools.compress(held, needed_packets(headers, [wanted for *_, wanted in held]))


def _limit(packets: int, pixels: int) -> None:
    if packets > MAX_PACKETS or packets * pixels > MAX_PIXELS:
        raise _damaged(
            f"it takes {packets} packets of {pixels} pixels to get these frames; the limits are "
            f"{MAX_PACKETS} packets and {MAX_PIXELS} pixels in all"
        )


def _check(frame: VideoFrame, index: int, info: VideoInfo) -> None:
    if frame.is_corrupt:
        raise _Failed(f"frame {index} is corrupt or concealed")
    expected = info.start_pts + int(info.pts[index])
    if not info.synthetic_pts and frame.pts != expected:
        raise _Failed(f"frame {index} has pts {frame.pts}, the index says {expected}")


def _describe(frame: VideoFrame, index: int, info: VideoInfo) -> DecodedFrame:
    depth, subsampling, kind = clip.describe(frame.format.name)
    matrix, full_range = info.matrix, info.full_range
    if kind == "rgb" or info.matrix == "rgb":
        matrix, full_range = clip.color(frame)
    return DecodedFrame(
        index=index,
        pts=int(info.pts[index]),
        planes=clip.frame_planes(frame),
        depth=depth,
        subsampling=subsampling,
        matrix=matrix,
        full_range=full_range,
        orientation=info.orientation,
    )
