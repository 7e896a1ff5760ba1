"""One lane's sequencer: measured documents in, sequence recipes out, in series.

It pulls documents in plan order into a look-ahead pool and packs one sequence at a time, so every
sequence is a state point: no flush, no push-back, no window. What it holds is bounded: the pool
(``packing.pool`` documents, or as many as 1.25 sequences take, at most `HARD_CAP`), the rest of at
most one document that is being cut, and counters. Its history is in a chained digest. After a
restore a document waits as what the state holds of it, and is measured again when it is packed.

Refilling happens only at the start of a sequence, to ``min(pool, 8 + 2·k)`` documents and 1.25
sequences of tokens, with ``k`` sequences emitted so far: the first batch needs few documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..config import Packing
from ..errors import (
    DocumentTooLongError,
    SampleError,
    StateError,
    TooManyQuarantinedError,
    ZephonError,
)
from ..sample import LiveDocument, MeasuredDocument, Measurement, Rejected
from . import packing as packer
from .cutting import Relayout, has_targets, medium_limit, next_cut, num_patches, truncate
from .recipe import Piece, Recipe, SequencerState, SourceCounts, Waiting, recipe_digest

HARD_CAP = 1024
"""Most documents a pool ever holds."""

OLDEST_EVERY = 4
"""One sequence in so many starts with the oldest document, whatever ``packing.order`` says."""

MAX_WAIT = HARD_CAP * OLDEST_EVERY
"""Sequences that a document waits at most."""

_UNBOUNDED = 1 << 62
_FRUITLESS = 10
"""A lane stops after this many times ``max_quarantined_in_row`` draws that gave no document."""


@dataclass(slots=True)
class Sequencer:
    """Packs one lane.

    Args:
        lane: its number.
        num_sources: sources of the mixture, for the counts.
        packing: the policy.
        pull: the next measurement in plan order, None at the lane's end; raises a world's failure
            at its place.
        relayout: lays media out smaller, see `Relayout`.
        again: measures documents of a state again, in order; raises a world's failure, and
            StateError for one that gives no document any more.
        end_ids: token ids that end a document, which truncating keeps.
        max_quarantined_in_row: `DataConfig.max_consecutive_quarantined`.
        on_bad_sample: ``raise`` turns a quarantined sample into an error.
        on_rejected: called for every sample that gives no document.
    """

    lane: int
    num_sources: int
    packing: Packing
    pull: Callable[[], Measurement | None]
    relayout: Relayout
    again: Callable[[Sequence[LiveDocument]], Sequence[MeasuredDocument]]
    end_ids: frozenset[int] = frozenset()
    max_quarantined_in_row: int = 1000
    on_bad_sample: str = "quarantine"
    on_rejected: Callable[[Rejected], None] = lambda rejected: None
    num_sequences: int = 0
    digest: bytes = bytes(32)
    _pool: list[Waiting] = field(default_factory=list)
    _rest: Waiting | None = None
    _quarantined_in_row: int = 0
    _counts: list[SourceCounts] = field(default_factory=list)
    _ended: bool = False
    _fruitless: int = 0

    def __post_init__(self) -> None:
        self._counts = self._counts or [SourceCounts() for _ in range(self.num_sources)]

    @property
    def counts(self) -> tuple[SourceCounts, ...]:
        """Outcomes so far, a source each."""
        return tuple(self._counts)

    @property
    def ended(self) -> bool:
        """Whether the lane has no more draws; documents may still wait."""
        return self._ended

    def next(self, sequence_length: int, capacity: int | None = None) -> Recipe | None:
        """Pack the next sequence; None when the lane has ended and its pool is empty.

        Args:
            sequence_length: tokens of this sequence.
            capacity: tokens that an arriving document may take: the least length of any sequence
                it may be packed in (`MAX_WAIT` ahead at most). None: ``sequence_length``.

        Raises:
            StateError: a document that waited in a state does not measure as it did.
        """
        capacity = min(sequence_length, capacity or sequence_length)
        self._refill(sequence_length, capacity)
        if not self._pool:
            return None
        chosen = packer.choose(
            [piece.num_tokens for piece in self._pool],
            [piece.patches for piece in self._pool],
            sequence_length,
            self._max_patches,
            self._order,
        )
        if not chosen:
            oldest = self._pool[0]
            raise ZephonError(
                f"lane {self.lane}: a piece of {oldest.num_tokens} tokens and {oldest.patches} "
                f"patches waits for a sequence of {sequence_length} tokens that it does not fit"
            )
        pieces = self._measured([self._pool[i] for i in chosen])
        taken = set(chosen)
        self._pool = [waiting for i, waiting in enumerate(self._pool) if i not in taken]
        for piece in pieces:
            self._count_packed(piece)
        self.digest = hashlib.sha256(self.digest + recipe_digest(pieces)).digest()
        recipe = Recipe(self.lane, self.num_sequences, sequence_length, pieces, self.digest)
        self.num_sequences += 1
        return recipe

    def state(self) -> SequencerState:
        """The state after the last sequence."""
        return SequencerState(
            num_sequences=self.num_sequences,
            pool=tuple(self._pool),
            rest=self._rest,
            quarantined_in_row=self._quarantined_in_row,
            counts=tuple(c.as_tuple() for c in self._counts),
            digest=self.digest,
            ended=self._ended,
        )

    def restore(self, state: SequencerState) -> None:
        """Take over a state; what waits in it need not be measured yet."""
        self.num_sequences = state.num_sequences
        self._pool = list(state.pool)
        self._rest = state.rest
        self._quarantined_in_row = state.quarantined_in_row
        self._counts = [SourceCounts(*c) for c in state.counts]
        self.digest = state.digest
        self._ended = state.ended

    @property
    def unmeasured(self) -> list[LiveDocument]:
        """What waits and was not measured here, the document being cut last."""
        return [one for one in (*self._pool, self._rest) if isinstance(one, LiveDocument)]

    def shrink(self, capacity: int) -> None:
        """Make what waits fit shorter sequences than it was cut for; only right after `restore`.

        Args:
            capacity: tokens of the shortest sequence ahead.

        Raises:
            StateError: a part of a document that was cut holds a medium that no longer fits; or a
                document does not measure as it did.
        """
        live = self.unmeasured
        long = [one for one in live if one.num_tokens > capacity]
        documents = iter(self.again(long) if long else ())
        self._pool, self._rest = [], None
        for one in live:
            if one.num_tokens <= capacity:
                self._pool.append(one)
            else:
                self._pool += self._readmit(one, next(documents), capacity)

    def _measured(self, waiting: Sequence[Waiting]) -> tuple[Piece, ...]:
        """These as pieces, those of a state measured again."""
        live = [one for one in waiting if isinstance(one, LiveDocument)]
        documents = iter(self.again(live) if live else ())
        return tuple(
            [
                one if isinstance(one, Piece) else self._revived(one, next(documents))
                for one in waiting
            ]
        )

    def _revived(self, live: LiveDocument, document: MeasuredDocument) -> Piece:
        fitted = self._fit(document, live.fitted) if live.fitted else document
        stop = live.stop if live.fitted else len(fitted.tokens)
        piece = self._piece(fitted, live.start, min(stop, len(fitted.tokens)), live.fitted)
        if piece.live != live:
            raise StateError(
                f"{document.shard}, key {document.key!r}: waited to be packed when the state was "
                "saved, and does not measure as it did. Restore with the versions of the libraries "
                "and of your format function that it was saved with"
            )
        return piece

    def _readmit(
        self, live: LiveDocument, document: MeasuredDocument, capacity: int
    ) -> list[Piece]:
        piece = self._revived(live, document)
        if piece.start == 0 and piece.stop == len(piece.document.tokens):
            first = self._admit(document, capacity)
            pieces = [first] if first is not None else []
            while isinstance(self._rest, Piece):
                part = self._cut(self._rest)
                pieces += [part] if part is not None else []
            return pieces
        cuts = [piece.start]
        try:
            while cuts[-1] < piece.stop:
                cut = next_cut(piece.document, cuts[-1], capacity, self._max_patches)
                cuts.append(min(cut, piece.stop))
        except ValueError as error:
            raise StateError(
                f"{document.shard}, key {document.key!r}: part of it waits to be packed and can't "
                f"be cut for sequences of {capacity} tokens ({error}): shorten sequence_length a "
                "few hundred steps later"
            ) from error
        return [
            self._piece(piece.document, start, stop, piece.fitted) for start, stop in pairwise(cuts)
        ]

    @property
    def _order(self) -> packer.Order:
        """The policy, but the oldest first in one of four sequences where the largest are."""
        order = self.packing.order
        oldest = order == "largest" and self.num_sequences % OLDEST_EVERY == 0
        return "oldest" if oldest else order

    @property
    def _max_patches(self) -> int:
        return self.packing.max_patches or _UNBOUNDED

    def _refill(self, sequence_length: int, capacity: int) -> None:
        wanted = min(self.packing.pool, 8 + 2 * self.num_sequences)
        tokens = sum(piece.num_tokens for piece in self._pool)
        while len(self._pool) < HARD_CAP and (
            len(self._pool) < wanted or 4 * tokens < 5 * sequence_length
        ):
            piece = self._next_piece(capacity)
            if piece is None:
                return
            self._pool.append(piece)
            tokens += piece.num_tokens

    def _next_piece(self, capacity: int) -> Piece | None:
        """The next piece to wait: of the document being cut, or of a new one."""
        while True:
            if self._rest is not None:
                (rest,) = self._measured([self._rest])
                piece = self._cut(rest)
                if piece is not None:
                    self._fruitless = 0
                    return piece
                continue
            if self._ended:
                return None
            measurement = self.pull()
            if measurement is None:
                self._ended = True
                return None
            if isinstance(measurement, Rejected):
                self._reject(measurement)
                continue
            self._quarantined_in_row = 0
            piece = self._admit(measurement, capacity)
            if piece is not None:
                self._fruitless = 0
                return piece

    def _admit(self, measured: MeasuredDocument, capacity: int) -> Piece | None:
        """A new document as a piece; None if it is to be cut (see ``_rest``) or was rejected."""
        try:
            document = self._relayout(measured, capacity)
        except SampleError as error:
            self._reject(_rejected(measured, error.stage, error.reason))
            return None
        length = len(document.tokens)
        if length <= capacity and document.num_patches <= self._max_patches:
            return self._piece(document, 0, length, 0 if document is measured else capacity)
        what = (
            f"{length} tokens and {document.num_patches} patches do not fit a sequence of "
            f"{capacity} tokens and {self.packing.max_patches or 'any number of'} patches"
        )
        if self.packing.over_long == "error":
            raise DocumentTooLongError(
                f"{measured.shard}, key {measured.key!r}: {what}; packing.over_long is 'error' "
                "(choose split, truncate or drop, or a longer sequence_length)"
            )
        if self.packing.over_long == "drop":
            self._reject(_rejected(measured, "packing", what))
            return None
        if self.packing.over_long == "truncate":
            short = truncate(document, capacity, self._max_patches, self.end_ids)
            if not has_targets(short, 0, len(short.tokens)):
                self._reject(_rejected(measured, "packing", "nothing to train on once truncated"))
                return None
            return self._piece(short, 0, len(short.tokens), capacity)
        self._rest = self._piece(document, 0, length, capacity)
        return None

    def _cut(self, rest: Piece) -> Piece | None:
        """Take the next piece off the document being cut; None if that piece trains nothing."""
        stop = next_cut(rest.document, rest.start, rest.fitted, self._max_patches)
        piece = self._piece(rest.document, rest.start, stop, rest.fitted)
        self._rest = None
        if stop < rest.stop:
            self._rest = self._piece(rest.document, stop, rest.stop, rest.fitted)
        if has_targets(rest.document, piece.start, piece.stop):
            return piece
        self._skip_piece(piece)
        return None

    def _skip_piece(self, piece: Piece) -> None:
        """A piece of only media, or of text without loss: it would train nothing anywhere."""
        document = piece.document
        if piece.stop == len(document.tokens):
            self._counts[document.ref.source].delivered += 1
        reason = f"tokens {piece.start} to {piece.stop} of a cut document hold nothing to train on"
        rejected = _rejected(document, "packing", reason)
        self.on_rejected(rejected)
        self._count_fruitless(rejected, f"{document.shard}, key {document.key!r}")

    def _fit(self, document: MeasuredDocument, capacity: int) -> MeasuredDocument:
        document = self._relayout(document, capacity)
        over = len(document.tokens) > capacity or document.num_patches > self._max_patches
        if over and self.packing.over_long == "truncate":
            return truncate(document, capacity, self._max_patches, self.end_ids)
        return document

    def _relayout(self, document: MeasuredDocument, capacity: int) -> MeasuredDocument:
        if not document.media:
            return document
        return self.relayout(document, medium_limit(capacity), self._max_patches)

    def _piece(self, document: MeasuredDocument, start: int, stop: int, fitted: int) -> Piece:
        patches = num_patches(document, start, stop) if self.packing.max_patches else 0
        return Piece(document, start, stop, fitted, patches)

    def _count_packed(self, piece: Piece) -> None:
        counts = self._counts[piece.document.ref.source]
        counts.num_tokens += piece.num_tokens
        if piece.stop == len(piece.document.tokens):
            counts.delivered += 1

    def _count_fruitless(self, rejected: Rejected, where: str) -> None:
        """A lane that never gets a document would turn for ever: it stops instead."""
        self._fruitless += 1
        if self._fruitless >= _FRUITLESS * self.max_quarantined_in_row:
            raise TooManyQuarantinedError(
                f"lane {self.lane}: {self._fruitless} draws in a row gave nothing to train on, ten "
                f"times max_consecutive_quarantined; the last was {rejected.outcome}: {where}: "
                f"{rejected.reason}. Loosen what leaves them out (filters, packing.over_long), or "
                "raise max_consecutive_quarantined if so few are meant to be left"
            )

    def _reject(self, rejected: Rejected) -> None:
        counts = self._counts[rejected.ref.source]
        setattr(counts, rejected.outcome, getattr(counts, rejected.outcome) + 1)
        self.on_rejected(rejected)
        where = f"{rejected.shard}, key {rejected.key!r}, stage {rejected.stage}"
        self._count_fruitless(rejected, where)
        if rejected.outcome != "quarantined":
            return
        if self.on_bad_sample == "raise":
            raise ZephonError(f"{where}: {rejected.reason} (on_bad_sample is 'raise')")
        self._quarantined_in_row += 1
        if self._quarantined_in_row > self.max_quarantined_in_row:
            raise TooManyQuarantinedError(
                f"lane {self.lane}: {self._quarantined_in_row} samples in a row could not be used, "
                f"more than max_consecutive_quarantined={self.max_quarantined_in_row}; the last: "
                f"{where}: {rejected.reason}"
            )


def _rejected(document: MeasuredDocument, stage: str, reason: str) -> Rejected:
    return Rejected(document.ref, document.shard, document.key, "dropped", stage, reason)
