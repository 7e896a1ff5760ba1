"""The comparison with other loaders: ``python -m benchmarks --help``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks import suites, workloads
from benchmarks.compare.protocol import Job
from benchmarks.environments import CONTESTANTS, default_cache, folder_of
from benchmarks.harness import RESULTS, Bench
from benchmarks.report import table
from benchmarks.sitting import Sitting
from benchmarks.suites import Unit

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help=(
        "This project against the loaders you would use instead, on the same data and the same "
        "work, beside the limit: the bare work without any loader.\n\n"
        "`all` measures everything, as far as a budget of minutes goes, and goes on the next time. "
        "Or one by one: `run text` measures first batch, throughput and memory; `restore` how long "
        "a resume takes and how large its state is; `determinism` what stays equal when workers, "
        "ranks or a resume change; `lanes` ours alone. Each appends JSON rows to a file, from "
        "which `plot` makes pictures; `list` says who takes part.\n\n"
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
    bool, typer.Option("--quick", help="Little data, windows of 1 s, rows kept apart: a trial.")
]
CacheOption = Annotated[Path, typer.Option(help="Folder of environments and data.")]
ResultsOption = Annotated[
    Path | None,
    typer.Option(
        help=f"File that rows are appended to: {RESULTS.name}, or quick.jsonl of --cache."
    ),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Measure again what these results have of this commit.")
]
BudgetOption = Annotated[
    float | None,
    typer.Option("--budget-minutes", min=0, help="Begin nothing that would end later."),
]
DryOption = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would be done, and how long it takes.")
]
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


def jobs_of(data: Path, works: Sequence[str], quick: bool) -> dict[str, Job]:
    """The throughput job of each work."""
    end = workloads.end_token(data)
    return {work: suites.base_job(work, data, end, quick) for work in works}  # type: ignore[arg-type]


def measure(
    units: Sequence[Unit],
    data: Path,
    quick: bool,
    cache: Path,
    results: Path | None,
    *,
    budget: float | None = None,
    fresh: bool = False,
    dry: bool = False,
) -> None:
    """Do the units, show the summaries, and say what is left."""
    out, err = Console(width=160), Console(stderr=True)
    facts = {"quick": quick} | workloads.facts(data)
    path = results or (cache / "quick.jsonl" if quick else RESULTS)
    with ExitStack() as stack:
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=err,
            transient=True,
            speed_estimate_period=600,
        )
        task = progress.add_task("", total=None)
        bench = Bench(cache, path, facts, lambda line: progress.update(task, description=line))
        sitting = Sitting(bench, units, None if budget is None else 60 * budget, fresh)
        if sitting.done:
            err.print(f"{len(sitting.done)} of {len(units)} were done before (--fresh: again)")
        if dry:
            for unit in sitting.left:
                out.print(f"{sitting.seconds_of(unit):6.0f} s  {unit.name}", highlight=False)
            out.print(f"{sitting.seconds / 60:.0f} minutes", highlight=False)
            return
        total = sitting.seconds if budget is None else min(sitting.seconds, 60 * budget)
        progress.update(task, total=total)
        stack.enter_context(progress)
        rows = sitting.run(lambda seconds: progress.advance(task, seconds))
    for suite in dict.fromkeys(row["suite"] for row in rows):
        out.print(table([row for row in rows if row["suite"] == suite]))
    if sitting.left:
        out.print(
            f"{len(sitting.left)} of {len(units)} are left, {sitting.seconds / 60:.0f} minutes: "
            "the same command goes on with them",
            highlight=False,
        )


def epoch_steps(data: Path, at: str, job: Job) -> Mapping[int, float | None]:
    """Steps of an option, such as ``10,1000,25%``: by number, or by the share of an epoch."""
    found: dict[int, float | None] = {}
    epoch = 0
    for one in at.split(","):
        if not one.endswith("%"):
            found[int(one)] = None
            continue
        if not epoch:
            epoch = workloads.steps_of_epoch(data, job.batch * job.sequence_length)
        share = float(one[:-1]) / 100
        found[max(10, 10 * round(share * epoch / 10))] = share
    return dict(sorted(found.items()))


def restore_job(job: Job) -> Job:
    """Of few tokens a step, so that far steps are near."""
    return dataclasses.replace(job, batch=2, lanes=2, sequence_length=512)


MAIN = ("text", "image_text", "video_360p")
"""The works that `all` measures with 2 workers before anything is measured twice."""
AT, AT_QUICK = "10,1000,10000,1%,25%,75%", "10,50%"


@app.command("list")
def list_contestants(cache: CacheOption = default_cache()) -> None:  # noqa: B008
    """Who takes part, at which versions, and whether their environments are there."""
    out = Console(highlight=False)
    for name, contestant in CONTESTANTS.items():
        made = not contestant.requirements or (folder_of(name, cache) / "complete").is_file()
        needs = ", ".join(contestant.requirements) or "this environment"
        out.print(f"{name}: {needs}{'' if made else ' (not installed yet)'}", markup=False)


@app.command("all")
def everything(
    peers: PeersOption = "all",
    rounds: RoundsOption = 3,
    budget: BudgetOption = None,
    dry_run: DryOption = False,
    quick: QuickOption = False,
    fresh: FreshOption = False,
    vocabulary: VocabularyOption = "trained",
    cache: CacheOption = default_cache(),  # noqa: B008
    results: ResultsOption = None,
) -> None:
    """Everything, in order of its weight: a first round of all, then the others.

    Texts, pictures, clips and interleaved documents with 0, 2 and 1 workers; restores; lanes;
    packing; the plan; worker processes; what stays equal. Begin it again with the same options and
    it goes on: units that were done of this commit, in these results, are not done again.
    """
    works = list(workloads.WORKS)
    data = data_of(cache, works, quick, vocabulary)
    units = suites_of_all(data, chosen(peers), rounds, quick)
    measure(units, data, quick, cache, results, budget=budget, fresh=fresh, dry=dry_run)


def suites_of_all(data: Path, names: list[str], rounds: int, quick: bool) -> list[Unit]:
    """All units, in order of their weight.

    A round of each work without workers, of `MAIN` with 2; then what is done once; then further
    rounds; at last the other works with 2 workers, 1 worker, and what stays equal of pictures.
    """
    jobs = jobs_of(data, workloads.WORKS, quick)
    text = restore_job(jobs["text"])
    at = epoch_steps(data, AT_QUICK if quick else AT, text)
    rates = {
        (work, workers): suites.throughput(job, names, workers, rounds)
        for workers in (0, 2, 1)
        for work, job in jobs.items()
    }
    first = [(work, 0) for work in jobs] + [(work, 2) for work in MAIN]
    lanes, restores = suites.lanes(jobs["text"], rounds), suites.restores(text, names, at, rounds)
    units: list[Unit] = []
    for number in range(rounds):
        units += [rates[key][number] for key in first]
        units += [unit for unit in lanes if unit.number == number]
        units += [unit for unit in restores if unit.number == number]
        if number == 0:
            repeat = str(min(rounds, 3))
            units += [suites.Script("packing", guess_s=40), suites.Script("plan", guess_s=30)]
            units.append(suites.Script("backends", ("--repeat", repeat), 45.0 * min(rounds, 3)))
            units += suites.matrices(jobs["text"], names, 8)
    units += [rates[key][n] for n in range(rounds) for key in rates if key not in first]
    return units + suites.matrices(jobs["image_text"], names, 8)


@app.command()
def run(
    works: WorksArgument,
    peers: PeersOption = "all",
    rounds: RoundsOption = 5,
    workers: Annotated[str, typer.Option(help="Numbers of workers, with commas.")] = "0,1,2",
    quick: QuickOption = False,
    fresh: FreshOption = False,
    budget: BudgetOption = None,
    vocabulary: VocabularyOption = "trained",
    cache: CacheOption = default_cache(),  # noqa: B008
    results: ResultsOption = None,
) -> None:
    """First batch, rates per second and per CPU-second, memory and fill, as ratios to the limit."""
    data = data_of(cache, works, quick, vocabulary)
    units = [
        unit
        for job in jobs_of(data, works, quick).values()
        for number in workers.split(",")
        for unit in suites.throughput(job, chosen(peers), int(number), rounds)
    ]
    measure(units, data, quick, cache, results, budget=budget, fresh=fresh)


@app.command()
def restore(
    peers: PeersOption = "all",
    at: Annotated[str, typer.Option(help="Steps of the states, or shares of an epoch.")] = AT,
    rounds: RoundsOption = 3,
    quick: QuickOption = False,
    fresh: FreshOption = False,
    vocabulary: VocabularyOption = "trained",
    cache: CacheOption = default_cache(),  # noqa: B008
    results: ResultsOption = None,
) -> None:
    """From the imports to the first batch after a resume of texts, beside a cold start."""
    data = data_of(cache, ["text"], quick, vocabulary)
    job = restore_job(jobs_of(data, ["text"], quick)["text"])
    units = suites.restores(job, chosen(peers), epoch_steps(data, at, job), rounds)
    measure(units, data, quick, cache, results, fresh=fresh)


@app.command()
def lanes(
    rounds: RoundsOption = 3,
    quick: QuickOption = False,
    fresh: FreshOption = False,
    vocabulary: VocabularyOption = "trained",
    cache: CacheOption = default_cache(),  # noqa: B008
    results: ResultsOption = None,
) -> None:
    """Ours with 8 to 1,024 lanes on a rank, and one lane of 1,024, beside one lane; states."""
    data = data_of(cache, ["text"], quick, vocabulary)
    units = suites.lanes(jobs_of(data, ["text"], quick)["text"], rounds)
    measure(units, data, quick, cache, results, fresh=fresh)


@app.command()
def determinism(
    works: WorksArgument,
    peers: PeersOption = "all",
    steps: Annotated[int, typer.Option(min=2, help="Steps that are compared.")] = 8,
    quick: QuickOption = False,
    fresh: FreshOption = False,
    cache: CacheOption = default_cache(),  # noqa: B008
    results: ResultsOption = None,
) -> None:
    """Whether the same rows come again: with other workers, on 2 ranks, after a resume."""
    data = data_of(cache, works, quick, "trained")
    jobs = jobs_of(data, works, quick)
    units = [unit for job in jobs.values() for unit in suites.matrices(job, chosen(peers), steps)]
    measure(units, data, quick, cache, results, fresh=fresh)


@app.command()
def plot(
    results: Annotated[Path, typer.Option(help="The rows.")] = RESULTS,
    out: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path("docs"),
) -> None:
    """The pictures of README, of the newest summaries in the results."""
    from benchmarks.plot import draw

    for path in draw(results, out):
        Console().print(str(path), markup=False)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
