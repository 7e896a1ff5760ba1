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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import SampleError
from ..models.tokenizer import Tokenizer
from ..sample import TextPart

Tokens = NDArray[np.int32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Block:
    """A medium's tokens, wrappers included, as the model family lays them out."""

    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Encoded:
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
        self.ids: list[int] = []
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


class _Control(NamedTuple):
    token: int
    loss: bool


_Item = _Run | _Control | Block
_Pieces = list[tuple[str, int | None]]
_SHORT = 100  # characters: what templates write comes again, in every turn


def encode_documents(
    documents: Sequence[Sequence[TextPart | Block]], tokenizer: Tokenizer
) -> list[Encoded | SampleError]:
    """Tokens of each document, in order; a document whose text can't be encoded gives its error."""
    results: list[list[_Item] | SampleError] = []
    seen: dict[str, _Pieces] = {}
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
    heads = [run.head for run in runs]
    known = dict.fromkeys((*texts, *(head for head in heads if head)))
    encoded = dict(zip(known, tokenizer.encode_lists(list(known)), strict=True))
    spelt: dict[str, bool] = {}
    for run, text, head in zip(runs, texts, heads, strict=True):
        run.ids = encoded[text]
        if head is None:
            _use_offsets(run, tokenizer)
        elif len(head) == len(text):  # no target in it
            run.first = len(run.ids)
        elif head:
            start = encoded[head]
            if head not in spelt:
                spelt[head] = tokenizer.decode(start) == head
            if spelt[head] and run.ids[: len(start)] == start:
                run.first = len(start)
            else:
                _use_offsets(run, tokenizer)


def _items(
    parts: Sequence[TextPart | Block], tokenizer: Tokenizer, seen: dict[str, _Pieces]
) -> list[_Item]:
    """The parts cut into runs, control tokens and blocks; ``seen``: short texts cut before."""
    items: list[_Item] = []
    run: _Run | None = None  # the last item, if it is one
    for part in parts:
        if isinstance(part, Block):
            items.append(part)
            run = None
            continue
        whole, loss = part.text, part.loss
        if not whole.isascii():
            _check_surrogates(whole)
        pieces = seen.get(whole) if part.special else [(whole, None)]
        if pieces is None:
            pieces = tokenizer.split_control(whole)
            if len(whole) <= _SHORT:
                seen[whole] = pieces
        for text, token in pieces:
            if token is not None:
                items.append(_Control(token, loss))
                run = None
            elif run is not None and text:
                run.texts.append(text)
                run.losses.append(loss)
            elif text:
                run = _Run(text, loss)
                items.append(run)
    return _stripped(items, tokenizer) if tokenizer.strips else items


def _stripped(items: list[_Item], tokenizer: Tokenizer) -> list[_Item]:
    """The items less the white space that control tokens take away; a run may be left empty."""
    tokens = [None, *(i.token if isinstance(i, _Control) else None for i in items), None]
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
    run.ids = tokens.tolist()
    run.loss = counts[stops] > counts[np.minimum(offsets[:, 0], reached)]


def _join(items: Sequence[_Item]) -> Encoded:
    total = sum(_length(item) for item in items)
    tokens = np.empty(total, np.int32)
    loss = np.zeros(total, np.bool_)
    blocks: list[tuple[int, int]] = []
    at = 0
    for item in items:
        if isinstance(item, _Control):
            tokens[at] = item.token
            loss[at] = item.loss
            at += 1
            continue
        start = at
        if isinstance(item, Block):
            at += len(item.tokens)
            tokens[start:at] = item.tokens
            blocks.append((start, at))
            continue
        at += len(item.ids)
        tokens[start:at] = item.ids
        if item.loss is None:
            loss[start + item.first : at] = True
        else:
            loss[start:at] = item.loss
    return Encoded(tokens, loss, tuple(blocks))


def _length(item: _Item) -> int:
    if isinstance(item, _Control):
        return 1
    return len(item.tokens) if isinstance(item, Block) else len(item.ids)
