"""What happens to a document longer than a sequence: pure functions over measured documents.

A document is cut at text tokens and between media, never inside a medium's block; a medium larger
than a sequence is laid out smaller beforehand (`Relayout`). Each piece is as long as it can be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..sample import MeasuredDocument

Relayout = Callable[[MeasuredDocument, int, int], MeasuredDocument]
"""``(document, max_tokens, max_patches)`` → the document with every medium inside both limits."""


def medium_limit(sequence_length: int) -> int:
    """Tokens a single medium may take, so that text to learn from still fits beside it."""
    return sequence_length - min(256, max(4, sequence_length // 8))


def next_cut(document: MeasuredDocument, start: int, num_tokens: int, max_patches: int) -> int:
    """Where the longest piece that begins at ``start`` ends (exclusive).

    A last token is not left over alone, since a piece's first token trains nothing. Raises
    ValueError if a medium's block alone is over a capacity: it had to be re-laid first.
    """
    stop = min(start + num_tokens, len(document.tokens))
    patches = 0
    for span in document.media:
        if span.stop <= start:
            continue
        if span.start >= stop:
            break
        patches += span.num_patches
        if span.stop > stop or patches > max_patches:
            if span.start <= start:
                raise ValueError(
                    f"a medium of {span.stop - span.start} tokens and {span.num_patches} patches "
                    f"does not fit {num_tokens} tokens and {max_patches} patches"
                )
            return span.start
    in_text = all(not span.start < stop - 1 < span.stop for span in document.media)
    if stop == len(document.tokens) - 1 and stop - start > 1 and in_text:
        return stop - 1
    return stop


def has_targets(document: MeasuredDocument, start: int, stop: int) -> bool:
    """Whether tokens ``[start, stop)`` train anything; a piece's first token never does."""
    return bool(document.loss[start + 1 : stop].any())


def num_patches(document: MeasuredDocument, start: int, stop: int) -> int:
    """Vision patches of the media inside ``[start, stop)``."""
    return sum(s.num_patches for s in document.media if start <= s.start and s.stop <= stop)


def truncate(
    document: MeasuredDocument, num_tokens: int, max_patches: int, end_ids: frozenset[int]
) -> MeasuredDocument:
    """The longest head of a document that fits; an end token at its end stays, with its loss."""
    keeps_end = len(document.tokens) > 0 and int(document.tokens[-1]) in end_ids
    stop = next_cut(document, 0, num_tokens - keeps_end, max_patches)
    tokens, loss = document.tokens[:stop], document.loss[:stop]
    if keeps_end:
        tokens = np.concatenate([tokens, document.tokens[-1:]])
        loss = np.concatenate([loss, document.loss[-1:]])
    media = tuple(span for span in document.media if span.stop <= stop)
    return replace(document, tokens=tokens, loss=loss, media=media)
