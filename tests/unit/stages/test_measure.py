from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from zephon_mm.config import VideoSampling
from zephon_mm.demo.tokenizer import CHAT_TEMPLATE
from zephon_mm.errors import ConfigError, ShardChangedError
from zephon_mm.models import measure_digest
from zephon_mm.sample import SampleRef
from zephon_mm.stages.measure import Measurer

from .conftest import (
    Opener,
    clip,
    document,
    jpeg,
    make_tokenizer,
    refs,
    rejected,
    same,
    write_shard,
)


@pytest.mark.parametrize("model", ["qwen2_5_vl", "qwen3_vl"])
def test_a_caption_reads_media_text_end(tmp_path: Path, measurer: Opener, model: str) -> None:
    url = write_shard(tmp_path / "a.tar", {"x": {"jpg": jpeg(120, 90), "txt": "a cat"}})
    made = measurer(url, model=model)
    (result,) = made(refs(1))
    found = document(result)
    tokenizer = made._tokenizer
    (span,) = found.media
    block = made._family.block(span)
    want = [*block.tolist(), *tokenizer.encode("a cat<|endoftext|>", special=True).tolist()]
    assert found.tokens.tolist() == want
    assert (span.start, span.stop) == (0, len(block))
    assert found.loss.tolist() == [False] * len(block) + [True] * (len(want) - len(block))
    assert found.shard == url and found.key == "x" and found.ref == refs(1)[0]
    assert span.source_size == (90, 120) and span.member == 0
    assert found.digest == measure_digest(found.tokens, found.loss, found.media)


@pytest.mark.parametrize("model", ["qwen2_5_vl", "qwen3_vl"])
def test_measuring_reads_no_media(tmp_path: Path, measurer: Opener, model: str) -> None:
    texts = [f"text {at}" for at in range(5)]
    samples = {
        f"{at}": {"0.jpg": jpeg(), "1.mp4": clip(), "json": [{"text": text}, {"image": "0.jpg"}]}
        for at, text in enumerate(texts)
    }
    for sample in samples.values():
        sample["json"] += [{"video": "1.mp4"}]  # type: ignore[operator]
    made = measurer(write_shard(tmp_path / "a.tar", samples), "interleaved", model=model)
    results = [document(result) for result in made(refs(5))]
    assert made.reader.reads.members == 5  # the JSON members
    assert made.reader.reads.bytes < 5 * 100
    for found in results:
        assert [span.kind for span in found.media] == ["image", "video"]
        assert found.media[0].stop == found.media[1].start
        for span in found.media:
            assert not found.loss[span.start : span.stop].any()


def test_results_are_a_function_of_the_reference(tmp_path: Path, measurer: Opener) -> None:
    samples: dict[str, dict[str, Any]] = {}
    for at in range(12):
        samples[f"{at}"] = {"mp4": clip(5 + at), "txt": f"clip {at}" if at % 5 else " "}
    url = write_shard(tmp_path / "a.tar", samples)
    sampling = VideoSampling(mode="random", num_frames=4)
    made = measurer(url, "video_text", video=sampling)
    whole = made(refs(12))
    one_by_one = [result for ref in refs(12) for result in made([ref])]
    assert same(whole, one_by_one)
    assert same(list(reversed(made(list(reversed(refs(12)))))), whole)
    copy: Measurer = pickle.loads(pickle.dumps(made))
    assert same(copy(refs(12)), whole)
    found: dict[int, Any] = {}

    def work(at: int) -> None:
        found[at] = made(refs(12))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(same(result, whole) for result in found.values())


def test_random_frames_follow_seed_sample_epoch_and_medium(
    tmp_path: Path, measurer: Opener
) -> None:
    data = clip(60)
    parts = [{"text": "two"}, {"video": "a.mp4"}, {"video": "b.mp4"}]
    samples = {f"{at}": {"a.mp4": data, "b.mp4": data, "json": parts} for at in range(2)}
    url = write_shard(tmp_path / "a.tar", samples)

    def frames(epoch: int, seed: int) -> list[tuple[int, ...]]:
        made = measurer(
            url, "interleaved", seed=seed, video=VideoSampling(mode="random", num_frames=6)
        )
        return [
            span.frames for result in made(refs(2, epoch=epoch)) for span in document(result).media
        ]

    assert frames(0, 1) == frames(0, 1)
    drawn = [*frames(0, 1), *frames(1, 1), *frames(0, 2)]
    assert len(set(drawn)) == len(drawn) == 12


