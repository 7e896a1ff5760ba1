"""``zephon-mm measure``: what a mean document of each source is, before a run is planned.

Measures samples spread evenly over each source, with no decoding, and prints tokens, media and
outcomes. The ``mean_tokens`` lines are what ``mixture: tokens`` wants of a source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from ..config import load_yaml
from ..sample import MeasuredDocument, Measurement, SampleRef

if TYPE_CHECKING:
    from ..pipeline.run import Run

BLOCK = 8
"""Samples measured by one task."""

WIDEST = 10_000
"""Columns that the table may take, wider than the terminal or not."""

_REASONS = 5
_OWN = re.compile(r"(('[^']*'|\d[\d.]*)(, | and )?)+")  # what a reason says of one sample only


@dataclass
class Totals:
    """What was measured of one source.

    ``num_tokens``: each document's; ``reasons``: by kind, of samples that gave no document; the
    first of each kind is in ``examples``, and ``varied`` has the kinds with others.
    """

    samples: int = 0
    num_tokens: list[int] = field(default_factory=list)
    num_targets: int = 0
    num_patches: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    media: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    varied: set[str] = field(default_factory=set)

    def add(self, measurement: Measurement) -> None:
        """Count one sample."""
        if not isinstance(measurement, MeasuredDocument):
            self.outcomes[measurement.outcome] += 1
            reason = f"{measurement.outcome} in {measurement.stage}: {measurement.reason}"
            kind = _OWN.sub("…", reason)
            self.reasons[kind] += 1
            if self.examples.setdefault(kind, reason) != reason:
                self.varied.add(kind)
            return
        self.outcomes["delivered"] += 1
        self.num_tokens.append(len(measurement.tokens))
        self.num_targets += int(measurement.loss.sum())
        self.num_patches += measurement.num_patches
        for span in measurement.media:
            self.media[span.kind] += 1
            self.media["frames"] += len(span.frames)

    @property
    def mean_tokens(self) -> float:
        """Tokens of a mean sample: of those drawn, also the ones that give no document."""
        return sum(self.num_tokens) / max(1, sum(self.outcomes.values()))


def measure(
    config: Annotated[Path, typer.Argument(help="YAML of the run.", show_default=False)],
    samples: Annotated[int, typer.Option(min=1, help="Most samples measured a source.")] = 1000,
    workers: Annotated[int, typer.Option(min=1, help="Threads that measure.")] = 2,
) -> None:
    """Print each source's mean tokens, media and outcomes.

    Nothing is decoded: token counts follow from headers. Sources that have no index yet are
    indexed first.

        zephon-mm measure vlm.yaml --samples 2000
    """
    from ..pipeline.run import open_run

    data, execution = load_yaml(config)
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        indexing = {
            source.id: progress.add_task(f"indexing {source.id}", total=None)
            for source in data.sources
        }
        run = open_run(
            data,
            execution,
            lambda source, done: progress.update(
                indexing[source], advance=1, total=done.num_shards
            ),
        )
        totals = []
        for number, source in enumerate(data.sources):
            progress.remove_task(indexing[source.id])
            refs = [
                SampleRef(source=number, shard=shard, sample=sample, epoch=0, position=0)
                for shard, sample in run.manifests[number].spread(samples)
            ]
            task = progress.add_task(f"measuring {source.id}", total=len(refs))
            total = Totals(samples=run.manifests[number].num_total)
            for measurement in measured(run, refs, workers):
                total.add(measurement)
                progress.advance(task)
            totals.append(total)
    for name, choice in run.chosen_formats.items():
        Console(highlight=False).print(f"{name}: {choice}", markup=False, soft_wrap=True)
    if not report({s.id: total for s, total in zip(data.sources, totals, strict=True)}):
        raise typer.Exit(1)


def measured(run: Run, refs: Sequence[SampleRef], workers: int) -> Iterator[Measurement]:
    """Measure references in order; a failure of the world is raised."""
    blocks = [refs[at : at + BLOCK] for at in range(0, len(refs), BLOCK)]
    with ThreadPoolExecutor(workers) as pool:
        for results in pool.map(run.measure, blocks):
            for result in results:
                if isinstance(result, Exception):
                    pool.shutdown(cancel_futures=True)
                    raise result
                yield result


def report(totals: Mapping[str, Totals]) -> bool:
    """Print what was measured of each source; whether every source gives a document.

    Nothing is cut: what is wider than the terminal wraps there.
    """
    out = Console(highlight=False)
    rows = table(totals)
    out.width = max(out.width, Console(width=WIDEST).measure(rows).maximum)
    out.print(rows)
    for name, total in totals.items():
        for line in details(total):
            out.print(f"{name}: {line}", markup=False, soft_wrap=True)
    out.print(
        "\nTokens above are of a document that is delivered. mean_tokens is of a sample drawn, "
        "those without a document counted as 0: what `mixture: tokens` takes.\n"
        "mean_tokens for the config:",
        soft_wrap=True,
    )
    for name, total in totals.items():
        mean = total.mean_tokens
        value = f"{mean:.1f}" if mean >= 1 else f"{mean:.4f}" if mean else "no document"
        out.print(f"  {name}: {value}", markup=False, soft_wrap=True)
    empty = {name: total for name, total in totals.items() if not total.num_tokens}
    for name, total in empty.items():
        out.print(nothing(name, total), style="red", markup=False, soft_wrap=True)
    return not empty


def table(totals: Mapping[str, Totals]) -> Table:
    """One row a source: of those measured, what a delivered document is in the mean."""
    result = Table(title="a mean document of each source")
    for name in ("source", "documents", "tokens", "pictures", "clips"):
        result.add_column(name, justify="left" if name == "source" else "right", no_wrap=True)
    for name, total in totals.items():
        documents = len(total.num_tokens)
        means = (
            f"{sum(total.num_tokens) / documents:,.1f}" if documents else "-",
            f"{total.media['image'] / documents:.2f}" if documents else "-",
            f"{total.media['video'] / documents:.2f}" if documents else "-",
        )
        result.add_row(Text(name), f"{documents:,}", *means)
    return result


def details(total: Totals) -> Iterator[str]:
    """Lines below the table: outcomes, the spread of tokens, media, and what went wrong."""
    outcomes = ", ".join(f"{count:,} {kind}" for kind, count in sorted(total.outcomes.items()))
    yield f"{sum(total.outcomes.values()):,} of {total.samples:,} samples: {outcomes or 'none'}"
    documents = len(total.num_tokens)
    if documents:
        yield (
            f"tokens p50 {np.median(total.num_tokens):,.0f}, max {max(total.num_tokens):,}, "
            f"targets {total.num_targets / documents:,.1f} a document"
        )
    if total.media:
        yield (
            f"frames {total.media['frames'] / documents:,.1f}, "
            f"patches {total.num_patches / documents:,.0f} a document"
        )
    reasons = total.reasons.most_common()
    for kind, count in reasons[:_REASONS]:
        yield f"{count:,} × {'e.g. ' * (kind in total.varied)}{total.examples[kind]}"
    rest = [count for _, count in reasons[_REASONS:]]
    if rest:
        yield f"{sum(rest):,} × other reasons: execution.reject_log has those of a run"


def nothing(name: str, total: Totals) -> str:
    """What to say of a source without a document."""
    looked_at = sum(total.outcomes.values())
    why = [
        f"; the commonest reason: {total.examples[kind]}"
        for kind, _ in total.reasons.most_common(1)
    ]
    return f"{name}: 0 of {looked_at:,} samples looked at give a document{''.join(why)}"
