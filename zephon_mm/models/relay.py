"""Laying out media that are larger than a sequence, and the digest of a measured document."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..sample import MeasuredDocument, MediaSpan

if TYPE_CHECKING:
    from .base import ModelFamily


_IDS = np.dtype("<i4")
_UNBOUNDED = 1 << 40


def capacities(max_tokens: int, max_patches: int, patches: str = "patches") -> str:
    """Both capacities in words; one that no row can reach is left out."""
    tokens = f"{max_tokens} tokens"
    return tokens if max_patches >= _UNBOUNDED else f"{tokens} or {max_patches} {patches}"


def measure_digest(
    tokens: NDArray[np.int32], loss: NDArray[np.bool_], media: Sequence[MediaSpan]
) -> bytes:
    """16 bytes over a document's tokens, loss mask and media: `MeasuredDocument.digest`."""
    digest = hashlib.blake2b(len(tokens).to_bytes(8, "little"), digest_size=16)
    digest.update(np.ascontiguousarray(tokens, _IDS).data)
    digest.update(np.packbits(loss).data)
    for span in media:
        digest.update(span_identity(span))
    return digest.digest()


def span_identity(span: MediaSpan) -> bytes:
    """Everything a span says, as bytes that don't depend on the machine."""
    whole = (
        (span.kind, int(span.member), int(span.start), int(span.stop)),
        tuple(map(int, (*span.grid, *span.size, *span.source_size))),
        tuple(map(int, span.frames)),
        tuple(map(int, span.pts)),
        tuple(map(int, span.time_base)),
        float(span.fps).hex(),
    )
    return repr(whole).encode()


def relayout_document(
    document: MeasuredDocument, max_tokens: int, max_patches: int, *, family: ModelFamily
) -> MeasuredDocument:
    """The document with each medium that is over a capacity laid out smaller (`shrink`).

    Tokens, loss mask, offsets and digest follow. A document whose media all fit comes back as it
    is. Raises MediaError (kind ``dropped``) for a medium that can't be made to fit.
    """
    if all(_fits(span, max_tokens, max_patches) for span in document.media):
        return document
    tokens: list[NDArray[np.int32]] = []
    loss: list[NDArray[np.bool_]] = []
    media: list[MediaSpan] = []
    end = shift = 0
    for old in document.media:
        span = old
        if not _fits(old, max_tokens, max_patches):
            span = family.shrink(old, max_tokens, max_patches)
            block = family.block(span)
            tokens += [document.tokens[end : old.start], block]
            loss += [document.loss[end : old.start], np.zeros(len(block), np.bool_)]
            end = old.stop
        length = span.stop - span.start
        media.append(replace(span, start=old.start + shift, stop=old.start + shift + length))
        shift += length - (old.stop - old.start)
    whole = np.concatenate([*tokens, document.tokens[end:]])
    mask = np.concatenate([*loss, document.loss[end:]])
    digest = measure_digest(whole, mask, media)
    return replace(document, tokens=whole, loss=mask, media=tuple(media), digest=digest)


def _fits(span: MediaSpan, max_tokens: int, max_patches: int) -> bool:
    return span.stop - span.start <= max_tokens and span.num_patches <= max_patches
