"""Samples made from a dict of members, as a shard's reader would give them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from zephon_mm.formats import Sample


def sample(members: dict[str, Any], key: str = "000") -> Sample:
    """Field to bytes, text or anything that JSON takes; fields are written as given."""
    data = [_encode(value) for value in members.values()]
    names = [f"{key}.{field}" for field in members]
    fields = {field.lower(): at for at, field in enumerate(members)}
    return Sample(key, "shard.tar", fields, data.__getitem__, names.__getitem__)


def _encode(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def samples_of_tar(path: Path) -> list[Sample]:
    """Group a plain tar by WebDataset's rule: split at the first dot of the base name."""
    groups: dict[str, dict[str, tuple[str, bytes]]] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            folder, slash, base = member.name.rpartition("/")
            stem, _, field = base.partition(".")
            file = tar.extractfile(member)
            assert file is not None
            groups.setdefault(folder + slash + stem, {})[field] = (member.name, file.read())
    found = []
    for key, members in groups.items():
        names = [name for name, _ in members.values()]
        data = [content for _, content in members.values()]
        fields = {field.lower(): at for at, field in enumerate(members)}
        found.append(Sample(key, str(path), fields, data.__getitem__, names.__getitem__))
    return found
