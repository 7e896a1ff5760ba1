"""Conversations as the tokenizer's own chat template writes them, or as ChatML without one.

The text is the template's, character for character. To know which of it came from a message, the
conversation is rendered a second time with marks (Unicode noncharacters that the conversation does
not use) around every message text, and inside control tokens that a message spells, so that these
stay text. Take the marks away and the two renderings must be equal; where a template trims or
inspects a message the marks move inwards, and a conversation that the template rewrites is refused,
unless the template says with ``{% generation %}`` what the assistant wrote.

Loss is on the texts of turns to learn from and on the control token that ends the turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import ConfigError, SampleError
from ..models.tokenizer import Tokenizer
from ..sample import ImagePart, Part, TextPart, Turn

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}{{ placeholders[part.type] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)
"""What Qwen's own templates write, less their default system turn."""

_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class ChatTemplate:
    """A chat template, compiled once. Safe to share between threads.

    Args:
        tokenizer: whose template is used; without one, ChatML.
        placeholders: by kind, what the model family's templates write for a medium; its whole block
            takes the place of it.

    Raises:
        ConfigError: the template can't be compiled, or ChatML's control tokens are missing.
    """

    def __init__(self, tokenizer: Tokenizer, placeholders: Mapping[str, str]) -> None:
        self._tokenizer = tokenizer
        self._where = f"tokenizer={tokenizer.path!r}"
        self._placeholders = dict(placeholders)
        self._kinds = {text: kind for kind, text in placeholders.items()}
        texts = "|".join(map(re.escape, self._kinds)) or "(?!)"  # no kind: nothing matches
        self._placeholder = re.compile(f"({texts})")
        source = tokenizer.chat_template
        if source is None:
            lacking = [t for t in ("<|im_start|>", "<|im_end|>") if not tokenizer.has_token(t)]
            if lacking:
                raise ConfigError(
                    f"{self._where} has no chat template, and no {' and '.join(lacking)} to write "
                    "ChatML with: put chat_template.jinja beside it, or name an instruct model's"
                )
            source = CHATML
        self._marks_generation = _GENERATION.search(source) is not None
        try:
            self._plain = _compile(_GENERATION.sub(_without_marks, source))
            self._generation = _compile(_GENERATION.sub(_with_marks, source))
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"{self._where}: its chat template is not Jinja (line {error.lineno}: "
                f"{error.message})"
            ) from error

    def render(self, turns: Sequence[Turn], tools: str = "") -> tuple[Part, ...]:
        """The conversation as parts, all text special (what a message spells is cut apart).

        Args:
            turns: the conversation.
            tools: a JSON list of tools that it may call, or nothing.

        Raises:
            SampleError: the template refuses the conversation, or rewrites its messages.
            ConfigError: the template has no place for media.
        """
        marks = _Marks(turns, tools)
        bare = [_message(turn, None) for turn in turns]
        plain = self._run(self._plain, bare, marks, tools)
        if tools and plain == self._run(self._plain, bare, marks):
            raise SampleError(
                "the chat template has no place for the conversation's tools, so they would be "
                "lost: use the template of a model that calls tools",
                stage="format",
            )
        tools = _Marker(marks, "cut", self._tokenizer)(tools, False)
        for style in ("outside", "inside", "loss"):
            messages = [_message(turn, _Marker(marks, style, self._tokenizer)) for turn in turns]
            try:
                marked = self._run(self._plain, messages, marks, tools)
            except SampleError:
                continue
            if marks.match(marked, plain):
                return self._parts(marked, marks, turns, ends=True)
        if self._marks_generation and all(t.loss == (t.role == "assistant") for t in turns):
            marker = _Marker(marks, "cut", self._tokenizer)
            messages = [_message(turn, marker) for turn in turns]
            marked = self._run(self._generation, messages, marks, tools)
            if marks.match(marked, plain):
                return self._parts(marked, marks, turns, ends=False)
        raise SampleError(
            "the chat template rewrites messages of this conversation, so what the assistant said "
            "can't be told from the rest",
            stage="format",
        )

    def _run(
        self, template: Any, messages: list[dict[str, Any]], marks: _Marks, tools: str = ""
    ) -> str:
        try:
            text: str = template.render(
                messages=messages,
                tools=json.loads(tools) if tools else None,
                documents=None,
                add_generation_prompt=False,
                placeholders=self._placeholders,
                mark_start=marks.start,
                mark_end=marks.end,
                **self._tokenizer.special_names,
            )
        except Exception as error:  # a template is a program: it may raise anything
            if any(isinstance(m["content"], list) for m in messages):
                self._check_media()
            reason = " ".join(str(error).split())[:200]
            raise SampleError(
                f"the chat template refuses the conversation: {type(error).__name__}: {reason}",
                stage="format",
            ) from error
        return text

    def _check_media(self) -> None:
        """Raise ConfigError if the template can't write one picture and one clip in a user turn."""
        content = [{"type": kind} for kind in self._kinds.values()]
        content.append({"type": "text", "text": "?"})
        try:
            text = self._plain.render(
                messages=[{"role": "user", "content": content}],
                tools=None,
                documents=None,
                add_generation_prompt=False,
                placeholders=self._placeholders,
                **self._tokenizer.special_names,
            )
        except Exception:
            text = ""
        if len(self._placeholder.findall(text)) != len(self._kinds):
            raise ConfigError(
                f"{self._where}: its chat template has no place for pictures and clips (expected "
                f"{' and '.join(self._kinds)}): use the template of a vision-language model"
            )

    def _parts(
        self, marked: str, marks: _Marks, turns: Sequence[Turn], *, ends: bool
    ) -> tuple[Part, ...]:
        """Cut the marked text at media and marks; with ``ends`` a turn's end token is a target."""
        media = [p for turn in turns for p in turn.parts if not isinstance(p, TextPart)]
        kinds = [_kind(part) for part in media]
        sections = self._placeholder.split(marked)
        if [self._kinds[text] for text in sections[1::2]] != kinds:
            self._check_media()
            raise SampleError(
                f"the chat template wrote {len(sections) // 2} media of {len(media)}, or changed "
                "their order",
                stage="format",
            )
        parts: list[Part] = []
        loss = False
        for number, section in enumerate(sections):
            if number % 2:
                parts.append(media[number // 2])
                continue
            ended = False
            for piece in marks.split(section):
                if piece in (marks.start, marks.end):
                    loss, ended = piece == marks.start, ends and piece == marks.end
                elif piece and piece != marks.cut:
                    at = self._end_token(piece) if ended else 0
                    parts.append(TextPart(piece[:at], loss=True, special=True))
                    parts.append(TextPart(piece[at:], loss=loss, special=True))
                    ended = False
        return tuple(p for p in parts if not isinstance(p, TextPart) or p.text)

    def _end_token(self, text: str) -> int:
        """Characters of the control token that ``text`` begins with, or 0."""
        first, token = self._tokenizer.split_control(text)[0]
        return 0 if token is None else len(first)


class _Marks:
    """Three characters that a conversation doesn't use: text start, text end, and a cut."""

    def __init__(self, turns: Sequence[Turn], tools: str = "") -> None:
        used = tools + "".join(p.text for t in turns for p in t.parts if isinstance(p, TextPart))
        free = [mark for mark in _NONCHARACTERS if mark not in used]
        if len(free) < 3:
            raise SampleError("the text uses nearly every Unicode noncharacter", stage="format")
        self.start, self.end, self.cut = free[:3]
        self._any = re.compile(f"([{self.start}{self.end}{self.cut}])")

    def match(self, marked: str, plain: str) -> bool:
        """Whether the marked text is the plain one, and each start in it has its end."""
        pairs = "".join(c for c in marked if c == self.start or c == self.end)
        whole = pairs == (self.start + self.end) * (len(pairs) // 2)
        return whole and self._any.sub("", marked) == plain

    def split(self, text: str) -> list[str]:
        return self._any.split(text)


class _Marker:
    """Puts marks into a message's texts.

    ``outside``: around every text; ``inside``: within its outer white space; ``loss``: the same,
    for turns to learn from only; ``cut``: none but those that cut control tokens apart.
    """

    def __init__(self, marks: _Marks, style: str, tokenizer: Tokenizer) -> None:
        self._marks = marks
        self._style = style
        self._tokenizer = tokenizer

    def __call__(self, text: str, loss: bool) -> str:
        marks = self._marks
        cut = "".join(
            piece if token is None else piece[0] + marks.cut + piece[1:]
            for piece, token in self._tokenizer.split_control(text)
        )
        if self._style == "cut" or (self._style == "loss" and not loss):
            return cut
        first, last = (marks.start, marks.end) if loss else (marks.cut, marks.cut)
        if self._style == "outside":
            return first + cut + last
        core = cut.strip()
        lead = cut[: len(cut) - len(cut.lstrip())]
        return lead + first + core + last + cut[len(lead) + len(core) :]


def _message(turn: Turn, marker: _Marker | None) -> dict[str, Any]:
    """A turn as templates take it: a string where it is text alone, else content parts."""

    def text(part: TextPart) -> str:
        return part.text if marker is None else marker(part.text, turn.loss and part.loss)

    if all(isinstance(part, TextPart) for part in turn.parts):
        texts = [p for p in turn.parts if isinstance(p, TextPart)] or [TextPart("")]
        return {"role": turn.role, "content": "".join(map(text, texts))}
    content: list[dict[str, str]] = []
    for part in turn.parts:
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": text(part)})
        else:
            content.append({"type": _kind(part)})
    if turn.loss and not isinstance(turn.parts[-1], TextPart):
        content.append({"type": "text", "text": text(TextPart(""))})
    return {"role": turn.role, "content": content}


def _kind(part: Part) -> str:
    return "image" if isinstance(part, ImagePart) else "video"


def _without_marks(match: re.Match[str]) -> str:
    before, end, after = match.groups()
    return f"{{%{before} {'endif' if end else 'if true'} {after}%}}"


def _with_marks(match: re.Match[str]) -> str:
    before, end, after = match.groups()
    first, mark = ("endif", "mark_end") if end else ("if true", "mark_start")
    return f"{{%{before} {first} %}}{{{{ {mark} }}}}{{% if true %}}{{% endif {after}%}}"


def _compile(source: str) -> Any:
    """The template as transformers compiles it: sandboxed, blocks trimmed; but without a clock."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)
