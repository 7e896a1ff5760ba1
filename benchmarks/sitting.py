"""A sitting: units done one after another, with the time left; it goes on where one broke off.

A unit is done when the results say so, of the same commit, data and kind of sitting; rows of units
that were cut short stay in the file, and count for nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench
from benchmarks.suites import Unit
from benchmarks.summaries import Row, summaries


class Sitting:
    """What is to be done, and what was.

    Args:
        bench: runs it.
        units: in order of their weight: what the budget leaves out is at the end.
        budget_s: seconds; a unit that would end later is not begun. None: all are done.
        fresh: do again what was done.
    """

    def __init__(
        self,
        bench: Bench,
        units: Sequence[Unit],
        budget_s: float | None = None,
        fresh: bool = False,
    ) -> None:
        self._bench, self._budget_s = bench, budget_s
        past = read(bench.results)
        self._known = times(past)
        mine = [] if fresh else [row for row in past if self._same(row)]
        finished = {row["unit"] for row in mine if row["row"] == "done"}
        self.left = [unit for unit in units if unit.name not in finished]
        self.done = [unit for unit in units if unit.name in finished]

    def _same(self, row: Row) -> bool:
        facts = {"commit": self._bench.commit, **self._bench.facts}
        return all(row.get(key) == value for key, value in facts.items())

    @property
    def seconds(self) -> float:
        """How long what is left takes, as far as is known."""
        return sum(self.seconds_of(unit) for unit in self.left)

    def seconds_of(self, unit: Unit) -> float:
        """How long a unit takes, as far as is known."""
        return unit.seconds(self._known)

    def run(self, done: Callable[[float], None] = lambda seconds: None) -> list[Row]:
        """Do what is left, as far as the budget goes; the summaries of all that was done.

        Args:
            done: told of the seconds, of `seconds`, that are over.
        """
        begin = time.monotonic()
        while self.left:
            unit, taken = self.left[0], time.monotonic() - begin
            expected = self.seconds_of(unit)
            if self._budget_s is not None and taken + expected > self._budget_s:
                break
            scale, told = expected / unit.seconds({}), [0.0]

            def part_done(part: float, scale: float = scale, told: list[float] = told) -> None:
                told[0] += part * scale
                done(part * scale)

            unit.do(self._bench, part_done)
            done(expected - told[0])
            self._bench.keep({"bench": "compare", "row": "done", "unit": unit.name})
            self.done.append(self.left.pop(0))
        return self._summaries()

    def _summaries(self) -> list[Row]:
        """Written down, and with the verdicts that are rows already."""
        finished = {unit.name for unit in self.done}
        rows = [r for r in read(self._bench.results) if self._same(r) and r.get("unit") in finished]
        latest = {(r["unit"], r.get("label"), r.get("case"), r["row"]): r for r in rows}
        runs = [r for r in latest.values() if r["row"] == "run" and "group" in r]
        made = [self._bench.keep(row) for row in summaries(runs)]
        return made + [r for r in latest.values() if r["row"] == "summary"]


def read(path: Path | None) -> list[Row]:
    """The rows of a file; of one that isn't there, none. A line cut short is left out."""
    if path is None or not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def times(rows: Iterable[Row]) -> dict[str, float]:
    """Seconds that runs took, by `suites.place_of`; the last ones."""
    found: dict[str, Any] = {}
    for row in rows:
        if row.get("row") == "run" and "label" in row and "wall_s" in row:
            job = row["job"]
            found[f"{row['suite']} {job['work']} {job['kind']} {row['label']}"] = row["wall_s"]
    return found
