"""Conversations with tools under the kinds of templates that models have: text and targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import write_tokenizer
from zephon_mm.errors import SampleError
from zephon_mm.formats import FormatOptions, load_format
from zephon_mm.sample import Document

from ..formats.samples import sample
from . import real_templates as real
from .chat_templates import QWEN2_5, QWEN3
from .test_chat import encode, targets

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {}}}
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Rain?"}
SURE = {"role": "user", "content": "Sure?"}
LAST = {"role": "assistant", "content": "No rain."}
YES = {"role": "assistant", "content": "Yes."}


def calling(*cities: tuple[int, str], **more: Any) -> dict[str, Any]:
    calls = [
        {
            "id": f"call0000{number}",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": city}},
        }
        for number, city in cities
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls, **more}


def answer(number: int) -> dict[str, Any]:
    identity = f"call0000{number}"
    return {"role": "tool", "tool_call_id": identity, "name": "weather", "content": "dry"}


PARIS, ROME = (1, "Paris"), (2, "Rome")
TALKS: dict[str, list[dict[str, Any]]] = {
    "once": [SYSTEM, QUESTION, calling(PARIS), answer(1), LAST],
    "both": [QUESTION, calling(PARIS, ROME), answer(1), answer(2), LAST],
    "chain": [
        *(QUESTION, calling(PARIS), answer(1), calling(ROME), answer(2), LAST),
        *(SURE, YES),
    ],
    "answered": [QUESTION, calling(PARIS), answer(1)],
}


def read(messages: list[dict[str, Any]], tools: Any = (TOOL,)) -> Document:
    data = {"messages": messages, "tools": list(tools)}
    return load_format("chat")(sample({"json": data}), FormatOptions({}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("real")
    return write_tokenizer(made, vocab_size=660, extra=real.CONTROL)


def use(folder: Path, template: str) -> Path:
    file = folder / "tokenizer_config.json"
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    file.write_text(
        json.dumps({**json.loads(file.read_text()), **tokens, "chat_template": template})
    )
    return folder


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "CITY"}}\n</tool_call>'
GEMMA = '<|tool_call>call:weather{city:<|"|>CITY<|"|>}<tool_call|>'
MISTRAL = '{"name": "weather", "arguments": {"city": "CITY"}, "id": "call0000ID"}'
LLAMA = '{"name": "weather", "parameters": {"city": "CITY"}}'

KINDS: dict[str, tuple[str, str, str, str, str, str]] = {
    # template, before the calls, a call, between two, after the calls, after a text
    "qwen2.5": (QWEN2_5, "", CALL, "\n", "<|im_end|>", "<|im_end|>"),
    "hermes": (real.HERMES, "", CALL, "\n", "<|im_end|>", "<|im_end|>"),
    "llama3": (real.LLAMA3, "", LLAMA, "", "<|eot_id|>", "<|eot_id|>"),
    "mistral nemo": (real.MISTRAL_NEMO, "[TOOL_CALLS][", MISTRAL, ", ", "]</s>", "</s>"),
    "mistral v3": (real.MISTRAL_V3, "[TOOL_CALLS] [", MISTRAL, ", ", "]</s>", "</s>"),
    "gemma4": (real.GEMMA4, "", GEMMA, "", "<|tool_response>", "<turn|>"),
}


def wanted(kind: str, talk: list[dict[str, Any]]) -> str:
    _, before, form, between, after, end = KINDS[kind]
    found = []
    for message in talk:
        if "tool_calls" in message:
            texts = [
                form.replace("CITY", call["function"]["arguments"]["city"]).replace(
                    "ID", call["id"][-1]
                )
                for call in message["tool_calls"]
            ]
            found.append(before + between.join(texts) + after)
        elif message["role"] == "assistant":
            found.append(message["content"] + end)
    return "|".join(found)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_and_texts_are_learnt_and_nothing_else(folder: Path, kind: str) -> None:
    template = KINDS[kind][0]
    for name, talk in TALKS.items():
        document = read(talk)
        if (kind, name) == ("llama3", "both"):
            with pytest.raises(SampleError, match="single tool-calls"):
                encode(use(folder, template), document.turns, document.tools)
            continue
        result, hf = encode(use(folder, template), document.turns, document.tools)
        assert targets(result, hf) == wanted(kind, talk), name
        text = hf.apply_chat_template(talk, tools=[TOOL], tokenize=False)
        if kind != "llama3":  # which asks for today's date: no clock is given here
            assert hf.decode(result.tokens) == text, name
        else:
            assert "Today Date: 26 Jul 2024" in hf.decode(result.tokens)


def test_thoughts_of_gemma4_before_calls_and_texts(folder: Path) -> None:
    thought = {"reasoning_content": "So."}
    talk = [QUESTION, calling(PARIS, **thought), answer(1), {**LAST, **thought}]
    document = read(talk)
    result, hf = encode(use(folder, real.GEMMA4), document.turns, document.tools)
    call = GEMMA.replace("CITY", "Paris")
    start = "<|channel>thought\nSo.\n<channel|>"
    assert targets(result, hf) == f"{start}{call}<|tool_response>|{start}No rain.<turn|>"
    beside = read([QUESTION, calling(PARIS, content="I look."), answer(1), LAST])
    with pytest.raises(SampleError, match="writes it elsewhere"):  # after the answer
        encode(folder, beside.turns, beside.tools)


def test_gemma3_has_a_system_text_and_no_tools(folder: Path) -> None:
    talk = [SYSTEM, QUESTION, {**LAST, "content": " No rain.\n"}, SURE, YES]
    result, hf = encode(use(folder, real.GEMMA3), read(talk, ()).turns)
    assert hf.decode(result.tokens) == hf.apply_chat_template(talk, tokenize=False)
    assert targets(result, hf) == "No rain.<end_of_turn>|Yes.<end_of_turn>"
    for talk, match in (([QUESTION, calling(PARIS)], "tools"), ([LAST], "must alternate")):
        document = read(talk)
        with pytest.raises(SampleError, match=match):
            encode(folder, document.turns, document.tools)


def test_a_blank_thought_is_written_as_the_template_does_or_not_at_all(folder: Path) -> None:
    talk = [QUESTION, {**LAST, "reasoning_content": "\n"}]
    shown = {
        QWEN2_5: "No rain.<|im_end|>",
        QWEN3: "<think>\n\n</think>\n\nNo rain.<|im_end|>",
        real.GEMMA4: "<|channel>thought\n\n\n<channel|>No rain.<turn|>",
        real.LLAMA3: "No rain.<|eot_id|>",
        real.MISTRAL_V3: " No rain.</s>",
    }
    for template, text in shown.items():
        result, hf = encode(use(folder, template), read(talk, ()).turns)
        assert targets(result, hf) == text


def test_marks_of_the_template_decide_where_they_hold_everything(folder: Path) -> None:
    says, end = (
        "'<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}",
        "<|im_end|>\\n' }}",
    )
    assert says in QWEN2_5
    marked = QWEN2_5.replace(
        says,
        "'<|im_start|>' + m.role }}{%- if m.role == 'assistant' %}{%- generation %}"
        "{{- '\\n' + content + '" + end + "{%- endgeneration %}"
        "{%- else %}{{- '\\n' + content + '" + end + "{%- endif %}",
    )
    talk = [SYSTEM, QUESTION, LAST, SURE, YES]
    result, hf = encode(use(folder, marked), read(talk, ()).turns)
    want = hf.apply_chat_template(
        talk, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    assert result.tokens.tolist() == want["input_ids"]
    assert result.loss.astype(int).tolist() == want["assistant_masks"]
    assert targets(result, hf) == "\nNo rain.<|im_end|>\n|\nYes.<|im_end|>\n"
    document = read(TALKS["once"])  # its marks leave out the calls: found as without them
    result, hf = encode(folder, document.turns, document.tools)
    assert targets(result, hf) == wanted("qwen2.5", TALKS["once"])


def test_a_template_that_needs_the_date_is_told(folder: Path) -> None:
    dated = real.LLAMA3.replace("strftime_now is defined", "true")
    with pytest.raises(SampleError, match="write a date into the template"):
        encode(use(folder, dated), read([QUESTION, LAST], ()).turns)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left_out", [[1], [3], [5], [7], [1, 7], [1, 3, 7]])
def test_a_turn_that_says_so_is_shown_and_not_learnt(
    folder: Path, kind: str, left_out: list[int]
) -> None:
    """Calls and texts, whatever stands beside them; the tokens are the same."""
    talk = TALKS["chain"]
    told = [{**m, "weight": 0} if at in left_out else m for at, m in enumerate(talk)]
    document, whole = read(told), read(talk)
    use(folder, KINDS[kind][0])
    result, hf = encode(folder, document.turns, document.tools)
    learnt = [message for at, message in enumerate(talk) if at not in left_out]
    assert targets(result, hf) == wanted(kind, learnt)
    assert (result.tokens == encode(folder, whole.turns, whole.tools)[0].tokens).all()
