"""Model families: one file each, found in a literal table."""

from __future__ import annotations

import difflib

from ..config import DataConfig
from ..errors import ConfigError
from .base import MediaLayout, ModelFamily
from .processor import ProcessorSettings, read_settings
from .qwen import VISION_TOKENS, QwenFamily, VisionTokens
from .qwen2_5_vl import DEFAULTS as QWEN2_5_DEFAULTS
from .qwen2_5_vl import Qwen2_5VL
from .qwen3_vl import DEFAULTS as QWEN3_DEFAULTS
from .qwen3_vl import Qwen3VL
from .relay import measure_digest
from .tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "FAMILIES",
    "MediaLayout",
    "ModelFamily",
    "Tokenizer",
    "build_family",
    "check_model",
    "load_tokenizer",
    "measure_digest",
]

FAMILIES: dict[str, tuple[type[QwenFamily], ProcessorSettings]] = {
    "qwen2_5_vl": (Qwen2_5VL, QWEN2_5_DEFAULTS),
    "qwen3_vl": (Qwen3VL, QWEN3_DEFAULTS),
}


def check_model(name: str) -> None:
    """Raise ConfigError unless there is a family of that name."""
    if name not in FAMILIES:
        close = difflib.get_close_matches(name, FAMILIES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"model={name!r} must be one of {', '.join(FAMILIES)}{hint}")


def build_family(config: DataConfig, tokenizer: Tokenizer) -> ModelFamily:
    """The family that `DataConfig.model` names, with the settings of the tokeniser's folder.

    Raises:
        ConfigError: the name is not in the table, the tokeniser lacks a token that the family
            needs, the folder is of another family, or the template holds placeholders.
    """
    check_model(config.model)
    family, defaults = FAMILIES[config.model]
    start, end, image, video = (tokenizer.token_id(name) for name in VISION_TOKENS)
    for name in VISION_TOKENS:
        if name in config.template:
            raise ConfigError(
                f"template={config.template!r} holds {name}: media stand at {{media}}, and their "
                "tokens are written there"
            )
        if tokenizer.token_id(name) in tokenizer.encode(name, special=False):
            raise ConfigError(
                f"tokenizer={tokenizer.path!r} makes the control token {name} of text that spells "
                "it: it must be an added token, not an ordinary one"
            )
    settings = read_settings(defaults, tokenizer.folder, config)
    return family(tokenizer, settings, VisionTokens(start, end, image, video))
