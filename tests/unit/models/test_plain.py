"""The short way through a tokeniser gives the ids of the whole one, and is taken if it may be."""

from __future__ import annotations

import json
import random
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import NFC
from tokenizers.processors import TemplateProcessing

from zephon_mm.models import load_tokenizer
from zephon_mm.models.plain import STABLE, PlainTexts

FORM_C = {"type": "NFC"}
WORDS = ["<think>", "</think>"]
STABLE_CHARACTERS = re.findall(f"[{STABLE}]", "".join(map(chr, range(sys.maxunicode + 1))))


@pytest.fixture(scope="module")
def settings(tokenizer_folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    assert data["normalizer"] is None or data["normalizer"] == FORM_C
    return data


def backend(
    settings: dict[str, Any], normalizer: dict[str, Any] | None, words: list[str]
) -> Backend:
    """The tokeniser with this normaliser and these added words, beside its control tokens."""
    number = max(token["id"] for token in settings["added_tokens"]) + 1
    common = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
    added = [
        {"id": number + at, "content": word, "normalized": at % 2 == 1, **common}
        for at, word in enumerate(words)
    ]
    tokens = [*settings["added_tokens"], *added]
    made = Backend.from_str(
        json.dumps({**settings, "normalizer": normalizer, "added_tokens": tokens})
    )
    made.encode_special_tokens = True
    return made


def test_stable_characters_are_left_alone_by_form_c() -> None:
    """By Python's tables and by those of `tokenizers`, and none composes with what precedes it."""
    assert len(STABLE_CHARACTERS) > 40_000
    whole = "".join(STABLE_CHARACTERS)
    assert NFC().normalize_str(whole) == whole
    seconds = {chr(at) for at in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}  # Hangul's
    for at in range(sys.maxunicode + 1):
        pair = unicodedata.decomposition(chr(at)).split()
        if len(pair) == 2 and not pair[0].startswith("<"):
            seconds.add(chr(int(pair[1], 16)))
    for character in STABLE_CHARACTERS:
        assert unicodedata.category(character) != "Cn", hex(ord(character))  # may become a mark
        assert unicodedata.combining(character) == 0, hex(ord(character))
        assert unicodedata.normalize("NFC", character) == character, hex(ord(character))
        assert character not in seconds, hex(ord(character))


@pytest.mark.parametrize("normalizer", [None, FORM_C])
@pytest.mark.parametrize("words", [[], WORDS])
def test_ids_are_those_of_the_whole_way(
    settings: dict[str, Any], normalizer: dict[str, Any] | None, words: list[str]
) -> None:
    whole = backend(settings, normalizer, words)
    plain = PlainTexts(whole, words)
    draw = random.Random(7)
    odd = [
        "e\u0301",
        "\u1100\u1161\u11a8",
        "\u212b",
        "\u0344",
        "\ufb1d",
        "ｶﾞ",
        "か\u3099",
        "a\u0328\u0301",
    ]
    pieces = ["a man ", "  ", "\n", "don't", "12", "<", "</", "<|im_end|>", "<|image_pad|>", *WORDS]
    taken = [0, 0]
    for _ in range(4000):
        parts = draw.choices(pieces, k=draw.randrange(6))
        parts += draw.choices(STABLE_CHARACTERS, k=draw.randrange(4))
        parts += draw.choices(odd, k=draw.randrange(8) // 6)
        draw.shuffle(parts)
        text = "".join(parts)
        expected = whole.encode(text, add_special_tokens=False).ids
        assert plain.encode(text).ids == expected, text
        taken[plain.is_plain(text)] += 1
    assert taken[1] > 500  # and the others where they must
    assert taken[0] > 500 or (normalizer is None and not words)


@pytest.mark.parametrize("text", ["", "A man rides a horse.", "it’s 漢字 🙂 – café", "<0.5 s>"])
def test_usual_texts_go_the_short_way(settings: dict[str, Any], text: str) -> None:
    assert PlainTexts(backend(settings, FORM_C, []), []).is_plain(text)
    assert PlainTexts(backend(settings, None, WORDS), ["<think>"]).is_plain(text)


@pytest.mark.parametrize(
    ("normalizer", "words"),
    [
        ({"type": "Lowercase"}, []),
        ({"type": "NFKC"}, []),
        ({"type": "Sequence", "normalizers": [FORM_C, {"type": "Lowercase"}]}, []),
        (FORM_C, ["caf\u00e9", "cafe\u0301"]),  # which of them is looked for, form C decides
        (None, [f"{letter}{letter}" for letter in "abcdefghij"]),
    ],
)
def test_other_tokenisers_always_go_the_whole_way(
    settings: dict[str, Any], normalizer: dict[str, Any] | None, words: list[str]
) -> None:
    whole = backend(settings, normalizer, words)
    plain = PlainTexts(whole, words)
    for text in ("A Man", "café", "cafe\u0301 ﬁ", "aab"):
        assert not plain.is_plain(text)
        assert plain.encode(text).ids == whole.encode(text, add_special_tokens=False).ids


def test_the_tokenizer_goes_the_short_way_where_it_may(
    tokenizer_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Through `Tokenizer`: as its file says, and with the words that its file adds."""
    made = backend(settings, FORM_C, WORDS)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    texts = ["A man", "cafe\u0301", "I <think> so", "<|im_end|> is text"]
    assert [tokenizer._plain.is_plain(text) for text in texts] == [True, False, False, True]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        expected = made.encode(text, add_special_tokens=False).ids
        assert ids.tolist() == expected == tokenizer.encode(text, special=False).tolist()
    assert tokenizer.token_id("<think>") in tokenizer.encode("I <think> so", special=False)


@pytest.mark.parametrize("normalizer", [FORM_C, {"type": "Lowercase"}])
def test_the_order_of_the_files_keys_is_nothing(
    tmp_path: Path, settings: dict[str, Any], normalizer: dict[str, Any]
) -> None:
    """Of sorted keys ``normalizer`` comes after ``model``."""
    made = backend(settings, normalizer, WORDS)
    (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(made.to_str()), sort_keys=True))
    tokenizer = load_tokenizer(tmp_path)
    for text in ("A Man", "cafe\u0301", "<think>"):
        ids = tokenizer.encode(text, special=False).tolist()
        assert ids == made.encode(text, add_special_tokens=False).ids
        assert ids == tokenizer.encode_offsets(text)[0].tolist()


@pytest.mark.parametrize("single", ["$A $A", "<|endoftext|>", "<|im_end|> $A"])
def test_what_comes_after_the_model_is_kept(settings: dict[str, Any], single: str) -> None:
    whole = backend(settings, None, [])
    controls = [("<|endoftext|>", 0), ("<|im_end|>", 1)]
    whole.post_processor = TemplateProcessing(single=single, special_tokens=controls)
    expected = whole.encode("A man", add_special_tokens=False).ids
    plain = PlainTexts(whole, [])
    assert plain.is_plain("A man") and plain.encode("A man").ids == expected
