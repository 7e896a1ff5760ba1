from __future__ import annotations

from typing import Any

import pytest

from zephon_mm.errors import SampleError
from zephon_mm.formats import FormatOptions, load_format
from zephon_mm.sample import ImagePart, TextPart, Turn, VideoPart

from .samples import sample


def run(data: Any, *media: str, key: str = "000", **options: Any) -> tuple[Turn, ...]:
    members = {"json": data, **{field: b"" for field in media}}
    return load_format("chat")(sample(members, key), FormatOptions(options)).turns


def refusal(data: Any, *media: str) -> SampleError:
    with pytest.raises(SampleError) as caught:
        run(data, *media)
    caught.value.reason.encode()
    assert "\n" not in caught.value.reason
    return caught.value


ANSWER = Turn("assistant", (TextPart("A cat."),), loss=True)


def test_hugging_face_content_parts() -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "user",
            "content": [
                {"type": "image"},
                {"type": "video"},
                {"type": "text", "text": "What is <image>?"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
    ]
    expected = (
        Turn("system", (TextPart("Be brief."),), loss=False),
        Turn(
            "user",
            (ImagePart("jpg"), VideoPart("mp4"), TextPart("What is <image>?")),
            loss=False,
        ),
        ANSWER,
    )
    assert run(messages, "jpg", "mp4") == expected
    assert run({"messages": messages}, "jpg", "mp4") == expected


def test_hugging_face_parts_that_name_their_file() -> None:
    def messages(part: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": [part, {"type": "text", "text": "?"}]},
            {"role": "assistant", "content": "A cat."},
        ]

    for part in (
        {"type": "image", "image": "b.jpg"},
        {"image": "000.b.jpg"},
        {"type": "image", "url": "b.jpg"},
        {"type": "image", "path": "B.JPG"},
        {"type": "image_url", "image_url": {"url": "b.jpg"}},
        {"type": "image", "image": "file://b.jpg"},
        {"text": None, "image": "b.jpg", "video": None},  # columns of a table, merged
    ):
        assert run(messages(part), "a.jpg", "b.jpg")[0].parts[0] == ImagePart("b.jpg")
    clip = {"type": "video", "video": "x.mp4", "video_start": 1, "video_end": 2.5}
    assert run(messages(clip), "x.mp4")[0].parts[0] == VideoPart("x.mp4", 1.0, 2.5)
    assert (
        "itself" in refusal(messages({"type": "image", "image": "data:image/png;base64,"})).reason
    )


def test_llava_conversations() -> None:
    data = {
        "id": "000000033471",
        "image": "coco/train2017/000000033471.jpg",
        "conversations": [
            {"from": "human", "value": "<image>\nWhat is it?"},
            {"from": "gpt", "value": "A cat."},
            {"from": "human", "value": "Sure?"},
            {"from": "gpt", "value": "Yes."},
        ],
    }
    turns = run(data, "jpg")
    assert turns[0] == Turn("user", (ImagePart("jpg"), TextPart("\nWhat is it?")), loss=False)
    assert turns[1] == ANSWER
    assert [turn.loss for turn in turns] == [False, True, False, True]


def test_qwen_conversations_with_lists_of_files_and_a_system_turn() -> None:
    data = {
        "image": ["1.jpg", "0.jpg"],
        "video": "v.mp4",
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "<image> or <image>, and <video>?"},
            {"from": "gpt", "value": "A cat."},
        ],
    }
    turns = run(data, "0.jpg", "1.jpg", "v.mp4")
    assert turns[0] == Turn("system", (TextPart("Be brief."),), loss=False)
    assert turns[1].parts == (
        ImagePart("1.jpg"),
        TextPart(" or "),
        ImagePart("0.jpg"),
        TextPart(", and "),
        VideoPart("v.mp4"),
        TextPart("?"),
    )


def test_sharegpt_messages() -> None:
    data = {
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "<image>What? <video>"},
            {"role": "assistant", "content": "A cat."},
        ],
        "images": ["a.png"],
        "videos": ["b.webm"],
    }
    turns = run(data, "a.png", "b.webm")
    assert turns[0] == Turn("system", (TextPart("Be brief."),), loss=False)
    assert turns[1].parts == (ImagePart("a.png"), TextPart("What? "), VideoPart("b.webm"))
    assert turns[2] == ANSWER


