"""Summaries of the runs of paired rounds: percentiles, and ratios within a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.spreads import paired_ratios, spread

Row = dict[str, Any]
SETTING = ("work", "kind", "workers", "mode", "sequence_length", "batch", "lanes", "seed",
           "dp_size")  # fmt: skip
"""Of a run's job, what its summary says too."""


def summaries(runs: Iterable[Row]) -> list[Row]:
    """One of each contestant and backend of each group, in the order of their first runs."""
    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for run in runs:
        place = run["suite"], run["group"]
        groups.setdefault(place, {}).setdefault(run["label"], []).append(run)
    return [summary(mine, labels) for labels in groups.values() for mine in labels.values()]


def summary(runs: Sequence[Row], labels: Mapping[str, Sequence[Row]]) -> Row:
    """Medians of a contestant's runs, and of the ratios to another's of the same rounds.

    ``ratios`` are to the one that it stands against, ``ratios_to`` the rates to each other limit,
    and to our serial run. Runs that failed are counted, and left out.
    """
    first = runs[0]
    row: Row = {"bench": "compare", "row": "summary", "contestant": first["contestant"]}
    row |= {key: first[key] for key in ("suite", "group", "label")}
    row |= {key: first["job"][key] for key in SETTING if key in first["job"]}
    row |= {"version": first.get("version"), "rounds": len(runs)} | first["facts"]
    done = {run["round"]: run["values"] for run in runs if _good(run)}
    if not done:
        last = runs[-1]
        reason = "failed" if "failed" in last else "skipped"
        return row | {reason: last[reason]}
    names = sorted({name for one in done.values() for name in one})
    row["values"] = {n: spread([one[n] for one in done.values() if n in one]) for n in names}
    row["failures"] = [run["failed"] for run in runs if "failed" in run]
    row["against"] = first["against"]
    row["ratios"] = _ratios(done, labels.get(first["against"], []), names)
    rates = [name for name in names if "_per_" in name and name != "tokens_per_sample"]
    row["ratios_to"] = {
        label: found
        for label, others in labels.items()
        if label.startswith(("limits", "ours serial"))
        and label not in (first["against"], first["label"])
        if (found := _ratios(done, others, rates))
    }
    return row


def _ratios(done: Mapping[int, Row], others: Sequence[Row], names: Sequence[str]) -> Row:
    """Of each figure that both have in a round."""
    beside = {run["round"]: run["values"] for run in others if _good(run)}
    pairs = {
        name: paired_ratios(
            [one.get(name) for one in done.values()],
            [beside.get(number, {}).get(name) for number in done],
        )
        for name in names
    }
    return {name: spread(found) for name, found in pairs.items() if found}


def _good(run: Row) -> bool:
    return "failed" not in run and "skipped" not in run


def rounded(value: Any) -> Any:
    """Floats to five significant digits, at any depth."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
