"""An animated picture as a clip: when its frames are shown, read from its own blocks.

Nothing is decoded, and no library is needed. Formats are GIF, WebP, APNG and AVIF sequences. Frames
are those whose header is there, so of a file that is cut the last may lack its pixels. A frame of
10 ms or less is shown 100 ms, as browsers do, which is what files mean by it; so is one of a GIF
that says nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from .info import ImageInfo, VideoInfo
from .limits import MAX_FRAME_PIXELS, MAX_PACKETS, MAX_PIXELS
from .mp4_claims import boxes_inside, word

_SHORTEST = Fraction(1, 100)
_USUAL = Fraction(1, 10)
_LONGEST = Fraction(10**6)
_MOST_TICKS = 10**6

Runs = tuple[tuple[int, int], ...]
"""Frames that follow one another, and how long each of them is shown: (count, ticks)."""


class Delays(NamedTuple):
    """How long the frames are shown: runs in ticks, and ticks a second. No runs: it is a still."""

    runs: Runs = ()
    ticks: int = 0


def read_delays(name: str, data: bytes | bytearray | memoryview) -> Delays:
    """The delays of a picture of Pillow's format ``name``.

    Ticks are as long as all delays are whole numbers of, but no shorter than a microsecond.
    """
    if name not in _FORMATS:
        return Delays()
    runs: list[tuple[int, Fraction]] = []
    found = _FORMATS[name](memoryview(data))
    for (ticks, rate), group in itertools.groupby(found, lambda delay: delay[1:]):
        seconds = Fraction(ticks, rate) if rate else Fraction(0)
        shown = _USUAL if seconds <= _SHORTEST else min(seconds, _LONGEST)
        count = sum(delay[0] for delay in group)
        if runs and runs[-1][1] == shown:
            count += runs.pop()[0]
        runs.append((count, shown))
    if sum(count for count, _ in runs) < 2:
        return Delays()
    rate = min(_MOST_TICKS, math.lcm(*(shown.denominator for _, shown in runs)))
    return Delays(tuple((count, max(1, round(shown * rate))) for count, shown in runs), rate)


def clip_of(info: ImageInfo) -> VideoInfo | None:
    """An animation's probe as a clip's; None for a still, or a picture that can't be used."""
    if not info.delays or info.problem is not None:
        return None
    counts, ticks = np.array(info.delays, np.int64).T
    frames, pixels = int(counts.sum()), info.width * info.height
    problem = None
    if frames > MAX_PACKETS or pixels > MAX_FRAME_PIXELS or frames * pixels > MAX_PIXELS:
        problem = (
            f"an animation of {frames} frames of {info.width}x{info.height} pixels is more work "
            f"than is done for a clip ({MAX_PACKETS} frames, {MAX_FRAME_PIXELS} pixels a frame, "
            f"{MAX_PIXELS} in all)"
        )
        return VideoInfo(problem=problem)
    shown = np.repeat(ticks, counts)
    pts = np.cumsum(shown) - shown
    common = math.gcd(info.ticks, int(ticks[0]))
    return VideoInfo(
        codec=info.format.lower(),
        container=info.format.lower(),
        width=info.width,
        height=info.height,
        stored_width=info.width,
        stored_height=info.height,
        pix_fmt="rgb24",
        matrix="rgb",
        full_range=True,
        time_base=(1, info.ticks),
        pts=pts,
        last_duration=int(shown[-1]),
        rate=(info.ticks // common, int(ticks[0]) // common) if len(ticks) == 1 else None,
        num_packets=frames,
    )


_Found = Iterator[tuple[int, int, int]]
"""(frames, ticks that each is shown, ticks a second)."""


def _gif(data: memoryview) -> _Found:
    if len(data) < 13:
        return
    at, delay = 13 + _palette(data[10]), 0
    while at + 1 < len(data) and data[at] != 0x3B:
        kind, at = data[at], at + 1
        if kind == 0x21:  # an extension; of two that tell a delay the last counts
            if data[at] == 0xF9:
                delay = int.from_bytes(data[at + 3 : at + 5], "little")
            at = _after_blocks(data, at + 1)
        elif kind == 0x2C:  # a frame
            if at + 9 > len(data):
                return
            yield 1, delay, 100
            at, delay = _after_blocks(data, at + 10 + _palette(data[at + 8])), 0


def _palette(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 128 else 0


def _after_blocks(data: memoryview, at: int) -> int:
    while at < len(data) and data[at]:
        at += 1 + data[at]
    return at + 1


def _webp(data: memoryview) -> _Found:
    at = 12
    while at + 24 <= len(data):
        if bytes(data[at : at + 4]) == b"ANMF":
            yield 1, int.from_bytes(data[at + 20 : at + 23], "little"), 1000
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2


def _png(data: memoryview) -> _Found:
    at, left = 8, -1
    while at + 8 <= len(data):
        size, kind = word(data, at), bytes(data[at + 4 : at + 8])
        if kind == b"IDAT" and left < 0:  # no animation was announced
            return
        if kind == b"acTL" and left < 0:
            left = word(data, at + 8)
        elif kind == b"fcTL" and left > 0 and at + 34 <= len(data):
            shown = (int.from_bytes(data[at + n : at + n + 2], "big") for n in (28, 30))
            ticks, rate = shown
            yield 1, ticks, rate or 100
            left -= 1
        at += 12 + size


def _avif(data: memoryview) -> _Found:
    """Of the first track of pictures; what goes with it (transparency) has the same times."""
    rate, pictures = 0, False
    for name, at, end in boxes_inside(data, 0, len(data)):
        if name == b"mdhd" and end - at >= 24:
            rate = word(data, at + (20 if data[at] else 12))
        elif name == b"hdlr" and end - at >= 12:
            pictures = bytes(data[at + 8 : at + 12]) == b"pict"
        elif name == b"stts" and end - at >= 8 and pictures:
            for number in range(min(word(data, at + 4), (end - at - 8) // 8)):
                entry = at + 8 + 8 * number
                yield word(data, entry), word(data, entry + 4), rate
            return


_FORMATS: dict[str, Callable[[memoryview], _Found]] = {
    "GIF": _gif,
    "WEBP": _webp,
    "PNG": _png,
    "AVIF": _avif,
}
