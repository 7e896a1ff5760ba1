"""How a tar sample becomes a `Document`: one file a format, and the user's own by import path."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, cast

from ..errors import ConfigError
from . import (
    chat,
    energon,
    image_text,
    interleaved,
    mmc4,
    obelics,
    packed,
    text,
    video_text,
)
from .auto import AUTO, LOOKED_AT, Choice, choose
from .base import Format, FormatOptions, Sample
from .energon import DATASET_FILE, read_field_map

__all__ = [
    "AUTO",
    "CONVERSATIONS",
    "DATASET_FILE",
    "LOOKED_AT",
    "Choice",
    "Format",
    "FormatOptions",
    "Sample",
    "check_options",
    "choose",
    "load_format",
    "read_field_map",
]

_FORMATS: dict[str, ModuleType] = {
    "text": text,
    "image_text": image_text,
    "video_text": video_text,
    "interleaved": interleaved,
    "obelics": obelics,
    "mmc4": mmc4,
    "chat": chat,
    "packed": packed,
    "energon": energon,
}

CONVERSATIONS = frozenset({"chat", "packed"})
"""Formats that give nothing but conversations: they need a chat template."""


def load_format(name: str) -> Format:
    """The format of that name, or the function that ``package.module:function`` names.

    Raises ConfigError when there is no such format, module or function.
    """
    if name in _FORMATS:
        return cast(Format, getattr(_FORMATS[name], name))
    module_name, colon, function_name = name.partition(":")
    if not colon:
        known = [*_FORMATS, AUTO]
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"formats are {', '.join(known)}"
        raise ConfigError(f"format={name!r}: {hint} or your own as 'package.module:function'")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"format={name!r}: can't import {module_name!r} ({error}); is it on the Python path?"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"format={name!r}: {module_name} has no function {function_name!r}")
    return cast(Format, function)


def check_options(name: str, values: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that a built-in format doesn't have."""
    if name not in _FORMATS:
        return
    known = sorted(_FORMATS[name].OPTIONS)
    for option in values:
        if option not in known:
            close = difflib.get_close_matches(str(option), known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
            raise ConfigError(f"format {name!r} has no option {option!r}; {hint}")
