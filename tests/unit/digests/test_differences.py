from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.digests.logs import contents, row
from zephon_mm.batch import RowContents
from zephon_mm.digests import RowRecord, differences, record
from zephon_mm.digests.rows import checksum, token_checks


def test_a_record_is_its_line() -> None:
    for found in (row(3, 5), row(key="\udc80 is no UTF-8 …")):
        line = found.to_json()
        assert line.isascii() and "\n" not in line
        assert RowRecord.from_json(json.loads(line)) == found
        assert differences(found, found) == []


def test_checks_cover_every_token() -> None:
    tokens = contents().input_ids
    plain = token_checks(tokens)
    assert len(plain) == 4 * 5  # of 64, the last of 44
    for place in (0, 63, 64, 256, 299):
        other = tokens.copy()
        other[place] += 1
        changed = token_checks(other)
        at = 4 * (place // 64)
        assert changed[at : at + 4] != plain[at : at + 4]
        assert changed[:at] + changed[at + 4 :] == plain[:at] + plain[at + 4 :]


@pytest.mark.parametrize("size", [1, 9, 8 * 2048, 8 * 2048 * 3 + 5])
def test_a_checksum_sees_every_byte_and_its_place(size: int) -> None:
    data = np.random.Philox(key=size).random_raw(size).astype(np.uint8)
    plain = checksum(data)
    assert checksum(data.copy()) == plain and len(plain) == 16
    for place in (0, size // 2, size - 1):
        other = data.copy()
        other[place] ^= 128
        assert checksum(other) != plain
    assert checksum(np.append(data, np.uint8(0))) != plain
    if size > 8 * 2048 * 2:  # whole blocks in another order
        blocks = data[: 8 * 2048 * 3].reshape(3, -1)
        assert checksum(blocks) != checksum(blocks[[1, 0, 2]])
    assert checksum(data.reshape(1, -1)) == plain


def changed(part: str) -> RowContents:
    """The row of `contents` with one thing of it changed."""
    whole = contents()
    clip, text = whole.documents
    (span,) = clip.media

    def shown(**fields: Any) -> RowContents:
        medium = replace(span, **fields)
        return whole._replace(documents=(replace(clip, media=(medium,)), text))

    if part in ("token", "padding"):
        ids = whole.input_ids.copy()
        ids[230 if part == "token" else 280] += 1
        return whole._replace(input_ids=ids)
    if part == "labels":
        labels = whole.labels.copy()
        labels[12] = -100
        return whole._replace(labels=labels)
    if part == "positions":
        return whole._replace(position_ids=whole.position_ids + 1)
    if part == "pixels":
        patches = whole.patches[0].copy()
        patches[31, 47] ^= 1
        return whole._replace(patches=(patches,))
    if part == "damage":
        return whole._replace(documents=(replace(clip, damaged=True), text))
    if part == "span":
        return whole._replace(documents=(clip, replace(text, token_start=65, token_stop=125)))
    if part == "epoch":
        return whole._replace(documents=(clip, replace(text, ref=text.ref._replace(epoch=1))))
    if part == "fewer":
        return whole._replace(documents=(clip,))
    changes: dict[str, dict[str, Any]] = {
        "frames": {"frames": (0, 5, 8)},
        "size": {"size": (64, 96)},
        "times": {"pts": (0, 5, 8)},
        "member": {"member": 4},
    }
    return shown(**changes[part])


@pytest.mark.parametrize(
    ("part", "cause", "words"),
    [
        ("token", "token", "one of tokens 200 to 259 of the row, which are 64 to 123 of document"),
        ("padding", "token", "ids of the row, or of its padding"),
        ("labels", "labels", "which tokens"),
        ("positions", "positions", "position ids"),
        ("pixels", "pixels", "pixels of video 0 of document clips/clip, number 0"),
        ("damage", "damage", "clips/clip"),
        ("span", "span", "texts/text"),
        ("epoch", "document", "number 1 of the row"),
        ("fewer", "document", "number 1 of the row"),
        ("frames", "frames", "frames of video 0 of document clips/clip"),
        ("size", "size", "video 0 of document clips/clip"),
        ("times", "times", "video 0"),
        ("member", "medium", "clips/clip"),
    ],
)
def test_each_thing_is_named(part: str, cause: str, words: str) -> None:
    plain, other = record(0, contents()), record(0, changed(part))
    assert plain.to_json() != other.to_json()
    (found,) = differences(plain, other)
    assert found.cause == cause and words in found.what
    assert found.a != found.b
    (back,) = differences(other, plain)
    assert (back.a, back.b) == (found.b, found.a)


def test_basic_causes_come_first() -> None:
    a, b = contents(), changed("frames")
    ids = a.input_ids.copy()
    ids[100] += 1
    pixels = (np.zeros_like(a.patches[0]),)
    found = differences(record(0, a), record(0, b._replace(input_ids=ids, patches=pixels)))
    assert [difference.cause for difference in found] == ["frames", "token", "pixels"]
    assert "tokens 64 to 127" in found[1].what
