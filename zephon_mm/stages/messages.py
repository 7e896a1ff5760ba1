"""A conversation's messages as chat templates take them, plain or with marks in their texts.

Marks are Unicode noncharacters that the conversation does not use: one where a text of the
assistant's starts, one where it ends, and a cut. Cuts lie inside control tokens that a message or
a tool's description spells, so that these stay text, and around the texts of the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import SampleError
from ..models.tokenizer import Tokenizer
from ..sample import ImagePart, Part, TextPart, Turn

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
_THINKING = re.compile(r"(<think>|</think>)")

Style = Literal["outside", "inside", "loss"]
Kind = Literal["text", "reasoning", "tool call"]


@dataclass(frozen=True, slots=True)
class Form:
    """What a template wants: all contents as lists of parts; the arguments of calls as JSON."""

    lists: bool = False
    json_arguments: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A text of the assistant's between marks; ``first``: its message's targets begin with it."""

    turn: int
    kind: Kind
    text: str
    first: bool


class Marks:
    """Three characters that a conversation doesn't use: text start, text end, and a cut."""

    def __init__(self, turns: Sequence[Turn], tools: str = "") -> None:
        texts = [part.text for t in turns for part in t.parts if isinstance(part, TextPart)]
        used = "".join((tools, *texts, *(t.reasoning + t.calls for t in turns)))
        self.start, self.end, self.cut = _NONCHARACTERS[:3]
        if not used.isascii():
            free = [mark for mark in _NONCHARACTERS if mark not in used]
            if len(free) < 3:
                raise SampleError("the text uses nearly every Unicode noncharacter", stage="format")
            self.start, self.end, self.cut = free[:3]
        self.all = self.start + self.end + self.cut

    def without(self, text: str) -> str:
        """The text without marks."""
        for mark in (self.start, self.end, self.cut):
            text = text.replace(mark, "")
        return text

    def split(self, text: str) -> list[str]:
        """The pieces of the text between marks."""
        for mark in (self.start, self.end):
            text = text.replace(mark, self.cut)
        return text.split(self.cut)

    def cut_apart(self, text: str, tokenizer: Tokenizer) -> str:
        """The text with every control token in it cut in two."""
        pieces = tokenizer.split_control(text)
        if len(pieces) == 1 and pieces[0][1] is None:
            return text
        return "".join(p if t is None else p[0] + self.cut + p[1:] for p, t in pieces)


class Marker:
    """Puts marks into messages, and notes what they surround, in order.

    ``outside``: marks around every text; ``inside``: within its outer white space, and apart at
    ``<think>`` and ``</think>``; ``loss``: the same, for turns to learn from only.
    """

    def __init__(self, marks: Marks, style: Style | None, tokenizer: Tokenizer) -> None:
        self.spans: list[Span] = []
        self._marks = marks
        self._style = style
        self._tokenizer = tokenizer

    def text(
        self,
        text: str,
        turn: int,
        loss: bool,
        kind: Kind = "text",
        *,
        first: bool = True,
        hidden: bool = False,
    ) -> str:
        """A text of a message, with marks.

        ``first``: nothing of the message comes before it; ``hidden``: it is no target, in a turn
        that is.
        """
        marks, style = self._marks, self._style
        if style is None or (style == "loss" and not (loss or hidden)):
            return self.cut(text)
        if not loss:
            return self._around(text, marks.cut, marks.cut)
        if style == "outside":
            self.spans.append(Span(turn, kind, text, first))
            return self._around(text, marks.start, marks.end)
        pieces = _THINKING.split(text) if "think>" in text else [text]
        made: list[str] = []
        for piece in pieces:
            if piece in ("<think>", "</think>") or (len(pieces) > 1 and not piece.strip()):
                made.append(piece)
                continue
            self.spans.append(Span(turn, kind, piece.strip(), first and not "".join(made).strip()))
            made.append(self._around(piece, marks.start, marks.end))
        return "".join(made)

    def cut(self, text: str) -> str:
        """A text with its control tokens cut apart; JSON stays JSON of the same values."""
        return self._marks.cut_apart(text, self._tokenizer)

    def calls(self, calls: str, turn: int, loss: bool, json_arguments: bool) -> list[Any]:
        """The calls of a turn, the tools' names between marks."""
        found: list[Any] = json.loads(self.cut(calls))
        for call in found:
            function = call["function"]
            if self._style is not None and loss:
                name = self._marks.without(function["name"])
                self.spans.append(Span(turn, "tool call", name, False))
                function["name"] = self._marks.start + function["name"] + self._marks.end
            if json_arguments:
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        return found

    def _around(self, text: str, first: str, last: str) -> str:
        if self._style == "outside":
            return first + self.cut(text) + last
        core = text.strip()
        lead = len(text) - len(text.lstrip())
        return text[:lead] + first + self.cut(core) + last + text[lead + len(core) :]


