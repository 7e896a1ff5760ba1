"""Video decoders, one file a library, each imported only when asked for.

What decoders give is of a pixel class (C7). All decoders of ``planes-v1`` give the same planes or
refuse a clip, and then the reference decodes it. A decoder that can give only RGB has a class of
its own, in which nothing falls back: what it refuses is damaged.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple, cast

from ..errors import ConfigError, MissingDependencyError
from .base import Decoder

REFERENCE = "pyav"
"""The decoder whose verdict on a damaged clip counts (C6)."""


class _Entry(NamedTuple):
    module: str
    attribute: str
    package: str
    pixel_class: str
    also: str = ""


_DECODERS = {
    "pyav": _Entry(".pyav", "PyAVDecoder", "av", "planes-v1"),
    "torchcodec": _Entry(
        ".torchcodec",
        "TorchcodecDecoder",
        "zephon-mm[torchcodec]",
        "planes-v1",
        "; it needs FFmpeg's shared libraries too, version 4 to 9 (Debian, Ubuntu: "
        "`apt-get install ffmpeg`; conda: `conda install ffmpeg`)",
    ),
    "decord": _Entry(".decord", "DecordDecoder", "zephon-mm[decord]", "rgb-decord"),
    "dali-cpu": _Entry(".dali_cpu", "DaliCpuDecoder", "zephon-mm[dali]", "rgb-dali-cpu"),
}


def decoder_names(pixel_class: str | None = None) -> tuple[str, ...]:
    """All there are, or those of one class; a class's own decoder first."""
    return tuple(
        name for name, entry in _DECODERS.items() if pixel_class in (None, entry.pixel_class)
    )


def decoder_for(pixel_class: str, name: str) -> str:
    """The decoder of a run: ``auto`` is the class's own.

    Raises:
        ConfigError: the decoder named gives pixels of another class.
    """
    fit = decoder_names(pixel_class)
    if name == "auto":
        return fit[0]
    if name not in fit:
        other = f" ({name} gives {_DECODERS[name].pixel_class})" if name in _DECODERS else ""
        raise ConfigError(
            f"decoder={name!r} can't provide pixel_class={pixel_class!r}{other}: it is provided by "
            f"{' or '.join(fit)}; pixels of another class are other data, so the class is a field "
            "of DataConfig"
        )
    return name


def load_decoder(name: str) -> Decoder:
    """The decoder of that name.

    Raises:
        ConfigError: no such decoder.
        MissingDependencyError: its library is not installed.
    """
    if name not in _DECODERS:
        raise ConfigError(f"decoder={name!r}: choose one of {', '.join(sorted(_DECODERS))}")
    entry = _DECODERS[name]
    try:
        found = importlib.import_module(entry.module, __name__)
    except (ImportError, RuntimeError, OSError) as error:  # torchcodec raises what a loader does
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise MissingDependencyError(
            f"decoder {name!r} can't be loaded ({line}); install it with "
            f"`pip install {entry.package!r}`{entry.also}"
        ) from error
    return cast(Decoder, getattr(found, entry.attribute)())
