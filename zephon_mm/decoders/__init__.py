"""Video decoders, one file a library, each imported only when asked for.

What decoders give is of a pixel class (C7). All decoders of ``planes-v1`` give the same planes or
refuse a clip, and then the reference decodes it. A decoder that can give only RGB has a class of
its own, in which nothing falls back: what it refuses is damaged.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple, cast

from ..errors import ConfigError, MissingDependencyError
from .base import Decoder
from .surfaces import SurfaceDecoder

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
    "dali-gpu": _Entry(".dali_gpu", "DaliGpuDecoder", "zephon-mm[dali]", "rgb-dali-gpu"),
}

_ON_GPU = {
    "nvdec": _DECODERS["torchcodec"]._replace(module=".nvdec", attribute="NvdecDecoder"),
    "dali-gpu": _DECODERS["dali-gpu"],
}
"""Those that decode on a GPU: what they give is a `surfaces.SurfaceDecoder`'s."""


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
    return cast(Decoder, _class_of(name, _DECODERS[name])())


def surface_decoder_for(pixel_class: str) -> str | None:
    """The decoder on a GPU that gives pixels of a class; None: no GPU gives them."""
    names = (n for n, entry in _ON_GPU.items() if entry.pixel_class == pixel_class)
    return next(names, None)


def load_surface_decoder(name: str, device: str) -> SurfaceDecoder:
    """The decoder of that name on a GPU, given as ``cuda:0``.

    Raises:
        MissingDependencyError: its library, or what it needs of the driver, is not there.
    """
    return cast(SurfaceDecoder, _class_of(name, _ON_GPU[name])(device))


def _class_of(name: str, entry: _Entry) -> Any:
    try:
        found = importlib.import_module(entry.module, __name__)
    except (ImportError, RuntimeError, OSError) as error:  # torchcodec raises what a loader does
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise MissingDependencyError(
            f"decoder {name!r} can't be loaded ({line}); install it with "
            f"`pip install {entry.package!r}`{entry.also}"
        ) from error
    return getattr(found, entry.attribute)
