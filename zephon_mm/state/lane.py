"""The bytes of one lane's state (C8): a fixed head, then a few bytes for each waiting document.

Layout, little-endian: magic, version, lane, sequences, draw, quarantined in a row, number of
sources; per source its next position and five counts; the waiting documents in pool order, each a
varint of ``4·source + 2·is_fitted + has_patches``, the zigzag distance of its position from the
previous one of its source (the first: from the source's next position), its tokens, then its start
and the zigzag distance of its fitted length from the previous one if it is fitted, patches if it
has some, and the beginning of its measurement's digest; zeros up to a multiple of 64 bytes in all;
the 32-byte chained digest; CRC-32 of all before. Counters have fixed widths, so the size stays flat
however far a run has come.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import StateError
from ..sample import CHECK_BYTES, LiveDocument

_MAGIC = b"zmmL"
_VERSION = 2
_HEAD = struct.Struct("<4sBBIQQIH")
_SOURCE = struct.Struct("<6Q")
_TAIL = struct.Struct("<32s")
_CRC = struct.Struct("<I")
_QUANTUM = 64  # sizes are multiples of this, so that they do not waver with what is waiting
_ENDED, _HAS_REST = 1, 2
_FITTED, _PATCHES = 2, 1


@dataclass(frozen=True, slots=True)
class LaneState:
    """One lane between two steps.

    Attributes:
        draw: mixture draws made.
        positions: next position of each source.
        counts: per source delivered, filtered, dropped, quarantined, tokens.
        live: waiting documents, oldest first.
        rest: the document being cut, from its next piece on.
        digest: 32 bytes, chained over every recipe emitted.
    """

    lane: int
    num_sequences: int
    draw: int
    positions: tuple[int, ...]
    counts: tuple[tuple[int, int, int, int, int], ...]
    quarantined_in_row: int
    live: tuple[LiveDocument, ...]
    rest: LiveDocument | None
    digest: bytes
    ended: bool

    def for_sources(self, old: Sequence[str], new: Sequence[str]) -> LaneState:
        """The state with its sources renumbered from ``old`` to ``new`` names."""

        def moved(document: LiveDocument) -> LiveDocument:
            name = old[document.source]
            if name not in new:
                raise StateError(
                    f"source {name!r} was removed and lane {self.lane} still has documents of it "
                    "waiting to be packed: keep the source with weight 0 until they are used"
                )
            return document._replace(source=new.index(name))

        index = {name: number for number, name in enumerate(old)}
        kept = [index.get(name) for name in new]
        return replace(
            self,
            positions=tuple(0 if i is None else self.positions[i] for i in kept),
            counts=tuple((0,) * 5 if i is None else self.counts[i] for i in kept),
            live=tuple(moved(document) for document in self.live),
            rest=moved(self.rest) if self.rest else None,
            ended=False,
        )

    def encode(self) -> bytes:
        """The state as bytes; equal states give equal bytes."""
        flags = _ENDED * self.ended | _HAS_REST * (self.rest is not None)
        out = bytearray(
            _HEAD.pack(
                _MAGIC,
                _VERSION,
                flags,
                self.lane,
                self.num_sequences,
                self.draw,
                self.quarantined_in_row,
                len(self.positions),
            )
        )
        for position, counts in zip(self.positions, self.counts, strict=True):
            out += _SOURCE.pack(position, *counts)
        documents = (*self.live, self.rest) if self.rest else self.live
        _put_documents(out, documents, self.positions)
        out += bytes(-(len(out) + _TAIL.size + _CRC.size) % _QUANTUM)
        out += _TAIL.pack(self.digest)
        out += _CRC.pack(zlib.crc32(out))
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> LaneState:
        """Read a state; StateError for another version, and for bytes cut short or changed."""
        if len(data) < _HEAD.size + _TAIL.size + _CRC.size or data[:4] != _MAGIC:
            raise StateError(f"a lane state of {len(data)} bytes is cut short or not a lane state")
        if zlib.crc32(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]:
            raise StateError("a lane state fails its checksum: it was cut short or changed")
        head = _HEAD.unpack_from(data)
        _, version, flags, lane, num_sequences, draw, in_row, num_sources = head
        if version != _VERSION:
            raise StateError(f"a lane state of version {version}; this release reads {_VERSION}")
        at = _HEAD.size
        rows = []
        for _ in range(num_sources):
            rows.append(_SOURCE.unpack_from(data, at))
            at += _SOURCE.size
        documents = _documents(data, at, [row[0] for row in rows])
        rest = documents.pop() if flags & _HAS_REST else None
        (digest,) = _TAIL.unpack_from(data, len(data) - _TAIL.size - _CRC.size)
        return cls(
            lane=lane,
            num_sequences=num_sequences,
            draw=draw,
            positions=tuple(row[0] for row in rows),
            counts=tuple((row[1], row[2], row[3], row[4], row[5]) for row in rows),
            quarantined_in_row=in_row,
            live=tuple(documents),
            rest=rest,
            digest=digest,
            ended=bool(flags & _ENDED),
        )


def _documents(data: bytes, at: int, positions: Sequence[int]) -> list[LiveDocument]:
    def take() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    last, last_fitted = list(positions), 0
    documents = []
    for _ in range(take()):
        source, kind = divmod(take(), 4)
        last[source] += _unzigzag(take())
        num_tokens = take()
        start = fitted = 0
        if kind & _FITTED:
            start, fitted = take(), last_fitted + _unzigzag(take())
            last_fitted = fitted
        patches = take() if kind & _PATCHES else 0
        check = data[at : at + CHECK_BYTES]
        at += CHECK_BYTES
        documents.append(
            LiveDocument(source, last[source], start, start + num_tokens, fitted, patches, check)
        )
    return documents


def _put_documents(
    out: bytearray, documents: Sequence[LiveDocument], positions: Sequence[int]
) -> None:
    """Their number and each of them: the loop that the time of a checkpoint goes into."""
    _put(out, len(documents))
    last, last_fitted = list(positions), 0
    append = out.append
    for source, position, start, stop, fitted, patches, check in documents:
        distance = position - last[source] << 1
        last[source] = position
        if distance < 0:
            distance = ~distance
        tokens = stop - start
        if fitted or distance > 16383 or tokens > 16383 or source > 31:
            _put(out, source << 2 | _FITTED * (fitted > 0) | _PATCHES * (patches > 0))
            _put(out, distance)
            _put(out, tokens)
        else:  # a byte, and one or two for each: nearly all of them
            append(source << 2 | _PATCHES if patches else source << 2)
            if distance < 128:
                append(distance)
            else:
                append(distance & 127 | 128)
                append(distance >> 7)
            if tokens < 128:
                append(tokens)
            else:
                append(tokens & 127 | 128)
                append(tokens >> 7)
        if fitted:
            _put(out, start)
            distance = fitted - last_fitted << 1
            _put(out, distance if distance >= 0 else ~distance)
            last_fitted = fitted
        if patches:
            _put(out, patches)
        out += check


def _put(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _unzigzag(value: int) -> int:
    return value >> 1 if value % 2 == 0 else -(value + 1 >> 1)
