"""The usual conversation, of texts alone, of which a template writes each as it is and in order.

It is what `chat` does for all conversations, less what such a one doesn't need: what the template
writes around texts is learnt, by marks, once for each order of roles, and cut where targets begin
and end. A conversation is rendered once, and must be its texts within that, character by character.
Whatever is not so simple is left to `chat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from ..errors import SampleError
from ..sample import Part, TextPart, Turn
from .chat import ChatTemplate

_OWN, _OTHER = "\ufdd0", "\ufdd1"  # noncharacters, around what is learnt and around the rest
_WORD = "text"
_SCAFFOLDS = 256


class Conversations:
    """Renders conversations under one template. Safe to share between threads.

    Args:
        template: of the run; renders whatever is not so simple.
        placeholders: by kind, what it writes for a medium.
    """

    def __init__(self, template: ChatTemplate, placeholders: Mapping[str, str]) -> None:
        self._template = template
        self._foreign = (_OWN, _OTHER, *placeholders.values())
        self._cut = lru_cache(maxsize=_SCAFFOLDS)(self._scaffold)
        self._around = lru_cache(maxsize=_SCAFFOLDS)(self._learnt_around)

    def render(self, turns: Sequence[Turn], tools: str = "") -> tuple[Part, ...]:
        """See `ChatTemplate.render`, which gives the same tokens."""
        parts = None
        if not tools and not self._template.marks_generation:
            parts = self._of_texts(turns)
        return self._template.render(turns, tools) if parts is None else parts

    def _of_texts(self, turns: Sequence[Turn]) -> tuple[Part, ...] | None:
        """The conversation if it is of this kind, else None."""
        texts: list[str] = []
        for turn in turns:
            text = self._text(turn)
            if text is None:
                return None
            texts.append(text)
        roles = tuple(turn.role for turn in turns)
        around = self._around(roles, tuple(turn.loss for turn in turns))
        if around is None:
            return None
        try:
            plain = self._template.write(_messages(roles, texts))
        except SampleError:
            return None
        if plain != _woven(around, texts) or any(text in plain for text in self._foreign):
            return None
        parts: list[Part] = []
        before: bool | None = None
        for number, scaffold in enumerate(around):
            after = turns[number].loss if number < len(turns) else None
            cut = self._cut(scaffold, before, after)
            if cut is None:
                return None
            parts += cut
            if after is not None and texts[number]:
                parts.append(TextPart(texts[number], after))  # it spells no control token
            before = after
        return tuple(parts)

    def _learnt_around(self, roles: tuple[str, ...], losses: tuple[bool, ...]) -> list[str] | None:
        """What the template writes around the texts of turns of these roles.

        It is learnt from texts of no meaning, so that what comes of a conversation does not depend
        on those before it. None: they don't come as they are and in their turn.
        """
        marks = [_OWN if loss else _OTHER for loss in losses]
        try:
            marked = self._template.write(_messages(roles, [f"{m}{_WORD}{m}" for m in marks]))
        except SampleError:
            return None
        return _around(marked, [_WORD] * len(marks), marks)

    def _text(self, turn: Turn) -> str | None:
        """What a turn says; None if it does more than that, or spells a control token."""
        parts = turn.parts
        if turn.role == "tool" or turn.reasoning or turn.calls or turn.name or turn.call_id:
            return None
        if len(parts) > 1:
            return None
        if not parts:
            return ""
        part = parts[0]
        if not isinstance(part, TextPart) or not part.loss:
            return None
        pieces = self._template.tokenizer.split_control(part.text)
        if len(pieces) > 1 or (pieces and pieces[0][1] is not None):
            return None
        return part.text

    def _scaffold(
        self, text: str, before: bool | None, after: bool | None
    ) -> tuple[TextPart, ...] | None:
        """What stands between two texts, cut at the edges of targets; None: they can't be told.

        Args:
            text: what stands there.
            before: whether the text before it is learnt; None: there is none.
            after: the same of the text after it.
        """
        frame, free = self._template.frame, 0
        if before:
            if not frame.ending or not text.startswith(frame.ending):
                return None
            free = len(frame.ending)
        begun = len(text)
        if after:
            shown = text if before is not False else _OTHER + text
            found = frame.begins(shown, free, len(shown), _OTHER)
            begun = begun if found is None else found - len(shown) + len(text)
        pieces = ((text[:free], True), (text[free:begun], False), (text[begun:], True))
        return tuple(TextPart(piece, loss=loss, special=True) for piece, loss in pieces if piece)


def _messages(roles: Sequence[str], texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


def _around(marked: str, texts: Sequence[str], marks: Sequence[str]) -> list[str] | None:
    """What stands before, between and after the texts; None unless each comes in its turn."""
    found: list[str] = []
    at = 0
    for text, mark in zip(texts, marks, strict=True):
        start = marked.find(mark, at) + 1
        stop = start + len(text)
        if not start or marked[start:stop] != text or marked[stop : stop + 1] != mark:
            return None
        found.append(marked[at : start - 1])
        at = stop + 1
    found.append(marked[at:])
    return found


def _woven(around: Sequence[str], texts: Sequence[str]) -> str:
    pieces = [piece for pair in zip(around, texts, strict=False) for piece in pair]
    return "".join((*pieces, around[-1]))
