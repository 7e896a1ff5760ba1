"""Video decoders, one file a library, each imported only when asked for."""

from __future__ import annotations

import importlib
from typing import cast

from ..errors import ConfigError, MissingDependencyError
from .base import Decoder

_DECODERS = {
    "pyav": (".pyav", "PyAVDecoder", "av"),
    "torchcodec": (".torchcodec", "TorchcodecDecoder", "zephon-mm[torchcodec]"),
}
"""Module, class and what to install, of each decoder."""

_ALSO_NEEDED = {
    "torchcodec": "; it needs FFmpeg's shared libraries too, version 4 to 9 (Debian, Ubuntu: "
    "`apt-get install ffmpeg`; conda: `conda install ffmpeg`)"
}


def decoder_names() -> tuple[str, ...]:
    """All there are, the reference decoder first."""
    return tuple(_DECODERS)


def load_decoder(name: str) -> Decoder:
    """The decoder of that name.

    Raises:
        ConfigError: no such decoder.
        MissingDependencyError: its library is not installed.
    """
    if name not in _DECODERS:
        raise ConfigError(f"decoder={name!r}: choose one of {', '.join(sorted(_DECODERS))}")
    module, attribute, package = _DECODERS[name]
    try:
        found = importlib.import_module(module, __name__)
    except (ImportError, RuntimeError, OSError) as error:  # torchcodec raises what a loader does
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise MissingDependencyError(
            f"decoder {name!r} can't be loaded ({line}); install it with "
            f"`pip install {package!r}`{_ALSO_NEEDED.get(name, '')}"
        ) from error
    return cast(Decoder, getattr(found, attribute)())
