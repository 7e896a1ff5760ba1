"""The settings of a family's processors: the model folder's own, else transformers' defaults.

A model's folder tells its processors' budgets, means and deviations, in ``processor_config.json``
(nested, as transformers 5 writes it), ``video_preprocessor_config.json`` or
``preprocessor_config.json``, and they are read in the order in which transformers reads them.
`DataConfig.image` and `DataConfig.video` go over them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import DataConfig
from ..errors import ConfigError
from ..patches import PatchLayout
from .base import Colour


@dataclass(frozen=True, slots=True)
class Budget:
    """Pixels a medium may take, and how its colours are normalised.

    Attributes:
        min_pixels, max_pixels: inclusive; of what is the family's matter.
        mean, std: of each channel, for values in [0, 1].
    """

    min_pixels: int
    max_pixels: int
    mean: Colour
    std: Colour


@dataclass(frozen=True, slots=True)
class ProcessorSettings:
    """What the processors of one model do.

    Attributes:
        patches: the cut into patches.
        image: of a picture.
        video: of a clip.
        cap_pixels_per_frame: transformers' option of that name, which also holds the pixels of a
            frame under ``max_video_tokens``.
        max_video_tokens: transformers' option of that name.
        tokens_per_second: temporal M-RoPE positions a second (Qwen2.5-VL).
    """

    patches: PatchLayout
    image: Budget
    video: Budget
    cap_pixels_per_frame: bool
    max_video_tokens: int
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What the files of a model's folder say; empty where there is none.

    Attributes:
        folder: where they lie.
        processor: the processor's own fields.
        image, video: of its two parts.
        model: ``config.json``.
    """

    folder: Path
    processor: Mapping[str, Any]
    image: Mapping[str, Any]
    video: Mapping[str, Any]
    model: Mapping[str, Any]

    @property
    def images_kwargs(self) -> Mapping[str, Any]:
        """What the processor is called with as ``images_kwargs``, if it is not its class's default.

        transformers 5.24 writes none and reads none: a user who calls the processor so puts it
        there for training to do the same.
        """
        return self.processor.get("images_kwargs") or {}

    @property
    def vision(self) -> Mapping[str, Any]:
        """``vision_config`` of the model."""
        return self.model.get("vision_config") or {}

    @property
    def text(self) -> Mapping[str, Any]:
        """``text_config`` of the model."""
        return self.model.get("text_config") or {}


def read_folder(folder: Path) -> ModelFolder:
    """Read the files in transformers' order. Raises ConfigError for one that is not JSON."""
    nested = _read(folder / "processor_config.json")
    single = _read(folder / "preprocessor_config.json")
    video = _read(folder / "video_preprocessor_config.json")
    return ModelFolder(
        folder=folder,
        processor=nested,
        image=nested.get("image_processor") or single,
        video=nested.get("video_processor") or video or single,
        model=_read(folder / "config.json"),
    )


def read_named_tokens(
    folder: Path, *names: str, defaults: Mapping[str, str] | None = None
) -> list[str]:
    """Control tokens as ``tokenizer_config.json`` names them. Raises ConfigError if one is missing.

    transformers writes the names of a model's own tokens, such as ``boi_token``, beside the others
    or under ``extra_special_tokens`` or ``model_specific_special_tokens``.
    """
    settings = _read(folder / "tokenizer_config.json")
    known = {**(defaults or {}), **settings}
    for part in ("extra_special_tokens", "model_specific_special_tokens"):
        if isinstance(settings.get(part), dict):
            known |= settings[part]
    found = [known.get(name) for name in names]
    tokens = [value.get("content") if isinstance(value, dict) else value for value in found]
    for name, token in zip(names, tokens, strict=True):
        if not isinstance(token, str):
            raise ConfigError(
                f"{folder}/tokenizer_config.json has no {name}, which the model family needs: name "
                "the tokenizer of a model of this family"
            )
    return [str(token) for token in tokens]


def sliding_window(files: ModelFolder, name: str) -> int:
    """The window of the sliding layers of the model. Raises ConfigError if the folder names none.

    Args:
        files: the model's folder.
        name: of the family.
    """
    window = files.text.get("sliding_window")
    if not isinstance(window, int):
        raise ConfigError(
            f"tokenizer={str(files.folder)!r}: model={name!r} needs text_config.sliding_window of "
            "the model's config.json, for its masks: put that file beside the tokenizer"
        )
    return window


def read_settings(
    defaults: ProcessorSettings, folder: Path, config: DataConfig
) -> ProcessorSettings:
    """The settings in force. Raises ConfigError if the folder's model is of another family."""
    files = read_folder(folder)
    image, video, vision = files.image, files.video, files.vision
    for found in (image, video, vision):
        _check_patches(found, defaults.patches, folder, config.model)
    return replace(
        defaults,
        image=_budget("image", defaults, defaults.image, image, config.image),
        video=_budget("video", defaults, defaults.video, video, config.video),
        cap_pixels_per_frame=bool(video.get("cap_pixels_per_frame", defaults.cap_pixels_per_frame)),
        max_video_tokens=int(video.get("max_video_tokens", defaults.max_video_tokens)),
        tokens_per_second=float(vision.get("tokens_per_second", defaults.tokens_per_second)),
    )


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: can't be read as JSON ({error})") from error
    return data if isinstance(data, dict) else {}


def _check_patches(
    found: Mapping[str, Any], patches: PatchLayout, folder: Path, model: str
) -> None:
    for name, here in (
        ("patch_size", patches.patch_size),
        ("temporal_patch_size", patches.temporal_patch_size),
        ("merge_size", patches.merge_size),
    ):
        if found.get(name, here) != here:
            raise ConfigError(
                f"model={model!r} has {name} {here}, and the settings in {folder} say "
                f"{found[name]}: the tokenizer's folder is of another model family"
            )


def _budget(
    name: str,
    settings: ProcessorSettings,
    default: Budget,
    found: Mapping[str, Any],
    asked: Any,
) -> Budget:
    """One budget: the config's, else the folder's, else the default's."""
    size = found.get("size") or {}
    low = found.get("min_pixels") or size.get("shortest_edge") or default.min_pixels
    high = found.get("max_pixels") or size.get("longest_edge") or default.max_pixels
    low = low if asked.min_pixels is None else asked.min_pixels
    high = high if asked.max_pixels is None else asked.max_pixels
    if low > high:
        if asked.min_pixels is not None:
            raise ConfigError(
                f"{name}.min_pixels={low} is above {name}.max_pixels={high}, the model's own where "
                f"the config sets none: set {name}.max_pixels too"
            )
        low = high  # a smaller budget was asked for: it takes the model's least with it
    block = (settings.patches.patch_size * settings.patches.merge_size) ** 2
    if high < block:
        raise ConfigError(
            f"{name}.max_pixels={high} holds not even one block of {block} pixels: raise it"
        )
    return Budget(
        min_pixels=int(low),
        max_pixels=int(high),
        mean=colour(found.get("image_mean"), default.mean),
        std=colour(found.get("image_std"), default.std),
    )


def colour(found: Any, default: Colour) -> Colour:
    """Three numbers of a settings file, or the default."""
    if found is None:
        return default
    red, green, blue = (float(value) for value in found)
    return red, green, blue
