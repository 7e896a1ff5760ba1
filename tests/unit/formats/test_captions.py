"""`text`, `image_text`, `video_text`: shapes of public datasets, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zephon_mm.errors import ConfigError, SampleError
from zephon_mm.formats import FormatOptions, load_format
from zephon_mm.sample import ImagePart, TextPart, VideoPart

from .samples import sample, samples_of_tar

END = TextPart("<|endoftext|>", loss=True, special=True)


def run(name: str, members: dict[str, Any], key: str = "000", **options: Any) -> Any:
    return load_format(name)(sample(members, key), FormatOptions(options)).parts


def refusal(name: str, members: dict[str, Any], key: str = "000", **options: Any) -> SampleError:
    with pytest.raises(SampleError) as caught:
        run(name, members, key, **options)
    assert "\n" not in caught.value.reason
    return caught.value


def test_img2dataset_sample() -> None:
    meta = {
        "url": "http://x/y.jpg",
        "caption": "json caption",
        "key": "000000000",
        "status": "success",
        "error_message": None,
        "width": 256,
        "height": 256,
        "original_width": 300,
        "original_height": 280,
        "exif": '{"Image Orientation": "Horizontal (normal)"}',
    }
    members = {"jpg": b"picture", "txt": "a cat", "json": meta}
    assert run("image_text", members) == (ImagePart("jpg"), TextPart("a cat"), END)
    assert run("image_text", members, text_key="caption")[1] == TextPart("json caption")
    del members["txt"]
    assert run("image_text", members)[1] == TextPart("json caption")


def test_cc3m_sample_and_every_picture_extension() -> None:
    for extension in ("jpg", "jpeg", "png", "webp", "JPG", "Jpeg"):
        parts = run("image_text", {extension: b"", "txt": "a dog"})
        assert parts == (ImagePart(extension.lower()), TextPart("a dog"), END)


def test_text_is_kept_as_it_is() -> None:
    for text in (" a\n", "a\r\nb", "é漢\U0001f600", "<|endoftext|><image>{media}{text}"):
        assert run("text", {"txt": text})[0] == TextPart(text)


def test_byte_order_mark_is_no_text() -> None:
    assert run("text", {"txt": "\ufeffabc"})[0] == TextPart("abc")
    assert run("text", {"json": '\ufeff{"text": "abc"}'})[0] == TextPart("abc")


def test_text_from_json_and_from_a_named_field() -> None:
    assert run("text", {"json": {"text": "abc"}})[0] == TextPart("abc")
    assert run("text", {"json": {"body": "abc"}}, text_key="body")[0] == TextPart("abc")
    assert run("text", {"a.txt": "abc", "txt": "no"}, text_field="a.txt")[0] == TextPart("abc")
    members = {"a.json": {"text": "abc"}, "json": {"text": "no"}}
    assert run("text", members, text_field="a.json")[0] == TextPart("abc")


def test_video2dataset_uses_the_whole_cut_file() -> None:
    meta = {"clips": [[1.5, 4.0]], "yt_meta_dict": {"info": {}}, "caption": "a race"}
    members = {"mp4": b"clip", "txt": "a race", "json": meta}
    assert run("video_text", members) == (VideoPart("mp4"), TextPart("a race"), END)


@pytest.mark.parametrize(
    "clip",
    [[1.5, 4], ["00:00:01.500", "00:00:04.000"], ["0:1.5", "4"], ["1.5", "00:04"]],
)
def test_clip_window_takes_floats_and_time_strings(clip: list[Any]) -> None:
    members = {"mp4": b"", "json": {"clips": [clip], "caption": "x"}}
    parts = run("video_text", members, clip_window=True)
    assert parts[0] == VideoPart("mp4", 1.5, 4.0)


def test_clip_window_counts_hours_and_minutes() -> None:
    members = {"mp4": b"", "json": {"clips": [["01:02:03.25", "01:02:04"]], "caption": "x"}}
    assert run("video_text", members, clip_window=True)[0] == VideoPart("mp4", 3723.25, 3724.0)


@pytest.mark.parametrize(
    "clips",
    [
        None,
        [],
        [[1, 2], [3, 4]],
        [[1]],
        [[2, 1]],
        [[1, 1]],
        [[-1, 2]],
        [["x", 2]],
        [["1:2:3:4", 2]],
        [[True, 2]],
        [[float("nan"), 2]],
        [[0, float("inf")]],
        [[0, 10**400]],
        [{}],
        "0-1",
    ],
)
def test_a_window_that_is_none_is_quarantined(clips: Any) -> None:
    members = {"mp4": b"", "txt": "x", "json": {"clips": clips}}
    error = refusal("video_text", members, clip_window=True)
    assert error.kind == "quarantined" and "clips" in error.reason


@pytest.mark.parametrize(
    "meta", [{"text": ""}, {"text": " \n\t\u00a0"}, {"text": None}, {}, {"caption": None}]
)
@pytest.mark.parametrize("name", ["image_text", "text"])
def test_no_text_is_filtered(name: str, meta: dict[str, Any]) -> None:
    members = {"jpg": b"", "json": meta}
    assert refusal(name, members).kind == "filtered"


def test_an_empty_text_member_is_filtered() -> None:
    assert refusal("text", {"txt": b""}).kind == "filtered"
    assert refusal("video_text", {"mp4": b"", "txt": b" \n"}).kind == "filtered"


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe{",
        b'{"text": "a',
        b"",
        b"[",
        b'{"text": "\xe9"}',
        b'{"text": "a", "text": "b"}',
        b'{"text": "x", "n": ' + b"9" * 5000 + b"}",
        b'{"text": "x", "n": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"a":' * 100_000,
        b'{"text": "\\ud800"}',
        b'{"text": 5}',
        b'{"text": ["a"]}',
        b'{"text": NaN}',
        b'["text"]',
        b"null",
        b"NaN",
        b'"text"',
    ],
    ids=range(17),
)
def test_unusable_json_is_quarantined(data: bytes) -> None:
    error = refusal("image_text", {"jpg": b"", "json": data})
    assert error.kind == "quarantined" and error.stage == "format"
    assert "000.json" in error.reason and len(error.reason) < 200


def test_odd_metadata_beside_a_good_caption_is_harmless() -> None:
    data = '{"caption": "a cat", "similarity": NaN, "n": -Infinity, "big": 12345678901234567890}'
    assert run("image_text", {"jpg": b"", "json": data})[1] == TextPart("a cat")


def test_text_that_is_not_utf8_is_quarantined() -> None:
    for name in ("text", "image_text"):
        error = refusal(name, {"jpg": b"", "txt": b"caf\xe9"})
        assert error.kind == "quarantined" and "000.txt" in error.reason and "UTF-8" in error.reason


def test_a_missing_member_names_those_that_are_there() -> None:
    error = refusal("image_text", {"05.jpg": b"", "05.json": {}}, key="v1.0/22")
    assert error.kind == "quarantined"
    assert "'v1.0/22.05.jpg'" in error.reason and "'v1.0/22.05.json'" in error.reason
    assert "image_field" in error.reason and "last_dot" in error.reason
    error = refusal("text", {"MP4": b""})
    assert "'000.MP4'" in error.reason and "'txt' or 'json'" in error.reason
    assert "'000.mp4.x'" in refusal("video_text", {"mp4.x": b"", "txt": "x"}).reason
    many = {f"{at}.bin": b"" for at in range(500)}
    assert len(refusal("text", many).reason) < 300


def test_two_pictures_are_not_guessed_between() -> None:
    members = {"jpg": b"", "png": b"", "txt": "x"}
    error = refusal("image_text", members)
    assert error.kind == "quarantined" and "jpg" in error.reason and "png" in error.reason
    assert run("image_text", members, image_field="PNG")[0] == ImagePart("png")
    # A second picture under a longer field doesn't compete.
    assert run("image_text", {"jpg": b"", "left.png": b"", "txt": "x"})[0] == ImagePart("jpg")


def test_template_orders_media_and_text_and_says_where_loss_begins() -> None:
    members = {"jpg": b"", "txt": "a cat"}
    options = FormatOptions(template="Look: {media} It shows {text}.<|im_end|>")
    assert load_format("image_text")(sample(members), options).parts == (
        TextPart("Look: ", loss=False, special=True),
        ImagePart("jpg"),
        TextPart(" It shows ", loss=False, special=True),
        TextPart("a cat"),
        TextPart(".<|im_end|>", loss=True, special=True),
    )
    options = FormatOptions(template="{text} {media}")
    assert load_format("image_text")(sample(members), options).parts == (
        TextPart("a cat"),
        TextPart(" ", loss=True, special=True),
        ImagePart("jpg"),
    )
    options = FormatOptions(template="{text}<|endoftext|>")
    assert load_format("image_text")(sample(members), options).parts[0] == ImagePart("jpg")


@pytest.mark.parametrize("template", ["{text}{text}", "{media}", "{media}{text}{media}"])
def test_a_template_with_a_placeholder_twice_is_a_config_error(template: str) -> None:
    with pytest.raises(ConfigError, match="once"):
        load_format("text")(sample({"txt": "x"}), FormatOptions(template=template))


def test_options_of_the_wrong_type() -> None:
    with pytest.raises(ConfigError, match="text_key"):
        run("text", {"txt": "x"}, text_key=3)
    with pytest.raises(ConfigError, match="clip_window"):
        run("video_text", {"mp4": b"", "txt": "x"}, clip_window="yes")


def test_k06_outcomes(cases: Path) -> None:
    outcomes = []
    for item in samples_of_tar(cases / "inputs/K06/empty_text.tar"):
        try:
            load_format("image_text")(item, FormatOptions())
            outcomes.append("delivered")
        except SampleError as error:
            outcomes.append(error.kind)
    assert outcomes == ["delivered", *["filtered"] * 4, "quarantined", "delivered"]


def test_w04_dots(cases: Path) -> None:
    found = samples_of_tar(cases / "inputs/W04/dots.tar")
    reasons = []
    for item in found:
        with pytest.raises(SampleError) as caught:
            load_format("image_text")(item, FormatOptions())
        assert caught.value.kind == "quarantined"
        reasons.append(caught.value.reason)
    assert "'v1.0/22.05.jpg'" in reasons[0]
    assert "'./a b 2.0 (x).jpg'" in reasons[1]
    assert found[2].image_fields() == ("left.jpg", "right.jpg")
    options = FormatOptions({"image_field": "right.jpg"})
    assert load_format("image_text")(found[2], options).parts[0] == ImagePart("right.jpg")


def test_w05_upper_case_extensions(cases: Path) -> None:
    texts = [
        load_format("image_text")(item, FormatOptions()).parts[1]
        for item in samples_of_tar(cases / "inputs/W05/upper.tar")
    ]
    assert texts == [TextPart(f"card number {at}") for at in range(3)]


def test_a_format_of_ones_own_reads_bytes() -> None:
    found = sample({"BIN": b"\x00\xff", "txt": "a"})
    assert found.bytes("bin") == b"\x00\xff"
    with pytest.raises(SampleError, match="member 'jpg'"):
        found.bytes("jpg")
