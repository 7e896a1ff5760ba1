"""Shapes of public data sets that have a format of their own."""

from __future__ import annotations

from typing import Any

import pytest

from zephon_mm.errors import ConfigError, SampleError
from zephon_mm.formats import FormatOptions, load_format
from zephon_mm.sample import Document, ImagePart, Part, TextPart, Turn, VideoPart

from .samples import sample

END = TextPart("<|endoftext|>", loss=True, special=True)


def run(name: str, members: dict[str, Any], **options: Any) -> Document:
    return load_format(name)(sample(members), FormatOptions(options))


def shown(document: Document) -> str:
    """The document on one line: texts, and media as ``[field]``."""
    return "".join(map(_shown, document.parts))


def _shown(part: Part) -> str:
    return part.text if isinstance(part, TextPart) else f"[{part.field}]"


def talk(document: Document) -> list[list[tuple[str, str]]]:
    """Conversations as (role, text with media), turns that are learnt from in upper case."""
    return [
        [(t.role.upper() if t.loss else t.role, "".join(map(_shown, t.parts))) for t in turns]
        for turns in document.conversations
    ]


def refusal(name: str, members: dict[str, Any], **options: Any) -> SampleError:
    with pytest.raises(SampleError) as caught:
        run(name, members, **options)
    assert "\n" not in caught.value.reason
    return caught.value


OBELICS: dict[str, Any] = {
    "images": ["https://a.b/x.jpg?w=3", None, None, "https://a.b/y.png"],
    "texts": [None, "One.", "Two.", None],
    "metadata": '[{"src": "x"}]',
    "general_metadata": '{"url": "https://a.b"}',
}


def test_obelics() -> None:
    by_order = {"json": OBELICS, "10.jpg": b"", "9.jpg": b""}
    assert shown(run("obelics", by_order)) == "[9.jpg]One.\n\nTwo.[10.jpg]<|endoftext|>"
    assert shown(run("obelics", by_order, joiner=" ")) == "[9.jpg]One. Two.[10.jpg]<|endoftext|>"
    by_name = {"json": OBELICS, "y.png": b"", "x.jpg": b""}
    assert shown(run("obelics", by_name)) == "[x.jpg]One.\n\nTwo.[y.png]<|endoftext|>"
    in_objects = {**OBELICS, "images": [{"path": "y.png"}, None, None, {"path": "000.x.jpg"}]}
    found = run("obelics", {**by_name, "json": in_objects})
    assert shown(found) == "[y.png]One.\n\nTwo.[x.jpg]<|endoftext|>"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"texts": [None, "One.", "Two."]}, "4 images and 3 texts"),
        ({"texts": ["Zero.", "One.", "Two.", None]}, "both an image and a text at index 0"),
        ({"texts": [None, None, "Two.", None]}, "neither an image nor a text at index 1"),
        ({"texts": [None, 1, "Two.", None]}, "a number"),
        ({"images": [1, None, None, "y"]}, "a number"),
        ({"images": "x"}, "expected a list"),
    ],
)
def test_obelics_of_the_wrong_shape(change: dict[str, Any], says: str) -> None:
    members = {"json": {**OBELICS, **change}, "0.jpg": b"", "1.jpg": b""}
    assert says in refusal("obelics", members).reason


def test_pictures_and_places_are_counted() -> None:
    heres: list[dict[str, Any]] = [{}, {"0.jpg": b""}, {"0.jpg": b"", "1.jpg": b"", "2.jpg": b""}]
    for name, data in (("obelics", OBELICS), ("mmc4", MMC4)):
        for here in heres:
            error = refusal(name, {"json": data, **here})
            assert error.kind == "quarantined" and "names 2 pictures and 0 of them" in error.reason
    error = refusal("obelics", {"json": OBELICS, "x.jpg": b"", "z.jpg": b""})
    assert "names 2 pictures and 1 of them" in error.reason and "y.png" in error.reason


MMC4: dict[str, Any] = {
    "text_list": ["One.", "Two.", "Three."],
    "image_info": [
        {"image_name": "b.jpg", "raw_url": "u", "matched_text_index": 2, "matched_sim": 0.31},
        {"image_name": "a.jpg", "raw_url": "u", "matched_text_index": 0, "matched_sim": 0.2},
    ],
    "similarity_matrix": [[0.1, 0.2, 0.31], [0.2, 0.1, 0.1]],
}