def test_llava_onevision_mixed_and_image_only() -> None:
    texts = [
        {"role": "user", "content": "<image>Which <image>?"},
        {"role": "assistant", "content": "A cat."},
    ]
    data = {"texts": texts, "media": "image", "name": ["0_a.jpg", "1_b.jpg"]}
    turns = run(data, "0_a.jpg", "1_b.jpg")
    assert turns[0].parts[0] == ImagePart("0_a.jpg") and turns[0].parts[2] == ImagePart("1_b.jpg")
    video = {
        "texts": [{"role": "user", "content": "<video>?"}, texts[1]],
        "media": "video",
        "name": ["0_a.mp4"],
    }
    assert run(video, "0_a.mp4")[0].parts[0] == VideoPart("0_a.mp4")
    only = {"texts": [{"role": "user", "content": "Hi"}, texts[1]], "media": "text", "name": []}
    assert run(only)[0].parts == (TextPart("Hi"),)
    bare = [{"role": "user", "content": "<image>?"}, texts[1]]
    assert run(bare, "jpg")[0].parts == (ImagePart("jpg"), TextPart("?"))


def test_llavas_clips_are_marked_as_images() -> None:
    def asked(text: str, **files: Any) -> dict[str, Any]:
        said = [{"from": "human", "value": text}, {"from": "chatgpt", "value": "A cat."}]
        return {"conversations": said, **files}

    for data in (asked("<image>\nWhat?", video="a/b.mp4"), asked("<image>\nWhat?")):
        assert run(data, "mp4")[0].parts == (VideoPart("mp4"), TextPart("\nWhat?"))
    twice = asked("<image><image>?", video=["b.mp4", "a.mp4"])
    assert run(twice, "a.mp4", "b.mp4")[0].parts[:2] == (VideoPart("b.mp4"), VideoPart("a.mp4"))
    for text, files in (("<image><video>", ("mp4",)), ("<image><image>", ("mp4",))):
        assert "<image> markers for 0 pictures" in refusal(asked(text), *files).reason
    assert "0 <video> markers for 1 clip" in refusal(asked("<image>"), "mp4", "jpg").reason


def test_unnamed_files_are_taken_in_natural_order() -> None:
    fields = [f"img{at}.jpg" for at in (10, 2, 0, 1, 9)]
    messages = [
        {"role": "user", "content": "<image>" * 5},
        {"role": "assistant", "content": "A cat."},
    ]
    assert [part.field for part in run(messages, *fields)[0].parts] == [  # type: ignore[union-attr]
        f"img{at}.jpg" for at in (0, 1, 2, 9, 10)
    ]


def test_a_conversation_of_text_alone() -> None:
    messages = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "A cat."}]
    assert run({"conversations": messages}) == (
        Turn("user", (TextPart("Hi"),), loss=False),
        ANSWER,
    )
    assert run({"turns": messages}, messages_key="turns")[1] == ANSWER


@pytest.mark.parametrize(
    ("text", "listed", "media"),
    [
        ("<image><image>", ["0.jpg"], ["0.jpg"]),
        ("<image>", ["0.jpg", "1.jpg"], ["0.jpg", "1.jpg"]),
        ("no marker", ["0.jpg"], ["0.jpg"]),
        ("no marker", None, ["0.jpg"]),
        ("<image>", None, []),
        ("<image>", [], ["0.jpg"]),
        ("<image>", None, ["0.jpg", "1.jpg"]),
    ],
)
def test_markers_must_equal_files(text: str, listed: list[str] | None, media: list[str]) -> None:
    data: dict[str, Any] = {
        "conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "A cat."}]
    }
    if listed is not None:
        data["image"] = listed
    error = refusal(data, *media)
    assert error.kind == "quarantined"
    assert f"{text.count('<image>')} <image> markers" in error.reason
    assert "000.json" in error.reason


