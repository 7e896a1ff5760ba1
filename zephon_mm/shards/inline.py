"""Pictures and clips that a JSON member holds as base64, as members of their own.

OpenFlamingo's MMC4 shards (``image_info[i].image_base64``) and chats with ``data:`` URLs put media
inside the JSON. The index gives each a row: its field is the JSON member's, ``#``, the place as a
JSON pointer (RFC 6901), and an extension by the first bytes, as ``json#/images/0.jpg``. Its stored
bytes are the base64 text, its length and checksum those of the decoded file. No file in a tar has
such a field: a field never holds a slash, since keys end in the base name.

Only JSON that says ``base64`` somewhere is looked at, so others cost one search of their bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_ESCAPED = (b"\\/", b"\\n", b"\\r")
_RAW = re.compile(
    rb'(?<!\\)"(?:data:[\w.+/;=,\\-]{0,100}?;base64,)?((?:[A-Za-z0-9+/]|\\[/nr]){40,}={0,2}'
    rb'(?:\\[nr])*)"(?!\s*:)'
)
_TEXT = re.compile(
    r"(?:data:[\w.+/;=,-]{0,100}?;base64,)?([A-Za-z0-9+/\r\n]{40,}={0,2}[\r\n]*)", re.ASCII
)
_SIGNATURES = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"\x1aE\xdf\xa3", "mkv"),
)
_BRANDS = {b"avif": "avif", b"avis": "avif", b"heic": "heic", b"mif1": "heic"}


@dataclass(frozen=True, slots=True)
class Inline:
    """A medium inside a JSON member.

    Attributes:
        extension: of its row, see above.
        start, stop: its base64 text in the JSON member's bytes.
        content: the decoded file.
    """

    extension: str
    start: int
    stop: int
    content: bytes


def is_inline(field: str) -> bool:
    """Whether a field is that of a medium inside a JSON member."""
    return "/" in field


def decode(stored: bytes | memoryview) -> bytes:
    """The file that base64 text of a JSON string stands for.

    Raises:
        ValueError: it isn't base64.
    """
    text = bytes(stored)
    for escaped, plain in zip(_ESCAPED, (b"/", b"", b""), strict=True):
        text = text.replace(escaped, plain)
    return base64.b64decode(text, validate=True)


def find_inline(extension: str, data: bytes | memoryview) -> list[Inline]:
    r"""The media in a member's bytes, in order; empty for what is no JSON with base64 in it.

    Strings are found twice, in the bytes and in the parsed JSON, and must be the same ones:
    where that fails (an escape such as ``\u002b`` inside of base64) none is given, and the format
    quarantines the sample for want of the medium.
    """
    if extension.rpartition(".")[2].lower() != "json":
        return []
    raw = bytes(data)
    if b"base64" not in raw:
        return []
    try:
        strings = list(_strings(json.loads(raw), ""))
    except (ValueError, RecursionError):
        return []
    texts = [(place, m[1]) for place, text in strings if (m := _TEXT.fullmatch(text))]
    spans = [match.span(1) for match in _RAW.finditer(raw)]
    if len(texts) != len(spans):
        return []
    found: list[Inline] = []
    for (place, text), (start, stop) in zip(texts, spans, strict=True):
        try:
            content = decode(raw[start:stop])
            if content != base64.b64decode(text.replace("\r", "").replace("\n", "")):
                return []
        except (binascii.Error, ValueError):
            continue
        kind = _kind(content)
        if kind is not None and place.isprintable():
            found.append(Inline(f"{extension}#{place}.{kind}", start, stop, content))
    fields = [each.extension.lower() for each in found]
    return found if len(set(fields)) == len(fields) else []


def _strings(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """JSON pointer and value of every string that is a value, in the order of the text."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _strings(item, f"{place}/{at}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, f"{place}/{key.replace('~', '~0').replace('/', '~1')}")


def _kind(content: bytes) -> str | None:
    """The extension that a file's first bytes ask for, or None."""
    for signature, extension in _SIGNATURES:
        if content.startswith(signature):
            return extension
    if content[:4] == b"RIFF":
        return {b"WEBP": "webp", b"AVI ": "avi"}.get(content[8:12])
    if content[4:8] == b"ftyp":
        return _BRANDS.get(content[8:12], "mp4")
    return None
