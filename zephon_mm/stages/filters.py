"""Filters of a source (`config.filter.Filter`), applied while a sample is measured.

Keys are looked at before anything is read, numbers of the document's media and text once the format
has read the text, and the user's function last.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..config.filter import Filter, Limits
from ..errors import ConfigError, SampleError, ZephonError
from ..media.info import ImageInfo, VideoInfo
from ..sample import Document, ImagePart, TextPart, VideoPart


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a filter function is shown of a sample.

    Attributes:
        key, shard: of the sample.
        document: what the format made of it.
        media: headers of its pictures and clips, in order.
    """

    key: str
    shard: str
    document: Document
    media: tuple[ImageInfo | VideoInfo, ...]

    @property
    def text(self) -> str:
        """All of its text, template text left out."""
        parts = self.document.all_parts
        return "".join(p.text for p in parts if isinstance(p, TextPart) and not p.special)


class SampleFilter:
    """A source's filter, ready to be asked.

    Raises:
        ConfigError: its function isn't there.
    """

    def __init__(self, settings: Filter) -> None:
        self._settings = settings
        self.active = settings.active
        self._function = None if settings.function is None else load_filter(settings.function)

    def check_key(self, key: str) -> None:
        """Raise SampleError (``filtered``) for a key that the patterns leave out."""
        keys, others = self._settings.keys, self._settings.not_keys
        if keys and not any(fnmatchcase(key, pattern) for pattern in keys):
            raise _filtered("its key matches none of filter.keys")
        for pattern in others:
            if fnmatchcase(key, pattern):
                raise _filtered(f"its key matches filter.not_keys {pattern!r}")

    def check(self, candidate: Candidate) -> None:
        """Raise SampleError (``filtered``) for a sample that a limit or the function leaves out."""
        parts = candidate.document.all_parts
        for name, kind in (("images", ImagePart), ("videos", VideoPart)):
            self._check(name, sum(isinstance(part, kind) for part in parts))
        if self._settings.text_length is not None:
            self._check("text_length", len(candidate.text))
        for info in candidate.media:
            if info.problem is not None:
                continue  # measuring quarantines it
            self._check("width", info.width)
            self._check("height", info.height)
            self._check("aspect", info.width / info.height)
            if isinstance(info, VideoInfo):
                self._check("duration", float(info.duration))
                self._check("fps", info.frames_per_second)
                self._check("frames", info.num_frames)
        if not self._function_keeps(candidate):
            raise _filtered(f"filter.function {self._settings.function} left it out")

    def _check(self, name: str, value: float) -> None:
        limits: Limits | None = getattr(self._settings, name)
        if limits is None:
            return
        least, most = limits
        if least is not None and value < least:
            raise _filtered(f"{name} {value:g} is below filter.{name} {least:g}")
        if most is not None and value > most:
            raise _filtered(f"{name} {value:g} is above filter.{name} {most:g}")

    def _function_keeps(self, candidate: Candidate) -> bool:
        if self._function is None:
            return True
        try:
            return bool(self._function(candidate))
        except (ZephonError, OSError, MemoryError):
            raise
        except Exception as error:
            raise SampleError(
                f"filter.function raised {type(error).__name__}: {error}", stage="filter"
            ) from error


def load_filter(name: str) -> Callable[[Candidate], object]:
    """The function that ``package.module:function`` names. Raises ConfigError if it isn't there."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"filter.function={name!r}: can't import {module_name!r} ({error}); is it on the "
            "Python path?"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(
            f"filter.function={name!r}: {module_name} has no function {function_name!r}"
        )
    found: Callable[[Candidate], object] = function
    return found


def _filtered(reason: str) -> SampleError:
    return SampleError(reason, stage="filter", kind="filtered")
