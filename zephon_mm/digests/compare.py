"""Two runs' digest logs, compared row by row whatever ranks wrote them.

A row is known by its step and slot, so the numbers of ranks and micro-batches don't matter. A run
that was killed and resumed holds some rows more than once: they must agree with each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..state import Identity, compare
from .differences import Difference, differences
from .reading import RunLog

Ints = NDArray[np.int64]


class Finding(NamedTuple):
    """A row that differs.

    Attributes:
        a, b: where the two versions stand; None: one run lacks the row, though it goes on after it.
    """

    step: int
    slot: int
    differences: tuple[Difference, ...]
    a: str | None
    b: str | None


class Lack(NamedTuple):
    """Rows that only the other run has.

    Attributes:
        steps: (first, last) of each run of steps without any row.
        rows: rows of other steps that are not there: of ranks whose log is not, or that ended
            earlier.
        first: (step, slot) of the first of these.
    """

    steps: tuple[tuple[int, int], ...] = ()
    rows: int = 0
    first: tuple[int, int] | None = None


@dataclass(frozen=True)
class Comparison:
    """What `compare_logs` found.

    Attributes:
        common: rows that both runs have.
        differing: those of them that differ.
        config: fields of the config that differ, where both have a row, and the first such step.
        config_step: that step.
        first: the first row that differs; of its step, the first slot.
        slots: the slots of that step that differ.
        repeats: per run (``a``, ``b``), the first row that it holds in two versions.
        lacks: per run, the rows that only the other has.
    """

    common: int
    differing: int = 0
    config: tuple[Difference, ...] = ()
    config_step: int | None = None
    first: Finding | None = None
    slots: tuple[int, ...] = ()
    repeats: dict[str, Finding] = field(default_factory=dict)
    lacks: dict[str, Lack] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether all rows that both have are equal, by one config, and none is missing between."""
        return not (self.config or self.first or self.repeats)


class _Rows(NamedTuple):
    """Rows of a log, each (step, slot) once, in order."""

    key: Ints
    number: Ints


