"""Parts of documents to token ids and loss masks (C5), many documents at once.

Text that stands together is tokenised as one string, whoever wrote it, since that is what a Hugging
Face processor does with the whole text: ids are equal to its ids. Runs end at control tokens of the
template and at media. Control tokens that a sample's own text spells are plain text.

A token is a target if any character of it is. Where a run has both kinds of text, the tokenizer's
offsets say which, but for the usual case, a short head without loss (``assistant``, a newline) and
a text: if the run's ids begin with those of the head alone, and these spell the head, the head's
tokens end where it ends. Offsets cost as much again as the tokens. A medium's block never is a
target.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import SampleError
from ..models.tokenizer import ID_BYTES, Tokenizer, pack_ids
from ..sample import TextPart

Tokens = NDArray[np.int32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Block:
    """A medium's tokens, wrappers included, as the model family lays them out."""

    tokens: Tokens

    @property
    def ids(self) -> bytes:
        """The tokens, packed."""
        return self.tokens.astype(np.int32, copy=False).tobytes()


class Encoded(NamedTuple):
    """A document's tokens.

    Attributes:
        tokens: int32 [n].
        loss: bool [n].
        blocks: (start, stop) of each medium's block, in order.
    """

    tokens: Tokens
    loss: Mask
    blocks: tuple[tuple[int, int], ...]


class _Run:
    """Text that is tokenised as one string; ``losses`` say which of its parts are targets."""

    __slots__ = ("first", "ids", "loss", "losses", "texts")

    def __init__(self, text: str, loss: bool) -> None:
        self.texts = [text]
        self.losses = [loss]
        self.ids = b""
        self.first = 0  # token with loss, where all that follow have it
        self.loss: Mask | None = None  # of each token, where it isn't so simple

    @property
    def text(self) -> str:
        return self.texts[0] if len(self.texts) == 1 else "".join(self.texts)

    @property
    def head(self) -> str | None:
        """The text before the part with loss; None if text without loss comes after that."""
        losses = self.losses
        count = losses.index(True) if True in losses else len(losses)
        if False in losses[count:]:
            return None
        return self.texts[0] if count == 1 else "".join(self.texts[:count])


class _Fixed(NamedTuple):
    """A control token, or several and what stands between them: the same tokens wherever it is."""

    ids: bytes
    loss: bool


_Item = _Run | _Fixed | Block
_Pieces = Sequence["str | _Fixed"]
_Seen = tuple[dict[str, _Pieces], dict[str, _Pieces]]  # without loss, and with it
_SHORT = 300  # characters: what templates write comes again, in every turn


def encode_documents(
    documents: Sequence[Sequence[TextPart | Block]], tokenizer: Tokenizer
) -> list[Encoded | SampleError]:
    """Tokens of each document, in order; a document whose text can't be encoded gives its error."""
    results: list[list[_Item] | SampleError] = []
    seen: _Seen = ({}, {})
    for parts in documents:
        try:
            results.append(_items(parts, tokenizer, seen))
        except SampleError as error:
            results.append(error)
    found = [items for items in results if not isinstance(items, SampleError)]
    _encode([item for items in found for item in items if isinstance(item, _Run)], tokenizer)
    return [items if isinstance(items, SampleError) else _join(items) for items in results]


def _encode(runs: Sequence[_Run], tokenizer: Tokenizer) -> None:
    """Tokens and losses of all runs; each text is encoded once."""
    texts = [run.text for run in runs]
    heads = [run.head if len(run.losses) > 1 else "" for run in runs]
    known = dict.fromkeys((*texts, *(head for head in heads if head)))
    encoded = dict(zip(known, tokenizer.encode_packed(list(known)), strict=True))
    spelt: dict[str, bool] = {}
    for run, text, head in zip(runs, texts, heads, strict=True):
        run.ids = encoded[text]
        if len(run.losses) == 1:
            run.first = 0 if run.losses[0] else len(run.ids) // ID_BYTES
        elif head is None:
            _use_offsets(run, tokenizer)
        elif len(head) == len(text):  # no target in it
            run.first = len(run.ids) // ID_BYTES
        elif head:
            start = encoded[head]
            if head not in spelt:
                spelt[head] = tokenizer.decode(np.frombuffer(start, np.int32)) == head
            if spelt[head] and run.ids.startswith(start):
                run.first = len(start) // ID_BYTES
            else:
                _use_offsets(run, tokenizer)


