"""What ``zephon-mm bench decode`` tells of its measurements: a table, a plot, a JSON record."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ..errors import MissingDependencyError
from ..media.info import VideoInfo
from .bench_contestants import CONTESTANTS, Reference, Reply


@dataclass
class Clip:
    """A clip of the benchmark; its stream's number, its frames by pattern."""

    path: Path
    info: VideoInfo
    stream: int
    right: Reference
    frames: dict[str, tuple[int, ...]]


@dataclass
class Cell:
    """One decoder by one pattern: replies of each round, by clip, and what was wrong."""

    wrong: int = 0
    checked: int = 0
    peak_bytes: int = 0
    errors: dict[int, str] = field(default_factory=dict)
    rounds: list[dict[int, Reply]] = field(default_factory=list)


def summarise(
    name: str,
    pattern: str,
    cells: dict[tuple[str, str], Cell],
    first: str,
    clips: Sequence[Clip],
) -> dict[str, Any] | None:
    """One row: numbers over the clips that it decoded in every round."""
    cell = cells.get((name, pattern))
    if cell is None:
        return None
    done = [n for n in range(len(clips)) if n not in cell.errors]
    row: dict[str, Any] = {
        "decoder": name, "pattern": pattern, "gives": CONTESTANTS[name].gives,
        "clips": len(done), "wrong": cell.wrong, "checked": cell.checked,
        "peak_bytes": cell.peak_bytes,
    }  # fmt: skip
    if not done:
        return row
    count = sum(len(set(clips[n].frames[pattern])) for n in done)
    wall = [sum(turn[n].wall for n in done) for turn in cell.rounds]
    cpu = [sum(turn[n].cpu for n in done) for turn in cell.rounds]
    row["frames_per_second"] = _spread([count / seconds for seconds in wall])
    row["wall_ms"] = _spread([1000 * seconds / len(done) for seconds in wall])
    row["cpu_ms"] = _spread([1000 * seconds / len(done) for seconds in cpu])
    base = cells.get((first, pattern))
    both = [] if base is None else [n for n in done if n not in base.errors]
    if base is not None and both:
        row["cpu_ratio"] = _spread([
            sum(mine[n].cpu for n in both) / max(1e-9, sum(theirs[n].cpu for n in both))
            for mine, theirs in zip(cell.rounds, base.rounds, strict=True)
        ])  # fmt: skip
    return row


def _spread(values: Sequence[float]) -> list[float]:
    """[20th percentile, median, 80th percentile]."""
    return [float(value) for value in np.percentile(values, [20, 50, 80])]


def table(rows: Sequence[dict[str, Any]], clips: int, rounds: int, threads: int) -> Table:
    """The one table, patterns apart."""
    title = f"{clips} clips, {rounds} rounds, threads {threads}"
    result = Table(title=f"decoding: {title}; median and 20th–80th percentile")
    for name in ("frames", "decoder", "gives"):
        result.add_column(name)
    for name in ("clips", "wrong", "frames/s", "ms a clip", "CPU ms", "CPU ratio", "peak MB"):
        result.add_column(name, justify="right")
    last = None
    for row in rows:
        if last not in (None, row["pattern"]):
            result.add_section()
        last = row["pattern"]
        checked = "–" if row["gives"] == "nothing" else f"{row['wrong']} of {row['checked']}"
        result.add_row(
            row["pattern"], row["decoder"], row["gives"], f"{row['clips']} of {clips}",
            f"[bold red]{checked}[/]" if row["wrong"] else checked,
            _cell(row, "frames_per_second", 0), _cell(row, "wall_ms", 1),
            _cell(row, "cpu_ms", 1), _cell(row, "cpu_ratio", 2),
            f"{row['peak_bytes'] / 1e6:.0f}" if row["peak_bytes"] else "–",
        )  # fmt: skip
    return result


def _cell(row: dict[str, Any], name: str, digits: int) -> str:
    if name not in row:
        return "–"
    low, middle, high = row[name]
    return f"{middle:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


def sweep_table(rows: Sequence[dict[str, Any]], levels: Sequence[int], rounds: int) -> Table:
    """Frames a second by clips in flight."""
    result = Table(title=f"frames a second by clips in flight, median of {rounds} rounds")
    for name in ("frames", "decoder"):
        result.add_column(name)
    for name in (*map(str, levels), "most", "at"):
        result.add_column(name, justify="right")
    for row in rows:
        rates = row["frames_per_second"]
        cells = [f"{rates[level]:,.0f}" if level in rates else "–" for level in levels]
        most = f"{row['saturated']:,.0f}"
        result.add_row(row["pattern"], row["decoder"], *cells, most, str(row["in_flight"]))
    return result


def record(
    summary: Sequence[dict[str, Any]],
    swept: Sequence[dict[str, Any]],
    missing: dict[str, str],
    left_out: dict[str, str],
    cells: dict[tuple[str, str], Cell],
    clips: Sequence[Clip],
) -> dict[str, Any]:
    """What ``--json`` writes: the table, and every single time."""
    times: dict[str, Any] = defaultdict(dict)
    for (name, at), cell in cells.items():
        times[name][at] = {
            str(clip.path): [
                {"wall": turn[n].wall, "cpu": turn[n].cpu} for turn in cell.rounds if n in turn
            ]
            for n, clip in enumerate(clips)
        }
    return {
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "python": platform.python_version(), "missing": missing, "left_out": left_out,
        "rows": list(summary), "in_flight": list(swept), "seconds": times,
    }  # fmt: skip


def load_pyplot() -> Any:
    """The pyplot of matplotlib, drawing to files. Raises MissingDependencyError."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError(
            "--plot needs matplotlib; install it with `pip install 'zephon-mm[bench]'`"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw(pyplot: Any, rows: Sequence[dict[str, Any]], path: str) -> None:
    """Frames a second as bars, a panel a pattern; decoders with wrong frames are hatched."""
    patterns = list(dict.fromkeys(row["pattern"] for row in rows))
    names = list(dict.fromkeys(row["decoder"] for row in rows))
    figure, axes = pyplot.subplots(
        1, len(patterns), figsize=(4.6 * len(patterns), 0.42 * len(names) + 1.6), squeeze=False
    )
    for axis, pattern in zip(axes[0], patterns, strict=True):
        shown = [r for r in rows if r["pattern"] == pattern and "frames_per_second" in r]
        for place, row in enumerate(reversed(shown)):
            low, middle, high = row["frames_per_second"]
            colour = f"C{names.index(row['decoder']) % 10}"
            axis.barh(
                place, middle, xerr=[[middle - low], [high - middle]], color=colour,
                hatch="//" if row["wrong"] else None, alpha=0.85,
            )  # fmt: skip
        axis.set_yticks(range(len(shown)), [row["decoder"] for row in reversed(shown)])
        axis.set_title(f"{pattern}", fontsize=11)
        axis.set_xlabel("frames asked for, a second of wall time")
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Decoding (bars: median; lines: 20th–80th percentile; hatched: wrong frames)")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
