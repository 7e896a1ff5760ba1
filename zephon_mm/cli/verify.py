"""``zephon-mm verify``: the first step at which two runs trained on something else, and on what."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from ..errors import DigestLogError

if TYPE_CHECKING:
    from ..digests import Comparison, Difference, Finding, Lack, RunLog

EQUAL, DIFFERENT, UNUSABLE = 0, 1, 2
MOST = 120
"""Characters of a value, and fields of a config, that are printed."""
RANGES = 20
"""Ranges of steps that are printed."""


def verify(
    run_a: Annotated[
        Path, typer.Argument(help="The digest_log of a run, or one file of it.", show_default=False)
    ],
    run_b: Annotated[Path, typer.Argument(help="That of another run.", show_default=False)],
    ignore_config: Annotated[
        bool, typer.Option(help="Don't count fields of the config: only what was trained on.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, nothing cut.")] = False,
) -> None:
    """Compare what two runs trained on; say where they part, and why.

    A run leaves a log with `ExecutionConfig(digest_log="FOLDER")`, or `execution: {digest_log:
    FOLDER}` in YAML, or `zephon-mm digest vlm.yaml --log FOLDER`. Each rank writes its own file
    there, and a run that is resumed goes on in it:

        zephon-mm verify runs/monday/digests runs/tuesday/digests

    Ranks, micro-batches, workers, backends, kills and resumes of the runs may differ. Of the first
    step that differs the most basic cause comes first: a field of the config, the document drawn,
    the frames chosen, the token, the pixels. Steps that a run trained on twice, as after a
    kill, must be equal too.

    The exit status is 0 if all that both runs have is equal, 1 if not, and 2 if a log can't be
    used or the runs have no step in common.
    """
    try:
        first, second = _read(run_a, run_b)
        comparison = _compare(first, second, ignore_config)
    except DigestLogError as error:
        sys.stderr.write(f"DigestLogError: {error}\n")
        raise typer.Exit(UNUSABLE) from error
    if as_json:
        sys.stdout.write(json.dumps(report(first, second, comparison), indent=1) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines(first, second, comparison))
    raise typer.Exit(EQUAL if comparison.equal else DIFFERENT)


def _read(run_a: Path, run_b: Path) -> tuple[RunLog, RunLog]:
    from ..digests import log_files, read_log

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        logs = []
        for path in (run_a, run_b):
            size = sum(file.stat().st_size for file in log_files(path))
            task = progress.add_task(f"reading {path}", total=size)
            logs.append(read_log(path, lambda read, task=task: progress.advance(task, read)))  # type: ignore[misc]
    return logs[0], logs[1]


def _compare(a: RunLog, b: RunLog, ignore_config: bool) -> Comparison:
    from ..digests import compare_logs

    comparison = compare_logs(a, b, ignore_config=ignore_config)
    if not comparison.common and comparison.first is None:
        raise DigestLogError(
            f"no row is in both runs: {a.path} holds {_extent(a)}, {b.path} holds {_extent(b)}"
        )
    return comparison


def lines(a: RunLog, b: RunLog, comparison: Comparison) -> Iterator[str]:
    """What is printed for people."""
    for name, log in (("A", a), ("B", b)):
        yield f"{name}: {log.path}: {_extent(log)}, {len(log.files)} file(s)" + (
            f", {log.cut} line(s) cut by a kill" if log.cut else ""
        )
    yield from _verdict(comparison)
    if comparison.first is not None:
        yield from _told_of(comparison.first, comparison.slots, "A", "B")
    for name, finding in comparison.repeats.items():
        yield f"{name.upper()} disagrees with itself: it trained on one step twice, differently"
        yield from _told_of(finding, (finding.slot,), "first", "again")
    for name, other in (("a", "b"), ("b", "a")):
        yield from _lacking(comparison.lacks[name], other.upper())


def _verdict(comparison: Comparison) -> Iterator[str]:
    rows = f"{comparison.common:,} rows that both have"
    if comparison.equal:
        yield f"equal: all {rows}, pixels too"
        return
    if comparison.config:
        count = len(comparison.config)
        yield f"different: {count} field(s) of the config, from step {comparison.config_step} on"
        for difference in comparison.config[:MOST]:
            yield f"  {_told(difference)}"
        if count > MOST:
            yield f"  and {_more(count - MOST)}"
    if comparison.first is None and not comparison.repeats:
        yield f"and yet equal: all {rows}, pixels too"
    elif comparison.differing:
        yield f"different: {comparison.differing:,} of {rows}"
    elif comparison.first is not None:
        yield f"different: a run lacks a row; equal: all {rows}"


def _told_of(finding: Finding, slots: tuple[int, ...], a: str, b: str) -> Iterator[str]:
    many = f" (and {len(slots) - 1} more slots of it)" if len(slots) > 1 else ""
    yield f"first step that differs: {finding.step}, slot {finding.slot}{many}"
    for difference in finding.differences:
        yield f"  {_told(difference, a, b)}"
    for name, where in ((a, finding.a), (b, finding.b)):
        yield f"  {name}: {where or 'no such row'}"
    yield (
        "to see what a config gives there, token by token (--state FILE|FOLDER starts from a state "
        "nearby):"
    )
    yield f"  zephon-mm show CONFIG --step {finding.step} --slot {finding.slot} --tokens"


def _told(difference: Difference, a: str = "A", b: str = "B") -> str:
    text = f"{difference.cause}: {difference.what}"
    if difference.a is None and difference.b is None:
        return text
    return f"{text}: {_short(difference.a)} in {a}, {_short(difference.b)} in {b}"


def _short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and "key" in value:
        names = "{source}/{key} (sample {sample} of {shard}, epoch {epoch})"
        return names.format(**value)
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MOST else text[: MOST - 1] + "…"


def _lacking(lack: Lack, other: str) -> Iterator[str]:
    if lack.steps:
        steps = ", ".join(str(i) if i == j else f"{i} to {j}" for i, j in lack.steps[:RANGES])
        left = len(lack.steps) - RANGES
        yield f"only {other} has steps {steps}" + (f" and {_more(left)}" if left > 0 else "")
    if lack.rows and lack.first is not None:
        step, slot = lack.first
        yield (
            f"only {other} has {lack.rows:,} rows of other steps, from step {step}, slot {slot} "
            "on: a rank's file is not there, or ends earlier"
        )


def _more(count: int) -> str:
    return f"{count:,} more (--json has all)"


def _extent(log: RunLog) -> str:
    slots = len(set(log.slot.tolist()))
    return f"{len(log):,} rows, steps {int(log.step.min())} to {int(log.step.max())}, {slots} slots"


def report(a: RunLog, b: RunLog, comparison: Comparison) -> dict[str, Any]:
    """The same as plain data."""

    def finding(found: Finding | None) -> dict[str, Any] | None:
        if found is None:
            return None
        return found._asdict() | {"differences": [d._asdict() for d in found.differences]}

    return {
        "equal": comparison.equal,
        "common_rows": comparison.common,
        "differing_rows": comparison.differing,
        "config": [difference._asdict() for difference in comparison.config],
        "config_step": comparison.config_step,
        "first": finding(comparison.first),
        "slots": list(comparison.slots),
        "repeats": {name: finding(found) for name, found in comparison.repeats.items()},
        "missing_in": {name: lack._asdict() for name, lack in comparison.lacks.items()},
        "runs": {
            name: {
                "path": str(log.path),
                "files": [str(file) for file in log.files],
                "rows": len(log),
                "steps": [int(log.step.min()), int(log.step.max())],
                "cut_lines": log.cut,
            }
            for name, log in (("a", a), ("b", b))
        },
    }
