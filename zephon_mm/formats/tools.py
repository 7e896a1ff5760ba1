"""Tools in conversations: those that may be called, and the assistant's calls of them.

Calls come in OpenAI's form (``tool_calls [{id, type, function {name, arguments}}]``, or the older
``function_call {name, arguments}``), their arguments an object or JSON of one, and in ShareGPT's
(a turn ``function_call`` with JSON ``{name, arguments}`` or a list of such). A document holds them
in OpenAI's form with the arguments as an object, which is what chat templates take.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from .base import checked_list, checked_object, checked_text, kind_of, malformed, parse_json

_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
_DEEPEST = 100
_REASONING = ("reasoning_content", "thinking", "reasoning")


def read_tools(value: Any, what: str) -> str:
    """A list of tools as JSON; it may be written as a string of JSON (LLaMA-Factory)."""
    if isinstance(value, str):
        value = parse_json(value, what) if value.strip() else None
    return _written(checked_list(value, what), what) if value else ""


def read_calls(message: dict[str, Any], what: str) -> str:
    """The calls of a message, as a JSON list; empty where it has none. Raises SampleError."""
    listed, single = message.get("tool_calls"), message.get("function_call")
    if listed and single:
        raise malformed(f"{what} has both 'tool_calls' and 'function_call', expected one of them")
    if isinstance(listed, str):  # columns of tables hold JSON
        listed = parse_json(listed, f"{what} 'tool_calls'") if listed.strip() else None
    if listed:
        where = f"{what} 'tool_calls'"
        calls = [_call(call, where) for call in checked_list(listed, where)]
        return _written(calls, where)
    return _written([_call(single, f"{what} 'function_call'")], what) if single else ""


def read_function_call(text: str, what: str) -> tuple[str, str]:
    """The thoughts and the calls (a JSON list) of a ShareGPT turn ``function_call``."""
    thought = _THOUGHT.match(text)
    rest = text[thought.end() :] if thought else text
    value = parse_json(rest, f"{what}, a call of a tool,")
    calls = [_call(call, what) for call in (value if isinstance(value, list) else [value])]
    if not calls:
        raise malformed(f"{what} calls no tool")
    return thought.group(1).strip() if thought else "", _written(calls, what)


def read_reasoning(message: dict[str, Any], what: str) -> str:
    """What the assistant thought: a message's ``reasoning_content``, under any of its names."""
    for name in _REASONING:
        if message.get(name):
            return checked_text(message[name], f"{what} {name!r}")
    return ""


def _call(value: Any, what: str) -> dict[str, Any]:
    call = checked_object(value, what)
    function = checked_object(call["function"], what) if "function" in call else call
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise malformed(f"{what} calls a tool whose name is {kind_of(name)}, expected a string")
    arguments = function.get("arguments", function.get("parameters"))
    if isinstance(arguments, str):
        where = f"{what}: the arguments of {name[:40]!a}"
        arguments = parse_json(arguments, where) if arguments.strip() else {}
    if not isinstance(arguments, dict) and arguments is not None:
        raise malformed(
            f"{what}: the arguments of {name[:40]!a} are {kind_of(arguments)}, expected an object "
            "or JSON of one"
        )
    made = {"type": "function", "function": {"name": name, "arguments": arguments or {}}}
    identity = call.get("id")
    return {"id": checked_text(identity, f"{what} 'id'"), **made} if identity else made


def _written(value: Any, what: str) -> str:
    """JSON as it is kept; SampleError for text that no tokeniser can take, or deep nesting."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            break
    else:
        raise malformed(f"{what} is nested deeper than {_DEEPEST} levels")
    return checked_text(json.dumps(value, ensure_ascii=False), what)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
