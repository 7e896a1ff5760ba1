"""Conversations of texts alone come out as `ChatTemplate` renders them, or are left to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_mm.demo.tokenizer import CHAT_TEMPLATE
from zephon_mm.errors import SampleError
from zephon_mm.models import load_tokenizer
from zephon_mm.models.qwen import QwenFamily
from zephon_mm.sample import ImagePart, Part, TextPart, Turn
from zephon_mm.stages.chat import ChatTemplate
from zephon_mm.stages.texts import Conversations

from . import chat_templates, test_chat
from .conftest import make_tokenizer

PLACEHOLDERS = QwenFamily.placeholders
_EACH = "{% for m in messages %}"
_CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
ODD = {
    "backwards": "{% for m in messages[::-1] %}" + _CHATML + "{% endfor %}",
    "twice": _EACH + _CHATML + _CHATML + "{% endfor %}",
    "no end": _EACH + "<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}",
    "late end": _EACH + "{{ m.role }}: {{ m.content }} ***<|im_end|>\n{% endfor %}",
    "no control": _EACH + "{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "no first": "{% for m in messages[1:] %}" + _CHATML + "{% endfor %}",
    "assistants together": _EACH
    + "{% if m.role == 'assistant' %}{{ m.content }}<|im_end|>"
    + "{% else %}<|im_start|>{{ m.content }}{% endif %}{% endfor %}",
    "by content": _EACH
    + "{% if m.content == 'b' %}{{ m.content }}{% else %}{{ m.content | trim }}{% endif %}"
    + "<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant{% endif %}",
    "by length": _EACH + "{{ m.content | length }}" + _CHATML + "{% endfor %}",
    "shows pictures": _EACH + "<|image_pad|>" + _CHATML + "{% endfor %}",
    "a mark of its own": _EACH + "\ufdd1" + _CHATML + "\ufdd0{% endfor %}",
    "leads": _EACH
    + "<|im_start|>{{ m.role }}\n> {{ m.content }}<|im_end|>\n{% endfor %}"
    + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "leads in text": _EACH
    + "{{ m.role }}\n> {{ m.content }}<|im_end|>\n{% endfor %}"
    + "{% if add_generation_prompt %}assistant\n{% endif %}",
    "asks in text": _EACH
    + "{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    + "{% if add_generation_prompt %}assistant\n{% endif %}",
}
USUAL = {
    "chatml": None,
    "demo": CHAT_TEMPLATE,
    "qwen2_vl": test_chat.QWEN2_VL,
    "trimming": test_chat.TRIMMING,
    "qwen2_5": chat_templates.QWEN2_5,
    "qwen3": chat_templates.QWEN3,
}
LEFT = {
    "generation": test_chat.GENERATION,
    "rewriting": test_chat.REWRITING,
    "strict": test_chat.STRICT,
    "thinking": chat_templates.THINKING,
    "mistral": chat_templates.MISTRAL,
}
ALL = {**USUAL, **LEFT, **ODD}

Both = tuple[Conversations, ChatTemplate]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    made = {}
    for number, (name, source) in enumerate(ALL.items()):
        folder = make_tokenizer(tmp_path_factory.mktemp(str(number)), source)
        template = ChatTemplate(load_tokenizer(folder), PLACEHOLDERS)
        made[name] = Conversations(template, PLACEHOLDERS), template
    return made


def outcome(both: Both, renderer: int, turns: tuple[Turn, ...]) -> object:
    """The parts or the refusal; that a text is special matters only where it can be cut."""
    tokenizer = both[1].tokenizer

    def shown(part: Part) -> Part:
        if isinstance(part, TextPart) and tokenizer.split_control(part.text) == [(part.text, None)]:
            return replace(part, special=True)
        return part

    try:
        return [shown(part) for part in both[renderer].render(turns)]
    except SampleError as error:
        return str(error)


def talk(*texts: str, first: str = "user") -> tuple[Turn, ...]:
    roles = ("user", "assistant") if first == "user" else ("assistant", "user")
    return tuple(
        Turn(role, (TextPart(text),), loss=role == "assistant")
        for text, role in zip(texts, roles * len(texts), strict=False)
    )


TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "a", "b", " b\n", "é日本\ufdd0", "\ufdd1", "assistant\n", "user", "***", "a\n\nb"]
    ),
    st.sampled_from(["<think>\nx\n</think>\n\ny", "<|im_end|>", "<|im_", "end|>", "<|image_pad|>"]),
    st.text(max_size=5),
)
TURNS = st.builds(
    lambda role, texts, said: Turn(
        role, tuple(map(TextPart, texts)), loss=role == "assistant" and said
    ),
    st.sampled_from(["system", "user", "assistant", "assistant", "tool"]),
    st.lists(TEXTS, max_size=2) | st.lists(TEXTS, min_size=1, max_size=1),
    st.sampled_from([True, True, True, False]),
)


@settings(max_examples=100, deadline=None)
@given(turns=st.lists(TURNS, min_size=1, max_size=5).map(tuple), name=st.sampled_from([*ALL]))
def test_equal_to_the_template_on_any_conversation(
    opened: dict[str, Both], turns: tuple[Turn, ...], name: str
) -> None:
    both = opened[name]
    assert outcome(both, 0, turns) == outcome(both, 1, turns)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("first", ["user", "assistant"])
def test_equal_to_the_template_under_each(opened: dict[str, Both], name: str, first: str) -> None:
    both = opened[name]
    for texts in (
        ("Who?", "Me."),
        ("Who?", "Me.", "Why?", "So."),
        ("same", "same", "same", "same"),
        ("b", "Yes, b.", "b"),
        ("é", "日本 ", " x", ""),
        ("a", "<|im_end|>"),
        ("<|image_pad|>", "b"),
        ("assistant\n", "<|im_start|>assistant\n"),
    ):
        turns = talk(*texts, first=first)
        assert outcome(both, 0, turns) == outcome(both, 1, turns)
    again = talk("Who?", "Me.", first=first)  # what is kept of others changes nothing
    assert outcome(both, 0, again) == outcome(both, 1, again)


@pytest.mark.parametrize("name", USUAL)
def test_the_usual_is_not_left_to_the_template(
    opened: dict[str, Both], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = opened[name]
    turns = talk("Who are you?", "Me.\n\nOnly mé.", "Why?", "So.")
    wanted = outcome(both, 1, turns)

    def refuse(*_: object) -> tuple[Part, ...]:
        raise AssertionError("left to the template")

    monkeypatch.setattr(ChatTemplate, "render", refuse)
    assert outcome(both, 0, turns) == wanted
    pictured = (Turn("user", (ImagePart("a"),), loss=False), *turns[1:])
    with pytest.raises(AssertionError, match="left"):
        both[0].render(pictured)
    with pytest.raises(AssertionError, match="left"):
        both[0].render(turns, '[{"name": "a tool"}]')
    named = (Turn("user", (TextPart("Who?"),), loss=False, name="Ann"), *turns[1:])
    with pytest.raises(AssertionError, match="left"):
        both[0].render(named)