@pytest.mark.parametrize("chat_template", [None, CHAT_TEMPLATE])
def test_a_conversation(tmp_path: Path, measurer: Opener, chat_template: str | None) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer", chat_template)
    data = {
        "image": "a/b.jpg",
        "conversations": [
            {"from": "human", "value": "<image>\nWhat is it?"},
            {"from": "gpt", "value": "A cat."},
        ],
    }
    url = write_shard(tmp_path / "a.tar", {"0": {"jpg": jpeg(), "json": data}})
    made = measurer(url, "chat", tokenizer=folder)
    found = document(made(refs(1))[0])
    hf = AutoTokenizer.from_pretrained(folder)
    pads = found.media[0].num_patches // 4
    text = (
        "<|im_start|>user\n<|vision_start|>"
        + "<|image_pad|>" * pads
        + "<|vision_end|>\nWhat is it?<|im_end|>\n<|im_start|>assistant\nA cat.<|im_end|>\n"
    )
    assert found.tokens.tolist() == hf(text, add_special_tokens=False)["input_ids"]
    assert hf.decode(found.tokens[found.loss]) == "A cat.<|im_end|>"


def test_template_text_is_joined_with_the_samples(tmp_path: Path, measurer: Opener) -> None:
    url = write_shard(tmp_path / "a.tar", {"0": {"jpg": jpeg(), "txt": "orse<|im_end|>"}})
    made = measurer(url, template="A man {media} the h{text} down\n<|im_end|>")
    found = document(made(refs(1))[0])
    hf = AutoTokenizer.from_pretrained(made._tokenizer.path)
    start, stop = found.media[0].start, found.media[0].stop
    before = hf("A man ", add_special_tokens=False)["input_ids"]
    after = [*made._tokenizer.encode(" the horse<|im_end|> down\n", special=False)]
    assert found.tokens[:start].tolist() == before
    assert found.tokens[stop:].tolist() == [*after, hf.convert_tokens_to_ids("<|im_end|>")]
    target = hf.decode(found.tokens[found.loss])
    assert target == " horse<|im_end|> down\n<|im_end|>"


def test_one_token_is_no_target(tmp_path: Path, measurer: Opener) -> None:
    url = write_shard(tmp_path / "a.tar", {"0": {"txt": "a"}, "1": {"txt": "A man"}})
    results = measurer(url, "text", template="{text}")(refs(2))
    assert rejected(results[0]).outcome == "filtered" and "target" in rejected(results[0]).reason
    document(results[1])


def test_a_changed_shard_stands_in_its_place(tmp_path: Path, measurer: Opener) -> None:
    samples = {f"{at}": {"txt": f"text number {at}"} for at in range(3)}
    path = Path(write_shard(tmp_path / "a.tar", samples))
    made = measurer(str(path), "text")
    made.reader.index(0, 0)
    data = bytearray(path.read_bytes())
    at = data.index(b"text number 1")
    data[at : at + 4] = b"TEXT"
    path.write_bytes(data)
    results = made(refs(3))
    assert isinstance(results[1], ShardChangedError) and "a.tar" in str(results[1])
    for place in (0, 2):
        document(results[place])
    missing = made([SampleRef(0, 0, 99, 0, 0)])
    assert isinstance(missing[0], Exception)


def test_config_errors_come_at_once(tmp_path: Path, measurer: Opener) -> None:
    url = write_shard(tmp_path / "a.tar", {"0": {"txt": "a"}})
    wrong: Sequence[tuple[str, dict[str, Any]]] = (
        ("image_txt", {}),
        ("text", {"options": {"txt_key": "a"}}),
        ("text", {"template": "{text}{text}"}),
    )
    for format, fields in wrong:
        with pytest.raises(ConfigError):
            measurer(url, format, **fields)
    folder = make_tokenizer(tmp_path / "tokenizer", "{% for %}")
    with pytest.raises(ConfigError, match="Jinja"):
        measurer(url, "chat", tokenizer=folder)
    (result,) = measurer(url, "text", options={"text_key": 5})(refs(1))
    assert isinstance(result, ConfigError)
