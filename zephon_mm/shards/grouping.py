"""WebDataset's grouping rules: how names of members become samples.

A key is the path up to the first dot of its base name (`first_dot`) or up to the last one
(`last_dot`); what follows the dot is the field, matched in lower case. Names are text only: ``..``
or a leading ``/`` in one means nothing here, since no name is ever opened.

Streaming readers close a sample when the key changes. The index is random access, so here the
members of a key are gathered over the whole archive, wherever they lie. Concatenated archives
keep their samples apart: the same key after an end-of-archive marker is another sample.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

KeyRule = Literal["first_dot", "last_dot"]
_META = re.compile(r"__[^/]*__($|/)")
_MAC_FOLDERS = ("__MACOSX", ".AppleDouble")

T = TypeVar("T")


def split_name(name: str, key_rule: KeyRule) -> tuple[str, str] | None:
    """``(key, extension)`` of a member, extension as written; None where its base has no dot."""
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".") if key_rule == "first_dot" else base.rpartition(".")
    if not dot or not stem:
        return None
    return folder + slash + stem, extension


def ignored_kind(name: str) -> str | None:
    """Why a regular file is no member: ``unnamed``, ``hidden``, ``meta``; None where it is one.

    Hidden are base names that start with a dot (``._`` twins, ``.DS_Store``) and whatever lies in
    a folder ``__MACOSX`` or ``.AppleDouble``. ``__…__`` at the top is WebDataset's own metadata.
    """
    if not name:
        return "unnamed"
    *folders, base = name.split("/")
    if base.startswith(".") or any(folder in _MAC_FOLDERS for folder in folders):
        return "hidden"
    return "meta" if _META.match(name) else None


@dataclass(slots=True)
class GroupedSample(Generic[T]):
    """A sample while it is gathered.

    Attributes:
        key: as written, letter case kept.
        part: which of the concatenated archives it is from.
        members: ``(extension as written, member)`` in the order of the shard.
        problem: ``(kind, sentence)`` why it is quarantined; the first one found.
    """

    key: str
    part: int
    members: list[tuple[str, T]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    problem: tuple[str, str] | None = None

    def flag(self, kind: str, sentence: str) -> None:
        """Record a problem; an earlier one stays."""
        if self.problem is None:
            self.problem = (kind, sentence)


class Grouper(Generic[T]):
    """Gathers members into samples, in the order in which the keys first come."""

    def __init__(self, key_rule: KeyRule) -> None:
        self._key_rule = key_rule
        self._samples: dict[tuple[int, str], GroupedSample[T]] = {}
        self._links: list[tuple[str, int]] = []
        self.last: GroupedSample[T] | None = None
        """The sample of the newest member."""

    def sample_of(self, name: str, part: int) -> tuple[GroupedSample[T], str] | None:
        """The sample that ``name`` belongs to, made if it is new, and the name's extension."""
        split = split_name(name, self._key_rule)
        if split is None:
            return None
        key, extension = split
        sample = self._samples.get((part, key))
        if sample is None:
            sample = self._samples[part, key] = GroupedSample(key, part)
        return sample, extension

    def add(self, sample: GroupedSample[T], extension: str, name: str, member: T) -> None:
        """Add a whole member; a field that comes twice flags the sample."""
        lower = extension.lower()
        if lower in sample.names:
            first = sample.names[lower]
            sample.flag(
                "repeated name",
                f"member {name!r} is repeated"
                if first == name
                else f"members {first!r} and {name!r} have the same field {lower!r}",
            )
        else:
            sample.names[lower] = name
        sample.members.append((extension, member))
        self.last = sample

    def note_link(self, name: str, part: int) -> None:
        """Remember a link; if its key has members, the sample is not whole without it."""
        self._links.append((name, part))

    def cut_at_boundary(self) -> None:
        """Flag the last sample if the file ends between members and it lacks a field.

        It is compared with the sample before it; where that has no field more, all of the last
        sample's members are taken to be there.
        """
        samples = list(self._samples.values())
        if self.last is None or len(samples) < 2 or samples[-1] is not self.last:
            return
        missing = sorted(set(samples[-2].names) - set(self.last.names))
        if missing and set(self.last.names) < set(samples[-2].names):
            self.last.flag("cut", f"the shard is cut off before its member {missing[0]!r}")

    def finish(self) -> list[GroupedSample[T]]:
        """All samples; those whose members seem to lie in two archives are flagged."""
        for name, part in self._links:
            split = split_name(name, self._key_rule)
            linked = self._samples.get((part, split[0])) if split else None
            if linked is not None:
                linked.flag("link", f"member {name!r} is a link, and links are not followed")
        earlier: dict[str, list[GroupedSample[T]]] = {}
        samples = list(self._samples.values())
        if samples and samples[-1].part > 0:
            for sample in samples:
                for other in earlier.get(sample.key, ()):
                    whole = other.names and sample.names
                    if whole and not set(other.names) & set(sample.names):
                        for each in (other, sample):
                            each.flag(
                                "two archives",
                                f"key {sample.key!r} has fields {sorted(other.names)} in one of "
                                "the shard's concatenated archives and "
                                f"{sorted(sample.names)} in another: whether they belong together "
                                "can't be told; write them into one archive, or rename",
                            )
                earlier.setdefault(sample.key, []).append(sample)
        return samples
