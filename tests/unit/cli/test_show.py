from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from tests.contracts import media
from tests.tiny import write_tokenizer
from zephon_mm import Batch, DataConfig, ExecutionConfig, Loader
from zephon_mm.cli.main import app
from zephon_mm.errors import ConfigError, StateError
from zephon_mm.stages.materialise import Materialiser
from zephon_mm.state import write_state


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, pictures and a clip, six rows a step in three lanes; two epochs."""
    folder = tmp_path_factory.mktemp("show")
    write_tokenizer(folder / "tokenizer")
    sources = {
        "texts": ("text", media.texts(40)),
        "pictures": ("image_text", media.captioned(6)),
        "clips": ("video_text", media.clips(2)),
    }
    data = {
        "sources": [
            {"id": name, "urls": media.write(folder, name, samples, 1), "format": kind}
            for name, (kind, samples) in sources.items()
        ],
        "model": "qwen3_vl",
        "tokenizer": str(folder / "tokenizer"),
        "sequence_length": 256,
        "global_batch": 6,
        "lanes": 3,
        "stop": {"epochs": 2},
        "execution": {"digest_log": str(folder / "log")},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(data), "utf-8")
    return path


@pytest.fixture(scope="module")
def batches(config: Path) -> list[Batch]:
    """All steps of the run; the states before steps 1 and 2 lie in ``states``."""
    folder = config.parent / "states"
    folder.mkdir()
    (folder / "other.json").write_text("{}")
    with Loader(DataConfig.from_yaml(config), ExecutionConfig(backend="serial")) as loader:
        found = []
        for batch in loader:
            found.append(batch)
            if batch.step < 2:
                write_state(folder / f"{batch.step + 1}.json", loader.state_dict())
    assert len(found) > 4
    return found


def show(config: Path, *options: Any) -> str:
    """What it prints on stdout; the command must succeed."""
    result = CliRunner().invoke(app, ["show", str(config), *map(str, options)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding fails."""

    def fail(self: Any, task: Any) -> None:
        raise AssertionError("a medium was decoded")

    monkeypatch.setattr(Materialiser, "__call__", fail)


@pytest.mark.usefixtures("blind")
def test_it_is_what_the_run_trains_on(config: Path, batches: list[Batch]) -> None:
    states = config.parent / "states"
    for step, options in ((0, ()), (3, ()), (3, ("--state", states)), (2, ("--state", states))):
        batch, found = batches[step], rows(show(config, "--step", step, "--json", *options))
        assert [row["slot"] for row in found] == list(batch.slots) == list(range(6))
        for number, row in enumerate(found):
            assert row["input_ids"] == batch.input_ids[number].tolist()
            assert row["labels"] == batch.labels[number].tolist()
            assert row["lane"] == number // 2 and row["step"] == step
            for shown, document in zip(row["documents"], batch.documents[number], strict=True):
                for name in ("source", "shard", "key", "epoch", "start", "stop", "token_start"):
                    assert shown[name] == getattr(document, name)
                for medium, span in zip(shown["media"], document.media, strict=True):
                    assert medium["kind"] == span.kind and medium["size"] == list(span.size)
                    assert medium.get("frames", []) == list(span.frames)
                    assert medium.get("seconds", []) == list(span.pts_seconds)
    assert not (config.parent / "log").exists(), "it is no run"


@pytest.mark.usefixtures("blind")
def test_one_row_is_one_lane_s_work(
    config: Path, batches: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    import zephon_mm.pipeline.walk

    walked = []
    walk = zephon_mm.pipeline.walk.walk_lane

    def counted(run: Any, backend: Any, lane: int, *args: Any, **options: Any) -> Any:
        walked.append(lane)
        return walk(run, backend, lane, *args, **options)

    monkeypatch.setattr(zephon_mm.pipeline.walk, "walk_lane", counted)
    (row,) = rows(show(config, "--step", 2, "--slot", 3, "--json"))
    assert walked == [1] and row["input_ids"] == batches[2].input_ids[3].tolist()


def test_tokens_line_by_line(config: Path, batches: list[Batch]) -> None:
    lines = show(config, "--step", 1, "--slot", 4, "--tokens").splitlines()
    parts = [line.split("\t") for line in lines]
    assert [int(part[2]) for part in parts] == batches[1].input_ids[4].tolist()
    assert [part[1] for part in parts] == [str(place) for place in range(256)]
    trained = (batches[1].labels[4] != -100).tolist()
    assert [part[3] == "t" for part in parts] == trained
    assert all(isinstance(json.loads(part[4]), str) for part in parts)


def test_a_table_cuts_nothing_but_texts(config: Path, batches: list[Batch]) -> None:
    text = show(config, "--step", 0)
    for row in batches[0].documents:
        for document in row:
            assert f"{document.start}-{document.stop}" in text and document.key in text
    assert "step 0, slot 5 (lane 2)" in text and "image 64x96 of" in text


def test_pictures_of_rows(config: Path, batches: list[Batch], tmp_path: Path) -> None:
    (slot,) = [
        number for number, row in enumerate(batches[0].documents) if any(d.media for d in row)
    ][:1]
    show(config, "--step", 0, "--slot", slot, "--png", tmp_path / "new")
    (file,) = (tmp_path / "new").iterdir()
    assert file.name == f"step_00000000_slot_{slot:05d}.png"
    with Image.open(file) as image:
        assert image.width == 1200 and len(image.getcolors(1 << 24) or ()) > 50


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (("--step", 1, "--slot", 6), ConfigError, "--slot 6: step 1 has 6 rows, numbered 0 to 5"),
        (("--step", 1, "--json", "--tokens"), ConfigError, "not both"),
        (("--step", 0, "--state", "states"), StateError, "states found are before steps: 1, 2"),
        (("--step", 0, "--state", "run.yaml"), StateError, "run.yaml"),
        (("--step", 0, "--state", "nowhere"), StateError, "nowhere"),
    ],
    ids=str,
)
def test_wrong_options_say_so(
    config: Path,
    batches: list[Batch],
    options: tuple[Any, ...],
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(config.parent)
    with pytest.raises(error, match=re.escape(message)):
        show(config, *options)


def test_a_state_of_another_run_is_refused(
    config: Path, batches: list[Batch], tmp_path: Path
) -> None:
    data = yaml.safe_load(config.read_text("utf-8")) | {"seed": 9, "stop": {"num_steps": 3}}
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(data), "utf-8")
    with pytest.raises(StateError, match="seed"):
        show(other, "--step", 2, "--state", config.parent / "states")
    with pytest.raises(ConfigError, match=re.escape("stop.num_steps=3, so 0 to 2")):
        show(other, "--step", 3)


def test_past_the_end_is_padding(config: Path, batches: list[Batch]) -> None:
    result = CliRunner().invoke(
        app, ["show", str(config), "--step", "500", "--slot", "0", "--json"]
    )
    assert result.exit_code == 0 and "the run's data end before it" in result.stderr
    assert json.loads(result.stdout)["documents"] == []
