r"""How a chat template frames an assistant's turn, learnt from small conversations.

A turn begins after the template's generation prompt (``<|im_start|>assistant\n``) and ends with
the control token that follows the assistant's text (``<|im_end|>``). Both are looked for in marked
text, where no message can spell a control token and the others' texts stand between marks of their
own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import SampleError
from ..models.tokenizer import Tokenizer

_ASKED, _ANSWERED, _LAST = "Qaskedq", "Qansweredq", "Qlastq"


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around an assistant's turn.

    Attributes:
        headers: what asks for it, the likeliest first.
        asks: whether there is a generation prompt: then a conversation up to a turn, and it, ends
            where the turn begins.
        lead: without one, the white space before an assistant's text; None where it isn't the only
            thing there.
        ending: what ends it, up to a control token; or empty.
        end_token: the control token of ``ending``.
        tokenizer: tells control tokens.
    """

    headers: tuple[str, ...]
    asks: bool
    lead: str | None
    ending: str
    end_token: str
    tokenizer: Tokenizer

    def begins(self, marked: str, free: int, first: int, other: str) -> int | None:
        """Where the turn begins whose first text is marked at ``first``; None: nothing says it.

        ``free``: where the turn before it ends.
        """
        others = marked.rfind(other, free, first)
        for header in self.headers:
            at = marked.rfind(header, max(free, others + 1), first)
            if at >= 0 and (others >= 0 or self._control(header)):  # nobody else can have said it
                return at + len(header)
        return None

    def ends(self, marked: str, after: int, limit: int, other: str, *, text: bool) -> int | None:
        """Where the turn ends whose last text ends before ``after``; None: nothing says it.

        Args:
            marked: the conversation.
            after: behind the last text's mark.
            limit: where the next of the assistant's texts begins.
            other: the mark around the others' texts.
            text: it is a message's text, after which no more than the ending is the assistant's.
        """
        if self.ending and marked.startswith(self.ending, after):
            return after + len(self.ending)
        openings = [self._control(header) or header for header in self.headers]
        at = marked.find(self.end_token, after, limit) if self.end_token else -1
        between = marked[after:at] if at >= 0 else other
        if other not in between and not any(opening in between for opening in openings):
            if not text or not between.strip():
                return at + len(self.end_token)
        if not text:
            return None
        first, token = (self.tokenizer.split_control(marked[after : after + 64]) or [("", None)])[0]
        return after if token is None or first in openings else after + len(first)

    def trimmed(self, text: str) -> int:
        """Characters of ``text``, the end of a turn, up to its last control token, or all."""
        length = 0
        at = 0
        for piece, token in self.tokenizer.split_control(text):
            at += len(piece)
            length = at if token is not None else length
        return length or len(text)

    def _control(self, header: str) -> str:
        """The header's first control token, or nothing."""
        pieces = self.tokenizer.split_control(header)
        return next((piece for piece, token in pieces if token is not None), "")


def learn_frame(write: Callable[..., str], tokenizer: Tokenizer) -> Frame:
    """The template's frame; where it writes none of the conversations, an empty one.

    ``write``: as `chat.ChatTemplate.write`.
    """
    for lists in (False, True):
        frame = _learn(write, tokenizer, lists)
        if frame is not None:
            return frame
    return Frame((), False, None, "", "", tokenizer)


def _learn(write: Callable[..., str], tokenizer: Tokenizer, lists: bool) -> Frame | None:
    def message(role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "text", "text": text}] if lists else text}

    asked, answered = message("user", _ASKED), message("assistant", _ANSWERED)
    try:
        alone = write([asked])
        prompted = write([asked], ask=True)
        whole = write([asked, answered, message("user", _ASKED), message("assistant", _LAST)])
    except SampleError:
        return None
    if _ANSWERED not in whole or _LAST not in whole or _ASKED not in alone:
        return None
    prompt = prompted[len(alone) :] if prompted.startswith(alone) else ""
    before = whole[: whole.index(_ANSWERED)]
    own = before[len(alone) :] if before.startswith(alone) else ""
    tail = whole[whole.rindex(_LAST) + len(_LAST) :]
    ending = token = ""
    for piece, number in tokenizer.split_control(tail):
        ending += piece
        if number is not None:
            token = piece
            break
    shared = next((n for n in range(len(prompt), 0, -1) if before.endswith(prompt[:n])), 0)
    start = prompt[:shared]
    if shared < len(prompt) and all(t is None for _, t in tokenizer.split_control(start)):
        start = own
    headers = tuple(dict.fromkeys(text for text in (prompt, start) if text))
    lead = own if before.startswith(alone) and not own.strip() else None
    return Frame(headers, bool(prompt), lead, ending if token else "", token, tokenizer)
