"""What waits in a lane, what is packed, and what is counted: plain values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from ..sample import CHECK_BYTES, LiveDocument, MeasuredDocument


@dataclass(slots=True)
class Piece:
    """Tokens ``[start, stop)`` of a document, waiting or packed.

    ``fitted`` is the sequence length under which the document was cut, truncated or had a medium
    re-laid; 0 if it is whole and as measured. ``patches``: of its media, counted where the policy
    bounds them; else 0.
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
        document = self.document
        self.live = LiveDocument(
            document.ref.source,
            document.ref.position,
            self.start,
            self.stop,
            self.fitted,
            self.patches,
            document.digest[:CHECK_BYTES],
        )
        self.num_tokens = self.stop - self.start


Waiting = Piece | LiveDocument
"""What waits to be packed: measured here, or known from a state and not measured again yet."""


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
    pool: tuple[Waiting, ...]
    rest: Waiting | None
    quarantined_in_row: int
    counts: tuple[tuple[int, int, int, int, int], ...]
    digest: bytes
    ended: bool


def recipe_digest(pieces: tuple[Piece, ...]) -> bytes:
    """SHA-256 over tokens, labels, media, draws and cuts of a sequence's pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        place = (*piece.document.ref, piece.start, piece.stop)
        digest.update(piece.document.digest + repr(place).encode())
    return digest.digest()
