"""``packed``: rows that were packed before they were written, several conversations a sample.

- Qwen: a list of samples ``{image, conversations}``, each with its own files;
- LLaVA-OneVision-1.5: ``{images, prompts, captions}`` and members ``img0.jpg`` …, one exchange an
  entry. An entry may hold lists: several pictures, several exchanges.

Each conversation is written by the chat template on its own, one after the other, and is trained on
like any. They are one document: positions and attention run through the whole row.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from ..sample import Document, ImagePart, Part, Turn
from .base import (
    FormatOptions,
    Sample,
    checked_list,
    checked_object,
    checked_text,
    kind_of,
    malformed,
)
from .chat import count_markers, exchange, read_turns, with_targets

OPTIONS = frozenset({"json_field"})


def packed(sample: Sample, options: FormatOptions) -> Document:
    """A document of all of the row's conversations. No text to learn from: filtered."""
    field = options.string("json_field") or "json"
    what = f"member {sample.member_name(field)!r}"
    data = sample.json(field)
    if isinstance(data, list):
        alone = len(data) == 1
        row = [
            read_turns(sample, _conversation(item, f"{what}[{at}]"), f"{what}[{at}]", alone=alone)
            for at, item in enumerate(data)
        ]
    else:
        row = _captions(sample, checked_object(data, what), what)
    turns = [
        turn._replace(opens=True) if at == 0 else turn
        for conversation in row
        for at, turn in enumerate(conversation)
    ]
    return with_targets(Document(turns=tuple(turns)), what)


def _conversation(value: Any, what: str) -> dict[str, Any]:
    if (found := checked_object(value, what)).get("tools"):
        raise malformed(f"{what}: 'tools' would be lost in a packed row: write it as a sample")
    return found


def _captions(sample: Sample, data: dict[str, Any], what: str) -> list[tuple[Turn, ...]]:
    captions = checked_list(data.get("captions"), f"{what}: 'captions'")
    prompts = data.get("prompts") or [""] * len(captions)
    images = checked_list(data.get("images"), f"{what}: 'images'")
    for name, values in (
        ("prompts", checked_list(prompts, f"{what}: 'prompts'")),
        ("images", images),
    ):
        if len(values) != len(captions):
            raise malformed(f"{what}: {len(values)} {name} for {len(captions)} captions")
    names = [[_name(name, what) for name in _many(entry)] for entry in images]
    found = iter(sample.pictures([name for entry in names for name in entry], f"{what}: 'images'"))
    row: list[tuple[Turn, ...]] = []
    for at, entry in enumerate(names):
        asked, answered = _many(prompts[at]), _many(captions[at])
        if len(asked) != len(answered):
            raise malformed(f"{what}: {len(asked)} prompts for {len(answered)} captions at {at}")
        media: list[Part] = [ImagePart(next(found)) for _ in entry]
        prompts_of = [checked_text(prompt, f"{what}: 'prompts'") for prompt in asked]
        places = [count_markers(prompt) for prompt in prompts_of]
        spread = sum(places) == len(media)  # else all of them stand in the first
        left = iter(media)
        turns: list[Turn] = []
        for prompt, caption, count in zip(prompts_of, answered, places, strict=True):
            shown = list(islice(left, count if spread else len(media)))
            texts = (prompt, checked_text(caption, what))
            turns += exchange(sample, *texts, shown, f"{what}: entry {at}")
        row.append(tuple(turns))
    return row


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise malformed(f"{what}: 'images' holds {kind_of(value)}, expected the name of a picture")
    return value
