from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from zephon_mm.demo import tokenizer as demo
from zephon_mm.errors import MissingDependencyError


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    assert "Qwen" in demo.build_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_ids_are_those_of_qwen(qwen: Any) -> None:
    assert qwen.convert_tokens_to_ids(list(demo.SPECIALS)) == list(range(151643, 151657))
    # As Qwen2's published tokeniser gives them: digits stand alone, spaces go with words.
    assert qwen("Hello, world 42")["input_ids"] == [9707, 11, 1879, 220, 19, 17]
    text = "Größe: 1,024 × 768\n\n\tpixels 🎞"
    assert qwen.decode(qwen(text)["input_ids"]) == text


def test_a_bpe_is_trained_where_the_vocabulary_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(package: str, inside: str) -> Path:
        raise MissingDependencyError(package)

    monkeypatch.setattr(demo, "data_folder", missing)
    assert "trained" in demo.build_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) <= demo.NUM_TRAINED + len(demo.SPECIALS)
    assert tokenizer.decode(tokenizer("a dog, 42 é")["input_ids"]) == "a dog, 42 é"
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert tokenizer("<|image_pad|>")["input_ids"] == [pad]


def test_chat_template_writes_turns(qwen: Any) -> None:
    ask = [{"type": "video"}, {"type": "text", "text": "What is it?"}]
    text = qwen.apply_chat_template(
        [{"role": "user", "content": ask}, {"role": "assistant", "content": "A cat."}],
        tokenize=False,
    )
    assert text == (
        "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|>What is it?<|im_end|>\n"
        "<|im_start|>assistant\nA cat.<|im_end|>\n"
    )
