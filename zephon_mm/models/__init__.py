"""Model families: one file each, found in a literal table."""

from __future__ import annotations

import difflib
from typing import Protocol

from ..config import DataConfig
from ..errors import ConfigError
from .base import MediaLayout, ModelFamily
from .gemma3 import Gemma3
from .gemma4 import Gemma4
from .internvl import InternVL
from .llava_onevision import LlavaOnevision
from .molmo2 import Molmo2
from .qwen2_5_vl import Qwen2_5VL
from .qwen2_vl import Qwen2VL
from .qwen3_5 import Qwen3_5
from .qwen3_vl import Qwen3VL
from .relay import measure_digest
from .saving import save_processor
from .smolvlm import Idefics3, SmolVLM
from .text import Text
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
    "save_processor",
]


class FamilyClass(Protocol):
    """What the table holds: classes that make themselves from a config and its tokeniser."""

    def build(self, config: DataConfig, tokenizer: Tokenizer) -> ModelFamily: ...


FAMILIES: dict[str, FamilyClass] = {
    "text": Text,
    "qwen2_vl": Qwen2VL,
    "qwen2_5_vl": Qwen2_5VL,
    "qwen3_vl": Qwen3VL,
    "qwen3_5": Qwen3_5,
    "llava_onevision": LlavaOnevision,
    "internvl": InternVL,
    "idefics3": Idefics3,
    "smolvlm": SmolVLM,
    "gemma3": Gemma3,
    "gemma4": Gemma4,
    "molmo2": Molmo2,
}


def check_model(name: str) -> None:
    """Raise ConfigError unless there is a family of that name."""
    if name not in FAMILIES:
        close = difflib.get_close_matches(name.lower(), FAMILIES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"model={name!r} must be one of {', '.join(FAMILIES)}{hint}")


def build_family(config: DataConfig, tokenizer: Tokenizer) -> ModelFamily:
    """The family that `DataConfig.model` names, with the settings of the tokeniser's folder.

    Raises:
        ConfigError: the name is not in the table, the tokeniser lacks a token that the family
            needs, the folder is of another family, or the template holds placeholders.
    """
    check_model(config.model)
    family = FAMILIES[config.model].build(config, tokenizer)
    for name in family.control_tokens:
        if name in config.template:
            raise ConfigError(
                f"template={config.template!r} holds {name}: media stand at {{media}}, and their "
                "tokens are written there"
            )
        if tokenizer.token_id(name) in tokenizer.encode(name, special=False):
            raise ConfigError(
                f"tokenizer={tokenizer.path!r} makes the control token {name} of text that spells "
                "it: it must be an added token that tokenizer.json marks special"
            )
    return family
