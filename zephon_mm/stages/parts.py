"""What is done to a document's parts before its text is tokenised, as the model family wants it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from ..errors import MediaError
from ..models import ModelFamily
from ..models.base import Kind
from ..sample import Document, ImagePart, Part, TextPart, VideoPart


def animations_as_clips(document: Document, is_animation: Callable[[str], bool]) -> Document:
    """The document with a `VideoPart` for each picture of which ``is_animation(field)`` is true.

    It is done before a chat template writes the text, since a clip is written in another way than
    a picture.
    """

    def shown(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(
            VideoPart(part.field)
            if isinstance(part, ImagePart) and is_animation(part.field)
            else part
            for part in parts
        )

    turns = tuple(turn._replace(parts=shown(turn.parts)) for turn in document.turns)
    return replace(document, parts=shown(document.parts), turns=turns)


def check_kinds(document: Document, family: ModelFamily) -> None:
    """Raise MediaError (kind ``dropped``) if the model can't be shown a document's media."""
    kinds: list[Kind] = [
        "image" if isinstance(part, ImagePart) else "video"
        for parts in (document.parts, *[turn.parts for turn in document.turns])
        for part in parts
        if not isinstance(part, TextPart)
    ]
    reason = family.refusal(kinds)
    for kind in kinds:
        if kind not in family.placeholders:
            reason = (
                f"model {family.name!r} takes no {kind}s: choose another family, or a format that "
                "leaves them out"
            )
    if reason is not None:
        raise MediaError(reason, stage="layout", kind="dropped")


def opened(parts: tuple[Part, ...], opening: str) -> tuple[Part, ...]:
    """The parts, begun with a family's ``opening`` unless they are already."""
    if not opening:
        return parts
    template = itertools.takewhile(_is_template, parts)
    start = "".join(part.text for part in template if isinstance(part, TextPart))
    written = start.startswith(opening)
    return parts if written else (TextPart(opening, loss=False, special=True), *parts)


def _is_template(part: Part) -> bool:
    return isinstance(part, TextPart) and part.special
