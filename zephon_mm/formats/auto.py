"""``auto``: which format a source's samples have, told from their members and JSON keys.

Each sample that is looked at is taken for one format, by the first rule that fits; the source's
format is the one that most are taken for. It depends on the samples' bytes alone, but for Energon,
whose ``dataset.yaml`` or the source's options say where things lie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, SampleError
from .base import FormatOptions, Sample
from .chat import MESSAGE_KEYS
from .energon import OWN, are_enough

AUTO = "auto"
LOOKED_AT = 20
"""Samples of a source that are looked at."""

_PARTS = frozenset({"text", "image", "video"})


@dataclass(frozen=True, slots=True)
class Choice:
    """The format that was taken, the sentence that says why, and options that it needs."""

    format: str
    reason: str
    options: dict[str, str] = field(default_factory=dict)


def choose(
    source: str,
    samples: Sequence[Sample],
    options: Mapping[str, Any],
    field_map: Mapping[str, str] | None = None,
) -> Choice:
    """The format of a source.

    Args:
        source: its id, for messages.
        samples: those to look at, in order.
        options: of the source.
        field_map: what the ``dataset.yaml`` of an Energon data set says; used if ``options`` say
            nothing.

    Raises:
        ConfigError: no sample has a known shape.
    """
    if are_enough(options):
        return Choice("energon", "the options are Energon's")
    if field_map and not options:
        return Choice("energon", "its dataset.yaml has a field_map", dict(field_map))
    given = FormatOptions(options)
    looks = [_look(sample, given) for sample in samples]
    votes = Counter(look.format for look in looks if look.format)
    if not votes:
        seen = looks[0].reason if looks else "it has no sample that could be read"
        raise ConfigError(
            f"source {source!r}: format='auto' knows none of the {len(looks)} samples looked at; "
            f"the first: {seen}. Name the format, or your own function"
        )
    name, count = votes.most_common(1)[0]  # of equals the one that was seen first
    reasons = Counter(look.reason for look in looks if look.format == name)
    why = reasons.most_common(1)[0][0]
    needed = next(look.options for look in looks if (look.format, look.reason) == (name, why))
    rest = [f"{n} look like {other}" for other, n in votes.most_common()[1:]]
    if needed and not options:  # they are read alike, and these where others have it elsewhere
        count = reasons[why]
        rest = [f"{n} have {other}" for other, n in reasons.most_common()[1:]] + rest
    unknown = len(looks) - sum(votes.values())
    rest += [f"{unknown} like nothing known"] if unknown else []
    tail = f" ({', '.join(rest)})" if rest else ""
    reason = f"{count} of {len(looks)} samples looked at have {why}{tail}"
    return Choice(name, reason, {} if options else needed)


def _look(sample: Sample, options: FormatOptions) -> Choice:
    """What one sample is taken for; an empty format: for nothing known."""
    field = options.string("json_field") or "json"
    data: Any = None
    if sample.has(field):
        try:
            data = sample.json(field)
        except SampleError as error:
            return Choice("", error.reason)
    found = _of_list(data) if isinstance(data, list) else None
    if isinstance(data, dict):
        found = _of_object(data, options)
    return found or _of_members(sample, data) or Choice("", f"it has {sample.describe()}")


def _of_list(data: list[Any]) -> Choice | None:
    heads = [item for item in data if isinstance(item, dict)]
    if not heads or len(heads) != len(data):
        return None
    if all(map(_is_message, heads)):
        return Choice("chat", "a JSON list of messages")
    if all(any(isinstance(head.get(key), list) for key in MESSAGE_KEYS) for head in heads):
        return Choice("packed", "a JSON list of conversations")
    if all(_PARTS & head.keys() for head in heads):
        return Choice("interleaved", "a JSON list of text, image and video")
    return None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and ("role" in value or "from" in value)


def _of_object(data: dict[str, Any], options: FormatOptions) -> Choice | None:
    def lists(*keys: str) -> bool:
        return all(isinstance(data.get(key), list) for key in keys)

    if lists("text_list", "image_info"):
        return Choice("mmc4", "a JSON with 'text_list' and 'image_info'")
    if lists("captions", "images"):
        return Choice("packed", "a JSON with 'images' and 'captions'")
    if lists("images", "texts") and not any(isinstance(text, dict) for text in data["texts"]):
        return Choice("obelics", "a JSON with 'images' and 'texts'")
    own = options.string("messages_key")
    for key in MESSAGE_KEYS if own is None else (own,):
        if lists(key) and (own or all(map(_is_message, data[key]))):
            return Choice("chat", f"a JSON with {key!r}")
    key = options.string("parts_key") or "parts"
    return Choice("interleaved", f"a JSON with {key!r}") if lists(key) else None


def _of_members(sample: Sample, data: Any) -> Choice | None:
    keys = data.keys() if isinstance(data, dict) else ()
    text = "txt" if sample.has("txt") else next((k for k in ("caption", "text") if k in keys), None)
    if text is None:
        return _of_question(sample, keys)
    where = "a member txt" if text == "txt" else f"a JSON with {text!r}"
    if any("/" not in field for field in sample.video_fields()):
        return Choice("video_text", f"a clip and {where}")
    if any("/" not in field for field in sample.image_fields()):
        return Choice("image_text", f"a picture and {where}")
    return Choice("text", f"{where} and no media") if text != "caption" else None


def _of_question(sample: Sample, keys: Iterable[str]) -> Choice | None:
    """A crude sample of Energon's: one picture or clip, a question and its answer."""
    own = [*sample.image_fields(), *sample.video_fields()]
    asked = next((key for key in ("context", "question") if key in keys), None)
    answered = next((key for key in ("answers", "answer") if key in keys), None)
    if len(own) != 1 or not asked or not answered:
        return None
    reason = f"a picture or a clip and a JSON with {asked!r} and {answered!r}"
    places = {"context": f"json[{asked}]", "answers": f"json[{answered}]"}
    return Choice("energon", reason, {"image": OWN, "video": OWN, **places})
