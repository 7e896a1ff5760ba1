"""Video decoders, one file a library, each imported only when asked for."""

from __future__ import annotations

import importlib
from typing import cast

from ..errors import ConfigError, MissingDependencyError
from .base import Decoder

_DECODERS = {"pyav": (".pyav", "PyAVDecoder", "av")}


def load_decoder(name: str) -> Decoder:
    """The decoder of that name.

    Raises:
        ConfigError: no such decoder.
        MissingDependencyError: its library is not installed.
    """
    if name not in _DECODERS:
        raise ConfigError(f"decoder={name!r}: choose one of {', '.join(sorted(_DECODERS))}")
    module, attribute, extra = _DECODERS[name]
    try:
        found = importlib.import_module(module, __name__)
    except ImportError as error:
        raise MissingDependencyError(
            f"decoder {name!r} needs the library {extra!r} ({error}); install it with "
            f"`pip install {extra}`"
        ) from error
    return cast(Decoder, getattr(found, attribute)())
