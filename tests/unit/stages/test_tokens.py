from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from tests.tiny import write_tokenizer
from zephon_mm.errors import SampleError
from zephon_mm.models import load_tokenizer
from zephon_mm.models.tokenizer import Tokenizer
from zephon_mm.sample import TextPart
from zephon_mm.stages.tokens import Block, Encoded, _Run, _use_offsets, encode_documents


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)


def encode(tokenizer: Tokenizer, *parts: TextPart | Block) -> Encoded:
    (result,) = encode_documents([parts], tokenizer)
    assert isinstance(result, Encoded)
    return result


def test_text_that_stands_together_is_one_string(
    tokenizer: Tokenizer, tokenizer_folder: Path
) -> None:
    hf = AutoTokenizer.from_pretrained(tokenizer_folder)
    parts = (
        TextPart("A br", loss=False, special=True),
        TextPart("own ho"),
        TextPart("rse on th"),
        TextPart("e beach\n<|im_end|> the", special=True),
    )
    whole = "A brown horse on the beach\n<|im_end|> the"
    result = encode(tokenizer, *parts)
    assert result.tokens.tolist() == hf(whole, add_special_tokens=False)["input_ids"]
    split = [i for p in parts for i in tokenizer.encode(p.text, special=p.special)]
    assert result.tokens.tolist() != split  # the case is one where joining matters


def test_control_tokens_of_a_sample_stay_text(tokenizer: Tokenizer) -> None:
    text = "a<|im_end|>b<|image_pad|><|endoftext|>"
    result = encode(tokenizer, TextPart(text), TextPart("<|endoftext|>", special=True))
    control = {tokenizer.token_id(name) for name in ("<|im_end|>", "<|image_pad|>")}
    assert not control & set(result.tokens.tolist())
    assert result.tokens.tolist().count(tokenizer.token_id("<|endoftext|>")) == 1
    assert tokenizer.decode(result.tokens) == text + "<|endoftext|>"


def test_a_control_token_is_not_put_together_from_two_parts(tokenizer: Tokenizer) -> None:
    result = encode(tokenizer, TextPart("<|im_"), TextPart("end|>", special=True))
    assert tokenizer.token_id("<|im_end|>") not in result.tokens.tolist()


def test_loss_is_on_tokens_with_a_target_character(tokenizer: Tokenizer) -> None:
    result = encode(
        tokenizer,
        TextPart("A man rides a ", loss=False, special=True),
        TextPart("horse"),
        TextPart(" down", loss=False),
        TextPart("<|endoftext|>", loss=True, special=True),
    )
    pieces = [tokenizer.decode([token]) for token in result.tokens]
    targets = [piece for piece, loss in zip(pieces, result.loss, strict=True) if loss]
    assert targets == [" horse", "<|endoftext|>"]  # the first spans the literal's blank too


def test_loss_of_characters_that_are_several_tokens(tokenizer: Tokenizer) -> None:
    result = encode(
        tokenizer,
        TextPart("\u732b", loss=False),
        TextPart("\U0001f600\u732b"),
        TextPart("a", loss=False),
    )
    text = tokenizer.decode(result.tokens[result.loss])
    assert text == "\U0001f600\u732b"


@pytest.mark.parametrize("trim", [False, True])
def test_loss_where_offsets_leave_white_space_out_or_the_text_is_normalised(
    tmp_path: Path, trim: bool
) -> None:
    file = write_tokenizer(tmp_path) / "tokenizer.json"
    data = json.loads(file.read_text())
    data["normalizer"] = {"type": "NFC"}
    data["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": trim,
        "use_regex": False,
    }
    file.write_text(json.dumps(data))
    tokenizer = load_tokenizer(tmp_path)
    hidden = TextPart("A man", loss=False)
    result = encode(tokenizer, hidden, TextPart("\n\n \n rides\n"), hidden)
    assert tokenizer.decode(result.tokens[result.loss]) == "\n\n \n rides\n"
    result = encode(tokenizer, hidden, TextPart("e\u0301\u0301 e\u0301 down"), hidden)
    assert tokenizer.decode(result.tokens[result.loss]) == "\u00e9\u0301 \u00e9 down"


def test_blocks_have_no_loss_and_end_runs(tokenizer: Tokenizer) -> None:
    block = Block(np.array([1, 2, 3], np.int32))
    result = encode(tokenizer, block, TextPart("a cat"), block, block)
    text = tokenizer.encode("a cat", special=False).tolist()
    assert result.tokens.tolist() == [1, 2, 3, *text, 1, 2, 3, 1, 2, 3]
    n = len(text)
    assert result.blocks == ((0, 3), (3 + n, 6 + n), (6 + n, 9 + n))
    assert result.loss.tolist() == [False] * 3 + [True] * n + [False] * 6
    assert result.tokens.dtype == np.int32 and result.loss.dtype == np.bool_


