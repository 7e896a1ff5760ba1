"""How many packets an MP4 or MOV file claims to have, read before FFmpeg makes room for them.

A table of samples of one size takes 20 bytes whatever its count, and every entry of an edit list
may show all samples again, so a file of 2 KB can make a demuxer fill gigabytes. Counted are, over
all tracks, samples (``stsz``, ``stz2``) times entries of the edit list (``elst``), and samples of
fragments (``trun``), after ISO/IEC 14496-12. Uncompressed audio (samples of one size that last one
tick), which FFmpeg takes by the chunk, is left out as far as its samples fit in the file.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import MediaError

MAX_CLAIM = 1 << 23
"""Packets, for each of which FFmpeg makes room; four times `limits.MAX_PACKETS`."""

_PARENTS = frozenset((b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"moof", b"traf"))
_TOP = frozenset(
    (b"ftyp", b"styp", b"moov", b"moof", b"mdat", b"free", b"skip", b"wide", b"sidx", b"pnot")
)


def check_claims(data: memoryview) -> None:
    """Raises MediaError if an MP4 file claims more packets than `MAX_CLAIM`; else does nothing."""
    if len(data) < 8 or bytes(data[4:8]) not in _TOP:
        return
    claim = 0
    for name, start, stop in _boxes(data, 0, len(data)):
        if name == b"moov":
            for kind, first, last in _boxes(data, start, stop):
                claim += _track(data, first, last) if kind == b"trak" else 0
        elif name == b"moof":
            claim += sum(_fragments(data, start, stop))
        if claim > MAX_CLAIM:
            raise MediaError(
                f"its header claims {claim} packets in a file of {len(data)} bytes; the limit is "
                f"{MAX_CLAIM}",
                stage="probe",
            )


def _track(data: memoryview, start: int, stop: int) -> int:
    samples = size = entries = 0
    ticking = sound = False
    for name, at, end in boxes_inside(data, start, stop):
        if name in (b"stsz", b"stz2") and end - at >= 12:
            size = word(data, at + 4) if name == b"stsz" else 0
            samples = max(samples, word(data, at + 8))
        elif name == b"elst" and end - at >= 8:
            entries = max(entries, min(word(data, at + 4), (end - at - 8) // 12))
        elif name == b"stts" and end - at >= 16:
            ticking = word(data, at + 4) == 1 == word(data, at + 12)
        elif name == b"hdlr" and end - at >= 12:
            sound = sound or bytes(data[at + 8 : at + 12]) == b"soun"  # QuickTime has two
    if sound and ticking and size and samples * size <= len(data):
        return 0
    return samples * max(1, entries)


def _fragments(data: memoryview, start: int, stop: int) -> Iterator[int]:
    for name, at, end in boxes_inside(data, start, stop):
        if name == b"trun" and end - at >= 8:
            yield word(data, at + 4)


def boxes_inside(
    data: memoryview, start: int, stop: int, depth: int = 0
) -> Iterator[tuple[bytes, int, int]]:
    """All boxes of a container box, down to FFmpeg's own depth."""
    for name, at, end in _boxes(data, start, stop):
        yield name, at, end
        if name in _PARENTS and depth < 10:
            yield from boxes_inside(data, at, end, depth + 1)


def _boxes(data: memoryview, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """(name, first byte of the content, end) of the boxes in a range, the last one cut to it."""
    while start + 8 <= stop:
        size, name, head = word(data, start), bytes(data[start + 4 : start + 8]), 8
        if size == 1 and start + 16 <= stop:
            size, head = int.from_bytes(data[start + 8 : start + 16], "big"), 16
        end = stop if size == 0 else min(stop, start + size)
        if size != 0 and size < head:
            return
        yield name, start + head, end
        start = end


def word(data: memoryview, at: int) -> int:
    """The whole number of four bytes, the highest first."""
    return int.from_bytes(data[at : at + 4], "big")
