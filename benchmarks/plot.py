"""Two pictures of the newest results: rates beside the limit, and restores by progress.

Works are kept apart, and so are vocabularies; trials (``--quick``) are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
TITLES = {
    "text": "text",
    "image_text": "pictures",
    "video_360p": "clips, 360p",
    "video_720p": "clips, 720p",
    "interleaved": "interleaved",
}
LIMIT = "limits serial"
OURS, THEIRS = "#c2410c", "#64748b"


KEYS = ("suite", "group", "label", "contestant", "work", "vocabulary", "workers", "mode",
        "sequence_length", "batch", "at_step", "case", "lanes", "ranks")  # fmt: skip
"""What tells summaries apart."""


def newest(path: Path) -> list[Row]:
    """The last summary of each contestant, work, backend and case, in the order of the file.

    Raises:
        ValueError: the file has no summary.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["row"] == "summary" and not row.get("quick"):
            key = tuple(row.get(key) for key in KEYS)
            found.pop(key, None)  # so that it takes the newer one's place
            found[key] = row
    if not found:
        raise ValueError(f"{path} has no summary: `python -m benchmarks run WORK` writes them")
    return list(found.values())


def title(row: Row) -> str:
    """The work, and the vocabulary where it isn't the usual one."""
    work = TITLES.get(row["work"], row["work"])
    vocabulary = row.get("vocabulary", "trained")
    return work if vocabulary == "trained" else f"{work}, {vocabulary}'s vocabulary"


def rates(rows: Iterable[Row]) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Of each work, each contestant's rate per CPU-second ÷ the limit's, in the caller's thread.

    The rate is of tokens for text and of samples for all else. The limit is the same for all of a
    work: of pictures the one that resizes by Pillow. SPDL always has a thread.
    """
    found: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in rows:
        alone = row.get("workers") == (1 if row["contestant"] == "spdl" else 0)
        if row.get("suite") != "throughput" or not alone or "ratios" not in row:
            continue
        if row["contestant"].startswith("limits"):
            continue
        name = "tokens_per_cpu_s" if row["work"] == "text" else "samples_per_cpu_s"
        others = row.get("ratios_to", {})
        ratios = row["ratios"] if row["against"] == LIMIT else others.get(LIMIT, {})
        if name in ratios:
            found.setdefault(title(row), {})[row["contestant"]] = ratios[name]
    return found


Points = dict[str, list[tuple[int, float, float, float]]]


def restores(rows: Iterable[Row]) -> dict[str, Points]:
    """By work and contestant: (step, 20th, median, 80th percentile) of seconds to a first batch."""
    found: dict[str, dict[str, dict[int, tuple[float, float, float]]]] = {}
    for row in rows:
        if row.get("suite") == "restore" and "at_step" in row and "values" in row:
            low, middle, high = row["values"]["first_batch_s"]
            line = found.setdefault(title(row), {}).setdefault(row["contestant"], {})
            line[row["at_step"]] = (low, middle, high)
    return {
        work: {name: [(at, *line[at]) for at in sorted(line)] for name, line in lines.items()}
        for work, lines in found.items()
    }


def draw(results: Path, folder: Path) -> list[Path]:
    """Draw what the results hold; the files written.

    Args:
        results: the JSON rows.
        folder: where ``compare_rates.png`` and ``compare_restore.png`` go.
    """
    import matplotlib

    matplotlib.use("Agg")
    rows = newest(results)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if found := rates(rows):
        written.append(_draw_rates(found, folder / "compare_rates.png"))
    if points := restores(rows):
        written.append(_draw_restores(points, folder / "compare_restore.png"))
    return written


def _draw_rates(found: dict[str, dict[str, tuple[float, float, float]]], path: Path) -> Path:
    from matplotlib import pyplot

    count = max(map(len, found.values()))
    size = (3.2 * len(found) + 1, 0.32 * count + 1.4)
    figure, axes = pyplot.subplots(1, len(found), figsize=size, squeeze=False)
    for axis, (work, contestants) in zip(axes[0], found.items(), strict=True):
        ordered = sorted(contestants.items(), key=lambda item: item[1][1])
        for place, (name, (low, middle, high)) in enumerate(ordered):
            axis.barh(place, middle, color=OURS if name.startswith("ours") else THEIRS)
            axis.plot([low, high], [place, place], color="black", linewidth=1)
        axis.set_yticks(range(len(ordered)), [name for name, _ in ordered], fontsize=8)
        axis.axvline(1, color="black", linestyle=":", linewidth=1)
        axis.set_title(work, fontsize=10)
        axis.tick_params(axis="x", labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Work per CPU-second ÷ the bare work without a loader", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path


def _draw_restores(found: dict[str, Points], path: Path) -> Path:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(found), figsize=(6 * len(found), 3.2), squeeze=False)
    for axis, (work, lines) in zip(panels[0], found.items(), strict=True):
        for name, line in lines.items():
            ours = name.startswith("ours")
            style = {"color": OURS, "linewidth": 2.5} if ours else {"linewidth": 1.2}
            steps = [step for step, *_ in line]
            axis.plot(steps, [middle for *_, middle, _ in line], marker="o", label=name, **style)
            axis.fill_between(steps, [p[1] for p in line], [p[3] for p in line], alpha=0.15)
        axis.set_title(work, fontsize=10)
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_xlabel("step of the state", fontsize=9)
        axis.set_ylabel("seconds to the first batch", fontsize=9)
        axis.legend(fontsize=8, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path