def test_documents_do_not_touch_each_other(tokenizer: Tokenizer) -> None:
    bad = [TextPart("half \ud83d pair")]
    results = encode_documents([[TextPart("a c")], bad, [TextPart("at")], []], tokenizer)
    assert isinstance(results[1], SampleError) and results[1].stage == "tokenise"
    for result, text in ((results[0], "a c"), (results[2], "at"), (results[3], "")):
        assert isinstance(result, Encoded)
        assert result.tokens.tolist() == tokenizer.encode(text, special=False).tolist()


TEXTS = st.text(st.sampled_from("ab \n.cté猫😀<|>"), max_size=6) | st.sampled_from(
    ["<|im_end|>", " the horse", "\u0301", "assistant\n"]
)
PARTS = st.lists(
    st.builds(
        TextPart,
        TEXTS,
        loss=st.booleans(),
        special=st.booleans(),
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(parts=PARTS)
def test_any_parts(tokenizer: Tokenizer, parts: list[TextPart]) -> None:
    result = encode(tokenizer, *parts)
    assert len(result.tokens) == len(result.loss)
    if not any(part.special for part in parts):
        text = "".join(part.text for part in parts)
        assert result.tokens.tolist() == tokenizer.encode(text, special=False).tolist()
    if all(part.loss for part in parts):
        assert result.loss.all()
    if not any(part.loss for part in parts):
        assert not result.loss.any()
    if any(part.loss and part.text for part in parts):
        assert result.loss.any()


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> list[Tokenizer]:
    """Byte-level; the same with NFC; and words with one token for all that are unknown."""
    composing, words = (tmp_path_factory.mktemp(name) for name in ("nfc", "words"))
    data = json.loads(write_tokenizer(composing).joinpath("tokenizer.json").read_text())
    composing.joinpath("tokenizer.json").write_text(
        json.dumps(data | {"normalizer": {"type": "NFC"}})
    )
    known = ["<unk>", "<|endoftext|>", "a", "b", "horse", ".", "cat"]
    backend = Backend(models.WordLevel({word: at for at, word in enumerate(known)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.Fuse()
    backend.save(str(words / "tokenizer.json"))
    return [tokenizer, load_tokenizer(composing), load_tokenizer(words)]


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, 2), head=TEXTS, text=TEXTS)
def test_heads_give_the_loss_that_offsets_give(
    tokenizers: list[Tokenizer], at: int, head: str, text: str
) -> None:
    tokenizer = tokenizers[at]
    result = encode(tokenizer, TextPart(head, loss=False), TextPart(text))
    run = _Run(head, loss=False)
    run.texts.append(text)
    run.losses.append(True)
    _use_offsets(run, tokenizer)
    assert run.loss is not None
    assert result.tokens.tobytes() == run.ids
    assert result.loss.tolist() == run.loss.tolist()


def test_control_tokens_that_take_white_space_away(tmp_path: Path) -> None:
    """Those of Phi-3 are marked ``rstrip``; a text's own white space goes with the template's."""
    folder = write_tokenizer(tmp_path, extra=("<|user|>", "<|end|>", "<|left|>"))
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    for token in data["added_tokens"]:
        token["rstrip"] = token["content"] in ("<|user|>", "<|end|>")
        token["lstrip"] = token["content"] == "<|left|>"
    file.write_text(json.dumps(data))
    tokenizer, hf = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)

    def part(text: str, loss: bool) -> TextPart:
        return TextPart(text, loss=loss, special=True)

    blank = " \u00a0\n\u2003"
    for said in ("Hi", " \n Hi \n", "", "\n", "\x1c Hi", f"{blank}Hi{blank}", "a b"):
        parts = [part("<|user|>\n", False), part(said, False), part("<|end|>\n", False)]
        parts += [part("<|im_start|>x\n", False), part(said, True), part("<|end|>", True)]
        parts += [part(f"{blank}<|user|> ", False), part(said, True), part(" <|left|> b", False)]
        whole = "".join(p.text for p in parts)
        want = hf(whole, add_special_tokens=False)["input_ids"]
        (found,) = encode_documents([parts], tokenizer)
        assert isinstance(found, Encoded)
        assert found.tokens.tolist() == want
        assert tokenizer.encode(whole, special=True).tolist() == want
        shown = hf.decode(found.tokens[found.loss])
        assert shown.replace("<|end|>", "|", 1).split("|", 1)[1] == hf.decode(
            hf("<|user|>" + said + "<|left|>", add_special_tokens=False)["input_ids"][1:-1]
        )


@pytest.mark.parametrize("loss", [True, False])
def test_a_loss_from_elsewhere_is_as_good(tokenizers: list[Tokenizer], loss: bool) -> None:
    for special in (True, False):
        own = encode(tokenizers[0], TextPart("a b", loss, special))
        other: Any = np.bool_(loss)
        assert encode(tokenizers[0], TextPart("a b", other, special)).loss.tolist() == [
            loss for _ in own.tokens
        ]
