"""``interleaved``: text, pictures and clips in reading order.

The ``json`` member is a list of parts, or an object with the list under ``parts``. A part has one
of ``text``, ``image`` and ``video``; a picture or clip is named by its field or its member's name,
a clip may have ``start`` and ``end`` in seconds.
"""

from __future__ import annotations

from typing import Any

from ..sample import Document, ImagePart, Part, TextPart, VideoPart
from .base import (
    FormatOptions,
    Sample,
    checked_list,
    checked_object,
    checked_text,
    kind_of,
    malformed,
    window,
)

OPTIONS = frozenset({"json_field", "parts_key"})
_KINDS = ("text", "image", "video")


def interleaved(sample: Sample, options: FormatOptions) -> Document:
    """A document whose parts keep the order of the list."""
    field = options.string("json_field") or "json"
    key = options.string("parts_key") or "parts"
    what = f"member {sample.member_name(field)!r}"
    data = sample.json(field)
    if isinstance(data, dict):
        if key not in data:
            raise malformed(f"{what}: no key {key!r} with the list of parts")
        data, what = data[key], f"{what}: {key!r}"
    items = checked_list(data, what)
    return options.surrounded([_part(sample, item, f"{what}[{i}]") for i, item in enumerate(items)])


def _part(sample: Sample, value: Any, what: str) -> Part:
    item = checked_object(value, what)
    given = [kind for kind in _KINDS if item.get(kind) is not None]
    if len(given) != 1:
        raise malformed(f"{what} has {' and '.join(given) or 'none'} of text, image and video")
    kind = given[0]
    if kind == "text":
        return TextPart(checked_text(item["text"], f"{what} 'text'"))
    name = item[kind]
    if not isinstance(name, str):
        raise malformed(f"{what} {kind!r} is {kind_of(name)}, expected the name of a member")
    field = sample.resolve(name)
    if field is None:
        raise sample.missing(f"member {name[:80]!a} that {what} names")
    if kind == "image":
        return ImagePart(field)
    if item.get("start") is None and item.get("end") is None:
        return VideoPart(field)
    return VideoPart(field, *window(item.get("start"), item.get("end"), what))
