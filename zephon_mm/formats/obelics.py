"""``obelics``: ``images`` and ``texts``, two lists of equal length, one of them null at each index.

An image is named by its URL, its file or an object with ``path``; the pictures are members of such
names, or the sample's own in order (``0.jpg``, ``1.jpg`` …), as many as there are images.
"""

from __future__ import annotations

from typing import Any

from ..sample import Document, ImagePart, Part, TextPart
from .base import (
    FormatOptions,
    Sample,
    checked_list,
    checked_object,
    checked_text,
    kind_of,
    malformed,
)

OPTIONS = frozenset({"json_field", "joiner"})


def obelics(sample: Sample, options: FormatOptions) -> Document:
    """A document in the order of the lists, ``joiner`` (a blank line) between two texts."""
    field = options.string("json_field") or "json"
    joiner = options.joiner("\n\n")
    what = f"member {sample.member_name(field)!r}"
    data = checked_object(sample.json(field), what)
    images = checked_list(data.get("images"), f"{what}: 'images'")
    texts = checked_list(data.get("texts"), f"{what}: 'texts'")
    if len(images) != len(texts):
        raise malformed(f"{what}: {len(images)} images and {len(texts)} texts, expected as many")
    for at, (image, text) in enumerate(zip(images, texts, strict=True)):
        if (image is None) == (text is None):
            both = "neither an image nor a text" if image is None else "both an image and a text"
            raise malformed(f"{what}: there is {both} at index {at}")
    names = [_name(value, f"{what}: 'images'") for value in images if value is not None]
    pictures = iter(sample.pictures(names, f"{what}: 'images'"))
    parts: list[Part] = []
    for at, text in enumerate(texts):
        if text is None:
            parts.append(ImagePart(next(pictures)))
            continue
        if parts and isinstance(parts[-1], TextPart):
            parts.append(TextPart(joiner))
        parts.append(TextPart(checked_text(text, f"{what}: 'texts'[{at}]")))
    return options.surrounded(parts)


def _name(value: Any, what: str) -> str:
    name = value.get("path") if isinstance(value, dict) else value
    if not isinstance(name, str):
        raise malformed(f"{what} holds {kind_of(name)}, expected the name of a picture")
    return name
