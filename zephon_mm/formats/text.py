"""``text``: one text a sample, from a ``txt`` member or a key of the ``json`` member."""

from __future__ import annotations

from collections.abc import Sequence

from ..sample import Document
from .base import FormatOptions, Sample, checked_object, checked_text, no_text

OPTIONS = frozenset({"text_key", "text_field"})


def text(sample: Sample, options: FormatOptions) -> Document:
    """A document of text alone."""
    return options.captioned((), read_text(sample, options, ("text",)))


def read_text(sample: Sample, options: FormatOptions, keys: Sequence[str]) -> str:
    """The sample's text.

    From the member that ``text_field`` names; else, if ``text_key`` is not set, from ``txt``; else
    from ``json``, under ``text_key`` or the first of ``keys`` that is there. A key that is absent
    or null is a text that isn't there (filtered); a member that isn't there is quarantined.
    """
    key = options.string("text_key")
    field = options.string("text_field")
    if field is None:
        field = "txt" if key is None and sample.has("txt") else "json"
        if not sample.has(field):
            raise sample.missing("text (a member 'txt' or 'json')" if key is None else "'json'")
    if field.rpartition(".")[2] != "json":
        return sample.text(field)
    what = f"member {sample.member_name(field)!r}"
    data = checked_object(sample.json(field), what)
    wanted = keys if key is None else (key,)
    for name in wanted:
        if data.get(name) is not None:
            return checked_text(data[name], f"{what}: {name!r}")
    named = " or ".join(map(repr, wanted))
    null = any(name in data for name in wanted)
    raise no_text(f"{what}: {named} is null" if null else f"{what}: no key {named}")