def test_paths_mean_members_of_their_last_part_or_all_in_order() -> None:
    def asked(*files: str) -> dict[str, Any]:
        text = {"from": "human", "value": "<image>" * len(files)}
        return {"image": list(files), "conversations": [text, {"from": "gpt", "value": "A cat."}]}

    for paths in (("x/b.jpg", "http://u/a.jpg?w=3"), (r"C:\x\b.jpg", "a.jpg")):
        fields = [part.field for part in run(asked(*paths), "a.jpg", "b.jpg")[0].parts]  # type: ignore[union-attr]
        assert fields == ["b.jpg", "a.jpg"]
    fields = [part.field for part in run(asked("x/7.jpg", "x/3.jpg"), "1.jpg", "0.jpg")[0].parts]  # type: ignore[union-attr]
    assert fields == ["0.jpg", "1.jpg"]
    for paths in (("x/7.jpg", "x/0.jpg"), ("x/7.jpg",)):  # some are there; not as many
        assert "'x/7.jpg'" in refusal(asked(*paths), "0.jpg", "1.jpg").reason
    both = refusal(asked("x/a.jpg", "y/a.jpg"), "a.jpg", "b.jpg").reason  # never one for two
    assert "'x/a.jpg' and 'y/a.jpg' both end in the name of member '000.a.jpg'" in both
    both = refusal(asked("x/000.jpg"), "jpg", "000.jpg").reason
    assert both == "'000.jpg' could mean the members '000.000.jpg' and '000.jpg'"
    fields = [part.field for part in run(asked("x/a.jpg", "x/a.jpg"), "a.jpg")[0].parts]  # type: ignore[union-attr]
    assert fields == ["a.jpg", "a.jpg"]
    named = [
        {"role": "user", "content": [{"type": "image", "image": "file:///x/b.jpg"}]},
        {"role": "assistant", "content": "A cat."},
    ]
    assert run(named, "a.jpg", "b.jpg")[0].parts == (ImagePart("b.jpg"),)


def test_a_listed_file_that_is_not_there_is_named() -> None:
    data = {
        "images": ["a.jpg", "gone.jpg"],
        "messages": [
            {"role": "user", "content": "<image><image>"},
            {"role": "assistant", "content": "A cat."},
        ],
    }
    error = refusal(data, "a.jpg", "b.jpg")
    assert error.kind == "quarantined" and "'gone.jpg'" in error.reason


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": "Hi"}],
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}],
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}],
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " \n"}],
        [{"role": "assistant", "content": [{"type": "text", "text": ""}]}],
    ],
)
def test_nothing_to_learn_is_filtered(messages: list[Any]) -> None:
    assert refusal({"messages": messages}).kind == "filtered"


@pytest.mark.parametrize(
    "data",
    [
        None,
        5,
        {},
        {"messages": None},
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [["hi"]]},
        [[{"role": "user", "content": "a list of conversations"}]],
        [{"role": "narrator", "content": "hi"}],
        [{"role": 5, "content": "hi"}],
        [{"content": "hi"}],
        [{"role": "assistant", "content": 5}],
        [{"role": "assistant", "content": {"text": "hi"}}],
        [{"role": "assistant", "content": [5]}],
        [{"role": "assistant", "content": [{"type": "audio"}]}],
        [{"role": "assistant", "content": [{"type": ["image"]}]}],
        [{"role": "assistant", "content": [{"type": "text", "text": 5}]}],
        [{"role": "assistant", "content": [{"type": "image", "image": 5}]}],
        [{"role": "assistant", "content": [{"type": "video", "video": ["0.jpg", "1.jpg"]}]}],
        [{"role": "assistant", "content": "\ud800"}],
        [{"role": "\ud800", "content": "hi"}],
        {"messages": [{"role": "assistant", "content": "hi"}], "system": 5},
        {"messages": [{"role": "user", "content": "<image>"}], "images": [5]},
        {"messages": [{"role": "user", "content": "<image>"}], "images": {"a": 1}},
    ],
)
def test_wrong_shapes_are_quarantined(data: Any) -> None:
    assert refusal(data).kind == "quarantined"


