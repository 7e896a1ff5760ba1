from __future__ import annotations

from typing import Any

import pytest

from zephon_mm.errors import SampleError
from zephon_mm.formats import FormatOptions, load_format
from zephon_mm.sample import Document, ImagePart, TextPart, VideoPart

from .samples import sample

END = TextPart("<|endoftext|>", loss=True, special=True)


def run(members: dict[str, Any], template: str | None = None, **options: Any) -> Document:
    given = FormatOptions(options) if template is None else FormatOptions(options, template)
    return load_format("interleaved")(sample(members, "dir/000"), given)


LIST = [
    {"text": "First"},
    {"image": "0_a.jpg"},
    {"text": " then "},
    {"image": "000.0_b.png"},
    {"video": "dir/000.clip.mp4", "start": 1, "end": "00:02.5"},
    {"video": "clip.MP4"},
    {"text": "done."},
]
PARTS = (
    TextPart("First"),
    ImagePart("0_a.jpg"),
    TextPart(" then "),
    ImagePart("0_b.png"),
    VideoPart("clip.mp4", 1.0, 2.5),
    VideoPart("clip.mp4"),
    TextPart("done."),
)
MEDIA = {"0_a.jpg": b"", "0_b.png": b"", "clip.mp4": b""}


def test_the_order_is_kept_and_names_are_found() -> None:
    assert run({"json": LIST, **MEDIA}).parts == (*PARTS, END)
    assert run({"json": {"parts": LIST}, **MEDIA}).parts == (*PARTS, END)
    assert run({"a.json": {"p": LIST}, **MEDIA}, json_field="a.json", parts_key="p").parts[0] == (
        TextPart("First")
    )


def test_the_template_stays_outside_of_its_placeholders() -> None:
    parts = run({"json": LIST, **MEDIA}, "<s>{media} shows {text}.</s>").parts
    assert parts == (
        TextPart("<s>", loss=False, special=True),
        *PARTS,
        TextPart(".</s>", loss=True, special=True),
    )
    parts = run({"json": LIST, **MEDIA}, "<s>{text}</s>").parts
    assert parts[0] == TextPart("<s>", loss=False, special=True)
    assert parts[1:-1] == PARTS and parts[-1] == TextPart("</s>", loss=True, special=True)


def test_parts_without_text_are_filtered() -> None:
    for items in ([], [{"image": "0_a.jpg"}], [{"text": " "}, {"image": "0_a.jpg"}]):
        with pytest.raises(SampleError) as caught:
            run({"json": items, **MEDIA})
        assert caught.value.kind == "filtered"


@pytest.mark.parametrize(
    "items",
    [
        [{"text": "a"}, {"image": "missing.jpg"}],
        [{"text": "a"}, {"image": 0}],
        [{"text": "a"}, {"image": ["0_a.jpg"]}],
        [{"text": "a", "image": "0_a.jpg"}],
        [{"text": 5}],
        [{"audio": "x"}],
        [{}],
        [{"text": None}],
        ["a"],
        "a",
        None,
        {"other": []},
        {"parts": "a"},
        [{"text": "a"}, {"video": "clip.mp4", "start": 2, "end": 1}],
        [{"text": "a"}, {"video": "clip.mp4", "start": 2}],
        [{"text": "\ud800"}],
        [{"text": "a"}, {"image": "\ud800"}],
    ],
)
def test_wrong_shapes_are_quarantined(items: Any) -> None:
    with pytest.raises(SampleError) as caught:
        run({"json": items, **MEDIA})
    assert caught.value.kind == "quarantined" and "dir/000.json" in caught.value.reason
    caught.value.reason.encode()


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SampleError, match=r"'missing\.jpg'.*'dir/000\.0_a\.jpg'"):
        run({"json": [{"text": "a"}, {"image": "missing.jpg"}], **MEDIA})
    with pytest.raises(SampleError, match=r"'json'.*'dir/000\.clip\.mp4'"):
        run(MEDIA)
