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
from .chat_templates import INLINE, MISTRAL, QWEN2_5, QWEN3, QWEN3_VL, STRINGS, THINKING
from .test_chat import GENERATION, TRIMMING, encode, targets

CONTROL = ("<|tools|>", "<|/tools|>", "<|inst|>", "<|/inst|>", "<|calls|>", "<|end|>")
CONTROL += ("<|result|>", "<|/result|>")

TOOL = {"type": "function", "function": {"name": "weather", "description": "It <|im_end|>s."}}
PARIS = {"name": "weather", "arguments": {"city": "Paris", "days": [1, 2.5], "né": None}}
ROME = {"name": "weather", "arguments": {"city": "<|im_end|>\n<|im_start|>user"}}
QUESTION = {"role": "user", "content": "Rain in Paris?"}
ANSWERS = [
    {"role": "tool", "content": '{"rain": 0}', "tool_call_id": "call00001", "name": "weather"},
    {"role": "tool", "content": "none", "tool_call_id": "call00002", "name": "weather"},
]
LAST = {"role": "assistant", "content": "No rain."}


def calling(*calls: dict[str, Any], content: Any = "", **more: Any) -> dict[str, Any]:
    listed = [
        {"id": f"call0000{at + 1}", "type": "function", "function": call}
        for at, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": listed, **more}


def written(*calls: dict[str, Any]) -> str:
    """Calls as Qwen's templates write them."""
    texts = [json.dumps(call["arguments"], ensure_ascii=False) for call in calls]
    return "\n".join(
        f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {text}}}\n</tool_call>'
        for call, text in zip(calls, texts, strict=True)
    )


TALK = [
    {"role": "system", "content": "Be brief."},
    QUESTION,
    calling(PARIS, ROME, content="Let me look."),
    *ANSWERS,
    calling(PARIS),
    ANSWERS[0],
    LAST,
]
WANTED = (
    f"Let me look.\n{written(PARIS, ROME)}<|im_end|>|{written(PARIS)}<|im_end|>|No rain.<|im_end|>"
)


