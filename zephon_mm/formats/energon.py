"""``energon``: crude samples of Megatron Energon, mapped as in its ``dataset.yaml``.

The options say where things lie, in Energon's own notation: ``jpg`` is a member, ``json[0][value]``
a place in one. ``image`` and ``video`` name members (or a place that names one, or a list), or with
``*`` all of the sample's own; ``caption`` gives a captioned document, ``context`` and ``answers`` a
question and its answer (of several answers the first). Media that lie in an auxiliary store are not
in the sample: it is quarantined, and the reason names the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from ..errors import ConfigError
from ..sample import Document, ImagePart, Part, VideoPart
from .base import FormatOptions, Sample, checked_text, kind_of, malformed, no_text
from .chat import exchange, with_targets

OPTIONS = frozenset({"image", "video", "caption", "context", "answers"})
OWN = "*"
DATASET_FILE = ".nv-meta/dataset.yaml"
_PLACE = re.compile(r"([^\[\]]+)((?:\[[^\[\]]+\])*)")


def energon(sample: Sample, options: FormatOptions) -> Document:
    """A captioned document, or a question and an answer."""
    media: list[Part] = []
    for name, part in (("image", ImagePart), ("video", VideoPart)):
        place = options.string(name)
        if place == OWN:
            own = sample.image_fields() if name == "image" else sample.video_fields()
            media += [part(field) for field in own]
        elif place is not None:
            media += [part(field) for field in _fields(sample, place)]
    context, answers = options.string("context"), options.string("answers")
    if (context is None) != (answers is None):
        raise ConfigError("format 'energon': options.context and options.answers go together")
    if context is None or answers is None:
        caption = options.string("caption")
        if caption is None:
            raise ConfigError(
                "format 'energon': set options.caption, or options.context and options.answers, "
                "as in the field_map of the data set's dataset.yaml"
            )
        return options.captioned(media, _text(sample, caption))
    texts = (_text(sample, context), _text(sample, answers))
    turns = exchange(sample, *texts, media, f"member {sample.member_name(_member(context))!r}")
    return with_targets(Document(turns=turns), f"{answers!r}")


def are_enough(options: Mapping[str, Any]) -> bool:
    """Whether the options say where a document's text is."""
    return "caption" in options or options.keys() >= {"context", "answers"}


def read_field_map(text: str) -> dict[str, str]:
    """The options that a ``dataset.yaml`` gives in its ``field_map``; none where they don't do."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    found = data.get("field_map") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        return {}
    fields = {"caption" if name == "text" else name: place for name, place in found.items()}
    options = {name: fields[name] for name in sorted(OPTIONS & fields.keys())}
    usable = all(isinstance(place, str) and _PLACE.fullmatch(place) for place in options.values())
    return options if usable and are_enough(options) else {}


def _member(place: str) -> str:
    match = _PLACE.fullmatch(place)
    if match is None:
        raise ConfigError(f"format 'energon': {place!r} is no place such as txt or json[0][value]")
    return match[1]


def _value(sample: Sample, place: str) -> Any:
    """What lies at a place inside of a JSON member."""
    member = _member(place)
    value, what = sample.json(member), f"member {sample.member_name(member)!r}"
    for step in re.findall(r"\[([^\[\]]+)\]", place):
        if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            raise malformed(f"{what}: nothing lies at {place!r}")
    return value


def _text(sample: Sample, place: str) -> str:
    if "[" not in place:
        _member(place)
        return sample.text(place)
    value = _value(sample, place)
    if isinstance(value, list):
        if not value:
            raise no_text(f"{place!r} is an empty list")
        value = value[0]
    return checked_text(value, repr(place))


def _fields(sample: Sample, place: str) -> list[str]:
    if "[" not in place:
        sample.member_name(_member(place))
        return [place.lower()]
    value = _value(sample, place)
    found = []
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str):
            raise malformed(f"{place!r} is {kind_of(name)}, expected the name of a member")
        field = sample.resolve(name)
        if field is None:
            raise sample.missing(
                f"member {name[:80]!a} that {place!r} names", "auxiliary stores are not read"
            )
        found.append(field)
    return found
