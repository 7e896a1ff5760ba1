from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
import yaml
from PIL import Image
from typer.testing import CliRunner

from tests.tiny import write_tokenizer
from zephon_mm.cli.main import app
from zephon_mm.errors import ConfigError, StateError


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text and pictures, six rows a step in three lanes."""
    folder = tmp_path_factory.mktemp("digest")
    rng = np.random.default_rng(11)
    with webdataset.TarWriter(str(folder / "text.tar")) as writer:
        for index in range(50):
            writer.write(
                {"__key__": f"{index:03d}", "txt": "dogs play " * int(rng.integers(3, 20))}
            )
    with webdataset.TarWriter(str(folder / "photos.tar")) as writer:
        for index in range(9):
            image = Image.fromarray(rng.integers(0, 256, (48, 64 + index, 3), dtype=np.uint8))
            writer.write({"__key__": f"{index:03d}", "png": image, "txt": "a man rides a horse"})
    write_tokenizer(folder / "tokenizer")
    data = {
        "sources": [
            {"id": "text", "urls": str(folder / "text.tar"), "format": "text"},
            {"id": "photos", "urls": str(folder / "photos.tar"), "format": "image_text"},
        ],
        "model": "qwen3_vl",
        "tokenizer": str(folder / "tokenizer"),
        "sequence_length": 96,
        "global_batch": 6,
        "lanes": 3,
        "seed": 3,
        "image": {"min_pixels": 32 * 64, "max_pixels": 64 * 96},
        "execution": {"backend": "serial"},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(data), "utf-8")
    return path


def digest(config: Path, *options: Any) -> list[str]:
    """The lines of stdout; the command must succeed."""
    result = CliRunner().invoke(app, ["digest", str(config), *map(str, options)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def lines(config: Path) -> list[str]:
    return digest(config, "--steps", 6, "--pixels")


def test_one_line_a_step_and_nothing_else(lines: list[str]) -> None:
    assert [line.split("\t")[0] for line in lines] == [str(step) for step in range(6)]
    assert all(re.fullmatch(r"\d+\t[0-9a-f]{64}", line) for line in lines)
    assert len({line.split("\t")[1] for line in lines}) == 6


@pytest.mark.parametrize(
    "options",
    [
        ("--dp-size", 2),
        ("--dp-size", 3, "--backend", "threads", "--workers", 2),
        ("--dp-size", 6, "--resume-at", 4),
        ("--resume-at", 0, "--resume-at", 1, "--resume-at", 5),
    ],
    ids=str,
)
def test_lines_do_not_depend_on_how_it_runs(
    config: Path, lines: list[str], options: tuple[Any, ...]
) -> None:
    assert digest(config, "--steps", 6, "--pixels", *options) == lines


def test_a_state_goes_into_another_number_of_ranks(
    config: Path, lines: list[str], tmp_path: Path
) -> None:
    end, middle = tmp_path / "end.json", tmp_path / "middle.json"
    run = ("--steps", 4, "--pixels", "--dp-size")
    assert digest(config, *run, 2, "--save-state", end) == lines[:4]
    assert digest(config, *run, 3, "--save-state", middle, "--at", 2) == lines[:4]
    assert json.loads(middle.read_text())["step"] == 2
    assert digest(config, "--steps", 2, "--pixels", "--dp-size", 3, "--state", end) == lines[4:]
    assert digest(config, *run, 1, "--state", middle) == lines[2:]


def test_pixels_are_hashed_only_when_asked_for(config: Path, lines: list[str]) -> None:
    plain = digest(config, "--steps", 6)
    assert len(plain) == 6 and not set(plain) & set(lines)


def test_a_finite_run_ends(config: Path, tmp_path: Path) -> None:
    data = yaml.safe_load(config.read_text("utf-8")) | {"stop": {"num_steps": 3}}
    short = tmp_path / "short.yaml"
    short.write_text(yaml.safe_dump(data), "utf-8")
    state = tmp_path / "end.json"
    assert len(digest(short, "--steps", 9, "--dp-size", 2, "--save-state", state)) == 3
    assert json.loads(state.read_text())["step"] == 3


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (("--at", 9, "--steps", 3), ConfigError, "--at 9 is not one of steps 0 to 3"),
        (("--resume-at", 4, "--steps", 3), ConfigError, "--resume-at 4"),
        (("--dp-size", 4), ConfigError, "dp_size=4 does not divide"),
        (("--backend", "rays"), ConfigError, "rays"),
        (("--state", "no-such-file"), StateError, "no-such-file"),
    ],
    ids=str,
)
def test_wrong_options_say_so(
    config: Path, options: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        digest(config, *options)


@pytest.mark.parametrize("text", ["{", "[1]", '{"steps": 3}', "\xff"])
def test_a_broken_state_file_is_refused(config: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(text, "latin-1")
    with pytest.raises(StateError, match=re.escape(str(file))):
        digest(config, "--state", file)


def test_measure_prints_what_sources_give(config: Path) -> None:
    result = CliRunner().invoke(
        app, ["measure", str(config), "--samples", "40"], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    assert "40 delivered" in result.stdout and "9 delivered" in result.stdout
    means = {
        name: float(value)
        for name, value in re.findall(r"^  (\w+): ([\d.]+)$", result.stdout, re.MULTILINE)
    }
    assert means.keys() == {"text", "photos"} and all(value > 5 for value in means.values())
    (photos,) = [line for line in result.stdout.splitlines() if "│ photos" in line]
    assert "1.00" in photos  # pictures a document
