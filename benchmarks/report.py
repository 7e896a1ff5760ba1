"""Summaries as a table."""

from __future__ import annotations

from typing import Any

from rich.table import Table

Row = dict[str, Any]

COLUMNS: tuple[tuple[str, str, float], ...] = (
    ("samples_per_s", "samples/s", 1),
    ("tokens_per_cpu_s", "tokens/CPU-s", 1),
    ("tokens_per_sample", "tokens a sample", 1),
    ("first_batch_s", "first batch, s", 1),
    ("peak_pss_bytes", "peak, MiB", 1 << 20),
    ("fill", "fill, %", 0.01),
)
"""Figure, heading, and what it is divided by."""


def table(rows: list[Row]) -> Table:
    """A line a summary: median figures, and the paired ratios of CPU rates and first batches."""
    made = Table()
    if not any("values" in row for row in rows):
        for head in ("contestant", "work", "what", "result"):
            made.add_column(head, overflow="fold")
        for row in rows:
            result = row.get("verdict") or row.get("skipped") or row.get("failed")
            made.add_row(row["contestant"], row["work"], _what(row), result)
        return made
    heads = [head for _, head, _ in COLUMNS]
    for head in ("contestant", "what", *heads, "÷ other: CPU rate", "first batch"):
        made.add_column(head, overflow="fold")
    for row in rows:
        if reason := row.get("verdict") or row.get("skipped") or row.get("failed"):
            made.add_row(row["contestant"], f"{row['work']} {_what(row)}", reason)
            continue
        cells = [_figure(row["values"].get(name), unit) for name, _, unit in COLUMNS]
        rate = row["ratios"].get("tokens_per_cpu_s") or row["ratios"].get("samples_per_cpu_s")
        first = row["ratios"].get("first_batch_s")
        what = f"{row['work']} {_what(row)}"
        made.add_row(row["contestant"], what, *cells, _ratio(rate), _ratio(first))
    return made


def _what(row: Row) -> str:
    if "case" in row:
        return str(row["case"])
    failures = len(row.get("failures") or ())
    failed = f", failed in {failures} of {row['rounds']} rounds" if failures else ""
    if "at_step" in row:
        return f"restored at step {row['at_step']}, state {row['state_bytes']} bytes{failed}"
    backend = f"{row.get('mode', '')} {row.get('workers') or ''}".strip()
    role = row["label"].removeprefix(f"{row['contestant']} {row['mode']}{row['workers'] or ''}")
    state = row["values"].get("state_bytes") if "values" in row else None
    size = f", state {state[1]:.0f} bytes" if state else ""
    return f"{backend}{role}{size}{failed}"


def _figure(spread: list[float] | None, unit: float) -> str:
    return "" if spread is None else f"{spread[1] / unit:,.4g}"


def _ratio(spread: list[float] | None) -> str:
    return "" if spread is None else f"{spread[1]:.3f} ({spread[0]:.3f} … {spread[2]:.3f})"
