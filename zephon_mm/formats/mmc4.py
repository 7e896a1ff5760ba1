"""``mmc4``: ``text_list`` and ``image_info``, whose pictures come before the text they match.

The pictures are members that ``image_name`` names, the sample's own in order, or, in OpenFlamingo's
shards, base64 in ``image_base64``. OpenFlamingo leaves that out of a picture that it couldn't
download: such an entry is left out where the sample holds others. A sample that holds none of its
pictures is quarantined.
"""

from __future__ import annotations

from typing import Any

from ..sample import Document, ImagePart, Part, TextPart
from .base import (
    FormatOptions,
    Sample,
    checked_list,
    checked_object,
    checked_text,
    kind_of,
    malformed,
)

OPTIONS = frozenset({"json_field", "joiner", "min_similarity"})
_INLINE = "image_base64"


def mmc4(sample: Sample, options: FormatOptions) -> Document:
    """A document of the texts in order, ``joiner`` (a space) between them, pictures before theirs.

    ``min_similarity`` leaves out pictures whose ``matched_sim`` is below it.
    """
    field = options.string("json_field") or "json"
    joiner = options.joiner(" ")
    what = f"member {sample.member_name(field)!r}"
    data = checked_object(sample.json(field), what)
    texts = checked_list(data.get("text_list"), f"{what}: 'text_list'")
    values = checked_list(data.get("image_info"), f"{what}: 'image_info'")
    infos = [checked_object(v, f"{what}: 'image_info'[{at}]") for at, v in enumerate(values)]
    before: list[list[Part]] = [[] for _ in texts]
    least = options.number("min_similarity")
    for info, picture in _pictures(sample, infos, f"{what}: 'image_info'"):
        place = info.get("matched_text_index")
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < len(texts):
            shown = place if isinstance(place, int) else kind_of(place)
            raise malformed(
                f"{what}: matched_text_index {shown} is of none of the {len(texts)} texts"
            )
        if least is None or _similarity(info, what) >= least:
            before[place].append(ImagePart(picture))
    parts: list[Part] = []
    for at, text in enumerate(texts):
        parts += before[at]
        parts.append(TextPart(checked_text(text, f"{what}: 'text_list'[{at}]")))
        if at < len(texts) - 1:
            parts.append(TextPart(joiner))
    return options.surrounded(parts)


def _pictures(
    sample: Sample, infos: list[dict[str, Any]], what: str
) -> list[tuple[dict[str, Any], str]]:
    """The entries whose picture is there, each with its picture's field."""
    held = [info for info in infos if info.get(_INLINE) is not None]
    if held:
        names = [_name(info, _INLINE, what) for info in held]
        lost = sum(sample.resolve(name) is None for name in names)
        if lost:
            raise malformed(f"{what}: {lost} of {len(held)} pictures are not base64 of a picture")
        return list(zip(held, names, strict=True))
    names = [_name(info, "image_name", what) for info in infos]
    return list(zip(infos, sample.pictures(names, what), strict=True))


def _name(info: dict[str, Any], key: str, what: str) -> str:
    name = info.get(key)
    if not isinstance(name, str):
        raise malformed(f"{what}: {key!r} is {kind_of(name)}, expected a string")
    return name


def _similarity(info: dict[str, Any], what: str) -> float:
    value = info.get("matched_sim")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise malformed(f"{what}: 'matched_sim' is {kind_of(value)}, expected a number")
    return float(value)
