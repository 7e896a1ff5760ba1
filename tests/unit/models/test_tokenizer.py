from __future__ import annotations

import json
import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import SPECIALS, write_tokenizer
from zephon_mm.errors import ConfigError
from zephon_mm.models import Tokenizer, load_tokenizer

TEXTS = [
    "",
    " ",
    "A man rides a horse.",
    "  two spaces\n\nand lines\r\n\tand tabs ",
    "naïve café, 漢字, 🙂, \u0000 and \u200b",
    "<0.5 seconds>",
    "12345 and 3.5",
]


@pytest.fixture(scope="module")
def hf(tokenizer_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tokenizer_folder))


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers(tokenizer: Tokenizer, hf: Any, text: str) -> None:
    expected = hf(text, add_special_tokens=False)["input_ids"]
    for special in (False, True):
        ids = tokenizer.encode(text, special=special)
        assert ids.dtype == np.int32
        assert ids.tolist() == expected


@pytest.mark.parametrize("control", SPECIALS)
@pytest.mark.parametrize("around", ["{}", "a {} b", "<|{}|>", "{0}{0}", "\n{}\n", "<|im_{}"])
def test_control_tokens_in_a_samples_text_stay_text(
    tokenizer: Tokenizer, hf: Any, control: str, around: str
) -> None:
    text = around.format(control)
    ids = tokenizer.encode(text, special=False)
    assert not set(ids.tolist()) & {tokenizer.token_id(name) for name in SPECIALS}
    assert tokenizer.decode(ids) == text
    assert ids.tolist() == hf(text, split_special_tokens=True)["input_ids"]
    assert tokenizer.encode(text, special=True).tolist() == hf(text)["input_ids"]


