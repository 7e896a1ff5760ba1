"""``zephon-mm demo`` on shards of one's own, with a tokeniser of 600 tokens to be quick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image
from typer.testing import CliRunner, Result

from tests.tiny import write_tokenizer
from zephon_mm.cli.main import app
from zephon_mm.config import load_yaml
from zephon_mm.demo import tokenizer, train
from zephon_mm.errors import ConfigError, StateError


@pytest.fixture(autouse=True)
def small_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(folder: Path) -> str:
        write_tokenizer(folder)
        return "a small one"

    monkeypatch.setattr(tokenizer, "build_tokenizer", build)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("shards")
    rng = np.random.default_rng(23)
    with webdataset.TarWriter(str(folder / "notes.tar")) as writer:
        for index in range(40):
            writer.write({"__key__": f"{index:03d}", "txt": "two dogs play in the snow " * 3})
    with webdataset.TarWriter(str(folder / "photos.tar")) as writer:
        for index in range(20):
            image = Image.fromarray(rng.integers(0, 256, (60, 90, 3), dtype=np.uint8))
            writer.write({"__key__": f"{index:03d}", "png": image, "txt": "a man rides a horse"})
    return [str(folder / "notes.tar"), str(folder / "photos.tar")]


def run(shards: list[str], out: Path) -> Result:
    command = ["demo", "--data", *shards, "--out", str(out), "--steps", "2"]
    return CliRunner().invoke(app, command, env={"COLUMNS": "120"})


def test_it_trains_stops_resumes_and_draws(shards: list[str], tmp_path: Path) -> None:
    result = run(shards, tmp_path)
    assert result.exit_code == 0, result.output
    assert "the same batches and losses" in result.output
    assert result.output.count("equal") == 2 and "differs" not in result.output
    with Image.open(tmp_path / "contact_sheet.png") as sheet:
        colours = sheet.convert("RGB").getcolors(1 << 20)
    assert colours is not None and len(colours) > 1000  # a photo of noise is on it
    config, _ = load_yaml(tmp_path / "demo.yaml")
    assert [source.format for source in config.sources] == ["text", "image_text"]


def test_it_fails_if_the_resumed_run_differs(
    shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget_the_weights(folder: Path, loader: Any, model: Any, optimizer: Any) -> None:
        loader.load_state_dict(train.read_state(folder / "loader.json"))

    monkeypatch.setattr(train, "load_checkpoint", forget_the_weights)
    result = run(shards, tmp_path)
    assert isinstance(result.exception, StateError)
    assert result.output.count("equal") == 1 and result.output.count("differs") == 1


def test_shards_that_are_not_there_are_named(tmp_path: Path) -> None:
    result = run([str(tmp_path / "none-{0..3}.tar")], tmp_path)
    assert isinstance(result.exception, ConfigError) and "none-" in str(result.exception)