@pytest.mark.parametrize("key", ["weight", "loss", "train"])
@pytest.mark.parametrize("value", [0, False, 1, True, None])
def test_a_message_may_say_that_it_is_not_trained_on(key: str, value: Any) -> None:
    messages = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello.", key: value},
        {"role": "user", "content": "What?"},
        {"role": "assistant", "content": "A cat."},
    ]
    turns = run({"messages": messages})
    assert [turn.loss for turn in turns] == [False, value in (None, 1), False, True]
    assert turns[1].parts == (TextPart("Hello."),)
    messages[3][key] = 0
    messages[1][key] = 0
    assert "trained on" in refusal({"messages": messages}).reason
    user = [{"role": "user", "content": "Hi.", key: 1}, *messages[2:3]]
    assert "trained on" in refusal({"messages": user}).reason  # it is never the user's


@pytest.mark.parametrize("value", [0.5, "no", [0], 2, -1, {}])
def test_how_much_a_message_is_trained_on_is_not_a_scale(value: Any) -> None:
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    assert "expected 0, 1" in refusal([messages[0], {**messages[1], "weight": value}]).reason


def named(*files: str, **head: Any) -> dict[str, Any]:
    """A conversation whose parts name their files, and what its JSON says beside it."""
    content = [{"type": "image", "image": file} for file in files]
    user = {"role": "user", "content": [*content, {"type": "text", "text": "?"}]}
    return {"messages": [user, {"role": "assistant", "content": "A cat."}], **head}


def test_listed_files_that_nothing_shows_are_not_lost() -> None:
    both = ("a.jpg", "b.jpg")
    found = run(named("a.jpg", images=["x/a.jpg"]), *both)
    assert found[0].parts[0] == ImagePart("a.jpg")
    assert run(named(*both, images=["b.jpg", "a.jpg"]), *both)[0].parts[1] == ImagePart("b.jpg")
    assert run(named("a.jpg"), *both)[0].parts[0] == ImagePart("a.jpg")  # not listed: its own
    for head in ({"images": ["a.jpg", "b.jpg"]}, {"image": "b.jpg"}, {"images": ["gone.jpg"]}):
        assert "no message shows picture" in refusal(named("a.jpg", **head), *both).reason
    assert "0 <video> markers for 1 clips" in refusal(named("a.jpg", video="c.mp4"), "a.jpg").reason
    assert run(named("http://h/a.jpg", images=["http://h/a.jpg"]), "jpg")[0].parts[0]


def test_two_lists_of_files_must_be_the_same() -> None:
    marked = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "A cat."}]
    for lists in ({"image": "a.jpg", "images": ["a.jpg"]}, {"image": "", "images": ["a.jpg"]}):
        assert run({"messages": marked, **lists}, "a.jpg", "b.jpg")[0].parts[0] == ImagePart(
            "a.jpg"
        )
    lists = {"image": "b.jpg", "images": ["a.jpg"]}
    assert "different files" in refusal({"messages": marked, **lists}, "a.jpg", "b.jpg").reason


@pytest.mark.parametrize("key", ["system", "system_prompt"])
def test_system_texts_that_differ_are_refused(key: str) -> None:
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "A cat."}]
    expected = Turn("system", (TextPart("Be brief."),), loss=False)
    assert run({key: "Be brief.", "messages": messages}) == (expected, *run(messages))
    for content in ("Be brief.", [{"type": "text", "text": "Be brief."}]):
        own = [{"role": "system", "content": content}, *messages]
        assert run({key: "Be brief.", "messages": own}) == (expected, *run(messages))
        assert "system texts" in refusal({key: "Be long.", "messages": own}).reason
    both = {"system": "Be brief.", "system_prompt": "Be long.", "messages": messages}
    assert "2 system texts" in refusal(both).reason


@pytest.mark.parametrize("key", ["audio", "audios"])
def test_sound_is_refused_rather_than_lost(key: str) -> None:
    messages = [
        {"role": "user", "content": "<audio>?"},
        {"role": "assistant", "content": "A cat."},
    ]
    assert "sound" in refusal({"messages": messages, key: ["a.wav"]}, "a.wav").reason
    assert run({"messages": messages, key: []})[0].parts == (TextPart("<audio>?"),)