def test_control_tokens_are_plain_text_even_where_the_file_calls_them_ordinary(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    data = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    for token in data["added_tokens"]:
        token["special"] = False
    data["added_tokens"].append({**data["added_tokens"][0], "id": 5000, "content": "<think>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    odd = load_tokenizer(tmp_path)
    pad = odd.token_id("<|image_pad|>")
    assert pad not in odd.encode("see <|image_pad|>", special=False)
    assert pad in odd.encode("see <|image_pad|>", special=True)
    assert odd.token_id("<think>") in odd.encode("<think>", special=False)


def test_batches_equal_single_texts(tokenizer: Tokenizer) -> None:
    texts = [*TEXTS, "<|im_start|>user\nhi<|im_end|>"]
    single = [tokenizer.encode(text, special=False).tolist() for text in texts]
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == single
    assert [
        np.frombuffer(ids, np.int32).tolist() for ids in tokenizer.encode_packed(texts)
    ] == single


def test_special_names_and_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_id == tokenizer.token_id("<|im_end|>")
    assert tokenizer.pad_id == tokenizer.token_id("<|endoftext|>")
    with pytest.raises(ConfigError, match=r"has no token <\|audio_pad\|>.*model family needs"):
        tokenizer.token_id("<|audio_pad|>")


def test_without_settings_the_end_and_padding_are_found(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    shutil.copy(tokenizer_folder / "tokenizer.json", tmp_path)
    bare = load_tokenizer(tmp_path)
    assert bare.eos_id == bare.pad_id == bare.token_id("<|endoftext|>")
    assert bare.chat_template is None
    by_file = load_tokenizer(tmp_path / "tokenizer.json")
    assert by_file.digest == bare.digest


def test_truncation_and_padding_of_the_file_are_off(tokenizer_folder: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_file(str(tokenizer_folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    whole = load_tokenizer(tokenizer_folder).encode("A man rides a horse, again.", special=False)
    cut = load_tokenizer(tmp_path).encode("A man rides a horse, again.", special=False)
    assert cut.tolist() == whole.tolist()
    assert load_tokenizer(tmp_path).encode("", special=False).tolist() == []


def test_folder_of_older_files_goes_through_transformers(tmp_path: Path) -> None:
    """A folder as Qwen2's: vocab.json and merges.txt, and control tokens in its settings only."""
    folder = write_tokenizer(tmp_path / "new")
    data = json.loads((folder / "tokenizer.json").read_text())
    old = tmp_path / "old"
    old.mkdir()
    (old / "vocab.json").write_text(json.dumps(data["model"]["vocab"]), encoding="utf-8")
    merges = [" ".join(pair) for pair in data["model"]["merges"]]
    (old / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), encoding="utf-8")
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {
            str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in data["added_tokens"]
        },
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (old / "tokenizer_config.json").write_text(json.dumps(settings))
    made = load_tokenizer(old)
    text = "A man rides a brown horse <|image_pad|>"
    assert made.token_id("<|image_pad|>") == load_tokenizer(folder).token_id("<|image_pad|>")
    for special in (False, True):
        expected = load_tokenizer(folder).encode(text, special=special)
        assert made.encode(text, special=special).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no/such/folder/here", "no such folder or file"),
        ("./nothing", "no such folder or file"),
        ("/nowhere/at/all", "no such folder or file"),
    ],
)
def test_a_missing_folder_says_what_to_name(path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load_tokenizer(path)
    assert path in str(caught.value) and "Hugging Face model id" in str(caught.value)


def test_an_unreachable_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*args: object, **options: object) -> str:
        raise ConnectionError("no route to host\nand much more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ConfigError, match=r"hf download Qwen/Qwen3-VL-4B.*name the folder") as got:
        load_tokenizer("Qwen/Qwen3-VL-4B")
    assert "no route to host" in str(got.value) and "much more" not in str(got.value)


def test_a_hub_id_is_read_from_where_the_hub_put_it(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda path, **options: str(tokenizer_folder)
    )
    hub = load_tokenizer("someone/model")
    assert hub.digest == load_tokenizer(tokenizer_folder).digest
    assert hub.path == "someone/model"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"added_tokens": [{"id": 1}]}', "\xff"])
def test_a_broken_file_is_a_config_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


def test_an_empty_folder_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs a tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_pickles_as_its_path_and_notices_a_change(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "t")
    tokenizer = load_tokenizer(folder)
    sent = pickle.dumps(tokenizer)
    assert len(sent) < 1000
    received = pickle.loads(sent)
    ids = tokenizer.encode("A man <|im_end|>", special=True)
    assert received.encode("A man <|im_end|>", special=True).tolist() == ids.tolist()
    assert received.digest == tokenizer.digest
    assert pickle.dumps(pickle.loads(sent)) == sent

    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = "another"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    changed = pickle.loads(sent)
    for _ in range(2):  # it stays so
        with pytest.raises(ConfigError, match="has changed"):
            changed.encode("A man", special=False)


def test_digest_is_of_the_content_and_not_of_the_place(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    first = load_tokenizer(tokenizer_folder)
    copy = tmp_path / "copy"
    shutil.copytree(tokenizer_folder, copy)
    data = json.loads((copy / "tokenizer.json").read_text())
    (copy / "tokenizer.json").write_text(json.dumps(data, indent=4), encoding="utf-8")
    assert load_tokenizer(copy).digest == first.digest
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert load_tokenizer(copy).digest != first.digest
    (copy / "chat_template.jinja").unlink()
    data["added_tokens"][0]["lstrip"] = True
    (copy / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    assert load_tokenizer(copy).digest != first.digest


def test_the_chat_template_is_found_where_transformers_finds_it(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tokenizer_folder, tmp_path / "t"))
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    assert load_tokenizer(copy).chat_template == settings["chat_template"]
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (copy / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": named}))
    assert load_tokenizer(copy).chat_template == "d"
    (copy / "chat_template.json").write_text(json.dumps({"chat_template": "j"}))
    assert load_tokenizer(copy).chat_template == "j"
    (copy / "chat_template.jinja").write_text("f")
    assert load_tokenizer(copy).chat_template == "f"
    assert load_tokenizer(copy).special_names == {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }


def test_cut_at_control_tokens(tokenizer: Tokenizer) -> None:
    end = tokenizer.token_id("<|im_end|>")
    text = "<|im_end|>a <|im_b<|im_end|><|im_end|> c"
    assert tokenizer.split_control(text) == [
        ("<|im_end|>", end),
        ("a <|im_b", None),
        ("<|im_end|>", end),
        ("<|im_end|>", end),
        (" c", None),
    ]
    assert tokenizer.split_control("") == []


def test_offsets_are_characters(tokenizer: Tokenizer) -> None:
    text = "naïve 漢 <|im_end|> x"
    ids, offsets = tokenizer.encode_offsets(text)
    assert ids.tolist() == tokenizer.encode(text, special=False).tolist()
    assert offsets.dtype == np.int64 and offsets.shape == (len(ids), 2)
    assert offsets.min() == 0 and offsets.max() == len(text)
    assert tokenizer.encode_offsets("")[1].shape == (0, 2)


def test_threads_share_one(tokenizer_folder: Path) -> None:
    lazy = pickle.loads(pickle.dumps(load_tokenizer(tokenizer_folder)))
    texts = [f"A man rides {n} horses <|im_end|>" for n in range(50)]
    expected = [load_tokenizer(tokenizer_folder).encode(t, special=True).tolist() for t in texts]
    found: dict[int, list[list[int]]] = {}

    def work(number: int) -> None:
        found[number] = [lazy.encode(text, special=True).tolist() for text in texts]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: expected for n in range(6)}
