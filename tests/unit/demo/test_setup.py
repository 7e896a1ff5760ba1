from __future__ import annotations

import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from zephon_mm.config import load_yaml
from zephon_mm.demo import setup
from zephon_mm.errors import ConfigError

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


@pytest.mark.parametrize(
    ("fields", "data", "expected"),
    [
        (["txt"], None, "text"),
        (["json"], {"text": "a"}, "text"),
        (["jpg", "txt"], None, "image_text"),
        (["png", "json"], {"caption": "a", "width": 3}, "image_text"),
        (["mp4", "txt", "json"], {"caption": "a"}, "video_text"),
        (["0.webm", "json"], [{"video": "0.webm"}, {"text": "a"}], "interleaved"),
        (["json"], {"parts": [{"text": "a"}]}, "interleaved"),
        (["json"], {"messages": CHAT}, "chat"),
        (["jpg", "json"], CHAT, "chat"),
        (["jpg", "json"], {"conversations": [{"from": "human", "value": "<image>"}]}, "chat"),
        (["jpg", "json"], [{"from": "human", "value": "<image>"}], "chat"),
    ],
)
def test_formats_are_guessed(fields: list[str], data: Any, expected: str) -> None:
    assert setup.guess_format(dict.fromkeys(fields, 0), data) == expected


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
    return path


def test_a_users_shards_become_sources(tmp_path: Path) -> None:
    write_tar(tmp_path / "a-0.tar", {})
    write_tar(tmp_path / "a-1.tar", {"1.txt": b"one"})
    chat = write_tar(tmp_path / "b.tar", {"1.json": json.dumps({"messages": CHAT}).encode()})
    sources = setup.user_sources([str(tmp_path / "a-{0..1}.tar"), str(chat)])
    assert [(source.id, source.format) for source in sources] == [
        ("data0", "text"),
        ("data1", "chat"),
    ]


def test_shards_without_a_sample_say_so(tmp_path: Path) -> None:
    empty = write_tar(tmp_path / "empty.tar", {})
    with pytest.raises(ConfigError, match=r"empty\.tar: there is no sample"):
        setup.user_sources([str(empty)])


def test_the_config_survives_its_yaml(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "b.tar", {"1.txt": b"one"})
    config = setup.demo_config(setup.user_sources([str(tar)]), tmp_path / "tokenizer", 3)
    setup.write_yaml(config, tmp_path / "demo.yaml")
    assert load_yaml(tmp_path / "demo.yaml")[0] == config