def plain_messages(turns: Sequence[Turn], form: Form) -> list[dict[str, Any]]:
    """The conversation as Hugging Face's ``apply_chat_template`` takes it."""
    return [_message(turn, at, None, form) for at, turn in enumerate(turns)]


def marked_messages(turns: Sequence[Turn], form: Form, marker: Marker) -> list[dict[str, Any]]:
    """The same, with marks; ``marker.spans`` then says what they surround."""
    return [_message(turn, at, marker, form) for at, turn in enumerate(turns)]


def _message(turn: Turn, number: int, marker: Marker | None, form: Form) -> dict[str, Any]:
    """A turn: its content a string where it is text alone, else content parts."""
    message: dict[str, Any] = {"role": turn.role}
    if turn.reasoning:
        thought = turn.reasoning
        if marker is not None:
            thought = marker.text(thought, number, turn.loss, "reasoning", first=False)
        message |= {"thinking": thought, "reasoning_content": thought}
    message["content"] = _content(turn, number, marker, form)
    if turn.calls and marker is None:
        message["tool_calls"] = _plain_calls(turn.calls, form.json_arguments)
    elif turn.calls and marker is not None:
        message["tool_calls"] = marker.calls(turn.calls, number, turn.loss, form.json_arguments)
    if turn.call_id:
        message["tool_call_id"] = turn.call_id
    if turn.name:
        message["name"] = turn.name if marker is None else marker.cut(turn.name)
    return message


def _content(turn: Turn, number: int, marker: Marker | None, form: Form) -> Any:
    begun = bool(turn.reasoning)
    bare = bool(turn.reasoning or turn.calls)  # then an empty text need not be there

    def text(part: TextPart) -> str:
        nonlocal begun
        if marker is None or (bare and not part.text.strip()):
            return part.text
        hidden = turn.loss and not part.loss
        first, begun = not begun, begun or not hidden
        return marker.text(part.text, number, turn.loss and part.loss, first=first, hidden=hidden)

    parts = turn.parts
    if len(parts) == 1 and isinstance(parts[0], TextPart) and not form.lists:
        return text(parts[0])
    if all(isinstance(part, TextPart) for part in parts) and not form.lists:
        texts = [p for p in parts if isinstance(p, TextPart)] or [TextPart("")]
        return "".join(map(text, texts))
    content: list[dict[str, str]] = []
    for part in parts:
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": text(part)})
        else:
            content.append({"type": kind_of_medium(part)})
    if turn.loss and not bare and not (parts and isinstance(parts[-1], TextPart)):
        content.append({"type": "text", "text": text(TextPart(""))})
    return content


def _plain_calls(calls: str, json_arguments: bool) -> list[Any]:
    found: list[Any] = json.loads(calls)
    for call in found if json_arguments else ():
        function = call["function"]
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return found


def kind_of_medium(part: Part) -> str:
    """``image`` or ``video``."""
    return "image" if isinstance(part, ImagePart) else "video"
