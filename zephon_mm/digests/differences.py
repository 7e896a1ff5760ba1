"""What differs between two rows, the most basic cause first."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from .rows import CHUNK, DocumentRecord, MediumRecord, RowRecord

Cause = Literal[
    "config field",
    "row",
    "document",
    "medium",
    "frames",
    "size",
    "times",
    "span",
    "token",
    "damage",
    "labels",
    "positions",
    "pixels",
]

CAUSES: tuple[Cause, ...] = Cause.__args__  # type: ignore[attr-defined]
"""From the most basic: each can be a consequence of those before it."""


class Difference(NamedTuple):
    """One thing that differs.

    Attributes:
        cause: what kind of thing.
        what: which one, in words.
        a, b: what each run has; None: nothing.
    """

    cause: Cause
    what: str
    a: Any = None
    b: Any = None


def differences(a: RowRecord, b: RowRecord) -> list[Difference]:
    """What differs between two records of a row: of each cause the first, basic causes first.

    Where the documents drawn differ, all else follows from it and nothing else is told.
    """
    drawn = _drawn(a, b)
    if drawn is not None:
        return [drawn]
    found = [
        difference
        for number, (one, two) in enumerate(zip(a.documents, b.documents, strict=True))
        for difference in _document(number, one, two)
    ]
    if a.tokens != b.tokens and not any(d.cause in ("token", "span", "frames") for d in found):
        found.append(Difference("token", "ids of the row, or of its padding", a.tokens, b.tokens))
    if a.labels != b.labels:
        found.append(Difference("labels", "which tokens of the row train", a.labels, b.labels))
    if a.positions != b.positions:
        found.append(Difference("positions", "position ids of the row", a.positions, b.positions))
    first: dict[Cause, Difference] = {}
    for difference in found:
        first.setdefault(difference.cause, difference)
    return [first[cause] for cause in CAUSES if cause in first]


def _drawn(a: RowRecord, b: RowRecord) -> Difference | None:
    """The first place at which the rows hold different samples."""
    for number in range(max(len(a.documents), len(b.documents))):
        one = a.documents[number] if number < len(a.documents) else None
        two = b.documents[number] if number < len(b.documents) else None
        if _draw(one) != _draw(two):
            return Difference("document", f"number {number} of the row", _draw(one), _draw(two))
    return None


def _draw(document: DocumentRecord | None) -> dict[str, Any] | None:
    if document is None:
        return None
    return {name: getattr(document, name) for name in ("source", "shard", "sample", "key", "epoch")}


def _document(number: int, a: DocumentRecord, b: DocumentRecord) -> list[Difference]:
    """What differs between two records of the same draw."""
    name = f"document {a.name}, number {number} of the row"
    found = _media(name, a.media, b.media)
    if _span(a) != _span(b):
        found.append(Difference("span", f"tokens of {name}", _span(a), _span(b)))
    if a.tokens != b.tokens:
        found.append(_token(name, a, b))
    if a.damaged != b.damaged:
        what = f"whether a medium of {name} could not be decoded"
        found.append(Difference("damage", what, bool(a.damaged), bool(b.damaged)))
    return found


def _token(name: str, a: DocumentRecord, b: DocumentRecord) -> Difference:
    """The first tokens of a document that differ, to within a chunk."""
    ones, twos = ([d.tokens[i : i + 4] for i in range(0, len(d.tokens), 4)] for d in (a, b))
    same = [one == two for one, two in zip(ones, twos, strict=False)]
    begin = CHUNK * (same.index(False) if False in same else len(same))
    end = min(begin + CHUNK, max(a.stop - a.start, b.stop - b.start))
    what = (
        f"one of tokens {a.start + begin} to {a.start + end - 1} of the row, which are "
        f"{a.token_start + begin} to {a.token_start + end - 1} of {name}"
    )
    chunk = begin // CHUNK
    return Difference("token", what, _at(ones, chunk), _at(twos, chunk))


def _media(name: str, a: tuple[MediumRecord, ...], b: tuple[MediumRecord, ...]) -> list[Difference]:
    kinds_a, kinds_b = ([(m.kind, m.member) for m in media] for media in (a, b))
    if kinds_a != kinds_b:
        return [Difference("medium", f"media of {name}", kinds_a, kinds_b)]
    found = []
    for number, (one, two) in enumerate(zip(a, b, strict=True)):
        medium = f"{one.kind} {number} of {name}"
        if one.frames != two.frames:
            what = f"frames of {medium}"
            found.append(Difference("frames", what, list(one.frames), list(two.frames)))
        if (one.size, one.grid) != (two.size, two.grid):
            shown = [{"size": list(m.size), "grid": list(m.grid)} for m in (one, two)]
            found.append(Difference("size", f"size of {medium}", *shown))
        if one.times != two.times:
            found.append(Difference("times", f"times of frames of {medium}", one.times, two.times))
        if one.pixels != two.pixels:
            found.append(Difference("pixels", f"pixels of {medium}", one.pixels, two.pixels))
    return found


def _span(document: DocumentRecord) -> dict[str, list[int]]:
    return {
        "of the document": [document.token_start, document.token_stop],
        "in the row": [document.start, document.stop],
    }


def _at(checks: list[str], place: int) -> str | None:
    return checks[place] if place < len(checks) else None
