from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import QWEN, hf_processor
from tests.unit.models.test_sizes import config
from zephon_mm.config import ImageSizing
from zephon_mm.errors import ConfigError
from zephon_mm.models import Tokenizer, build_family, load_tokenizer


@pytest.fixture
def folder(tokenizer_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tokenizer_folder, tmp_path / "model"))


def write(folder: Path, name: str, **data: Any) -> None:
    (folder / name).write_text(json.dumps(data))


def test_defaults_are_those_of_the_classes(tokenizer: Tokenizer, tokenizer_folder: Path) -> None:
    for model in QWEN:
        settings = build_family(config(model), tokenizer).settings()
        hf = hf_processor(model, tokenizer_folder)
        for kind, part in (("image", hf.image_processor), ("video", hf.video_processor)):
            assert settings[kind] == {
                "min_pixels": part.size["shortest_edge"],
                "max_pixels": part.size["longest_edge"],
                "mean": tuple(part.image_mean),
                "std": tuple(part.image_std),
            }
            assert settings["patches"] == {
                "patch_size": part.patch_size,
                "temporal_patch_size": part.temporal_patch_size,
                "merge_size": part.merge_size,
            }
        assert settings["max_video_tokens"] == hf.video_processor.max_video_tokens
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig

    qwen2_5 = build_family(config("qwen2_5_vl"), tokenizer).settings()
    assert qwen2_5["tokens_per_second"] == Qwen2_5_VLVisionConfig().tokens_per_second


@pytest.mark.parametrize("model", QWEN)
def test_a_saved_processor_is_read_back(model: str, folder: Path) -> None:
    hf = hf_processor(model, folder)
    hf.image_processor.size = {"shortest_edge": 4096, "longest_edge": 65536}
    hf.image_processor.image_mean = [0.1, 0.2, 0.3]
    hf.video_processor.size = {"shortest_edge": 8192, "longest_edge": 131072}
    hf.video_processor.cap_pixels_per_frame = True
    hf.save_pretrained(str(folder))
    settings = build_family(config(model), load_tokenizer(folder)).settings()
    assert (settings["image"]["min_pixels"], settings["image"]["max_pixels"]) == (4096, 65536)
    assert settings["image"]["mean"] == (0.1, 0.2, 0.3)
    assert (settings["video"]["min_pixels"], settings["video"]["max_pixels"]) == (8192, 131072)
    assert settings["cap_pixels_per_frame"] is True


def test_older_files_and_the_config_go_over_the_defaults(folder: Path) -> None:
    write(folder, "preprocessor_config.json", min_pixels=3136, max_pixels=12845056, patch_size=14)
    write(folder, "config.json", vision_config={"tokens_per_second": 2, "patch_size": 14})
    settings = build_family(config("qwen2_5_vl"), load_tokenizer(folder)).settings()
    # transformers reads a clip's settings from the picture's file where there is no other.
    assert settings["image"]["max_pixels"] == settings["video"]["max_pixels"] == 12845056
    assert settings["tokens_per_second"] == 2

    write(folder, "video_preprocessor_config.json", size={"longest_edge": 602112})
    asked = config("qwen2_5_vl", image=ImageSizing(max_pixels=50_000))
    settings = build_family(asked, load_tokenizer(folder)).settings()
    assert settings["image"] | {"mean": 0, "std": 0} == {
        "min_pixels": 3136,
        "max_pixels": 50_000,
        "mean": 0,
        "std": 0,
    }
    assert settings["video"]["max_pixels"] == 602112


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("preprocessor_config.json", {"patch_size": 14}),
        ("video_preprocessor_config.json", {"patch_size": 14}),
        ("config.json", {"vision_config": {"patch_size": 14}}),
    ],
)
def test_the_folder_of_another_family_is_an_error(
    folder: Path, name: str, data: dict[str, Any]
) -> None:
    write(folder, name, **data)
    with pytest.raises(ConfigError, match=r"patch_size 16, and the settings in .* say 14"):
        build_family(config("qwen3_vl"), load_tokenizer(folder))


def test_broken_settings_are_an_error(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json"):
        build_family(config("qwen3_vl"), load_tokenizer(folder))


def test_wrong_families_tokenizers_and_templates(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model='gpt' must be one of text, qwen2_vl"):
        build_family(config("gpt"), tokenizer)
    with pytest.raises(ConfigError, match=r"holds <\|image_pad\|>"):
        build_family(config("qwen3_vl", template="<|image_pad|>{text}"), tokenizer)
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    words = {"a": 0, "<|endoftext|>": 1}
    Backend(models.WordLevel(words, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"has no token <\|vision_start\|>"):
        build_family(config("qwen3_vl"), load_tokenizer(tmp_path))
    names = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    words |= {name: 2 + n for n, name in enumerate(names)}
    Backend(models.WordLevel(words, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="must be an added token"):
        build_family(config("qwen3_vl"), load_tokenizer(tmp_path))
