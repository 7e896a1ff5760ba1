"""A processor of transformers, made or changed in code, as the folder that a config names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ConfigError


def save_processor(processor: Any, folder: str | Path, model_config: Any = None) -> str:
    """Write a processor into a folder; the path is a value for `DataConfig.tokenizer`.

    Args:
        processor: an ``AutoProcessor``'s, or a tokenizer, for ``model="text"``.
        folder: made if it is not there; files in it are overwritten.
        model_config: the model's config, which some families read too: Gemma 3 its sliding window.

    Raises:
        ConfigError: what is given can't be saved as transformers does.
    """
    path = Path(folder).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    for part in (processor, model_config):
        if part is None:
            continue
        save = getattr(part, "save_pretrained", None)
        if save is None:
            raise ConfigError(
                f"a {type(part).__name__} has no save_pretrained: give a processor, tokenizer or "
                "config of transformers"
            )
        save(str(path))
    return str(path)