def compare_logs(a: RunLog, b: RunLog, *, ignore_config: bool = False) -> Comparison:
    """Compare two runs.

    Args:
        a: one run's log.
        b: the other's.
        ignore_config: don't count fields of the config that differ; only what was trained on.
    """
    width = 1 + int(max(a.slot.max(), b.slot.max()))
    one, repeat_a = _once(a, width)
    two, repeat_b = _once(b, width)
    keys, at_a, at_b = np.intersect1d(one.key, two.key, assume_unique=True, return_indices=True)
    rows_a, rows_b = one.number[at_a], two.number[at_b]
    config: tuple[Difference, ...] = ()
    config_step = None
    if not ignore_config:
        config, config_step = _config(a, b, keys // width, a.head[rows_a], b.head[rows_b])
    wrong = np.flatnonzero(a.hash[rows_a] != b.hash[rows_b])
    holes_a, lack_a = _lack(one.key, two.key, width)
    holes_b, lack_b = _lack(two.key, one.key, width)
    bad = np.unique(np.concatenate([keys[wrong], holes_a, holes_b]))
    first: Finding | None = None
    slots: tuple[int, ...] = ()
    if len(bad):
        step, slot = divmod(int(bad[0]), width)
        first = _finding(a, b, step, slot, _number(one, bad[0]), _number(two, bad[0]))
        slots = tuple(int(key % width) for key in bad[bad // width == step])
    return Comparison(
        common=len(keys),
        differing=len(wrong),
        config=config,
        config_step=config_step,
        first=first,
        slots=slots,
        repeats={
            name: found for name, found in (("a", repeat_a), ("b", repeat_b)) if found is not None
        },
        lacks={"a": lack_a, "b": lack_b},
    )


def _once(log: RunLog, width: int) -> tuple[_Rows, Finding | None]:
    """The rows of a log, of repeated ones the last; and the first that disagrees with itself."""
    key = log.step * width + log.slot
    order = np.argsort(key, kind="stable").astype(np.int64)
    key = key[order]
    same = key[1:] == key[:-1]
    clash = np.flatnonzero(same & (log.hash[order[1:]] != log.hash[order[:-1]]))
    found = None
    if len(clash):
        i, j = int(order[clash[0]]), int(order[clash[0] + 1])
        step, slot = divmod(int(key[clash[0]]), width)
        found = _finding(log, log, step, slot, i, j)
        if log.head[i] != log.head[j]:
            fields = _fields(log.heads[log.head[i]], log.heads[log.head[j]])
            found = found._replace(differences=(*fields, *found.differences))
    last = np.append(~same, True) if len(key) else np.zeros(0, bool)
    return _Rows(key[last], order[last]), found


def _config(
    a: RunLog, b: RunLog, steps: Ints, heads_a: Ints, heads_b: Ints
) -> tuple[tuple[Difference, ...], int | None]:
    """The fields that differ in the first common step whose configs do."""
    known: dict[tuple[int, int], tuple[Difference, ...]] = {}
    pairs = np.stack([heads_a, heads_b], axis=1)
    for pair in np.unique(pairs, axis=0) if len(pairs) else ():
        i, j = int(pair[0]), int(pair[1])
        known[i, j] = _fields(a.heads[i], b.heads[j])
    best: int | None = None
    found: tuple[Difference, ...] = ()
    for (i, j), fields in known.items():
        if fields:
            step = int(steps[(heads_a == i) & (heads_b == j)].min())
            if best is None or step < best:
                best, found = step, fields
    return found, best


def _fields(a: Identity, b: Identity) -> tuple[Difference, ...]:
    return tuple(Difference("config field", c.field, c.old, c.new) for c in compare(a, b))


def _lack(mine: Ints, other: Ints, width: int) -> tuple[Ints, Lack]:
    """What ``other`` has and ``mine`` has not: keys of holes, and the rest.

    A hole is a row that is missing though its slot goes on after it.
    """
    missing = np.setdiff1d(other, mine, assume_unique=True)
    slots = mine % width
    first = np.full(width, np.iinfo(np.int64).max)
    last = np.full(width, -1)
    np.minimum.at(first, slots, mine // width)
    np.maximum.at(last, slots, mine // width)
    step, slot = missing // width, missing % width
    inside = (first[slot] <= step) & (step < last[slot])
    holes, step = missing[inside], step[~inside]
    rest = missing[~inside]
    alone = ~np.isin(step, mine // width)
    partial = rest[~alone]
    return holes, Lack(
        steps=_runs(np.unique(step[alone])),
        rows=len(partial),
        first=divmod(int(partial[0]), width) if len(partial) else None,
    )


def _runs(steps: Ints) -> tuple[tuple[int, int], ...]:
    """Steps as runs of neighbours, (first, last) each."""
    if not len(steps):
        return ()
    breaks = np.flatnonzero(np.diff(steps) > 1)
    firsts = np.concatenate([steps[:1], steps[breaks + 1]])
    lasts = np.concatenate([steps[breaks], steps[-1:]])
    return tuple((int(i), int(j)) for i, j in zip(firsts, lasts, strict=True))


def _finding(
    a: RunLog, b: RunLog, step: int, slot: int, row_a: int | None, row_b: int | None
) -> Finding:
    if row_a is None or row_b is None:
        has = [None if row is None else "a row" for row in (row_a, row_b)]
        what = "the run has no such row, though its slot goes on after it"
        found: list[Difference] = [Difference("row", what, *has)]
    else:
        found = differences(a.row(row_a), b.row(row_b))
        found = [_named(difference, a, b) for difference in found]
    return Finding(
        step=step,
        slot=slot,
        differences=tuple(found) or (Difference("row", "its line"),),
        a=None if row_a is None else a.where(row_a),
        b=None if row_b is None else b.where(row_b),
    )


def _named(difference: Difference, a: RunLog, b: RunLog) -> Difference:
    """A document's shard by its path, which the log holds once, instead of its number."""
    if difference.cause != "document":
        return difference

    def named(draw: dict[str, Any] | None, log: RunLog) -> dict[str, Any] | None:
        if draw is None:
            return None
        return draw | {"shard": log.shards.get((draw["source"], draw["shard"]), draw["shard"])}

    return difference._replace(a=named(difference.a, a), b=named(difference.b, b))


def _number(rows: _Rows, key: int) -> int | None:
    at = int(np.searchsorted(rows.key, key))
    return int(rows.number[at]) if at < len(rows.key) and rows.key[at] == key else None
