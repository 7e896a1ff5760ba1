"""The README names only what exists, and docs/config.md every field.

Its config loads, its code runs up to the model, its links lead somewhere, its commands have those
options.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import zephon_mm
from zephon_mm.cli.main import app
from zephon_mm.config import load_yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
CONFIG_PAGE = (ROOT / "docs" / "config.md").read_text("utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(found)


def test_config_loads_and_is_the_one_of_the_code(tmp_path: Path) -> None:
    path = tmp_path / "vlm.yaml"
    path.write_text(block("yaml"), "utf-8")
    config, execution = load_yaml(path)
    code = block("python").split("loader = ")[0]
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    written = names["config"]
    assert isinstance(written, zephon_mm.DataConfig)
    differing = {
        name for name, value in config.to_dict().items() if value != written.to_dict()[name]
    }
    assert differing == {"stop"}
    assert execution.workers == 2


def test_files_it_names_are_there() -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", README)
    assert links and all((ROOT / link).is_file() for link in links)
    assert (ROOT / "examples" / "pretrain_vlm.py").read_text("utf-8").count("\n") < 100


@pytest.mark.parametrize(
    "command", ["index", "digest", "measure", "verify", "show", "frames", "demo"]
)
def test_options_it_names_are_there(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    calls = re.findall(rf"zephon-mm {command}\b([^`)#]*)", README)
    assert calls
    for option in re.findall(r"--[a-z-]+", " ".join(calls).replace("\n", " ")):
        assert option in shown


def test_make_targets_it_names_are_there() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"make (demo|test|lint|\w+)$", README, re.MULTILINE)) <= targets


@pytest.mark.parametrize(
    "config",
    [
        zephon_mm.DataConfig,
        zephon_mm.Source,
        zephon_mm.VideoSampling,
        zephon_mm.ImageSizing,
        zephon_mm.Packing,
        zephon_mm.Stop,
        zephon_mm.ExecutionConfig,
    ],
)
def test_config_page_has_every_field_and_its_default(config: Any) -> None:
    section = CONFIG_PAGE.split(f"\n## {config.__name__}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) (?<!\\)\| .+ \|$", section, re.MULTILINE)
    written = {name: default.replace("\\|", "|").strip("`") for name, default in rows}
    assert list(written) == [entry.name for entry in fields(config)]
    for entry in fields(config):
        if entry.default is MISSING and entry.default_factory is MISSING:
            assert written[entry.name] == "required"
        elif entry.default is MISSING or is_dataclass(entry.default):
            assert written[entry.name] == "{}"
        else:
            assert yaml.safe_load(written[entry.name]) == entry.default


def test_config_page_example_loads(tmp_path: Path) -> None:
    path = tmp_path / "vlm.yaml"
    path.write_text(re.findall(r"```yaml\n(.*?)```", CONFIG_PAGE, re.DOTALL)[0], "utf-8")
    config, execution = load_yaml(path)
    assert config.sources[1].options == {"text_key": "alt"} and execution.workers == 4
