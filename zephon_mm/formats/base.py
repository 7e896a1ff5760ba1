"""What a format sees of a sample, and the checks that every format shares.

A format is a function ``(Sample, FormatOptions) -> Document``. It names media by their field and
never reads their bytes. Whatever is wrong with the sample's own bytes leaves it as
``SampleError``: ``filtered`` where there is nothing to learn from (no text), ``quarantined`` where
it can't be read. Reasons are one line and never quote the sample's content.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, SampleError
from ..media.info import media_kind
from ..sample import Document, Part, TextPart
from .template import captioned, surrounded

_Bytes = bytes
_NAMES_SHOWN = 8
_DIGITS = re.compile(r"(\d+)")


class Sample:
    """One sample of a shard: names and positions of its members; bytes are read when asked for.

    Args:
        key: the sample's key, case kept.
        shard: URL of its shard, for messages.
        fields: field (lower-cased, without a leading dot) to position of the member in the index.
        read: position to bytes; raises the world's failures, which pass through untouched.
        name: position to the member's full name in the tar.
    """

    __slots__ = ("_name", "_names", "_read", "fields", "key", "shard")

    def __init__(
        self,
        key: str,
        shard: str,
        fields: Mapping[str, int],
        read: Callable[[int], bytes | memoryview],
        name: Callable[[int], str],
    ) -> None:
        self.key = key
        self.shard = shard
        self.fields = fields
        self._read = read
        self._name = name
        self._names: dict[int, str] = {}

    def has(self, field: str) -> bool:
        return field.lower() in self.fields

    def member_name(self, field: str) -> str:
        """The full name of the member that holds ``field``."""
        position = self._position(field)
        if position not in self._names:
            self._names[position] = self._name(position)
        return self._names[position]

    def describe(self) -> str:
        """The members' full names, for a message; a long list is cut."""
        names = [repr(self._name(position)) for position in self.fields.values()]
        more = len(names) - _NAMES_SHOWN
        shown = ", ".join(names[:_NAMES_SHOWN]) or "nothing"
        return f"{shown} and {more} more" if more > 0 else shown

    def bytes(self, field: str) -> _Bytes:
        """The member's bytes. Raises SampleError if there is no such field."""
        return _Bytes(self._read(self._position(field)))

    def text(self, field: str) -> str:
        """The member as UTF-8, less a leading byte order mark. SampleError if it is not UTF-8."""
        try:
            return str(self._read(self._position(field)), "utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise SampleError(
                f"member {self.member_name(field)!r} is not UTF-8 (byte {error.start})",
                stage="format",
            ) from error

    def json(self, field: str = "json") -> Any:
        """The member as JSON; SampleError for anything that ``parse_json`` refuses.

        Where it holds a medium as base64, the value is the field that the index has given it.
        """
        data = parse_json(self.text(field), f"member {self.member_name(field)!r}")
        for inside in [name for name in self.fields if name.startswith(f"{field.lower()}#/")]:
            pointer = self.member_name(inside)[len(self.key) + 1 :].partition("#/")[2]
            _put(data, pointer.rpartition(".")[0].split("/"), inside)
        return data

    def image_fields(self) -> tuple[str, ...]:
        """Fields whose last extension is a picture's; numbers in names order as numbers."""
        return _of_kind(self.fields, "image")

    def video_fields(self) -> tuple[str, ...]:
        """Fields whose last extension is a clip's; numbers in names order as numbers."""
        return _of_kind(self.fields, "video")

    def one_of(self, extensions: Iterable[str]) -> str | None:
        """The one field that is exactly one of ``extensions``; None if there is none.

        Raises SampleError when there are several, since choosing one would be a guess.
        """
        known = frozenset(extensions)
        found = sorted(field for field in self.fields if field in known)
        if len(found) > 1:
            raise SampleError(
                f"fields {', '.join(map(repr, found))} compete: name one in the source's options",
                stage="format",
            )
        return found[0] if found else None

    def missing(self, wanted: str, hint: str = "") -> SampleError:
        """The error for a required member that isn't there; it names those that are."""
        end = f"; {hint}" if hint else ""
        return SampleError(f"no {wanted}: the sample has {self.describe()}{end}", stage="format")

    def resolve(self, name: str) -> str | None:
        """The field that ``name`` means: a field, or a member's name with or without its folder.

        Raises SampleError where it is the field of one member and the name of another.
        """
        folder, _, base = self.key.rpartition("/")
        low = name.lower()
        field = low if low in self.fields else None
        for prefix in (self.key, base) if folder else (self.key,):
            if name.startswith(prefix + ".") and (rest := low[len(prefix) + 1 :]) in self.fields:
                if field is not None:
                    names = f"{self.member_name(field)!r} and {self.member_name(rest)!r}"
                    raise malformed(f"{name[:80]!a} could mean the members {names}")
                return rest
        return field

    def find(self, names: Iterable[str], what: str) -> dict[str, str | None]:
        """The field that each name means, or the last part of it if it is a path or a URL.

        Raises SampleError where two paths end in the name of one member: which it is, is a guess.
        """
        found: dict[str, str | None] = {}
        by_base: dict[str, str] = {}
        for name in dict.fromkeys(names):
            field = self.resolve(name)
            if field is None and (field := self.resolve(_base(name))) is not None:
                other = by_base.setdefault(field, name)
                if other != name:
                    raise malformed(
                        f"{what}: {other[:80]!a} and {name[:80]!a} both end in the name of member "
                        f"{self.member_name(field)!r}"
                    )
            found[name] = field
        return found

    def pictures(self, names: Sequence[str], what: str) -> list[str]:
        """The fields of the pictures that ``names`` mean, in order.

        Members of those names (or of the base names of their paths and URLs), or where none is
        there the sample's own pictures in order, if they are as many; else SampleError.
        """
        fields = self.find(names, what)
        found = [fields[name] for name in names]
        own = self.image_fields()
        if not any(found) and len(own) == len(names):
            return list(own)
        if None in found:
            place = found.index(None)
            raise malformed(
                f"{what} names {len(names)} pictures and {len(found) - found.count(None)} of them "
                f"are here (not {names[place][:80]!a}); the sample has {self.describe()}"
            )
        return [field for field in found if field is not None]

    def _position(self, field: str) -> int:
        try:
            return self.fields[field.lower()]
        except KeyError:
            raise self.missing(f"member {field!a}") from None


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """A source's ``options`` and the run's template, as a format function gets them."""

    values: Mapping[str, Any] = field(default_factory=dict)
    template: str = "{media}{text}<|endoftext|>"

    def string(self, name: str) -> str | None:
        """The option as a non-empty string, or None. Raises ConfigError for another type."""
        value = self.values.get(name)
        if value is not None and not (isinstance(value, str) and value):
            raise ConfigError(f"options.{name}={value!r}: must be a non-empty string")
        return value

    def flag(self, name: str) -> bool:
        """The option as true or false (default). Raises ConfigError for another type."""
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise ConfigError(f"options.{name}={value!r}: must be true or false")
        return value

    def joiner(self, default: str) -> str:
        """The option ``joiner``: any string, the empty one too."""
        value = self.values.get("joiner", default)
        if not isinstance(value, str):
            raise ConfigError(f"options.joiner={value!r}: must be a string")
        return value

    def number(self, name: str) -> float | None:
        """The option as a finite number, or None. Raises ConfigError for another type."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"options.{name}={value!r}: must be a number")
        return float(value)

    def captioned(self, media: Sequence[Part], text: str) -> Document:
        """Media and one text in the template's order. Blank text: filtered."""
        if not text.strip():
            raise no_text("the text is empty" if not text else "the text is blank")
        return Document(parts=captioned(self.template, media, text))

    def surrounded(self, parts: Sequence[Part]) -> Document:
        """Parts in their own order, the template's outer text around. No text: filtered."""
        if not has_text(parts):
            raise no_text("no part has text")
        return Document(parts=surrounded(self.template, parts))


