"""The template of documents without a conversation: ``{media}{text}<|endoftext|>``.

``{media}`` and ``{text}`` stand for a sample's parts, everything else is written as it is, special
tokens recognised. Loss is on the text and on what follows it. A template without ``{media}`` shows
media first. A document whose parts have an order of their own (interleaved) keeps it: what stands
before the first placeholder comes before it, what stands after the last comes after it, and what
stands between the placeholders has no place and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ..errors import ConfigError
from ..sample import Part, TextPart

_PLACEHOLDER = re.compile(r"(\{media\}|\{text\})")


@lru_cache(maxsize=64)
def split_template(template: str) -> tuple[str, ...]:
    """Literals and placeholders in order, empty literals left out.

    Raises ConfigError unless ``{text}`` comes once and ``{media}`` at most once.
    """
    pieces = [piece for piece in _PLACEHOLDER.split(template) if piece]
    if pieces.count("{text}") != 1 or pieces.count("{media}") > 1:
        raise ConfigError(
            f"template={template!r}: must hold {{text}} once and {{media}} at most once"
        )
    return tuple(pieces if "{media}" in pieces else ["{media}", *pieces])


def captioned(template: str, media: Sequence[Part], text: str) -> tuple[Part, ...]:
    """Parts of a document that has one text: media and text where the template puts them."""
    parts: list[Part] = []
    for piece in _pieces(template):
        if isinstance(piece, TextPart):
            parts.append(piece)
        elif piece == "{media}":
            parts.extend(media)
        else:
            parts.append(TextPart(text))
    return tuple(parts)


@lru_cache(maxsize=64)
def _pieces(template: str) -> tuple[TextPart | str, ...]:
    """Placeholders, and the template's own text as parts."""
    pieces = split_template(template)
    text = pieces.index("{text}")
    return tuple(
        piece if piece in ("{media}", "{text}") else TextPart(piece, loss=at > text, special=True)
        for at, piece in enumerate(pieces)
    )


def surrounded(template: str, parts: Sequence[Part]) -> tuple[Part, ...]:
    """``parts`` with the template's text before its first and after its last placeholder."""
    pieces = split_template(template)
    places = [at for at, piece in enumerate(pieces) if piece in ("{media}", "{text}")]
    if "{media}" not in template:
        places = places[1:]  # the one that `split_template` put first
        pieces, places = pieces[1:], [place - 1 for place in places]
    before = [TextPart(p, loss=False, special=True) for p in pieces[: places[0]]]
    after = [TextPart(p, loss=True, special=True) for p in pieces[places[-1] + 1 :]]
    return (*before, *parts, *after)
