from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import webdataset
import yaml
from PIL import Image
from typer.testing import CliRunner, Result

from tests.tiny import write_tokenizer
from zephon_mm.cli.main import app
from zephon_mm.cli.measure import Totals, details
from zephon_mm.sample import Rejected, SampleRef


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text; text of which every second is blank; pictures without a caption."""
    made = tmp_path_factory.mktemp("measure")
    image = Image.fromarray(np.zeros((48, 64, 3), dtype=np.uint8))
    with (
        webdataset.TarWriter(str(made / "text.tar")) as text,
        webdataset.TarWriter(str(made / "half.tar")) as half,
        webdataset.TarWriter(str(made / "photos.tar")) as photos,
    ):
        for index in range(8):
            key = f"{index:03d}"
            text.write({"__key__": key, "txt": "dogs play " * 5000})
            half.write({"__key__": key, "txt": "dogs play" if index % 2 else " "})
            photos.write({"__key__": key, "png": image})
    write_tokenizer(made / "tokenizer")
    return made


def measure(folder: Path, columns: int, sources: dict[str, tuple[str, str]]) -> Result:
    data = {
        "sources": [
            {"id": name, "urls": str(folder / shard), "format": kind}
            for name, (shard, kind) in sources.items()
        ],
        "model": "qwen3_vl",
        "tokenizer": str(folder / "tokenizer"),
        "execution": {"backend": "serial"},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(data), "utf-8")
    return CliRunner().invoke(app, ["measure", str(path)], env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [20, 80])
def test_nothing_is_cut_however_narrow(folder: Path, columns: int) -> None:
    name = "a-source-[red]-with-quite-a-long-name"
    result = measure(folder, columns, {name: ("text.tar", "text"), "half": ("half.tar", "text")})
    assert result.exit_code == 0, result.output
    assert "…" not in result.stdout
    (row,) = [line for line in result.stdout.splitlines() if f"│ {name} │" in line]
    assert re.search(r"│ +8 │ +[\d,]{5,}\.\d │ +0\.00 │ +0\.00 │$", row)
    assert f"{name}: 8 of 8 samples: 8 delivered" in result.stdout.splitlines()


def test_short_names_fit_into_80_columns(folder: Path) -> None:
    result = measure(folder, 80, {"text": ("text.tar", "text"), "half": ("half.tar", "text")})
    rows = [line for line in result.stdout.splitlines() if "│" in line]
    assert rows and max(map(len, rows)) <= 80


def test_mean_tokens_counts_every_draw(folder: Path) -> None:
    result = measure(folder, 80, {"half": ("half.tar", "text")})
    assert "half: 8 of 8 samples: 4 delivered, 4 filtered" in result.stdout
    (mean,) = re.findall(r"│ half +│ +4 │ +([\d.]+) │", result.stdout)
    (drawn,) = re.findall(r"^  half: ([\d.]+)$", result.stdout, re.MULTILINE)
    assert float(mean) > 0 and float(drawn) == float(mean) / 2


def test_a_source_without_a_document_is_said_and_is_status_1(folder: Path) -> None:
    sources = {"text": ("text.tar", "text"), "photos": ("photos.tar", "image_text")}
    result = measure(folder, 80, sources)
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if "looked at" in line]
    start = "photos: 0 of 8 samples looked at give a document; the commonest reason: quarantined in"
    assert line.startswith(start)
    assert re.search(r"^  text: [\d.]+$", result.stdout, re.MULTILINE)
    assert re.search(
        r"^photos: 8 × e\.g\. quarantined in .*'00\d\.png'", result.stdout, re.MULTILINE
    )


def test_reasons_are_told_by_kind_and_none_is_left_out() -> None:
    total = Totals()
    refused = [f"no picture 'a{n}.jpg', '{n}.json' at {n}.5 s" for n in range(9)]
    refused += [*"abcdef", "f"]
    for reason in refused:
        total.add(Rejected(SampleRef(0, 0, 0, 0, 0), "a", "k", "quarantined", "format", reason))
    lines = list(details(total))[1:]
    assert lines[0] == "9 × e.g. quarantined in format: no picture 'a0.jpg', '0.json' at 0.5 s"
    assert lines[1] == "2 × quarantined in format: f"
    assert len(lines) == 6 and lines[-1].startswith("2 × other reasons")


def test_it_says_what_auto_took_and_why(folder: Path) -> None:
    result = measure(folder, 80, {"a": ("text.tar", "auto"), "half": ("half.tar", "text")})
    assert result.exit_code == 0, result.output
    said = "a: format text: 8 of 8 samples looked at have a member txt and no media"
    assert said in result.stdout.splitlines()