Format = Callable[[Sample, FormatOptions], Document]


def has_text(parts: Iterable[Part]) -> bool:
    """Whether any part is text that is not blank."""
    return any(isinstance(part, TextPart) and part.text.strip() for part in parts)


def no_text(reason: str) -> SampleError:
    """The outcome of a sample that has nothing to learn from."""
    return SampleError(reason, stage="format", kind="filtered")


def malformed(reason: str) -> SampleError:
    """The outcome of a sample whose content has the wrong shape."""
    return SampleError(reason, stage="format")


def parse_json(text: str, what: str) -> Any:
    """Parse JSON, or raise SampleError: bad syntax, a repeated key, nesting that is too deep.

    ``NaN`` and ``Infinity`` pass as numbers, since writers of metadata leave them beside good
    captions; a format that meets one where it needs a value refuses it.
    """
    try:
        return _JSON.decode(text)
    except SampleError as error:
        raise malformed(f"{what}: {error.reason}") from None
    except json.JSONDecodeError as error:
        raise malformed(f"{what} is not JSON ({error.msg} at character {error.pos})") from error
    except RecursionError:
        raise malformed(f"{what} is not usable JSON (nested too deep)") from None
    except ValueError as error:  # an integer of thousands of digits
        raise malformed(f"{what} is not usable JSON (a number is too long)") from error


