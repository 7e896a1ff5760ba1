"""Shards in exactly the shapes that public data sets have load with ``format="auto"``.

Every document's text, the order of its media and its loss mask are what the shape's owner expects:
one line a sample, media as ``[member]``, what is learnt from in ``«»``.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import tarfile
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from transformers import AutoTokenizer

from tests.tiny import write_tokenizer
from zephon_mm.config import DataConfig, ExecutionConfig, Source
from zephon_mm.errors import ConfigError
from zephon_mm.pipeline import open_run
from zephon_mm.pipeline.run import Run
from zephon_mm.sample import MeasuredDocument, SampleRef
from zephon_mm.stages.materialise import MediaTask
from zephon_mm.state import fingerprint

Samples = dict[str, dict[str, Any]]


def picture(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (60, 32), (value, 90, 200)).save(file, "JPEG")
    return file.getvalue()


def make_clip() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=4)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        for number in range(8):
            frame = np.full((32, 64, 3), 30 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


A, B, CLIP = picture(10), picture(200), make_clip()
META = {"key": "000000000", "status": "success", "error_message": None, "width": 60, "exif": "{}"}


def inline(data: bytes) -> str:
    return base64.b64encode(data).decode()


def ask(text: str, answer: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": text}, {"from": "gpt", "value": answer}]


def say(text: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


MMC4 = {
    "url": "https://a.b",
    "text_list": ["A dog.", "A cat."],
    "similarity_matrix": [[0.1, 0.3], [0.2, 0.1]],
    "could_have_url_duplicate": 0,
}
INFO = [
    {"image_name": "x.jpg", "raw_url": "u", "matched_text_index": 1, "matched_sim": 0.3},
    {"image_name": "y.jpg", "raw_url": "v", "matched_text_index": 0, "matched_sim": 0.2},
    {"image_name": "z.jpg", "raw_url": "w", "matched_text_index": 0, "matched_sim": 0.1},
]
USER, REPLY = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"

SHAPES: dict[str, tuple[str, Samples, list[str]]] = {
    "img2dataset": (
        "image_text",
        {
            "000000000": {"jpg": A, "json": {**META, "caption": "A cat."}, "txt": "A cat."},
            "000000001": {"jpg": B, "json": {**META, "caption": ""}, "txt": ""},
        },
        ["[jpg]«A cat.<|endoftext|>»", "filtered: the text is empty"],
    ),
    "cc3m-wds": (
        "image_text",
        {"cc3m/0": {"jpg": A, "txt": "A cat."}},
        ["[jpg]«A cat.<|endoftext|>»"],
    ),
    "video2dataset": (
        "video_text",
        {
            "00_0000": {
                "mp4": CLIP,
                "txt": "A dog runs.",
                "json": {**META, "clips": [["00:00:01.000", 3.5]], "yt_meta_dict": {"info": {}}},
            }
        },
        ["[mp4]«A dog runs.<|endoftext|>»"],
    ),
    "obelics": (
        "obelics",
        {
            "0": {
                "json": {
                    "images": ["https://a.b/y.jpg", None, None, "https://a.b/x.jpg"],
                    "texts": [None, "One.", "Two.", None],
                    "metadata": '[{"src": "y"}, null, null, {"src": "x"}]',
                    "general_metadata": '{"url": "https://a.b"}',
                },
                "0.jpg": A,
                "1.jpg": B,
            }
        },
        ["[0.jpg]«One.\n\nTwo.»[1.jpg]«<|endoftext|>»"],
    ),
    "mmc4": (
        "mmc4",
        {
            "0": {"json": {**MMC4, "image_info": INFO[:2]}, "x.jpg": A, "y.jpg": B},
            "1": {"json": {**MMC4, "image_info": INFO}, "x.jpg": A, "y.jpg": B},
        },
        [
            "[y.jpg]«A dog. »[x.jpg]«A cat.<|endoftext|>»",
            "quarantined: member '1.json': 'image_info' names 3 pictures and 2 of them are here",
        ],
    ),
    "mmc4-openflamingo": (
        "mmc4",
        {
            "0": {
                "json": {
                    **MMC4,
                    "image_info": [
                        {**INFO[0], "image_base64": inline(A)},
                        {**INFO[1], "image_base64": inline(B)},
                        INFO[2],
                    ],
                }
            },
            "1": {"json": {**MMC4, "image_info": [{**INFO[0], "image_base64": inline(b"0" * 60)}]}},
        },
        [
            "[json#/image_info/1/image_base64.jpg]«A dog. »"
            "[json#/image_info/0/image_base64.jpg]«A cat.<|endoftext|>»",
            "quarantined: member '1.json': 'image_info': 1 of 1 pictures are not base64",
        ],
    ),
    "parts": (
        "interleaved",
        {
            "0": {
                "json": [
                    {"text": "See "},
                    {"image": "a.jpg"},
                    {"image": "b.jpg"},
                    {"video": "mp4"},
                ],
                "a.jpg": A,
                "b.jpg": B,
                "mp4": CLIP,
            },
        },
        ["«See »[a.jpg][b.jpg][mp4]«<|endoftext|>»"],
    ),
    "llava-onevision-mixed": (
        "chat",
        {
            "0": {
                "json": {
                    "texts": say("<image>What is it?", "A cat."),
                    "media": "image",
                    "name": ["0_a.jpg"],
                },
                "0_a.jpg": A,
            },
            "1": {
                "json": {
                    "texts": say("<video>And this?", "A dog."),
                    "media": "video",
                    "name": ["0_b.mp4"],
                },
                "0_b.mp4": CLIP,
            },
            "2": {"json": {"texts": say("Hi.", "Hello."), "media": "text", "name": []}},
        },
        [
            f"{USER}[0_a.jpg]What is it?{REPLY}«A cat.<|im_end|>»\n",
            f"{USER}[0_b.mp4]And this?{REPLY}«A dog.<|im_end|>»\n",
            f"{USER}Hi.{REPLY}«Hello.<|im_end|>»\n",
        ],
    ),
    "llava-onevision-image": (
        "chat",
        {
            "0": {"jpg": A, "json": say("<image>\nWhat?", "A cat.")},
            "1": {"jpg": A, "json": say("<image> and <image>?", "A cat.")},
        },
        [
            f"{USER}[jpg]\nWhat?{REPLY}«A cat.<|im_end|>»\n",
            "quarantined: member '1.json': 2 <image> markers for 1 picture",
        ],
    ),
    "llava-onevision-packed": (
        "packed",
        {
            "0": {
                "img0.jpg": A,
                "img1.jpg": B,
                "json": {
                    "images": ["img0.jpg", "img1.jpg"],
                    "prompts": ["Say it.", "And this?"],
                    "captions": ["A cat.", "A dog."],
                },
            }
        },
        [
            f"{USER}[img0.jpg]Say it.{REPLY}«A cat.<|im_end|>»\n"
            f"{USER}[img1.jpg]And this?{REPLY}«A dog.<|im_end|>»\n"
        ],
    ),
    "llava": (
        "chat",
        {
            "0": {
                "jpg": A,
                "json": {"image": "coco/1.jpg", "conversations": ask("<image>\nWhat?", "A cat.")},
            },
            "1": {"json": {"conversations": ask("Hi.", "Hello.") + ask("Why?", "So.")}},
        },
        [
            f"{USER}[jpg]\nWhat?{REPLY}«A cat.<|im_end|>»\n",
            f"{USER}Hi.{REPLY}«Hello.<|im_end|>»\n{USER}Why?{REPLY}«So.<|im_end|>»\n",
        ],
    ),
    "qwen-packed": (
        "packed",
        {
            "0": {
                "json": [
                    {"image": ["b.jpg", "a.jpg"], "conversations": ask("<image><image>?", "Two.")},
                    {"conversations": ask("Hi.", "Hello.")},
                    {"video": "c.mp4", "conversations": ask("<video>?", "A dog.")},
                ],
                "a.jpg": A,
                "b.jpg": B,
                "c.mp4": CLIP,
            }
        },
        [
            f"{USER}[b.jpg][a.jpg]?{REPLY}«Two.<|im_end|>»\n"
            f"{USER}Hi.{REPLY}«Hello.<|im_end|>»\n"
            f"{USER}[c.mp4]?{REPLY}«A dog.<|im_end|>»\n"
        ],
    ),
    "sharegpt": (
        "chat",
        {
            "0": {
                "json": {
                    "system": "Be brief.",
                    "messages": say("<video>Then <image>?", "A cat.") + say("<image>", "A dog."),
                    "images": ["a.jpg", "b.jpg"],
                    "videos": ["c.mp4"],
                },
                "a.jpg": A,
                "b.jpg": B,
                "c.mp4": CLIP,
            },
        },
        [
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            f"{USER}[c.mp4]Then [a.jpg]?{REPLY}«A cat.<|im_end|>»\n"
            f"{USER}[b.jpg]{REPLY}«A dog.<|im_end|>»\n"
        ],
    ),
    "hugging-face": (
        "chat",
        {
            "0": {
                "json": {
                    "messages": [
                        {
                            "role": "user",
                            "content": [
                                {
                                    "type": "image_url",
                                    "image_url": {"url": f"data:image/jpeg;base64,{inline(A)}"},
                                },
                                {"type": "text", "text": "What?"},
                            ],
                        },
                        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
                        {"role": "tool", "content": "3"},
                        {"role": "assistant", "content": "Three."},
                    ]
                }
            }
        },
        [
            f"{USER}[json#/messages/0/content/0/image_url/url.jpg]What?{REPLY}«A cat.<|im_end|>»\n"
            "<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n«Three.<|im_end|>»\n"
        ],
    ),
    "text": ("text", {"0": {"json": {"text": "Words."}}}, ["«Words.<|endoftext|>»"]),
}


def write(path: Path, samples: Samples) -> str:
    with tarfile.open(path, "w") as tar:
        for key, members in samples.items():
            for field, value in members.items():
                data = (
                    value
                    if isinstance(value, bytes)
                    else value.encode()
                    if isinstance(value, str)
                    else json.dumps(value).encode()
                )
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return str(path)


def config_of(folder: Path, sources: list[Source]) -> DataConfig:
    return DataConfig(
        sources=tuple(sources),
        model="qwen2_5_vl",
        tokenizer=str(folder / "tokenizer"),
        global_batch=2,
        lanes=2,
    )


EXECUTION = ExecutionConfig(backend="serial")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shapes")
    write_tokenizer(made / "tokenizer")
    for name, (_, samples, _) in SHAPES.items():
        write(made / f"{name}.tar", samples)
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    sources = [Source(id=n, urls=str(folder / f"{n}.tar"), format="auto") for n in SHAPES]
    return open_run(config_of(folder, sources), EXECUTION)


def shown(run: Run, found: MeasuredDocument) -> str:
    tokenizer = AutoTokenizer.from_pretrained(run.tokenizer.path)
    loss = found.loss
    starts = {span.start: span for span in found.media}
    line, at = "", 0
    while at < len(found.tokens):
        if at in starts:
            span = starts[at]
            assert not loss[span.start : span.stop].any()
            member = run.reader.member(found.ref.source, found.ref.shard, span.member)
            line, at = f"{line}[{member.field}]", span.stop
            continue
        stop = at + 1
        while stop < len(loss) and loss[stop] == loss[at] and stop not in starts:
            stop += 1
        text = str(tokenizer.decode(found.tokens[at:stop]))
        line, at = line + (f"«{text}»" if loss[at] else text), stop
    return line


@pytest.mark.parametrize("name", SHAPES)
def test_a_public_shape_loads_by_itself(run: Run, name: str) -> None:
    kind, samples, wanted = SHAPES[name]
    number = list(SHAPES).index(name)
    assert run.config.sources[number].format == kind
    assert run.chosen_formats[name].startswith(f"format {kind}: {len(samples)} of {len(samples)}")
    results = run.measure([SampleRef(number, 0, at, 0, at) for at in range(len(samples))])
    for result, line in zip(results, wanted, strict=True):
        if isinstance(result, Exception):
            raise result
        if isinstance(result, MeasuredDocument):
            assert shown(run, result) == line
        else:
            assert f"{result.outcome}: {result.reason}".startswith(line)


def test_pixels_inside_of_json_are_those_of_files(run: Run) -> None:
    names = list(SHAPES)
    for name in ("mmc4-openflamingo", "hugging-face"):
        ref = SampleRef(names.index(name), 0, 0, 0, 0)
        file = SampleRef(names.index("mmc4"), 0, 0, 0, 0)
        (inside,), (plain,) = run.measure([ref]), run.measure([file])
        assert isinstance(inside, MeasuredDocument) and isinstance(plain, MeasuredDocument)
        for span, other in zip(reversed(inside.media), reversed(plain.media), strict=False):
            found = run.materialise(MediaTask(ref, span))
            assert found.damaged is None
            wanted = run.materialise(MediaTask(file, other))
            assert np.array_equal(found.patches, wanted.patches)


def test_the_choice_is_in_the_fingerprint_and_in_the_log(
    run: Run, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = [
        Source(id=name, urls=str(folder / f"{name}.tar"), format=kind)
        for name, (kind, _, _) in SHAPES.items()
    ]
    named = open_run(config_of(folder, sources), EXECUTION)
    assert fingerprint(named.identity) == fingerprint(run.identity) and not named.chosen_formats
    with caplog.at_level(logging.INFO, "zephon_mm"):
        source = Source(id="s", urls=str(folder / "llava.tar"), format="auto")
        open_run(config_of(folder, [source]), EXECUTION)
    line = "source 's': format chat: 2 of 2 samples looked at have a JSON with 'conversations'"
    assert caplog.messages == [line]


def test_a_mixed_source_is_said_and_an_unknown_one_is_refused(folder: Path) -> None:
    caption = {"jpg": A, "txt": "A cat."}
    mixed: Samples = {f"{at}": caption for at in range(3)}
    mixed |= {"a": {"txt": "x"}, "b": {"jpg": A}, "c": {"json": "{"}}
    source = Source(id="s", urls=write(folder / "mixed.tar", mixed), format="auto")
    said = open_run(config_of(folder, [source]), EXECUTION).chosen_formats["s"]
    assert said == (
        "format image_text: 3 of 6 samples looked at have a picture and a member txt "
        "(1 look like text, 2 like nothing known)"
    )
    unknown: Samples = {"k": {"jpg": A, "json": {"label": 3}}}
    source = Source(id="s", urls=write(folder / "unknown.tar", unknown), format="auto")
    with pytest.raises(ConfigError, match=r"'k\.jpg', 'k\.json'.*Name the format"):
        open_run(config_of(folder, [source]), EXECUTION)
