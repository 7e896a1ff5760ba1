"""Picture sizes written in packets of VP8, VP9 and MJPEG, to see whether a clip changes size.

A VP9 frame that takes its size from a frame it refers to writes none: if all that are written are
the same, all frames have that size. Sources: RFC 6386, 9.1; VP9 bitstream specification 0.7, 6.2
and annex B; ITU-T T.81, B.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator


def written_sizes(codec: str, packet: bytes) -> Iterator[tuple[int, int]]:
    """(width, height) of each frame header in a packet that has one; of other codecs none.

    A header that is cut or broken gives none: the decoder will tell.
    """
    try:
        if codec == "vp8":
            if not packet[0] & 1:
                yield _little(packet, 6) & 0x3FFF, _little(packet, 8) & 0x3FFF
        elif codec == "vp9":
            for frame in _superframe(packet):
                size = _vp9(_Bits(frame))
                if size is not None:
                    yield size
        elif codec == "mjpeg":
            yield from _jpeg(packet)
    except IndexError:
        return


def _little(data: bytes, at: int) -> int:
    return data[at] | data[at + 1] << 8


def _superframe(packet: bytes) -> Iterator[bytes]:
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
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> int:
        """The next bits, highest first. Raises IndexError at the end."""
        value = 0
        for at in range(self._at, self._at + count):
            value = value << 1 | (self._data[at >> 3] >> (7 - (at & 7)) & 1)
        self._at += count
        return value


def _vp9(bits: _Bits) -> tuple[int, int] | None:
    bits.take(2)
    profile = bits.take(1) | bits.take(1) << 1
    if profile == 3:
        bits.take(1)
    if bits.take(1):  # show_existing_frame
        return None
    inter, shown, resilient = bits.take(1), bits.take(1), bits.take(1)
    if not inter:
        bits.take(24)
        _vp9_color(bits, profile)
        return _vp9_size(bits)
    intra_only = 0 if shown else bits.take(1)
    if not resilient:
        bits.take(2)
    if intra_only:
        bits.take(24)
        if profile > 0:
            _vp9_color(bits, profile)
        bits.take(8)
        return _vp9_size(bits)
    bits.take(8 + 3 * 4)  # what is refreshed, and the three references
    if any(bits.take(1) for _ in range(3)):  # the size of a reference
        return None
    return _vp9_size(bits)


def _vp9_size(bits: _Bits) -> tuple[int, int]:
    return bits.take(16) + 1, bits.take(16) + 1


def _vp9_color(bits: _Bits, profile: int) -> None:
    if profile >= 2:
        bits.take(1)
    rgb = bits.take(3) == 7
    if not rgb:
        bits.take(1)
    if profile & 1:
        bits.take(1 if rgb else 3)


def _jpeg(packet: bytes) -> Iterator[tuple[int, int]]:
    at = 2
    while packet[at] == 0xFF:
        marker = packet[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in (0xC0, 0xC1, 0xC2):
            yield packet[at + 7] << 8 | packet[at + 8], packet[at + 5] << 8 | packet[at + 6]
        if marker in (0xDA, 0xD9):
            return
        at += 2 + (packet[at + 2] << 8 | packet[at + 3])
