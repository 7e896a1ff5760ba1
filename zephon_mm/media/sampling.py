"""Which frames of a clip are shown to the model.

Frames are those that exist, in presentation order; times count from the first shown frame. A
window ``[start, end]`` keeps the frames whose times lie in it, both ends included. Of the N frames
left:

- ``all``: every one, at most ``max_frames`` (then as ``uniform``);
- ``uniform``: n = min(num_frames, N);
- ``fps``: n = int(N / rate · fps), at least ``min_frames``, at most ``max_frames`` and N: the
  installed Qwen3-VL processor's arithmetic;
- ``random``: n = min(num_frames, N) equal segments of the index range, one frame drawn in each;
  draw i is word i of the stream, so it depends on nothing else.

At a constant rate ``uniform`` and ``fps`` take ``linspace(0, N − 1, n)`` rounded half to even,
as Qwen3-VL does. At a variable rate they take n times evenly spread from the first to the last
frame's, and for each the frame nearest in time (the earlier of two); a frame is taken once, so
fewer than n may come out. There N / rate is the time that the frames are shown.

Models that want a multiple of frames repeat the last one when patches are made, not here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from .. import rng
from ..config import VideoSampling
from ..errors import MediaError
from .info import VideoInfo


def sample_frames(
    info: VideoInfo,
    sampling: VideoSampling,
    *,
    start_seconds: float | None = None,
    end_seconds: float | None = None,
    stream_key: int = 0,
) -> tuple[int, ...]:
    """Indices of the chosen frames: rising, distinct, at least one.

    Args:
        info: the clip's probe.
        sampling: the rule.
        start_seconds: first second of the window, from the first shown frame; None: open.
        end_seconds: last second of it; None: open.
        stream_key: key of the random stream (`zephon_mm.rng.key`), for ``random``.

    Raises:
        MediaError: the clip can't be used (quarantined), or no frame lies in the window (dropped).
    """
    if info.problem is not None or not info.num_frames:
        raise MediaError(info.problem or "the clip has no frames", stage="probe")
    first, last = _window(info, start_seconds, end_seconds)
    count = last - first + 1
    number = _number(info, sampling, first, last)
    if sampling.mode == "random":
        chosen = _segments(count, number, stream_key)
    elif info.rate is not None or number == count:
        chosen = np.linspace(0, count - 1, number).round().astype(np.int64)
    else:
        chosen = _nearest(info.pts[first : last + 1], number)
    return tuple(int(index) for index in np.unique(chosen) + first)


def sampled_fps(info: VideoInfo, frames: Sequence[int]) -> float:
    """Frames a second that the chosen frames make: their number over the time shown.

    That is from the start of the first chosen frame to the end of the last; over a whole clip of
    constant rate it is transformers' ``VideoMetadata.sampled_fps``. 1 a second if no time is known.
    """
    seconds = _shown_seconds(info, frames[0], frames[-1])
    return len(frames) / float(seconds) if seconds > 0 else 1.0


def _window(info: VideoInfo, start: float | None, end: float | None) -> tuple[int, int]:
    low = _ticks(info, start, 0, up=True)
    high = _ticks(info, end, int(info.pts[-1]), up=False)
    first = int(np.searchsorted(info.pts, low, side="left"))
    last = int(np.searchsorted(info.pts, high, side="right")) - 1
    if last < first:
        raise MediaError(
            f"no frame lies in the window [{start}, {end}] s of a clip of "
            f"{float(info.duration):.3f} s; check the sample's start and end",
            stage="layout",
            kind="dropped",
        )
    return first, last


def _ticks(info: VideoInfo, seconds: float | None, default: int, *, up: bool) -> int:
    """A time in ticks, to the next tick inside the window; binary fractions get a nanosecond."""
    if seconds is None or math.isinf(seconds):
        return default if seconds is None or (seconds > 0) != up else (1 << 62) * (1 if up else -1)
    if math.isnan(seconds):
        raise MediaError("the window's start or end is not a number", stage="layout")
    slack = Fraction(-1 if up else 1, 10**9)
    ticks = (Fraction(seconds) + slack) / Fraction(*info.time_base)
    bounded = max(Fraction(-(1 << 62)), min(Fraction(1 << 62), ticks))
    return math.ceil(bounded) if up else math.floor(bounded)


def _number(info: VideoInfo, sampling: VideoSampling, first: int, last: int) -> int:
    count = last - first + 1
    if sampling.mode == "all":
        return min(count, sampling.max_frames)
    if sampling.mode in ("uniform", "random"):
        return min(count, sampling.num_frames)
    if info.rate is not None:  # in floating point, in transformers' order
        wanted = int(count / (info.rate[0] / info.rate[1]) * sampling.fps)
    else:
        wanted = int(float(_shown_seconds(info, first, last)) * sampling.fps)
    return max(1, min(max(wanted, sampling.min_frames), sampling.max_frames, count))


def _shown_seconds(info: VideoInfo, first: int, last: int) -> Fraction:
    """How long frames first … last are on the screen."""
    if info.rate is not None:
        return Fraction((last - first + 1) * info.rate[1], info.rate[0])
    if last + 1 < info.num_frames:
        end = int(info.pts[last + 1])
    else:
        end = int(info.pts[-1]) + info.last_duration
    return (end - int(info.pts[first])) * Fraction(*info.time_base)


def _segments(count: int, number: int, stream_key: int) -> NDArray[np.int64]:
    edges = [i * count // number for i in range(number + 1)]
    draws = rng.words(stream_key, 0, number)
    return np.array(
        [
            low + (int(word) * (high - low) >> 64)
            for low, high, word in zip(edges, edges[1:], draws, strict=False)
        ],
        np.int64,
    )


def _nearest(pts: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """For ``number`` times evenly from first to last: the nearest frame, the earlier of two."""
    if number == 1:
        return np.zeros(1, np.int64)
    start, span = int(pts[0]), int(pts[-1]) - int(pts[0])
    chosen = []
    for i in range(number):  # compared in units of a tick / (number - 1): whole numbers
        target = i * span
        after = int(np.searchsorted(pts, start + -(-target // (number - 1)), side="left"))
        before = max(0, after - 1)
        to_after = abs((int(pts[after]) - start) * (number - 1) - target)
        to_before = abs(target - (int(pts[before]) - start) * (number - 1))
        chosen.append(after if to_after < to_before else before)
    return np.array(chosen, np.int64)