def test_mmc4() -> None:
    members: dict[str, Any] = {"json": MMC4, "a.jpg": b"", "b.jpg": b""}
    assert shown(run("mmc4", members)) == "[a.jpg]One. Two. [b.jpg]Three.<|endoftext|>"
    assert shown(run("mmc4", members, min_similarity=0.24, joiner="|")) == (
        "One.|Two.|[b.jpg]Three.<|endoftext|>"
    )
    both = [{**info, "matched_text_index": 1} for info in MMC4["image_info"]]
    members["json"] = {**MMC4, "image_info": both}
    assert shown(run("mmc4", members)) == "One. [b.jpg][a.jpg]Two. Three.<|endoftext|>"
    assert shown(run("mmc4", {"json": {**MMC4, "image_info": []}})) == (
        "One. Two. Three.<|endoftext|>"
    )


@pytest.mark.parametrize("index", [3, -1, None, True, "1", 1.0])
def test_mmc4_matched_to_no_text(index: Any) -> None:
    info = [{"image_name": "a.jpg", "matched_text_index": index}]
    members = {"json": {**MMC4, "image_info": info}, "a.jpg": b""}
    assert "of none of the 3 texts" in refusal("mmc4", members).reason


def test_options_of_the_wrong_type() -> None:
    members = {"json": MMC4, "a.jpg": b"", "b.jpg": b""}
    for options in ({"joiner": 1}, {"min_similarity": "0.2"}, {"min_similarity": True}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            run("mmc4", members, **options)


QWEN_ROW: list[dict[str, Any]] = [
    {
        "image": "a.jpg",
        "conversations": [
            {"from": "human", "value": "<image>\nWhat?"},
            {"from": "gpt", "value": "A cat."},
        ],
    },
    {
        "conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}],
    },
    {
        "video": ["c.mp4"],
        "image": ["b.jpg"],
        "conversations": [
            {"from": "human", "value": "<video><image>Both?"},
            {"from": "gpt", "value": "Yes."},
        ],
    },
]


def test_qwen_packed_rows() -> None:
    members = {"json": QWEN_ROW, "a.jpg": b"", "b.jpg": b"", "c.mp4": b""}
    assert talk(run("packed", members)) == [
        [("user", "[a.jpg]\nWhat?"), ("ASSISTANT", "A cat.")],
        [("user", "Hi."), ("ASSISTANT", "Hello.")],
        [("user", "[c.mp4][b.jpg]Both?"), ("ASSISTANT", "Yes.")],
    ]
    text_only = run("packed", {"json": QWEN_ROW[1:2]})
    assert talk(text_only) == [[("user", "Hi."), ("ASSISTANT", "Hello.")]]
    assert refusal("packed", {"json": []}).kind == "filtered"
    two = [{**QWEN_ROW[0], "image": name} for name in ("x/1.jpg", "x/2.jpg")]
    assert "'x/1.jpg'" in refusal("packed", {"json": two, "jpg": b""}).reason  # not the same twice
    assert talk(run("packed", {"json": two[:1], "jpg": b""}))[0][0] == ("user", "[jpg]\nWhat?")
    bad = [*QWEN_ROW[:1], {**QWEN_ROW[1], "image": ["a.jpg"]}]
    assert "0 <image> markers for 1 picture" in refusal("packed", {**members, "json": bad}).reason


ONE_VISION: dict[str, Any] = {
    "images": ["img0.jpg", "img1.jpg"],
    "prompts": ["Describe it.", "<image>\nAnd this?"],
    "captions": ["A cat.", "A dog."],
}


def test_llava_onevision_packed() -> None:
    members = {"json": ONE_VISION, "img1.jpg": b"", "img0.jpg": b""}
    assert talk(run("packed", members)) == [
        [("user", "[img0.jpg]Describe it."), ("ASSISTANT", "A cat.")],
        [("user", "[img1.jpg]\nAnd this?"), ("ASSISTANT", "A dog.")],
    ]
    bare = {k: v for k, v in ONE_VISION.items() if k != "prompts"}
    assert talk(run("packed", {**members, "json": bare}))[1] == [
        ("user", "[img1.jpg]"),
        ("ASSISTANT", "A dog."),
    ]
    nested = {
        "images": [["img0.jpg", "img1.jpg"], []],
        "prompts": [["<image> or <image>?", "Why?"], "Hi."],
        "captions": [["The first.", "It is red."], "Hello."],
    }
    assert talk(run("packed", {**members, "json": nested})) == [
        [
            ("user", "[img0.jpg] or [img1.jpg]?"),
            ("ASSISTANT", "The first."),
            ("user", "Why?"),
            ("ASSISTANT", "It is red."),
        ],
        [("user", "Hi."), ("ASSISTANT", "Hello.")],
    ]
    spread = {**nested, "prompts": [["<image>?", "Or <image>?"], "Hi."]}
    assert talk(run("packed", {**members, "json": spread}))[0] == [
        ("user", "[img0.jpg]?"),
        ("ASSISTANT", "The first."),
        ("user", "Or [img1.jpg]?"),
        ("ASSISTANT", "It is red."),
    ]
    unmarked = {**nested, "prompts": [["Which?", "Why?"], "Hi."]}
    assert talk(run("packed", {**members, "json": unmarked}))[0][0] == (
        "user",
        "[img0.jpg][img1.jpg]Which?",
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompts": ["a"]}, "1 prompts for 2 captions"),
        ({"images": ["img0.jpg"]}, "1 images for 2 captions"),
        ({"prompts": ["<image><image>", "a"]}, "2 markers for 1 media"),
        ({"prompts": [["a", "b"], "a"]}, "2 prompts for 1 captions"),
        ({"images": ["img0.jpg", "img2.jpg"]}, "names 2 pictures and 1 of them"),
        ({"images": ["img0.jpg", 1]}, "a number"),
        ({"captions": [1, "a"]}, "a number"),
    ],
)
def test_llava_onevision_packed_of_the_wrong_shape(change: dict[str, Any], says: str) -> None:
    members = {"json": {**ONE_VISION, **change}, "img0.jpg": b"", "img1.jpg": b""}
    assert says in refusal("packed", members).reason


