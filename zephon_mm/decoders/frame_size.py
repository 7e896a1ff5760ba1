"""Picture sizes written in packets of VP8, VP9 and MJPEG, to see whether a clip changes size.

A VP9 frame that takes its size from a frame it refers to writes none: if all that are written are
the same, all frames have that size. Sources: RFC 6386, 9.1; `vp9`; ITU-T T.81, B.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from .vp9 import vp9_frames


def written_sizes(codec: str, packet: bytes) -> Iterator[tuple[int, int]]:
    """(width, height) of each frame header in a packet that has one; of other codecs none.

    A header that is cut or broken gives none: the decoder will tell.
    """
    try:
        if codec == "vp8":
            if not packet[0] & 1:
                yield _little(packet, 6) & 0x3FFF, _little(packet, 8) & 0x3FFF
        elif codec == "vp9":
            yield from (frame.size for frame in vp9_frames(packet) if frame.size is not None)
        elif codec == "mjpeg":
            yield from _jpeg(packet)
    except IndexError:
        return


def _little(data: bytes, at: int) -> int:
    return data[at] | data[at + 1] << 8


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
