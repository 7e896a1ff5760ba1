"""Conversations as the tokenizer's own chat template writes them, or as ChatML without one.

The text is the template's, character for character. To know which of it the assistant wrote, the
conversation is rendered a second time with marks around its texts (see `messages`). Take the marks
away and the two renderings must be equal, and the assistant's texts must all be there, in order;
where a template trims or inspects a message the marks move inwards. Where the template says with
``{% generation %}`` what the assistant writes, all of it, that is taken; without, a conversation
that it rewrites is refused.

Loss is on what the assistant writes from where the template's generation prompt asks for it up to
the control token that ends its turn: thoughts, texts, calls of tools, and what the template writes
around and between them. How the template asks and ends is learnt from small conversations, once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2

from ..errors import ConfigError, SampleError
from ..models.tokenizer import Tokenizer
from ..sample import Part, TextPart, Turn
from .jinja import CHATML, compile_template, has_generation
from .messages import (
    Form,
    Marker,
    Marks,
    Span,
    Style,
    has_text,
    kind_of_medium,
    marked_messages,
    plain_messages,
    with_mark,
)
from .spans import Interval, between, holds, matched
from .turns import Frame, learn_frame

_STYLES: tuple[Style, ...] = ("outside", "inside", "loss")
_MOST_RENDERED = 10**7


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
        self._names = tokenizer.special_names
        source = tokenizer.chat_template
        if source is None:
            lacking = [t for t in ("<|im_start|>", "<|im_end|>") if not tokenizer.has_token(t)]
            if lacking:
                raise ConfigError(
                    f"{self._where} has no chat template, and no {' and '.join(lacking)} to write "
                    "ChatML with: put chat_template.jinja beside it, or name an instruct model's"
                )
            source = CHATML
        self._marks_generation = has_generation(source)
        try:
            self._plain = compile_template(source)
            self._generation = compile_template(source, marked=self._marks_generation)
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
            SampleError: the template refuses the conversation, or rewrites its messages, or leaves
                out what it has no place for: tools, calls, a tool's answer, reasoning.
            ConfigError: the template has no place for media.
        """
        forms = [Form(), Form(lists=True)]
        if any(turn.calls for turn in turns):
            forms.insert(1, Form(json_arguments=True))
        first: SampleError | None = None
        for form in forms:
            try:
                return _Conversation(self, turns, tools, form).parts()
            except SampleError as error:
                first = first or error
            except RecursionError:
                reason = "a call or a tool's description is nested too deep"
                raise SampleError(reason, stage="format") from None
        assert first is not None
        raise first

    @cached_property
    def frame(self) -> Frame:
        """How the template asks for an assistant's turn, and how it ends one."""
        return learn_frame(self.write, self._tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def marks_generation(self) -> bool:
        """Whether the template says itself what the assistant writes."""
        return self._marks_generation

    def write(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: str = "",
        *,
        marks: Marks | None = None,
        ask: bool = False,
    ) -> str:
        """What the template writes. Raises SampleError if it refuses.

        Args:
            messages: as `messages.plain_messages` makes them.
            tools: a JSON list, or nothing.
            marks: put around what is in ``{% generation %}``.
            ask: for the assistant's next turn, too.
        """
        try:
            text: str = (self._plain if marks is None else self._generation).render(
                messages=messages,
                tools=json.loads(tools) if tools else None,
                documents=None,
                add_generation_prompt=ask,
                placeholders=self._placeholders,
                mark_start=marks and marks.start,
                mark_end=marks and marks.end,
                **self._names,
            )
        except Exception as error:  # a template is a program: it may raise anything
            reason = " ".join(str(error).split())[:200]
            if "strftime_now" in reason:
                reason += ": ids may not depend on the day, write a date into the template"
            raise SampleError(
                f"the chat template refuses the conversation: {type(error).__name__}: {reason}",
                stage="format",
            ) from error
        return text

    def check_media(self) -> None:
        """Raise ConfigError if the template can't write one picture and one clip in a user turn."""
        content = [{"type": kind} for kind in self._kinds.values()]
        content.append({"type": "text", "text": "?"})
        try:
            text = self.write([{"role": "user", "content": content}])
        except SampleError:
            text = ""
        if len(self._placeholder.findall(text)) != len(self._kinds):
            raise ConfigError(
                f"{self._where}: its chat template has no place for pictures and clips (expected "
                f"{' and '.join(self._kinds)}): use the template of a vision-language model"
            )

    def cut(
        self, marked: str, targets: Sequence[Interval], marks: Marks, turns: Sequence[Turn]
    ) -> tuple[Part, ...]:
        """Cut the marked text at media, marks and edges of targets; marks are left out."""
        media = [p for turn in turns for p in turn.parts if not isinstance(p, TextPart)]
        edges = [0, *(edge for interval in targets for edge in interval), len(marked)]
        shown = any(text in marked for text in self._kinds)
        parts: list[Part] = []
        kinds: list[str] = []
        for number, start in enumerate(edges[:-1]):
            for section in marks.split(marked[start : edges[number + 1]]):
                pieces = self._placeholder.split(section) if shown else [section]
                for at, piece in enumerate(pieces):
                    if at % 2:
                        parts += media[len(kinds) : len(kinds) + 1]
                        kinds.append(self._kinds[piece])
                    elif piece:
                        parts.append(TextPart(piece, loss=number % 2 == 1, special=True))
        if kinds != [kind_of_medium(medium) for medium in media]:
            self.check_media()
            raise SampleError(
                f"the chat template wrote {len(kinds)} media of {len(media)}, or changed "
                "their order",
                stage="format",
            )
        return tuple(parts)


class _Conversation:
    """One conversation under a template, its messages in one form."""

    def __init__(
        self, template: ChatTemplate, turns: Sequence[Turn], tools: str, form: Form
    ) -> None:
        self._template = template
        self._turns = turns
        self._tools = tools
        self._form = form
        self._marks = Marks(turns, tools)
        self._rendered = 0

    def parts(self) -> tuple[Part, ...]:
        """See `ChatTemplate.render`."""
        turns, marks, template = self._turns, self._marks, self._template
        plain = self._plain()
        self._check_others()
        marker = Marker(marks, None, template.tokenizer)
        tools = self._tools and json.dumps(marker.cut_json(self._tools), ensure_ascii=False)
        why, unclear = "", None
        for style in _STYLES:
            marker = Marker(marks, style, template.tokenizer)
            try:
                marked = template.write(marked_messages(turns, self._form, marker), tools)
            except SampleError:
                continue
            if marks.without(marked) != plain:
                continue
            found = between(marked, marks)
            if found is None:
                continue
            places = matched(marked, found, marker.spans, marks)
            if isinstance(places, Span):
                lost = f"{places.kind} of message {places.turn + 1}"
                why = why or f" (it leaves out the {lost}, or writes it elsewhere)"
                continue
            generated = self._generated(plain, tools, [span.text for span in marker.spans])
            if generated is not None:
                return generated
            try:
                targets = self._targets(marked, plain, places, marker.spans)
            except SampleError as error:
                unclear = error
                break
            return template.cut(marked, targets, marks, turns)
        generated = self._generated(plain, tools, [])
        if generated is not None:
            return generated
        raise unclear or SampleError(
            f"the chat template rewrites messages of this conversation{why}, so what the assistant "
            "said can't be told from the rest",
            stage="format",
        )

    def _plain(self) -> str:
        template = self._template
        messages = plain_messages(self._turns, self._form)
        try:
            plain = template.write(messages, self._tools)
        except SampleError:
            if not all(isinstance(part, TextPart) for turn in self._turns for part in turn.parts):
                template.check_media()
            raise
        if self._tools and plain == template.write(messages):
            raise SampleError(
                "the chat template has no place for the conversation's tools, so they would be "
                "lost: use the template of a model that calls tools",
                stage="format",
            )
        return plain

    def _check_others(self) -> None:
        """Raise SampleError for a tool's answer that the template doesn't write."""
        said = [at for at, turn in enumerate(self._turns) if turn.role == "tool" and has_text(turn)]
        if not said or self._written(said) >= len(said):
            return
        lost = next((at for at in said if not self._written([at])), said[-1])
        raise SampleError(
            f"the chat template has no place for what a tool answers (message {lost + 1}): use the "
            "template of a model that calls tools",
            stage="format",
        )

    def _written(self, numbers: Sequence[int]) -> int:
        """How many of the turns of these numbers, which have text, the template writes."""
        cut, turns = self._marks.cut, list(self._turns)
        for number in numbers:
            turns[number] = with_mark(turns[number], cut)
        try:
            text = self._template.write(plain_messages(turns, self._form), self._tools)
        except SampleError:  # it looks into them, so it has a place for them
            return len(numbers)
        return text.count(cut) + text.count(json.dumps(cut)[1:-1])

    def _targets(
        self, marked: str, plain: str, found: Sequence[Interval], spans: Sequence[Span]
    ) -> list[Interval]:
        """Where the assistant's turns are in the marked text, from the texts found in it."""
        frame = self._template.frame
        other = self._marks.other
        targets: list[Interval] = []
        for at, (span, (start, stop)) in enumerate(zip(spans, found, strict=True)):
            free = targets[-1][1] if targets else 0
            if at and spans[at - 1].turn == span.turn:
                if other not in marked[free:start]:
                    start = free
                elif spans[at - 1].kind == "tool call":  # an answer stands between two calls
                    raise self._unclear(span)
            else:
                begun = frame.begins(marked, free, start, other)
                if begun is None and not span.first:
                    begun = self._place(marked, plain, span.turn)
                    if not free <= begun <= start:
                        raise self._unclear(span)
                start = start if begun is None else begun
            if at + 1 == len(spans) or spans[at + 1].turn != span.turn:
                limit = found[at + 1][0] if at + 1 < len(found) else len(marked)
                ended = frame.ends(marked, stop + 1, limit, other, text=span.kind == "text")
                if ended is None:
                    ended = self._prefix(marked, plain, span.turn + 1, ask=False)
                    if not stop < ended <= limit:
                        raise self._unclear(span)
                    ended = stop + 1 + frame.trimmed(marked[stop + 1 : ended])
                stop = ended
            targets.append((start, stop))
        return targets

    def _place(self, marked: str, plain: str, turn: int) -> int:
        """Where in the marked text a turn begins; -1 if nothing says it."""
        frame, turns, cut = self._template.frame, self._turns, self._marks.cut
        if frame.asks or frame.lead is None:
            return self._prefix(marked, plain, turn, ask=True) if frame.asks else -1
        # A text in its place, and in that of all up to the next question, would begin there.
        after = range(turn, len(turns))
        stop = next((n for n in after if turns[n].role in ("user", "system")), len(turns))
        text = Turn("assistant", (TextPart(cut),), loss=True)
        before = self._written_to(cut, [*turns[:turn], text, *turns[stop:]])
        return self._same(marked, plain, before and before.removesuffix(frame.lead))

    def _prefix(self, marked: str, plain: str, turns: int, *, ask: bool) -> int:
        """Where in the marked text the first turns end, rendered alone; -1 if it isn't so."""
        return self._same(marked, plain, self._written_to("", self._turns[:turns], ask=ask))

    def _written_to(self, end: str, turns: Sequence[Turn], *, ask: bool = False) -> str | None:
        """What the template writes of the turns, up to ``end``; None if it refuses or lacks it."""
        try:
            text = self._template.write(plain_messages(turns, self._form), self._tools, ask=ask)
        except SampleError:
            return None
        self._rendered += len(text)
        if self._rendered > _MOST_RENDERED:
            raise SampleError(
                "the conversation has too many turns that only rendering it again can tell apart "
                f"(over {_MOST_RENDERED} characters): cut it",
                stage="format",
            )
        if not end:
            return text
        return text[: text.index(end)] if end in text else None

    def _same(self, marked: str, plain: str, prefix: str | None) -> int:
        """Where in the marked text the prefix ends; -1 if it doesn't begin with it."""
        if prefix is None or not plain.startswith(prefix):
            return -1
        return self._marks.place(marked, len(prefix))

    def _unclear(self, span: Span) -> SampleError:
        return SampleError(
            f"where the {span.kind} of message {span.turn + 1} begins and ends can't be told, "
            "since the chat template writes that message in another way where it is the last: mark "
            "the assistant's part with {% generation %} in the template",
            stage="format",
        )

    def _generated(self, plain: str, tools: str, texts: Sequence[str]) -> tuple[Part, ...] | None:
        """The parts as ``{% generation %}`` says; None unless it holds every turn to learn from.

        ``texts``: of those turns, where they are known to be written as they are.
        """
        template, turns, marks = self._template, self._turns, self._marks
        if not template.marks_generation or any(t.loss != (t.role == "assistant") for t in turns):
            return None
        marker = Marker(marks, None, template.tokenizer)
        marked = template.write(marked_messages(turns, self._form, marker), tools, marks=marks)
        generated = between(marked, marks)
        if generated is None or marks.without(marked) != plain:
            return None
        learnt = [turn for turn in turns if turn.loss]
        names = [c["function"]["name"] for t in learnt if t.calls for c in json.loads(t.calls)]
        wanted = [*texts, *names, *(turn.reasoning.strip() for turn in learnt)]
        if len(generated) < len(learnt) or not holds(marked, generated, wanted, marks):
            return None
        return template.cut(marked, generated, marks, turns)