def test_energon_crude_samples() -> None:
    caption = {"jpg": b"", "txt": "A cat."}
    found = run("energon", caption, image="jpg", caption="txt")
    assert found.parts == (ImagePart("jpg"), TextPart("A cat."), END)
    data = [{"value": "<image>\nWhat?"}, {"value": ["A cat.", "Cat"], "file": "clip.mp4"}]
    places = {"context": "json[0][value]", "answers": "json[1][value]"}
    found = run("energon", {"jpg": b"", "json": data}, image="jpg", **places)
    assert found.turns == (
        Turn("user", (ImagePart("jpg"), TextPart("\nWhat?")), False),
        Turn("assistant", (TextPart("A cat."),), True),
    )
    own = {"image": "*", "video": "*", **places}
    for members, part in (({"png": b""}, ImagePart("png")), ({"webm": b""}, VideoPart("webm"))):
        assert run("energon", {**members, "json": data}, **own).turns[0].parts[0] == part
    clip = {"clip.mp4": b"", "json": data}
    found = run("energon", clip, video="json[1][file]", caption="json[0][value]")
    assert found.parts[0] == VideoPart("clip.mp4")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"image": "jpg", "caption": "json[2][value]"}, "nothing lies at 'json[2][value]'"),
        ({"image": "png", "caption": "json[0]"}, "no member 'png'"),
        ({"image": "json[file]", "caption": "json[text]"}, "auxiliary stores are not read"),
        ({"image": "json[n]", "caption": "json[text]"}, "a number"),
        ({"caption": "json[n]"}, "a number"),
    ],
)
def test_energon_samples_that_lack_something(options: dict[str, Any], says: str) -> None:
    members = {"jpg": b"", "json": {"file": "aux/1.jpg", "text": "x", "n": 1}}
    assert says in refusal("energon", members, **options).reason


@pytest.mark.parametrize(
    "options",
    [{}, {"image": "jpg"}, {"context": "txt"}, {"caption": "json[0"}, {"caption": 3}],
)
def test_energon_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        run("energon", {"jpg": b"", "txt": "x"}, **options)


def test_tools_of_a_conversation() -> None:
    messages = [{"from": "human", "value": "Rain?"}, {"from": "gpt", "value": "No."}]
    given: Any
    for given in ([{"name": "weather"}], '[{"name": "weather"}]'):
        found = run("chat", {"json": {"conversations": messages, "tools": given}})
        assert found.tools == '[{"name": "weather"}]'
    for given in (None, "", [], " "):
        assert run("chat", {"json": {"conversations": messages, "tools": given}}).tools == ""
    for given in ("{", '{"name": 1}', 3):
        assert "'tools'" in refusal("chat", {"json": {"messages": messages, "tools": given}}).reason
