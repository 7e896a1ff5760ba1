"""torchcodec's raw frames: on the CPU the same planes as the reference decoder, or a refusal.

`raw_frames` is what `nvdec` uses too, on a GPU.

Which packets are decoded is `plan_runs`'s choice, as in the reference: packets are taken from a
``Demuxer`` that reads the whole clip once, and those of the runs are sent to a one-thread decoder,
which is drained and reset after each run. Packets that nothing refers to can't be left out here.
The first frame out of a run has to be that of its keyframe: where it isn't, the run started at a
recovery point whose picture builds up slowly (FFmpeg 5 calls it whole a frame too soon), and what
is missing is decoded from the first packet.

A frame's pts comes as seconds in floating point; it is turned back into ticks, which must give the
same number again, and those must be in our index.

torchcodec tells neither corrupt nor concealed frames (no ``err_detect``, no error flags), so only
clips that ``index --verify`` marked clean are taken. Refused too: codecs whose planes are not
defined bit by bit, clips without reliable pts (AVI, raw streams), clips whose frames change size or
format, crops that torchcodec rounds to FFmpeg's alignment (on the left; the size tells), and
streams in which the system's FFmpeg finds other packets than PyAV's. A refusal is a MediaError,
before the first frame wherever it can be.

Encoded bytes of the runs are held in memory a second time while a clip is decoded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torchcodec
from numpy.typing import NDArray
from torchcodec.decoders import Demuxer

from ..errors import MediaError
from ..media.info import VideoInfo
from ..media.limits import MAX_PACKETS, MAX_PIXELS
from ..media.probe_video import EXACT_CODECS
from . import pyav_stream as clip
from .base import Bytes, DecodedFrame, DecodedFrames
from .pyav import plan_runs


class TorchcodecDecoder:
    """Decodes with torchcodec on the CPU; holds no state, so one object serves all threads."""

    name = "torchcodec"
    fingerprint = (
        f"torchcodec {torchcodec.__version__}, FFmpeg {torchcodec.ffmpeg_major_version}, "
        "film grain on"
    )

    def refusal(self, info: VideoInfo) -> str | None:
        """See `Decoder.refusal`."""
        return refusal(info)

    def stream(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> Iterator[DecodedFrame]:
        """See `Decoder.stream`."""
        for index, raw in raw_frames(data, info, frames):
            yield _describe(raw, index, info)

    def decode(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> DecodedFrames:
        """See `Decoder.decode`."""
        found = {frame.index: frame for frame in self.stream(data, info, frames)}
        return DecodedFrames(tuple(found[index] for index in frames))


def refusal(info: VideoInfo) -> str | None:
    """Why torchcodec is not asked for this clip, on any device; None: it is."""
    if info.problem is not None:
        return info.problem
    if info.codec not in EXACT_CODECS:
        return f"{info.codec} is not defined bit by bit: only the reference decodes it"
    if info.synthetic_pts:
        return "its packets carry no reliable pts"
    if info.clean is not True:
        return (
            "it is damaged, or not verified (`index --verify`), and this library would conceal "
            "damage"
        )
    return None


def raw_frames(
    data: Bytes, info: VideoInfo, frames: Sequence[int], device: str = "cpu"
) -> Iterator[tuple[int, Any]]:
    """Raw frames by their index, each once, in the order they leave the decoder.

    Args:
        data: the clip's bytes.
        info: its probe.
        frames: indices of shown frames, any order, repeats allowed.
        device: ``cpu``, or a GPU whose NVDEC decodes; frames are then made on its current stream.

    Raises:
        MediaError: a refusal, an index outside the clip, whatever torchcodec raises.
    """
    reason = refusal(info)
    if reason is not None:
        raise _refused(reason)
    wanted = sorted(set(frames))
    if wanted and not 0 <= wanted[0] <= wanted[-1] < info.num_frames:
        bad = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise _refused(f"frame {bad} was asked of a clip of {info.num_frames} frames")
    source = bytes(data)
    left = set(wanted)
    try:
        stream = _stream_of(source)
        for back_off in (0, 1 << 40):
            if left:
                yield from _attempt(source, info, stream, left, back_off, device)
    except (RuntimeError, ValueError) as error:
        if "out of memory" in str(error):
            raise  # the device's, not the clip's
        line = str(error).strip().splitlines() or [type(error).__name__]
        raise _refused(line[0]) from error
    if left:
        raise _refused(f"{len(left)} frames never came out, the first is {min(left)}")


def _refused(reason: str) -> MediaError:
    return MediaError(f"torchcodec doesn't decode this clip: {reason}", stage="decode")


def _attempt(
    data: bytes, info: VideoInfo, stream: int, left: set[int], back_off: int, device: str
) -> Iterator[tuple[int, Any]]:
    """Yield wanted frames and take them out of ``left``."""
    runs = plan_runs(info, sorted(left), back_off)
    count = sum(run.last - run.first + 1 for run in runs)
    if count > MAX_PACKETS or count * info.stored_width * info.stored_height > MAX_PIXELS:
        raise _refused(f"it takes {count} packets, above the limits on packets or pixels")
    demuxer = Demuxer(data, streams=stream)
    needed = np.zeros(info.num_packets, bool)
    for run in runs:
        needed[run.first : run.last + 1] = True
    packets: dict[int, Any] = {}
    number = -1
    for number, packet in enumerate(demuxer):
        if number < info.num_packets and needed[number]:
            packets[number] = packet
    if number + 1 != info.num_packets:
        raise _refused(f"it finds {number + 1} packets, the index says {info.num_packets}")
    times = info.pts + info.start_pts
    decoder = demuxer.streams[0].make_decoder(device=device, num_ffmpeg_threads=1)
    for run in runs:
        first = True
        for at in range(run.first, run.last + 2):
            out = decoder.decode(packets.pop(at)) if at <= run.last else decoder.drain()
            for raw in out:
                index = _index_of(raw.pts_seconds, times, info, run.shown_from)
                if index < 0:
                    continue
                if first and index != run.shown_from:
                    return  # a slow recovery point
                first = False
                if index in left:
                    left.discard(index)
                    yield index, raw
            del out
        decoder.reset()


def _stream_of(data: bytes) -> int:
    """The stream's number, by this project's rule (torchcodec would take FFmpeg's best one)."""
    container, stream = clip.open_clip(data)
    with contextlib.closing(container):
        return stream.index


def _index_of(seconds: float, times: NDArray[np.int64], info: VideoInfo, shown_from: int) -> int:
    """The frame shown at that time; −1 for a leader before the run's first shown frame."""
    numerator, denominator = info.time_base
    ticks = round(seconds * denominator / numerator)
    index = int(np.searchsorted(times, ticks))
    known = index < len(times) and int(times[index]) == ticks
    if known and ticks * numerator / denominator == seconds:
        return index if index >= shown_from else -1
    if ticks < int(times[shown_from]):
        return -1
    raise _refused(f"a frame is shown at {seconds} s, and the index has none then")


def _describe(raw: Any, index: int, info: VideoInfo) -> DecodedFrame:
    name = raw.pixel_format
    depth, subsampling, kind = clip.describe(name)
    size = (raw.width, raw.height)
    if size != (info.stored_width, info.stored_height):
        raise _refused(f"frame {index} is {size[0]}x{size[1]}: its frames change size")
    if (depth, subsampling, kind) != clip.describe(info.pix_fmt):
        raise _refused(f"frame {index} is {name}, the index says {info.pix_fmt}")
    planes = tuple(plane.numpy() for plane in raw.planes[:3])
    if kind == "rgb":
        planes = (planes[1], planes[2], planes[0])
    return DecodedFrame(
        index=index,
        pts=int(info.pts[index]),
        planes=planes,
        depth=depth,
        subsampling=subsampling,
        matrix=info.matrix,
        full_range=info.full_range,
        orientation=info.orientation,
    )
