"""A conversation's messages as chat templates take them, plain or with marks in their texts.

Marks are Unicode noncharacters that the conversation does not use: one where a text of the
assistant's starts, one where it ends, one around the texts of the others, and a cut. Cuts lie
inside control tokens that a message or a tool's description spells, so that these stay text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """A text of the assistant's between marks.

    ``first``: its message's targets begin with it; ``number``: of a call, from 1.
    """

    turn: int
    kind: Kind
    text: str
    first: bool
    number: int = 0


class Marks:
    """Characters that a conversation doesn't use: text start, text end, the others', and a cut."""

    def __init__(self, turns: Sequence[Turn], tools: str = "") -> None:
        texts = [part.text for t in turns for part in t.parts if isinstance(part, TextPart)]
        more = (t.reasoning + t.calls + t.call_id + t.name for t in turns)
        used = "".join((tools, *texts, *more))
        found = _NONCHARACTERS[:4]
        if not used.isascii():
            found = [mark for mark in _NONCHARACTERS if mark not in used][:4]
            if len(found) < 4:
                raise SampleError("the text uses nearly every Unicode noncharacter", stage="format")
        self.start, self.end, self.other, self.cut = found
        self.all = "".join(found)

    def without(self, text: str) -> str:
        """The text without marks."""
        for mark in self.all:
            text = text.replace(mark, "")
        return text

    def place(self, marked: str, length: int) -> int:
        """Where in a marked text its first ``length`` characters that are no marks end."""
        found = re.finditer(f"[{self.all}]", marked)
        return length + bisect_left([at.start() - n for n, at in enumerate(found)], length)

    def split(self, text: str) -> list[str]:
        """The pieces of the text between marks."""
        for mark in self.all[:-1]:
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
    ``<think>`` and ``</think>``; ``loss``: the same, for turns to learn from and tools' only.
    """

    def __init__(self, marks: Marks, style: Style | None, tokenizer: Tokenizer) -> None:
        self.spans: list[Span] = []
        self._marks = marks
        self._style = style
        self._tokenizer = tokenizer
        self._calls = 0

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

        ``first``: nothing of the message comes before it; ``hidden``: it is no target, but stands
        among some.
        """
        marks, style = self._marks, self._style
        if style is None or (style == "loss" and not (loss or hidden)):
            return self.cut(text)
        if not loss:
            return self._around(text, marks.other, marks.other)
        if style == "outside":
            self.spans.append(Span(turn, kind, text, first))
            return self._around(text, marks.start, marks.end)
        pieces = _THINKING.split(text) if "think>" in text else [text]
        made: list[str] = []
        open_tags = 0  # since the last text, if it isn't a thought that the one tag ends
        for at, piece in enumerate(pieces):
            if at % 2 or (len(pieces) > 1 and not piece.strip()):
                made.append(piece)
                open_tags += at % 2
                continue
            thought = "<think>" in made[-1:] or "</think>" in pieces[at + 1 : at + 2]
            said: Kind = "reasoning" if thought else kind
            self.spans.append(Span(turn, said, piece.strip(), first and not "".join(made).strip()))
            made.append(self._around(piece, marks.start, marks.end))
            open_tags = -1 if "</think>" in pieces[at + 1 : at + 2] else 0
        if open_tags > 0:  # the text ends with tags: they are told by an empty one behind them
            self.spans.append(Span(turn, kind, "", False))
            made.insert(-1, marks.start + marks.end)
        return "".join(made)

    def cut(self, text: str) -> str:
        """A text with its control tokens cut apart."""
        return self._marks.cut_apart(text, self._tokenizer)

    def cut_json(self, text: str) -> Any:
        """What JSON holds, with the control tokens of its texts and keys cut apart."""
        return self._cut_value(json.loads(text))

    def _cut_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.cut(value)
        if isinstance(value, list):
            return [self._cut_value(item) for item in value]
        if isinstance(value, dict):
            return {self.cut(key): self._cut_value(item) for key, item in value.items()}
        return value

    def calls(self, calls: str, turn: int, loss: bool, json_arguments: bool) -> list[Any]:
        """The calls of a turn, tools' names between marks, begun by as many cuts as its number."""
        found: list[Any] = self.cut_json(calls)
        for call in found:
            function = call["function"]
            if self._style is not None and loss:
                self._calls += 1
                name, number = function["name"], self._marks.cut * self._calls
                self.spans.append(
                    Span(turn, "tool call", self._marks.without(name), False, self._calls)
                )
                function["name"] = self._marks.start + number + name + self._marks.end
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
        if marker is not None and thought.strip():
            thought = marker.text(thought, number, turn.loss, "reasoning", first=False)
        message |= {"thinking": thought, "reasoning_content": thought}
    message["content"] = _content(turn, number, marker, form)
    if turn.calls and marker is None:
        message["tool_calls"] = _plain_calls(turn.calls, form.json_arguments)
    elif turn.calls and marker is not None:
        message["tool_calls"] = marker.calls(turn.calls, number, turn.loss, form.json_arguments)
    if turn.call_id:
        message["tool_call_id"] = turn.call_id if marker is None else marker.cut(turn.call_id)
    if turn.name:
        message["name"] = turn.name if marker is None else marker.cut(turn.name)
    return message


def _content(turn: Turn, number: int, marker: Marker | None, form: Form) -> Any:
    begun = bool(turn.reasoning)
    bare = bool(turn.reasoning.strip() or turn.calls)  # then an empty text need not be there

    def text(part: TextPart) -> str:
        nonlocal begun
        if marker is None or (bare and not part.text.strip()):
            return part.text
        hidden = turn.role == "tool" or (turn.loss and not part.loss)
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


def has_text(turn: Turn) -> bool:
    """Whether anything is said in it."""
    return any(isinstance(part, TextPart) and part.text.strip() for part in turn.parts)


def with_mark(turn: Turn, mark: str) -> Turn:
    """The turn with a mark after the first of its texts that is not blank."""
    parts = list(turn.parts)
    for at, part in enumerate(parts):
        if isinstance(part, TextPart) and part.text.strip():
            parts[at] = replace(part, text=part.text + mark)
            break
    return turn._replace(parts=tuple(parts))


def kind_of_medium(part: Part) -> str:
    """``image`` or ``video``."""
    return "image" if isinstance(part, ImagePart) else "video"