def checked_text(value: Any, what: str) -> str:
    """``value`` as text that a tokeniser can take; null reads as empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise malformed(f"{what} is {kind_of(value)}, expected a string")
    try:
        if not value.isascii():
            value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise malformed(f"{what} holds half a surrogate pair (character {error.start})") from error
    return value


def checked_list(value: Any, what: str) -> list[Any]:
    """``value`` if it is a list, or SampleError."""
    if not isinstance(value, list):
        raise malformed(f"{what} is {kind_of(value)}, expected a list")
    return value


def checked_object(value: Any, what: str) -> dict[str, Any]:
    """``value`` if it is an object, or SampleError."""
    if not isinstance(value, dict):
        raise malformed(f"{what} is {kind_of(value)}, expected an object")
    return value


def seconds(value: Any, what: str) -> float:
    """A time as seconds: a number, or ``SS[.fff]``, ``MM:SS[.fff]``, ``HH:MM:SS[.fff]``."""
    if isinstance(value, str):
        parts = value.strip().split(":")
        if len(parts) <= 3 and all(re.fullmatch(r"[0-9]{1,9}", p) for p in parts[:-1]):
            if re.fullmatch(r"[0-9]{1,9}([.,][0-9]{1,9})?", parts[-1]):
                total = float(parts[-1].replace(",", "."))
                for scale, part in zip((60, 3600), reversed(parts[:-1]), strict=False):
                    total += scale * int(part)
                return total
        raise malformed(f"{what} is not a time such as 1.5 or '00:00:01.500'")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise malformed(f"{what} is {kind_of(value)}, expected a time in seconds")
    if not (0 <= value < 1e9 and math.isfinite(value)):
        raise malformed(f"{what} is not a time of 0 seconds or more")
    return float(value)


def window(start: Any, end: Any, what: str) -> tuple[float, float]:
    """A clip window in seconds; SampleError unless it ends after it starts."""
    first, last = seconds(start, f"{what} start"), seconds(end, f"{what} end")
    if not first < last:
        raise malformed(f"{what} ends at {last:g} s, not after its start at {first:g} s")
    return first, last


def kind_of(value: Any) -> str:
    """What JSON calls the value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    for kind, name in ((str, "a string"), (list, "a list"), (dict, "an object")):
        if isinstance(value, kind):
            return name
    return type(value).__name__


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise malformed(f"the key {twice[:40]!a} comes twice in one object")
    return result


_JSON = json.JSONDecoder(object_pairs_hook=_unique)


def _put(data: Any, path: list[str], value: str) -> None:
    """Set the value at a JSON pointer's place, which is there."""
    for at, token in enumerate(path):
        step = int(token) if isinstance(data, list) else token.replace("~1", "/").replace("~0", "~")
        if at == len(path) - 1:
            data[step] = value
        else:
            data = data[step]


def _base(name: str) -> str:
    return name.partition("?")[0].replace("\\", "/").rpartition("/")[2] or name


def _of_kind(fields: Iterable[str], kind: str) -> tuple[str, ...]:
    found = [name for name in fields if media_kind(name) == kind]
    return tuple(found if len(found) < 2 else sorted(found, key=_natural))


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [
        (0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in _DIGITS.split(name)
        if part
    ]
