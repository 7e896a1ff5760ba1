"""Any bytes and any JSON value give a Document or a SampleError, never another exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_mm.errors import SampleError
from zephon_mm.formats import FormatOptions, load_format
from zephon_mm.sample import Document

from .samples import sample

NAMES = ("text", "image_text", "video_text", "interleaved", "chat")
WORDS = st.sampled_from(
    "text caption parts messages conversations texts role from content value user human gpt "
    "assistant system type image images video videos image_url url path start end clips media name "
    "<image> <video> jpg mp4 0.jpg 000.jpg video_start video_end 00:01 1.5".split()
) | st.text(st.characters(), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=25,
)
ROLES = st.sampled_from(["user", "assistant", "gpt", "human"]) | VALUES
CONTENT = st.lists(
    st.fixed_dictionaries({}, optional={k: VALUES for k in ("type", "text", "image", "video")}),
    max_size=3,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {}, optional={"role": ROLES, "from": ROLES, "content": CONTENT | VALUES, "value": VALUES}
    ),
    max_size=3,
)
NEAR = (
    MESSAGES
    | st.fixed_dictionaries({"messages": MESSAGES}, optional={"image": VALUES, "videos": VALUES})
    | st.fixed_dictionaries({"clips": VALUES | st.lists(st.lists(SCALARS, max_size=2), max_size=1)})
    | st.lists(
        st.fixed_dictionaries(
            {}, optional={k: SCALARS for k in ("text", "image", "video", "start", "end")}
        ),
        max_size=4,
    )
)


def outcome(name: str, members: dict[str, Any], **options: Any) -> Document | SampleError:
    try:
        return load_format(name)(sample(members), FormatOptions(options))
    except SampleError as error:
        error.reason.encode()
        assert "\n" not in error.reason and error.kind in ("filtered", "quarantined")
        return error


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(value=VALUES | NEAR)
def test_any_json_value(name: str, value: Any) -> None:
    result = outcome(
        name,
        {"jpg": b"", "mp4": b"", "0.jpg": b"", "json": json.dumps(value)},
        **({"clip_window": True} if name == "video_text" else {}),
    )
    if isinstance(result, Document):
        for part in (*result.parts, *(part for turn in result.turns for part in turn.parts)):
            text = getattr(part, "text", "")
            text.encode()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=40))
def test_any_bytes(name: str, data: bytes) -> None:
    outcome(name, {"jpg": b"", "mp4": b"", "json": data})
    outcome(name, {"jpg": b"", "mp4": b"", "json": b"{}", "txt": data})


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, deadline=None)
@given(fields=st.lists(st.text(st.characters(), max_size=6), max_size=5, unique_by=str.lower))
def test_any_member_names(name: str, fields: list[str]) -> None:
    outcome(name, {field: b"{}" for field in fields})
