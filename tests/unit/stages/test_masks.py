"""Loss masks equal those of transformers, for a template with and without ``{% generation %}``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from tests.tiny import write_tokenizer
from zephon_mm.models import load_tokenizer
from zephon_mm.models.qwen import QwenFamily
from zephon_mm.sample import TextPart, Turn
from zephon_mm.stages.chat import ChatTemplate
from zephon_mm.stages.texts import Conversations
from zephon_mm.stages.tokens import encode_documents

_EACH = "{% for m in messages %}"
_SAID = "{% if m.role == 'assistant' %}<{{ TEXT }}END>{% else %}{{ TEXT }}END{% endif %}"


def _template(head: str, text: str, end: str, after: str, ask: str, before: str = "") -> str:
    said = _SAID.replace("TEXT", text).replace("END", end)
    asked = "{% if add_generation_prompt %}" + ask + "{% endif %}"
    return before + _EACH + head + said + after + "{% endfor %}" + asked


_CHATML = ("<|im_start|>{{ m.role }}{{ '\\n' }}", "<|im_end|>", "{{ '\\n' }}")
_ASK = "<|im_start|>assistant{{ '\\n' }}"
TEMPLATES = {
    "as it is": _template(_CHATML[0], "m.content", *_CHATML[1:], _ASK),
    "trims": _template(_CHATML[0], "m.content | trim", *_CHATML[1:], _ASK),
    "last alone ends": _template(
        _CHATML[0], "m.content", "{% if loop.last %}<|im_end|>{% endif %}", "", _ASK
    ),
    "counts": _template(
        "<|im_start|>{{ m.role }} {{ loop.index }}/{{ messages | length }}{{ '\\n' }}",
        "m.content",
        *_CHATML[1:],
        "<|im_start|>assistant {{ messages | length + 1 }}/{{ messages | length + 1 }}{{ '\\n' }}",
    ),
    "by position": _template(
        "{{ '<|im_start|>' if loop.index0 % 2 else '<|vision_start|>' }}",
        "m.content",
        "<|im_end|>",
        "",
        "<|im_start|>",
    ),
    "in words": _template(
        "{{ 'ASSISTANT: ' if m.role == 'assistant' else 'USER: ' }}",
        "m.content",
        "<|endoftext|>",
        "{{ '\\n' }}",
        "ASSISTANT: ",
    ),
}
"""``<`` and ``>`` alone stand where generation begins and ends."""

THOUGHTS = ("</think>", "a</think>", " a </think> ", "<think>", "<think></think>", "<think>a")
TALKS = [
    *[("Hi", thought, "So?", "b ") for thought in THOUGHTS],
    *[("Hi", f"c{thought}\n\n{thought}", "So?") for thought in THOUGHTS],
    ("<think>a</think>", " <think>\n\n</think>\n\nb", " c ", "<think>a</think> b<think>c"),
    ("ASSISTANT: x", "USER: y\n", "assistant\n", "\n\nassistant\n"),
    ("", "é日本 ", " ", "\u00a0x\u00a0", "e\u0301", "\ufdd0\ufdd1"),
]


def _write(folder: Path, source: str) -> Path:
    write_tokenizer(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": source}))
    return folder


def _with(source: str, start: str, end: str) -> str:
    return source.replace("%}<{{", "%}" + start + "{{").replace(
        ">{% else %}{{", end + "{% else %}{{"
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_equal_to_transformers_masks(tmp_path: Path, name: str) -> None:
    plain, marked = (
        _write(tmp_path / kind, _with(TEMPLATES[name], *edges))
        for kind, edges in (
            ("plain", ("", "")),
            ("marked", ("{% generation %}", "{% endgeneration %}")),
        )
    )
    tokenizer = load_tokenizer(plain)
    template = ChatTemplate(tokenizer, QwenFamily.placeholders)
    ways = (template, Conversations(template, QwenFamily.placeholders))
    hf = AutoTokenizer.from_pretrained(marked)
    for talk in TALKS:
        roles = ("user", "assistant") * 3
        said = list(zip(roles, talk, strict=False))
        want = hf.apply_chat_template(
            [{"role": role, "content": text} for role, text in said],
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        turns = [Turn(r, (TextPart(t),) if t else (), loss=r == "assistant") for r, t in said]
        for way in ways:
            parts = [part for part in way.render(turns) if isinstance(part, TextPart)]
            (found,) = encode_documents([parts], tokenizer)
            assert not isinstance(found, Exception)
            assert found.tokens.tolist() == want["input_ids"], talk
            assert (
                np.flatnonzero(found.loss).tolist()
                == np.flatnonzero(want["assistant_masks"]).tolist()
            ), (talk, hf.convert_ids_to_tokens(want["input_ids"]))
