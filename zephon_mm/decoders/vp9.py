"""VP9's uncompressed frame headers: sizes, and which packets the wanted frames depend on.

FFmpeg's decoder drops no frame by itself (it does not look at ``skip_frame``), so packets that
nothing needs are found here, and are not sent. Source: VP9 bitstream specification 0.7, 6.1, 6.2,
7.2 and annex B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ALL_SLOTS = 0xFF


@dataclass(frozen=True, slots=True)
class Vp9Frame:
    """What a frame header says.

    Attributes:
        refreshes: the reference slots, of 8, that the frame is written to, a bit each.
        refers: the slots that it is predicted from, or that are shown.
        alone: beside them it takes nothing from the frames before it: no probabilities, motion
            vectors, segments or filter levels (a key frame, or ``error_resilient_mode``).
        size: (width, height) if they are written in it.
    """

    refreshes: int
    refers: int
    alone: bool
    size: tuple[int, int] | None


def vp9_frames(packet: bytes | memoryview) -> list[Vp9Frame]:
    """The frames of a packet (several in a superframe), in decoding order.

    Raises:
        IndexError: a header is cut short.
    """
    return [_header(_Bits(frame)) for frame in _superframe(packet)]


def needed_packets(frames: Sequence[Sequence[Vp9Frame]], wanted: Sequence[bool]) -> list[bool]:
    """Of packets in decoding order, those that the wanted ones can't be decoded without.

    Args:
        frames: of each packet, its frames; of one that can't be read none, and it is kept with all
            before it.
        wanted: whether the packet shows a wanted frame.

    From the last packet back to the first: a packet is needed if it is wanted, if it refreshes a
    slot that a later one needs, or if a later one goes on from its state.
    """
    found = [False] * len(frames)
    slots, state = 0, False
    for number in reversed(range(len(frames))):
        packet = frames[number]
        written = 0
        for frame in packet:
            written |= frame.refreshes
        if not (wanted[number] or state or not packet or written & slots):
            continue
        found[number] = True
        if not packet:
            slots, state = ALL_SLOTS, True
        for frame in reversed(packet):
            slots = slots & ~frame.refreshes | frame.refers
            state = not frame.alone
    return found


def _superframe(packet: bytes | memoryview) -> Iterator[bytes | memoryview]:
    last = packet[-1]
    count, width = (last & 7) + 1, ((last >> 3) & 3) + 1
    start = len(packet) - (2 + count * width)
    if last & 0xE0 != 0xC0 or start < 0 or packet[start] != last:
        yield packet
        return
    at = 0
    for number in range(count):
        place = start + 1 + number * width
        size = int.from_bytes(packet[place : place + width], "little")
        yield packet[at : at + size]
        at += size


class _Bits:
    def __init__(self, data: bytes | memoryview) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> int:
        """The next bits, highest first. Raises IndexError at the end."""
        value = 0
        for at in range(self._at, self._at + count):
            value = value << 1 | (self._data[at >> 3] >> (7 - (at & 7)) & 1)
        self._at += count
        return value


def _header(bits: _Bits) -> Vp9Frame:
    bits.take(2)
    profile = bits.take(1) | bits.take(1) << 1
    if profile == 3:
        bits.take(1)
    if bits.take(1):  # show_existing_frame
        return Vp9Frame(0, 1 << bits.take(3), False, None)
    inter, shown, resilient = bits.take(1), bits.take(1), bool(bits.take(1))
    if not inter:
        bits.take(24)
        _color(bits, profile)
        return Vp9Frame(ALL_SLOTS, 0, True, _size(bits))
    intra_only = 0 if shown else bits.take(1)
    if not resilient:
        bits.take(2)
    if intra_only:
        bits.take(24)
        if profile > 0:
            _color(bits, profile)
        return Vp9Frame(bits.take(8), 0, resilient, _size(bits))
    refreshes, refers = bits.take(8), 0
    for _ in range(3):
        refers |= 1 << bits.take(3)
        bits.take(1)
    inherits = any(bits.take(1) for _ in range(3))  # the size of a reference
    return Vp9Frame(refreshes, refers, resilient, None if inherits else _size(bits))


def _size(bits: _Bits) -> tuple[int, int]:
    return bits.take(16) + 1, bits.take(16) + 1


def _color(bits: _Bits, profile: int) -> None:
    if profile >= 2:
        bits.take(1)
    rgb = bits.take(3) == 7
    if not rgb:
        bits.take(1)
    if profile & 1:
        bits.take(1 if rgb else 3)
