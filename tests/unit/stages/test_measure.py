from __future__ import annotations

import io
import pickle
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoTokenizer

from zephon_mm.config import ImageSizing, VideoSampling
from zephon_mm.demo.tokenizer import CHAT_TEMPLATE
from zephon_mm.errors import ConfigError, ShardChangedError, StorageError
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


def write_module(folder: Path, body: str) -> None:
    (folder / "formats_of_this_test.py").write_text(
        "from zephon_mm.errors import SampleError, StorageError\n"
        "from zephon_mm.sample import Document, ImagePart, TextPart, Turn\n"
        "def make(sample, options):\n" + body
    )


@pytest.fixture
def own_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write the body of the user's function; gives its import path."""
    import sys

    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("formats_of_this_test", None)

    def write(body: str) -> str:
        write_module(tmp_path, "".join(f"    {line}\n" for line in body.splitlines()))
        return "formats_of_this_test:make"

    return write


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


def test_k06_kinds(tmp_path: Path, measurer: Opener) -> None:
    texts: list[Any] = ["ok", "", " \n\t", None]
    samples: dict[str, dict[str, Any]] = {
        f"{at}": {"jpg": jpeg(), "json": {"text": text}} for at, text in enumerate(texts)
    }
    samples["4"] = {"jpg": jpeg(), "json": {"id": 4}}
    samples["5"] = {"jpg": jpeg(), "json": b"\xff\xfe{"}
    samples["6"] = {"jpg": jpeg(), "txt": b"caf\xe9"}
    samples["7"] = {"jpg": jpeg(), "json": b'{"text": "\\udc00"}'}
    samples["8"] = {"jpg": jpeg()}
    results = measurer(write_shard(tmp_path / "a.tar", samples))(refs(9))
    document(results[0])
    outcomes = [rejected(result).outcome for result in results[1:]]
    assert outcomes == ["filtered"] * 4 + ["quarantined"] * 4
    assert "'8.jpg'" in rejected(results[8]).reason
    assert [rejected(result).key for result in results[1:]] == [str(at) for at in range(1, 9)]


def test_k06_case(cases: Path, tmp_path: Path, measurer: Opener) -> None:
    url = shutil.copy(cases / "inputs/K06/empty_text.tar", tmp_path)
    results = measurer(str(url))(refs(7))
    assert [getattr(result, "outcome", "delivered") for result in results] == [
        "delivered",
        "filtered",
        "filtered",
        "filtered",
        "filtered",
        "quarantined",
        "delivered",
    ]
    for result in (results[0], results[6]):
        assert document(result).loss[1:].any()


def test_w01_w04_w05_cases(cases: Path, tmp_path: Path, measurer: Opener) -> None:
    for name in ("W01/dup.tar", "W04/dots.tar", "W05/upper.tar"):
        shutil.copy(cases / "inputs" / name, tmp_path)
    made = measurer(str(tmp_path / "dup.tar"))
    results = made(refs(made.reader.index(0, 0).num_samples))
    twice = [result for result in results if getattr(result, "stage", "") == "index"]
    assert [rejected(result).key for result in twice] == ["000001"]
    assert len(results) > 1
    for result in results:
        if result is not twice[0]:
            document(result)
    for result in measurer(str(tmp_path / "dots.tar"))(refs(3)):
        assert rejected(result).outcome == "quarantined" and ".jpg'" in rejected(result).reason
    last = measurer(str(tmp_path / "dots.tar"), key="last_dot")(refs(2))
    assert [document(result).key for result in last] == ["v1.0/22.05", "./a b 2.0 (x)"]
    for result in measurer(str(tmp_path / "upper.tar"))(refs(3)):
        assert len(document(result).media) == 1