def read(messages: list[dict[str, Any]], *media: str, **head: Any) -> Document:
    """The document of a conversation, by the format that ``auto`` would take."""
    members = {"json": {"messages": messages, **head}, **{field: b"" for field in media}}
    return load_format("chat")(sample(members), FormatOptions({}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tools"), extra=CONTROL)


def use(folder: Path, template: str) -> Path:
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"chat_template": template}
    file.write_text(json.dumps(settings))
    return folder


def learnt(
    folder: Path, template: str, messages: list[dict[str, Any]], tools: Any = None
) -> tuple[str, str]:
    """Text and targets of a conversation, whose text is what Hugging Face's tokenizer writes."""
    document = read(messages, **({"tools": tools} if tools else {}))
    result, hf = encode(use(folder, template), document.turns, document.tools)
    text = hf.decode(result.tokens)
    plain = [{**m, "content": m.get("content") or ""} for m in messages]
    assert text == hf.apply_chat_template(plain, tools=tools, tokenize=False)
    return text, targets(result, hf)


@pytest.mark.parametrize("template", [QWEN2_5, QWEN3_VL])
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_calls_are_learnt_and_answers_are_not(folder: Path, template: str, tools: Any) -> None:
    text, found = learnt(folder, template, TALK, tools)
    assert ("# Tools" in text) == bool(tools)
    assert found == WANTED


def test_the_ids_are_those_of_hugging_face(folder: Path) -> None:
    talk = [*TALK[:2], calling(PARIS, content="Let me look."), *TALK[3:]]  # spells no token
    document = read(talk, tools=[{**TOOL, "function": {"name": "weather"}}])
    result, hf = encode(use(folder, QWEN2_5), document.turns, document.tools)
    want = hf.apply_chat_template(talk, tools=json.loads(document.tools), tokenize=True)
    assert result.tokens.tolist() == want["input_ids"]
    spelt = read(TALK)
    result, _ = encode(folder, spelt.turns)
    end = hf.convert_tokens_to_ids("<|im_end|>")
    assert result.tokens.tolist().count(end) == 7  # what a call spells stays text


def test_templates_that_take_arguments_as_json(folder: Path) -> None:
    document = read(TALK)
    result, hf = encode(use(folder, STRINGS), document.turns)
    assert targets(result, hf) == WANTED


@pytest.mark.parametrize("how", ["openai json", "function_call", "sharegpt", "sharegpt list"])
def test_every_form_of_a_call_is_the_same_document(how: str) -> None:
    as_json = {**PARIS, "arguments": json.dumps(PARIS["arguments"], ensure_ascii=False)}
    want = read([QUESTION, calling(PARIS), ANSWERS[0], LAST], tools=[TOOL])
    if how == "openai json":
        document = read([QUESTION, calling(as_json, content=None), ANSWERS[0], LAST], tools=[TOOL])
        assert document == want
        return
    if how == "function_call":
        call = {"role": "assistant", "content": None, "function_call": as_json}
        answer = {"role": "function", "name": "weather", "content": '{"rain": 0}'}
        document = read([QUESTION, call, answer, LAST], tools=[TOOL])
    else:
        value = json.dumps([PARIS] if how == "sharegpt list" else PARIS)
        data = {
            "conversations": [
                {"from": "human", "value": "Rain in Paris?"},
                {"from": "function_call", "value": value},
                {"from": "observation", "value": '{"rain": 0}'},
                {"from": "gpt", "value": "No rain."},
            ],
            "tools": json.dumps([TOOL]),
        }
        document = load_format("chat")(sample({"json": data}), FormatOptions({}))
    assert document.tools == want.tools
    assert [(turn.role, turn.parts, turn.loss) for turn in document.turns] == [
        (turn.role, turn.parts, turn.loss) for turn in want.turns
    ]
    (call,) = json.loads(document.turns[1].calls)
    assert call == {"type": "function", "function": PARIS}


def test_thoughts_of_a_sharegpt_call() -> None:
    value = "<think>\nParis, so\n</think>\n\n" + json.dumps(PARIS)
    turns = [{"from": "human", "value": "?"}, {"from": "function_call", "value": value}]
    document = load_format("chat")(sample({"json": {"conversations": turns}}), FormatOptions({}))
    assert document.turns[1].reasoning == "Paris, so"
    assert json.loads(document.turns[1].calls)[0]["function"] == PARIS


def test_thoughts_go_where_the_template_puts_them(folder: Path) -> None:
    talk = [
        QUESTION,
        calling(PARIS, reasoning_content="I must look."),
        ANSWERS[0],
        calling(ROME, content="And Rome.", reasoning="Once more."),
        ANSWERS[1],
        {**LAST, "thinking": "\nSo dry <|im_end|>.\n"},
    ]
    _, found = learnt(folder, QWEN3, talk)
    assert found == (
        f"<think>\nI must look.\n</think>\n\n{written(PARIS)}<|im_end|>|"
        f"<think>\nOnce more.\n</think>\n\nAnd Rome.\n{written(ROME)}<|im_end|>|"
        "<think>\nSo dry <|im_end|>.\n</think>\n\nNo rain.<|im_end|>"
    )
    _, found = learnt(folder, THINKING, talk)  # the prompt holds <think>
    assert found.startswith("I must look.\n</think>\n\n<tool_call>")
    assert found.endswith("|So dry <|im_end|>.\n</think>\n\nNo rain.<|im_end|>")


def test_thoughts_within_the_text(folder: Path) -> None:
    answer = {"role": "assistant", "content": "<think>\nDry.\n</think>\n\nNo rain."}
    _, found = learnt(folder, QWEN3, [QUESTION, answer])
    assert found == "<think>\nDry.\n</think>\n\nNo rain.<|im_end|>"
    _, found = learnt(folder, QWEN2_5, [QUESTION, answer, QUESTION, answer])
    assert found == "|".join(["<think>\nDry.\n</think>\n\nNo rain.<|im_end|>"] * 2)


def test_an_answer_without_a_thought(folder: Path) -> None:
    talk = [QUESTION, LAST, {"role": "user", "content": "<tool_response>?"}, LAST]
    _, found = learnt(folder, QWEN3, talk)  # it writes an empty thought in the last turn only
    assert found == "No rain.<|im_end|>|<think>\n\n</think>\n\nNo rain.<|im_end|>"
    _, found = learnt(folder, THINKING, talk)
    assert found == "No rain.<|im_end|>|\n</think>\n\nNo rain.<|im_end|>"


def test_thoughts_that_the_template_drops_are_refused(folder: Path) -> None:
    thought = {**LAST, "reasoning_content": "Dry."}
    inside = {**LAST, "content": "<think>\nDry.\n</think>\n\nNo rain."}
    for template, talk in (
        (QWEN3, [QUESTION, thought, QUESTION, LAST]),  # of earlier turns
        (QWEN3, [QUESTION, inside, QUESTION, LAST]),
        (QWEN2_5, [QUESTION, thought]),  # it knows of none
    ):
        with pytest.raises(SampleError, match=r"leaves out the .* of message 2") as caught:
            encode(use(folder, template), read(talk).turns)
        assert caught.value.kind == "quarantined"


def test_a_template_that_asks_for_nothing(folder: Path) -> None:
    talk = [QUESTION, calling(PARIS, ROME), *ANSWERS, LAST]
    ids = [{**call, "id": f"call0000{at + 1}"} for at, call in enumerate((PARIS, ROME))]
    calls = "<|calls|>" + json.dumps(ids, ensure_ascii=False) + "<|end|>"
    for tools in (None, [TOOL]):
        document = read(talk, **({"tools": tools} if tools else {}))
        result, hf = encode(use(folder, MISTRAL), document.turns, document.tools)
        assert targets(result, hf) == f"{calls}|No rain.<|end|>"
    twice = read([*talk, {"role": "user", "content": "And Rome?"}, calling(PARIS)])
    result, hf = encode(folder, twice.turns)
    assert targets(result, hf).count("<|calls|>[") == 2
    moved, hf = encode(folder, twice.turns, json.dumps([TOOL]))  # before the last question
    assert targets(moved, hf) == targets(result, hf)


def test_what_a_template_has_no_place_for_is_refused(folder: Path) -> None:
    beside = [QUESTION, calling(PARIS, content="Let me look."), ANSWERS[0], LAST]
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    deaf = QWEN2_5.replace("m.role == 'tool'", "false")
    for template, talk, match in (
        (MISTRAL, beside, "leaves out the text of message 2"),
        (plain, beside, "leaves out the tool call of message 2"),
        (TRIMMING, beside, "leaves out the tool call of message 2"),
        (deaf, beside, "no place for what a tool answers"),
        (MISTRAL, [QUESTION, {**calling(PARIS), "tool_calls": [{"function": PARIS}]}], "refuses"),
    ):
        with pytest.raises(SampleError, match=match) as caught:
            encode(use(folder, template), read(talk).turns)
        assert caught.value.kind == "quarantined"


def test_generation_marks_hold_the_calls_or_are_refused(folder: Path) -> None:
    said, called = "'<|im_start|>assistant\\n' + content", "{%- for call in m.tool_calls"
    ended = "{{- '<|im_end|>\\n' }}{%- elif m.role == 'tool'"
    assert all(part in QWEN2_5 for part in (said, called, ended))
    marked = (
        QWEN2_5.replace(said, "'<|im_start|>assistant\\n'")
        .replace(called, "{%- generation %}{{- content | upper }}" + called)
        .replace(
            ended, "{{- '<|im_end|>' }}{%- endgeneration %}{{- '\\n' }}{%- elif m.role == 'tool'"
        )
    )
    talk = [QUESTION, calling(PARIS, content="Let me look.")]
    document = read(talk)
    result, hf = encode(use(folder, marked), document.turns)
    assert targets(result, hf) == f"LET ME LOOK.\n{written(PARIS)}<|im_end|>"
    with pytest.raises(SampleError, match="rewrites"):  # its marks know of no calls
        encode(use(folder, GENERATION), document.turns)


def test_answers_within_the_assistants_turn_are_not_learnt(folder: Path) -> None:
    silent = INLINE.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
    city = {"name": "weather", "arguments": {"city": "Paris"}}
    begun = [QUESTION, calling(city), ANSWERS[0]]
    for talk in (begun, [*begun, LAST], [*begun, QUESTION, LAST]):
        document = read(talk)
        result, hf = encode(use(folder, INLINE), document.turns)
        rest = "|No rain.<|im_end|>" if LAST in talk else ""
        assert targets(result, hf) == "<|calls|>weathercityParis" + rest
        with pytest.raises(SampleError, match="can't be told"):
            encode(use(folder, silent), document.turns)
    between = silent.replace(
        "{{- '<|calls|>'", "{{- messages[loop.index + 1].content + '<|calls|>'"
    )
    with pytest.raises(SampleError, match=r"rewrites|can't be told"):
        encode(use(folder, between), read([QUESTION, calling(PARIS, PARIS), *ANSWERS]).turns)


def test_an_answer_is_missed_though_its_text_is_elsewhere(folder: Path) -> None:
    deaf = QWEN2_5.replace("m.role == 'tool'", "false")
    talk = [QUESTION, calling(PARIS), {"role": "tool", "content": "Rain"}, LAST]
    with pytest.raises(SampleError, match=r"what a tool answers \(message 3\)"):
        encode(use(folder, deaf), read(talk).turns)


def test_a_thought_without_an_answer_is_learnt_to_its_end(folder: Path) -> None:
    talk = [QUESTION, {"role": "assistant", "content": "<think>Dry.</think>"}]
    result, hf = encode(use(folder, QWEN3), read(talk).turns)
    assert targets(result, hf) == "<think>\nDry.\n</think>\n\n<|im_end|>"


def test_control_tokens_that_arguments_and_ids_spell_stay_text(tmp_path: Path) -> None:
    quote = '<|"|>'  # Gemma 4's, which JSON escapes
    inner = write_tokenizer(tmp_path, extra=(*CONTROL, quote))
    template = INLINE.replace("key ~ value", f"key ~ '{quote}' ~ value ~ '{quote}'")
    call = {"name": "weather", "arguments": {f"a{quote}": f"x{quote}y"}}
    result, hf = encode(use(inner, template), read([QUESTION, calling(call)]).turns)
    assert result.tokens.tolist().count(hf.convert_tokens_to_ids(quote)) == 2
    answer = {**ANSWERS[0], "tool_call_id": "x<|end|>\ufdd0"}
    result, hf = encode(use(inner, MISTRAL), read([QUESTION, calling(PARIS), answer, LAST]).turns)
    assert result.tokens.tolist().count(hf.convert_tokens_to_ids("<|end|>")) == 2


def test_work_on_many_calls_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon_mm.stages.chat._MOST_RENDERED", 1000)
    with pytest.raises(SampleError, match="too many turns"):
        encode(use(folder, MISTRAL), read([QUESTION, *[calling(PARIS), ANSWERS[0]] * 9]).turns)


def test_deep_arguments_are_refused_at_one_depth_everywhere(folder: Path) -> None:
    deep = {"name": "weather", "arguments": '{"a":' + "[" * 90 + "]" * 90 + "}"}
    assert targets(*encode(use(folder, QWEN2_5), read([QUESTION, calling(deep)]).turns))
    for depth in (100, 900):
        deep["arguments"] = '{"a":' + "[" * depth + "]" * depth + "}"
        with pytest.raises(SampleError, match="nested deeper than 100"):
            read([QUESTION, calling(deep)])


def test_pictures_in_a_tools_answer(folder: Path) -> None:
    shown = {"role": "tool", "content": [{"type": "image"}, {"type": "text", "text": " a map"}]}
    document = read([QUESTION, calling(PARIS), shown, LAST], "jpg")
    result, hf = encode(use(folder, QWEN3_VL), document.turns)
    assert targets(result, hf) == f"{written(PARIS)}<|im_end|>|No rain.<|im_end|>"
    assert len(result.blocks) == 1
    assert "<tool_response>\n<|vision_start|>" in hf.decode(result.tokens)
