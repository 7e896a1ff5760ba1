"""Shards in exactly the shapes that public data sets have load with ``format="auto"``.

Every document's text, the order of its media and its loss mask are what the shape's owner expects:
one line a sample, media as ``[member]``, what is learnt from in ``«»``.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from tests.tiny import write_tokenizer
from zephon_mm.config import DataConfig, ExecutionConfig, Source
from zephon_mm.errors import ConfigError
from zephon_mm.pipeline import open_run
from zephon_mm.pipeline.run import Run
from zephon_mm.sample import MeasuredDocument, SampleRef
from zephon_mm.stages.materialise import MediaTask
from zephon_mm.state import fingerprint

from ..unit.stages.chat_templates import QWEN3_VL
from . import public_chats, public_pages
from .public_pages import CLIP, A, Samples, write

SHAPES = {**public_pages.SHAPES, **public_chats.SHAPES}
TOOLS = public_chats.TOOL_SHAPES


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
    for name, (_, samples, _) in {**SHAPES, **TOOLS}.items():
        write(made / f"{name}.tar", samples)
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    sources = [Source(id=n, urls=str(folder / f"{n}.tar"), format="auto") for n in SHAPES]
    return open_run(config_of(folder, sources), EXECUTION)


@pytest.fixture(scope="module")
def calling(folder: Path) -> Run:
    """The shapes with tools, under a template that calls them."""
    file = write_tokenizer(folder / "tools") / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"chat_template": QWEN3_VL}
    file.write_text(json.dumps(settings))
    sources = [Source(id=n, urls=str(folder / f"{n}.tar"), format="auto") for n in TOOLS]
    config = replace(config_of(folder, sources), tokenizer=str(folder / "tools"))
    return open_run(config, EXECUTION)


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
    check(run, SHAPES, name)


@pytest.mark.parametrize("name", TOOLS)
def test_a_shape_with_tools_loads_by_itself(calling: Run, name: str) -> None:
    check(calling, TOOLS, name)


def check(run: Run, shapes: public_pages.Shapes, name: str) -> None:
    kind, samples, wanted = shapes[name]
    number = list(shapes).index(name)
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
            found = run.materialise.one(MediaTask(ref, span))
            assert found.damaged is None
            wanted = run.materialise.one(MediaTask(file, other))
            assert np.array_equal(found.patches, wanted.patches)


def test_the_choice_is_in_the_fingerprint_and_in_the_log(
    run: Run, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"energon-vqa": run.config.sources[list(SHAPES).index("energon-vqa")].options}
    assert options["energon-vqa"]["answers"] == "json[answers]"
    sources = [
        Source(
            id=name, urls=str(folder / f"{name}.tar"), format=kind, options=options.get(name, {})
        )
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


def test_energon_says_where_things_lie(folder: Path) -> None:
    """By the data set's own ``dataset.yaml``, in the shards' folder or above, or by options."""
    data = folder / "vqa"
    (data / ".nv-meta").mkdir(parents=True)
    (data / "shards").mkdir()
    (data / ".nv-meta" / "dataset.yaml").write_text(
        "sample_type:\n  __module__: megatron.energon\n  __class__: VQASample\n"
        "field_map:\n  image: jpg\n  context: json[0][q]\n  answers: json[0][a]\n"
        "  answer_weights: json[0][w]\n"
    )
    samples: Samples = {"0": {"jpg": A, "json": [{"q": "What?", "a": ["A cat."], "w": [1]}]}}
    url = write(data / "shards" / "0.tar", samples)
    places = {"image": "jpg", "context": "json[0][q]", "answers": "json[0][a]"}
    for options, why in (({}, "its dataset.yaml has a field_map"), (places, "the options are")):
        source = Source(id="s", urls=url, format="auto", options=options)
        run = open_run(config_of(folder, [source]), EXECUTION)
        assert run.chosen_formats["s"].startswith(f"format energon: {why}")
        assert run.config.sources[0].options == places
        (found,) = run.measure([SampleRef(0, 0, 0, 0, 0)])
        assert isinstance(found, MeasuredDocument)
        want = f"{public_chats.USER}[jpg]What?{public_chats.REPLY}«A cat.<|im_end|>»\n"
        assert shown(run, found) == want
    (data / ".nv-meta" / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: {a: b}\n"
    )
    with pytest.raises(ConfigError, match="knows none"):  # its samples are looked at
        open_run(config_of(folder, [Source(id="s", urls=url, format="auto")]), EXECUTION)


def test_questions_about_media_of_several_kinds(folder: Path) -> None:
    """Whatever their extensions; samples that have the question elsewhere are counted apart."""
    asked = {"context": "What?", "answers": ["A cat."]}
    media = [{"jpg": A}, {"png": A}, {"png": A}, {"clip.mp4": CLIP}]
    samples: Samples = {str(at): {**one, "json": asked} for at, one in enumerate(media)}
    samples["4"] = {"jpg": A, "json": {"question": "What?", "answer": "A dog."}}
    url = write(folder / "kinds.tar", samples)
    run = open_run(config_of(folder, [Source(id="s", urls=url, format="auto")]), EXECUTION)
    assert run.chosen_formats["s"] == (
        "format energon: 4 of 5 samples looked at have a picture or a clip and a JSON with "
        "'context' and 'answers' (1 have a picture or a clip and a JSON with 'question' and "
        "'answer')"
    )
    results = run.measure([SampleRef(0, 0, at, 0, at) for at in range(5)])
    kinds = [r.media[0].kind for r in results if isinstance(r, MeasuredDocument)]
    assert kinds == ["image", "image", "image", "video"]