def _items(parts: Sequence[TextPart | Block], tokenizer: Tokenizer, seen: _Seen) -> list[_Item]:
    """The parts cut into runs, control tokens and blocks; ``seen``: short texts cut before."""
    items: list[_Item] = []
    run: _Run | None = None  # the last item, if it is one
    for part in parts:
        if isinstance(part, Block):
            items.append(part)
            run = None
            continue
        loss = bool(part.loss)  # a format of the user's may have it from NumPy
        for piece in _cut(part, loss, tokenizer, seen):
            if isinstance(piece, _Fixed):
                items.append(piece)
                run = None
            elif run is not None and piece:
                run.texts.append(piece)
                run.losses.append(loss)
            elif piece:
                run = _Run(piece, loss)
                items.append(run)
    return _stripped(items, tokenizer) if tokenizer.strips else items


def _cut(part: TextPart, loss: bool, tokenizer: Tokenizer, seen: _Seen) -> _Pieces:
    """The part's text, cut if a template wrote it."""
    text, known = part.text, seen[loss]
    if not text.isascii():
        _check_surrogates(text)
    if not part.special:
        return (text,)
    if len(text) > _SHORT:
        return _pieces(text, loss, tokenizer)
    found = known.get(text)
    if found is None:
        found = known[text] = _pieces(text, loss, tokenizer)
    return found


def _pieces(text: str, loss: bool, tokenizer: Tokenizer) -> _Pieces:
    """Template text cut where its tokens no longer depend on what stands beside it.

    That is from its first control token to its last; under a tokenizer that strips, at each.
    """
    cut = tokenizer.split_control(text)
    if cut == [(text, None)]:
        return (text,)
    places = [at for at, (_, token) in enumerate(cut) if token is not None]
    if tokenizer.strips or not places:
        return [
            piece if token is None else _Fixed(pack_ids((token,)), loss) for piece, token in cut
        ]
    inner = cut[places[0] : places[-1] + 1]
    texts = iter(tokenizer.encode_packed([piece for piece, token in inner if token is None]))
    ids = b"".join(next(texts) if token is None else pack_ids((token,)) for _, token in inner)
    before, after = cut[: places[0]], cut[places[-1] + 1 :]
    return [*(p for p, _ in before), _Fixed(ids, loss), *(p for p, _ in after)]


def _stripped(items: list[_Item], tokenizer: Tokenizer) -> list[_Item]:
    """The items less the white space that control tokens take away; a run may be left empty."""
    controls = [
        int.from_bytes(item.ids, sys.byteorder) if isinstance(item, _Fixed) else None
        for item in items
    ]
    tokens = [None, *controls, None]
    for item, before, after in zip(items, tokens, tokens[2:], strict=False):
        if isinstance(item, _Run):
            texts = item.texts
            for at in range(len(texts)):  # white space of several parts
                texts[at] = tokenizer.strip(texts[at], before, None)
                if texts[at]:
                    break
            for at in reversed(range(len(texts))):
                texts[at] = tokenizer.strip(texts[at], None, after)
                if texts[at]:
                    break
    return items


def _check_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SampleError(
            f"text holds half a surrogate pair (character {error.start})", stage="tokenise"
        ) from error


def _use_offsets(run: _Run, tokenizer: Tokenizer) -> None:
    """Loss of a run with both kinds of text, from the characters of each token."""
    tokens, offsets = tokenizer.encode_offsets(run.text)
    lengths = [len(text) for text in run.texts]
    counts = np.concatenate(([0], np.cumsum(np.repeat(run.losses, lengths))))
    stops = offsets[:, 1]
    # Some tokenizers leave white space out of offsets: it belongs to the token that follows.
    reached = np.concatenate(([0], np.maximum.accumulate(stops)))[:-1]
    run.ids = tokens.tobytes()
    run.loss = counts[stops] > counts[np.minimum(offsets[:, 0], reached)]


def _join(items: Sequence[_Item]) -> Encoded:
    ids: list[bytes] = []
    loss: list[bytes] = []
    blocks: list[tuple[int, int]] = []
    at = 0
    for item in items:
        ids.append(item.ids)
        count = len(item.ids) // ID_BYTES
        if isinstance(item, _Run):
            first = item.first
            if item.loss is not None:
                loss.append(item.loss.tobytes())
            else:
                loss += (b"\0" * first, b"\1" * (count - first))
        elif isinstance(item, _Fixed):
            loss.append((b"\1" if item.loss else b"\0") * count)
        else:
            loss.append(b"\0" * count)
            blocks.append((at, at + count))
        at += count
    tokens = np.frombuffer(b"".join(ids), np.int32)
    return Encoded(tokens, np.frombuffer(b"".join(loss), np.bool_), tuple(blocks))
