"""The comparison with other loaders: ``python -m benchmarks --help``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import suites, workloads
from benchmarks.environments import CONTESTANTS, default_cache, folder_of
from benchmarks.harness import RESULTS, Bench, Row
from benchmarks.report import table

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help=(
        "This project against the loaders you would use instead, on the same data and the same "
        "work, beside the limit: the bare work without any loader.\n\n"
        "`list` says who takes part. `run text` measures first batch, throughput and memory; "
        "`restore` how long a resume takes and how large its state is; `determinism` what stays "
        "equal when workers, ranks or a resume change; `lanes` ours alone. Each appends JSON rows "
        "to a file, from which `plot` makes pictures.\n\n"
        "Try `python -m benchmarks run text --quick --peers ours,limits` first: some seconds a "
        "contestant. The first run of a peer installs it into an environment of its own.\n\n"
        "Measure on a machine with nothing else to do: rows hold its load, and ratios are of one "
        "round, but no figure is better than its machine was quiet."
    ),
)

WorksArgument = Annotated[list[str], typer.Argument(help=f"Of {', '.join(workloads.WORKS)}.")]
PeersOption = Annotated[
    str, typer.Option(help="Contestants with commas between, or all; see `list`.")
]
RoundsOption = Annotated[int, typer.Option(min=1, help="Paired rounds.")]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="Little data, windows of 1 s, no rows kept: a trial.")
]
CacheOption = Annotated[Path, typer.Option(help="Folder of environments and data.")]
ResultsOption = Annotated[Path, typer.Option(help="File that rows are appended to.")]
VocabularyOption = Annotated[
    str, typer.Option(help="trained: a BPE of 4,096 tokens; qwen: Qwen's, if dashscope is there.")
]


def chosen(peers: str) -> list[str]:
    """The contestants of an option.

    Raises:
        typer.BadParameter: one that there isn't.
    """
    names = list(CONTESTANTS) if peers == "all" else [name for name in peers.split(",") if name]
    for name in names:
        if name not in CONTESTANTS:
            known = ", ".join(CONTESTANTS)
            raise typer.BadParameter(f"no contestant {name!r}; there are {known}, and all")
    return names


@contextmanager
def bench_of(cache: Path, results: Path | None, title: str) -> Iterator[Bench]:
    """A bench that shows on stderr what it is at."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task(title, total=None)

        def say(line: str) -> None:
            progress.update(task, description=line, advance=1)

        yield Bench(cache, results, say)


def data_of(cache: Path, works: list[str], quick: bool, vocabulary: str) -> Path:
    """The folder of data, written if it isn't there."""
    for work in works:
        if work not in workloads.WORKS:
            raise typer.BadParameter(f"no work {work!r}; there are {', '.join(workloads.WORKS)}")
    if vocabulary not in ("trained", "qwen"):
        raise typer.BadParameter(f"--vocabulary {vocabulary!r} is trained or qwen")
    size = workloads.QUICK if quick else workloads.FULL
    folder = workloads.folder_of(cache, size, 0, vocabulary)
    missing = [work for work in works if not (folder / f"{work}.json").is_file()]
    if missing:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            tasks = {
                work: progress.add_task(f"making {work}", total=workloads.total(work, size))
                for work in missing
            }
            workloads.make(
                folder, missing, size, 0, vocabulary, lambda work: progress.advance(tasks[work])
            )
    return folder


def show(rows: list[Row]) -> None:
    """A table of summaries."""
    Console(width=160).print(table(rows))


@app.command("list")
def list_contestants(cache: CacheOption = default_cache()) -> None:  # noqa: B008
    """Who takes part, at which versions, and whether their environments are there."""
    out = Console(highlight=False)
    for name, contestant in CONTESTANTS.items():
        made = not contestant.requirements or (folder_of(name, cache) / "complete").is_file()
        needs = ", ".join(contestant.requirements) or "this environment"
        out.print(f"{name}: {needs}{'' if made else ' (not installed yet)'}", markup=False)


