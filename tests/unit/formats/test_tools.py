from __future__ import annotations

from typing import Any

import pytest

from zephon_mm.errors import SampleError
from zephon_mm.formats import FormatOptions, choose, load_format
from zephon_mm.sample import Document, ImagePart

from .samples import sample

CALL = {"name": "look", "arguments": {"at": "the sky"}}
ASK = {"role": "user", "content": "Rain?"}


def run(messages: list[Any], *media: str, **head: Any) -> Document:
    members = {"json": {"messages": messages, **head}, **{field: b"" for field in media}}
    return load_format("chat")(sample(members), FormatOptions({}))


def test_a_turn_that_only_calls_is_learnt() -> None:
    for call in ({"tool_calls": [CALL]}, {"content": None, "tool_calls": [{"function": CALL}]}):
        document = run([ASK, {"role": "assistant", **call}])
        assert document.turns[1].calls and document.turns[1].loss


def test_a_tool_says_which_call_it_answers_and_may_show_pictures() -> None:
    answer = {"role": "tool", "tool_call_id": "7", "name": "look", "content": [{"type": "image"}]}
    calls = {"role": "assistant", "tool_calls": [{"id": "7", "function": CALL}]}
    turn = run([ASK, calls, answer], "jpg").turns[2]
    assert (turn.role, turn.call_id, turn.name, turn.loss) == ("tool", "7", "look", False)
    assert turn.parts == (ImagePart("jpg"),)
    marked = run([ASK, calls, {**answer, "content": "<image> seen"}], "jpg").turns[2]
    assert marked.parts[0] == ImagePart("jpg")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"tool_calls": [{"function": {}}]}, "whose name is null"),
        ({"tool_calls": [{"function": {"name": 5}}]}, "whose name is a number"),
        ({"tool_calls": {"function": CALL}}, "an object, expected a list"),
        ({"tool_calls": ["look"]}, "expected an object"),
        ({"tool_calls": "look"}, "not JSON"),
        ({"tool_calls": [{**CALL, "arguments": "{"}]}, "not JSON"),
        ({"tool_calls": [{**CALL, "arguments": "[1]"}]}, "a list, expected an object"),
        ({"tool_calls": [{**CALL, "arguments": '{"a": 1, "a": 2}'}]}, "comes twice"),
        ({"tool_calls": [{**CALL, "arguments": {"a": "\ud800"}}]}, "surrogate"),
        ({"tool_calls": [{**CALL, "id": 7}]}, "expected a string"),
        ({"tool_calls": [CALL], "function_call": CALL}, "both"),
        ({"reasoning_content": ["so"], "content": "Yes."}, "expected a string"),
        ({"role": "user", "tool_calls": [CALL]}, "calls in a turn of role 'user'"),
        ({"role": "tool", "reasoning": "so"}, "reasoning in a turn of role 'tool'"),
        ({"role": "function_call", "content": "look up"}, "not JSON"),
        ({"role": "function_call", "content": "[]"}, "calls no tool"),
        ({"role": "function_call", "content": "5"}, "expected an object"),
        ({"role": "function_call", "content": "{}", "tool_calls": [CALL]}, "beside its text"),
    ],
)
def test_calls_of_the_wrong_shape_are_quarantined(message: dict[str, Any], reason: str) -> None:
    with pytest.raises(SampleError, match=reason) as caught:
        run([ASK, {"role": "assistant", **message}])
    assert caught.value.kind == "quarantined" and "\n" not in caught.value.reason
    caught.value.reason.encode()


def test_tools_of_a_packed_row_are_not_lost() -> None:
    row = [{"conversations": [{"from": "gpt", "value": "Hi"}], "tools": [{"name": "look"}]}]
    with pytest.raises(SampleError, match="'tools' would be lost"):
        load_format("packed")(sample({"json": row}), FormatOptions({}))


def test_auto_takes_both_forms_for_chats() -> None:
    sharegpt = [{"from": "human", "value": "Rain?"}, {"from": "function_call", "value": "{}"}]
    for data in (
        {"messages": [ASK, {"role": "assistant", "tool_calls": [CALL]}], "tools": [{"name": "a"}]},
        {"conversations": sharegpt, "tools": "[]"},
        [ASK, {"role": "assistant", "tool_calls": [CALL]}],
    ):
        assert choose("s", [sample({"json": data})], {}).format == "chat"
