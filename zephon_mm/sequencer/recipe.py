"""What waits in a lane, what is packed, and what is counted: plain values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from ..sample import LiveDocument, MeasuredDocument, SampleRef


@dataclass(slots=True)
class Piece:
    """Tokens ``[start, stop)`` of a document, waiting or packed.

    ``fitted`` is the sequence length under which the document was cut, truncated or had a medium
    re-laid; 0 if it is whole and as measured.
    """

    document: MeasuredDocument
    start: int
    stop: int
    fitted: int
    patches: int
    num_tokens: int = field(init=False, repr=False, compare=False)
    live: LiveDocument = field(init=False, repr=False, compare=False)
    """What a state holds of it while it waits: made once, asked for at every step."""

    def __post_init__(self) -> None:
        ref, part = self.document.ref, (self.start, self.stop, self.fitted)
        self.live = LiveDocument(ref.source, ref.position, *(part if self.fitted else ()))
        self.num_tokens = self.stop - self.start


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one sequence holds; ``digest`` chains all of the lane's recipes up to this one."""

    lane: int
    index: int
    sequence_length: int
    pieces: tuple[Piece, ...]
    digest: bytes


@dataclass(slots=True)
class SourceCounts:
    """What became of a source's samples in a lane. Documents count as delivered when their last
    piece is packed; ``num_tokens`` counts packed tokens.
    """

    delivered: int = 0
    filtered: int = 0
    dropped: int = 0
    quarantined: int = 0
    num_tokens: int = 0

    def as_tuple(self) -> tuple[int, int, int, int, int]:
        """The counts, in the order of the fields."""
        return (self.delivered, self.filtered, self.dropped, self.quarantined, self.num_tokens)


@dataclass(frozen=True, slots=True)
class SequencerState:
    """A sequencer between two sequences. Cheap to take: nothing is copied but references."""

    num_sequences: int
    pool: tuple[Piece, ...]
    rest: Piece | None
    quarantined_in_row: int
    counts: tuple[tuple[int, int, int, int, int], ...]
    digest: bytes
    ended: bool


@dataclass(frozen=True, slots=True)
class LiveRef:
    """A waiting piece as a checkpoint names it: where to measure it again, and which part."""

    ref: SampleRef
    start: int
    stop: int
    fitted: int


def recipe_digest(pieces: tuple[Piece, ...]) -> bytes:
    """SHA-256 over tokens, labels, media, draws and cuts of a sequence's pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        place = (*piece.document.ref, piece.start, piece.stop)
        digest.update(piece.document.digest + repr(place).encode())
    return digest.digest()
