"""What a run is, as one flat table of fields: the base of the fingerprint and of its comparison.

Paths are replaced by digests of what they hold (a source's shards, the tokenizer), so data may be
moved, and a changed shard is noticed.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ..config import DataConfig
from ..errors import ConfigError, StateError

Identity = dict[str, Any]

RULES = 1
"""Raised by a release that makes other batches of the same config: of plan, packing or pixels."""

CHANGES: dict[str, tuple[str, ...]] = {
    "weights": ("mixture", "sources.*.weight", "sources.*.mean_tokens"),
    "sources": ("sources", "sources.*"),
    "sequence_length": ("sequence_length",),
    "global_batch": ("global_batch",),
    "stop": ("stop.*", "sources.*.epochs"),
}
"""Changes that a caller may allow when a state is restored, and the fields that each covers."""


class Change(NamedTuple):
    """A field that differs between a state and the config it meets. None: the field is absent."""

    field: str
    old: Any
    new: Any


def identity(
    config: DataConfig, *, source_digests: Mapping[str, str], parts: Mapping[str, str]
) -> Identity:
    """Every field that decides a batch, by dotted name.

    Args:
        config: the data config.
        source_digests: per source id, the hex digest of its manifest.
        parts: digests or settings of what else decides batches: tokenizer, model family.
    """
    data = config.to_dict()
    table: Identity = {}
    for source in data.pop("sources"):
        name = f"sources.{source.pop('id')}"
        source.pop("urls")
        _flatten(name, source, table)
    table["sources"] = [source.id for source in config.sources]
    table["rules"] = RULES
    for source in config.sources:
        table[f"sources.{source.id}.digest"] = source_digests[source.id]
    data.pop("tokenizer")
    _flatten("", data, table)
    table.update(parts)
    return table


def fingerprint(table: Identity) -> str:
    """SHA-256 of an identity, in hex."""
    return hashlib.sha256(canonical_json(table).encode()).hexdigest()


def canonical_json(data: Any) -> str:
    """JSON with sorted keys and no spaces: equal data give equal text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def compare(saved: Identity, here: Identity) -> list[Change]:
    """The fields that differ, in order of name."""
    saved, here = (json.loads(canonical_json(table)) for table in (saved, here))
    names = sorted(saved.keys() | here.keys())
    return [
        Change(name, saved.get(name), here.get(name))
        for name in names
        if saved.get(name) != here.get(name)
    ]


def check_changes(changes: list[Change], allow: Collection[str]) -> None:
    """Raise StateError naming each change that ``allow`` does not cover."""
    allow = [allow] if isinstance(allow, str) else allow
    unknown = sorted(set(allow) - CHANGES.keys())
    if unknown:
        raise ConfigError(
            f"allow={unknown!r}: may hold {', '.join(CHANGES)}; no other change can be restored"
        )
    same_source = {c.field for c in changes}
    refused = [c for c in changes if not _allowed(c, allow, same_source)]
    if not refused:
        return
    lines = "\n".join(f"  {c.field}: {c.old!r} in the state, {c.new!r} here" for c in refused)
    ways = [name for name in CHANGES if any(_allowed(c, (name,), same_source) for c in refused)]
    never = [c.field for c in refused if not _allowed(c, CHANGES, same_source)]
    hint = ""
    if never:
        hint = f"; {', '.join(never[:4])} can't differ"
    elif ways:
        hint = f"; if that is meant, allow={[*allow, *ways]!r}"
    raise StateError(
        f"the state belongs to another data config{hint}. Fields that differ:\n{lines}"
    )


def _allowed(change: Change, allow: Collection[str], changed: Collection[str]) -> bool:
    for name in allow:
        if name == "sources" and change.field.startswith("sources."):
            # a source that came or went changes all of its fields; one that stayed may not
            if change.old is not None and change.new is not None:
                continue
            source = change.field.split(".")[1]
            if f"sources.{source}.digest" not in changed or "sources" not in changed:
                continue
        if any(fnmatch.fnmatchcase(change.field, pattern) for pattern in CHANGES[name]):
            return True
    return False


def _flatten(prefix: str, data: Mapping[str, Any], table: Identity) -> None:
    for key, value in data.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping) and value:
            _flatten(name, value, table)
        else:
            table[name] = value
