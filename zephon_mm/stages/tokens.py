"""Parts of documents to token ids and loss masks (C5), many documents at once.

Text that stands together is tokenised as one string, whoever wrote it, since that is what a Hugging
Face processor does with the whole text: ids are equal to its ids. Runs end at control tokens of the
template and at media. Control tokens that a sample's own text spells are plain text.

A token is a target if any character of it is: where a run has both kinds of text, the tokenizer's
offsets say which. A medium's block never is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _Run:
    """Text that is tokenised as one string; ``ends`` and ``losses`` say which parts are targets."""

    texts: list[str] = field(default_factory=list)
    losses: list[bool] = field(default_factory=list)
    tokens: Tokens | None = None
    loss: Mask | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def mixed(self) -> bool:
        return len(set(self.losses)) > 1


@dataclass(frozen=True, slots=True)
class _Control:
    token: int
    loss: bool


_Item = _Run | _Control | Block


def encode_documents(
    documents: Sequence[Sequence[TextPart | Block]], tokenizer: Tokenizer
) -> list[Encoded | SampleError]:
    """Tokens of each document, in order; a document whose text can't be encoded gives its error."""
    results: list[list[_Item] | SampleError] = []
    plain: list[_Run] = []
    for parts in documents:
        try:
            items = _items(parts, tokenizer)
        except SampleError as error:
            results.append(error)
            continue
        results.append(items)
        for item in items:
            if isinstance(item, _Run):
                if item.mixed:
                    _encode_mixed(item, tokenizer)
                else:
                    plain.append(item)
    for run, tokens in zip(plain, tokenizer.encode_batch([r.text for r in plain]), strict=True):
        run.tokens = tokens
        run.loss = np.full(len(tokens), run.losses[0])
    return [found if isinstance(found, SampleError) else _join(found) for found in results]


def _items(parts: Sequence[TextPart | Block], tokenizer: Tokenizer) -> list[_Item]:
    items: list[_Item] = []
    for part in parts:
        if isinstance(part, Block):
            items.append(part)
            continue
        try:
            part.text.encode()
        except UnicodeEncodeError as error:
            raise SampleError(
                f"text holds half a surrogate pair (character {error.start})", stage="tokenise"
            ) from error
        pieces = tokenizer.split_control(part.text) if part.special else [(part.text, None)]
        for text, token in pieces:
            if token is not None:
                items.append(_Control(token, part.loss))
            elif text:
                run = items[-1] if items else None
                if not isinstance(run, _Run):
                    run = _Run()
                    items.append(run)
                run.texts.append(text)
                run.losses.append(part.loss)
    return items


def _encode_mixed(run: _Run, tokenizer: Tokenizer) -> None:
    """Tokens of a run with both kinds of text; offsets say which hold a target character."""
    tokens, offsets = tokenizer.encode_offsets(run.text)
    lengths = [len(text) for text in run.texts]
    counts = np.concatenate(([0], np.cumsum(np.repeat(run.losses, lengths))))
    stops = offsets[:, 1]
    # Some tokenizers leave white space out of offsets: it belongs to the token that follows.
    reached = np.concatenate(([0], np.maximum.accumulate(stops)))[:-1]
    run.tokens = tokens
    run.loss = counts[stops] > counts[np.minimum(offsets[:, 0], reached)]


def _join(items: Sequence[_Item]) -> Encoded:
    tokens: list[Tokens] = []
    loss: list[Mask] = []
    blocks: list[tuple[int, int]] = []
    at = 0
    for item in items:
        if isinstance(item, _Run):
            assert item.tokens is not None and item.loss is not None
            tokens.append(item.tokens)
            loss.append(item.loss)
        elif isinstance(item, Block):
            tokens.append(item.tokens)
            loss.append(np.zeros(len(item.tokens), np.bool_))
            blocks.append((at, at + len(item.tokens)))
        else:
            tokens.append(np.array([item.token], np.int32))
            loss.append(np.array([item.loss]))
        at += len(tokens[-1])
    if not tokens:
        return Encoded(np.zeros(0, np.int32), np.zeros(0, np.bool_), ())
    joined = np.concatenate(tokens).astype(np.int32, copy=False)
    return Encoded(joined, np.concatenate(loss), tuple(blocks))