@app.command()
def run(
    works: WorksArgument,
    peers: PeersOption = "all",
    rounds: RoundsOption = 5,
    workers: Annotated[str, typer.Option(help="Numbers of workers, with commas.")] = "0,1,2",
    quick: QuickOption = False,
    vocabulary: VocabularyOption = "trained",
    cache: CacheOption = default_cache(),  # noqa: B008
    results: ResultsOption = RESULTS,
) -> None:
    """First batch, rates per second and per CPU-second, memory and fill, as ratios to the limit."""
    names, numbers = chosen(peers), [int(number) for number in workers.split(",")]
    data = data_of(cache, works, quick, vocabulary)
    for work in works:
        job = suites.base_job(work, data, quick)  # type: ignore[arg-type]
        with bench_of(cache, None if quick else results, work) as bench:
            rows = suites.throughput(bench, job, names, numbers, rounds)
        show(rows)


@app.command()
def restore(
    work: Annotated[str, typer.Argument(help="Which work.")] = "text",
    peers: PeersOption = "ours",
    at: Annotated[str, typer.Option(help="Steps after which states are taken.")] = "10,1000,10000",
    rounds: RoundsOption = 5,
    batch: Annotated[int, typer.Option(help="Rows a step: few, so that far steps are near.")] = 2,
    length: Annotated[int, typer.Option(help="Tokens a row.")] = 512,
    quick: QuickOption = False,
    vocabulary: VocabularyOption = "trained",
    cache: CacheOption = default_cache(),  # noqa: B008
    results: ResultsOption = RESULTS,
) -> None:
    """Time from the imports to the first batch after a resume, beside a cold start; state size."""
    data = data_of(cache, [work], quick, vocabulary)
    job = dataclasses.replace(
        suites.base_job(work, data, quick),  # type: ignore[arg-type]
        batch=batch,
        lanes=batch,
        sequence_length=length,
    )
    with bench_of(cache, None if quick else results, work) as bench:
        rows = suites.restore(bench, job, chosen(peers), [int(n) for n in at.split(",")], rounds)
    show(rows)


@app.command()
def lanes(
    work: Annotated[str, typer.Argument(help="Which work.")] = "text",
    rounds: RoundsOption = 3,
    quick: QuickOption = False,
    vocabulary: VocabularyOption = "trained",
    cache: CacheOption = default_cache(),  # noqa: B008
    results: ResultsOption = RESULTS,
) -> None:
    """Ours with 1 to 1,024 lanes on a rank, and one lane of 1,024, beside one lane."""
    data = data_of(cache, [work], quick, vocabulary)
    job = suites.base_job(work, data, quick)  # type: ignore[arg-type]
    with bench_of(cache, None if quick else results, work) as bench:
        rows = suites.lanes(bench, job, rounds)
    show(rows)


@app.command()
def determinism(
    works: WorksArgument,
    peers: PeersOption = "all",
    steps: Annotated[int, typer.Option(min=2, help="Steps that are compared.")] = 8,
    quick: QuickOption = False,
    cache: CacheOption = default_cache(),  # noqa: B008
    results: ResultsOption = RESULTS,
) -> None:
    """Whether the same rows come again: with other workers, on 2 ranks, after a resume."""
    data = data_of(cache, works, quick, "trained")
    for work in works:
        job = dataclasses.replace(
            suites.base_job(work, data, quick),  # type: ignore[arg-type]
            batch=2,
            lanes=2,
        )
        with bench_of(cache, None if quick else results, work) as bench:
            names = [name for name in chosen(peers) if not name.startswith("limits")]
            rows = [row for name in names for row in suites.determinism(bench, job, name, steps)]
        show(rows)


@app.command()
def plot(
    results: ResultsOption = RESULTS,
    out: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path("docs"),
) -> None:
    """The pictures of README, of the newest summaries in the results."""
    from benchmarks.plot import draw

    for path in draw(results, out):
        Console().print(str(path), markup=False)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