@pytest.mark.parametrize("model", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize(
    "sampling",
    [
        VideoSampling(mode="uniform", num_frames=16),
        VideoSampling(mode="uniform", num_frames=32),
        VideoSampling(mode="fps", fps=1.0),
        VideoSampling(mode="fps", fps=0.1, min_frames=1),
        VideoSampling(mode="random", num_frames=16),
        VideoSampling(mode="all"),
    ],
    ids=str,
)
def test_short_clips(tmp_path: Path, measurer: Opener, model: str, sampling: VideoSampling) -> None:
    lengths = [1, 2, 3, 9, 30]
    samples = {f"{n:02}": {"mp4": clip(n), "txt": "x y"} for n in lengths}
    url = write_shard(tmp_path / "a.tar", samples)
    made = measurer(url, "video_text", model=model, video=sampling)
    pad = made._tokenizer.token_id("<|video_pad|>")
    for frames, result in zip(lengths, made(refs(len(lengths))), strict=True):
        found = document(result)
        (span,) = found.media
        assert 1 <= len(span.frames) <= frames and len(set(span.frames)) == len(span.frames)
        assert 0 <= min(span.frames) and max(span.frames) < frames
        assert all(0 <= second < frames / 10 for second in span.pts_seconds)
        assert span.grid[0] == -(-len(span.frames) // 2)
        tokens = found.tokens[span.start : span.stop]
        assert np.count_nonzero(tokens == pad) == span.num_patches // 4 > 0
        assert span.fps > 0
        if sampling.mode in ("uniform", "random"):
            assert len(span.frames) == min(frames, sampling.num_frames)


def test_p01_p02_cases(cases: Path, tmp_path: Path, measurer: Opener) -> None:
    files = [cases / "inputs/P01/nine.mp4", *sorted((cases / "inputs/P02").glob("*.mp4"))]
    samples = {file.stem: {"mp4": file.read_bytes(), "txt": "a clip"} for file in files}
    samples["ordinary"] = {"mp4": clip(40), "txt": "a clip"}
    url = write_shard(tmp_path / "a.tar", samples)
    for wanted in (16, 32):
        made = measurer(url, "video_text", video=VideoSampling(mode="uniform", num_frames=wanted))
        counts = [len(document(r).media[0].frames) for r in made(refs(4))]
        assert counts[0] == 9 and counts[3] == wanted
    for fps in (1.0, 0.1):
        made = measurer(url, "video_text", video=VideoSampling(mode="fps", fps=fps, min_frames=1))
        for result in made(refs(4)):
            (span,) = document(result).media
            assert len(span.frames) >= 1 and span.num_patches > 0


def test_clip_windows(tmp_path: Path, measurer: Opener) -> None:
    data = clip(30)
    clips = [[0.5, 1.5], [2.9, 9.0], [7.0, 8.0]]
    samples = {
        f"{at}": {"mp4": data, "json": {"caption": "x y", "clips": [window]}}
        for at, window in enumerate(clips)
    }
    url = write_shard(tmp_path / "a.tar", samples)
    sampling = VideoSampling(mode="all")
    made = measurer(url, "video_text", video=sampling, options={"clip_window": True})
    results = made(refs(3))
    assert document(results[0]).media[0].frames == tuple(range(5, 16))
    assert document(results[1]).media[0].frames == (29,)
    past = rejected(results[2])
    assert past.outcome in ("dropped", "quarantined") and "'2.mp4'" in past.reason
    whole = measurer(url, "video_text", video=sampling)(refs(1))
    assert document(whole[0]).media[0].frames == tuple(range(30))


def test_media_that_cannot_be_laid_out(tmp_path: Path, measurer: Opener) -> None:
    wide = io.BytesIO()
    Image.new("RGB", (3000, 10)).save(wide, "PNG")
    samples = {
        "cut": {"jpg": jpeg()[:30], "txt": "x y"},
        "wide": {"png": wide.getvalue(), "txt": "x y"},
        "large": {"jpg": jpeg(200, 100), "txt": "x y"},
        "good": {"jpg": jpeg(100, 100), "txt": "x y"},
    }
    url = write_shard(tmp_path / "a.tar", samples)
    results = measurer(url, image=ImageSizing(max_source_pixels=15_000))(refs(4))
    assert (rejected(results[0]).outcome, rejected(results[0]).stage) == ("quarantined", "probe")
    assert "'cut.jpg'" in rejected(results[0]).reason
    assert (rejected(results[1]).outcome, rejected(results[1]).stage) == ("dropped", "layout")
    assert (rejected(results[2]).outcome, rejected(results[2]).stage) == ("dropped", "layout")
    assert "max_source_pixels=15000" in rejected(results[2]).reason
    document(results[3])
    samples = {"0": {"mp4": clip()[:100], "txt": "x y"}, "1": {"mp4": b"", "txt": "x y"}}
    url = write_shard(tmp_path / "b.tar", samples)
    for result in measurer(url, "video_text")(refs(2)):
        assert (rejected(result).outcome, rejected(result).stage) == ("quarantined", "probe")


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


def test_a_users_format_takes_the_template(
    tmp_path: Path, measurer: Opener, own_format: Any
) -> None:
    name = own_format(
        "return Document(parts=(TextPart(sample.text('txt')), ImagePart('left.jpg')))"
    )
    url = write_shard(tmp_path / "a.tar", {"0": {"left.jpg": jpeg(), "txt": "A man"}})
    made = measurer(url, name)
    found = document(made(refs(1))[0])
    assert found.media[0].start == 2 and len(found.tokens) == found.media[0].stop + 1
    assert found.tokens[-1] == made._tokenizer.token_id("<|endoftext|>")
    assert bool(found.loss[-1])


@pytest.mark.parametrize(
    ("body", "outcome", "says"),
    [
        ("return sample.json()['nothing']", "quarantined", "KeyError"),
        ("raise ValueError('line 1\\nline 2')", "quarantined", "ValueError: line 1 line 2"),
        ("return Document(parts=(TextPart('a b'), ImagePart('png')))", "quarantined", "'png'"),
        ("return Document(parts=(TextPart('a b'), ImagePart('txt')))", "quarantined", "'0.txt'"),
        ("return Document(parts=(TextPart('a \\ud800'),))", "quarantined", "surrogate"),
        ("return Document(parts=(ImagePart('jpg'),))", "filtered", "no part has text"),
        ("return Document()", "filtered", "no part has text"),
        ("raise SampleError('too dark', stage='format', kind='filtered')", "filtered", "too dark"),
        ("raise SampleError('odd', stage='format', kind='odd')", "quarantined", "odd"),
        ("raise RecursionError", "quarantined", "RecursionError"),
        ("raise ValueError('\\udcff')", "quarantined", "ValueError: \\udcff"),
    ],
)
def test_what_a_users_format_raises_is_an_outcome(
    tmp_path: Path, measurer: Opener, own_format: Any, body: str, outcome: str, says: str
) -> None:
    url = write_shard(tmp_path / "a.tar", {"0": {"jpg": jpeg(), "txt": "a", "json": {}}})
    (result,) = measurer(url, own_format(body))(refs(1))
    assert rejected(result).outcome == outcome and says in rejected(result).reason


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("return None", ConfigError),
        ("return Document((TextPart('a'),), (Turn('user', (TextPart('a'),), True),))", ConfigError),
        ("raise StorageError('gone')", StorageError),
        ("raise TimeoutError('slow')", TimeoutError),
        ("raise MemoryError", MemoryError),
    ],
)
def test_what_is_not_the_samples_fault_stands_in_its_place(
    tmp_path: Path, measurer: Opener, own_format: Any, body: str, kind: type[Exception]
) -> None:
    url = write_shard(tmp_path / "a.tar", {"0": {"txt": "a cat"}, "1": {"txt": "a"}})
    name = own_format(f"if sample.key == '0':\n    {body}\nreturn Document((TextPart('a b'),))")
    results = measurer(url, name)(refs(2))
    assert isinstance(results[0], kind)
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
