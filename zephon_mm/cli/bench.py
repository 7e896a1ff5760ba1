"""``zephon-mm bench decode``: which decoder is right, and how fast, on a user's own clips.

Correctness comes first: every frame that a decoder gives is compared with a bare sequential decode
by PyAV. Then come the times. In each round every decoder decodes every clip once by every pattern,
side by side, the order turned round from one round to the next; ratios are taken within a round,
so what disturbs a whole round cancels out. Each decoder runs in a process of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..config import VideoSampling
from ..errors import ConfigError, MediaError, StorageError
from ..media.info import VideoInfo
from .bench_contestants import CONTESTANTS, Job, Reply, Sweep, reference, serve
from .bench_report import Cell, Clip, draw, load_pyplot, record, summarise, sweep_table, table
from .frames import choose, open_clip

PATIENCE = 300.0
"""Seconds that one decode of one clip may take before its worker is given up."""

bench = typer.Typer(no_args_is_help=True, help="Measure parts of this package beside their peers.")


@bench.callback()
def _group() -> None:
    """Measure parts of this package beside their peers."""


_WHO = "\n\n".join(f"{name}: {one.about}" for name, one in CONTESTANTS.items())


@bench.command(epilog=f"Decoders:\n\n{_WHO}")
def decode(
    files: Annotated[list[Path], typer.Argument(help="Clips.", show_default=False)],
    decoders: Annotated[
        str,
        typer.Option(help="Which, commas between; the first is what others are held to."),
    ] = ",".join(CONTESTANTS),
    pattern: Annotated[
        str, typer.Option(help="Which frames: all, uniform:N, fps:F, random:N; commas between.")
    ] = "all,uniform:16,fps:2",
    threads: Annotated[
        int,
        typer.Option(
            min=1, help="Threads a clip, where a library has them; this package's decoders use one."
        ),
    ] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of timing.")] = 5,
    concurrency: Annotated[
        str | None,
        typer.Option(help="Also decode with so many clips in flight, in threads: 1,2,4."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw frames a second to this file.")] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write everything measured to this file.")
    ] = None,
) -> None:
    """Compare video decoders on your clips: wrong frames first, then speed.

        zephon-mm bench decode clips/*.mp4 --pattern uniform:16 --plot decode.png

    The table has a row for each decoder and pattern: wrong frames; frames a second and ms a clip
    (median of the rounds, with the 20th and 80th percentile); CPU time, which is what counts where
    all cores decode; that CPU time over the first decoder's (median and spread of the rounds'
    ratios, over the clips that both decode); peak memory of the process. Planes are compared bit
    by bit, RGB by which frame it is. Decoders that aren't installed are named below the table.

    With `--concurrency` a second table has the frames a second by clips in flight, and the most of
    them: where the machine is saturated.
    """
    names = _split(decoders, CONTESTANTS, "--decoders")
    patterns = tuple(pattern.split(","))
    levels = parse_levels(concurrency)
    pyplot = load_pyplot() if plot is not None else None
    out = Console()
    if not out.is_terminal:  # a file has room for the table
        out = Console(width=max(out.width, 170))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(
            *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
        ) as progress,
        ExitStack() as stack,
    ):
        clips, left_out = _clips(files, patterns, progress)
        workers, missing = {}, {}
        for name in names:
            worker = stack.enter_context(Worker(name))
            if worker.missing is None:
                workers[name] = worker
            else:
                missing[name] = worker.missing
        cells = measure(workers, clips, patterns, threads, rounds, progress)
        swept = sweep(workers, clips, cells, levels, threads, rounds, progress) if levels else []
    summary = [
        row
        for at in patterns
        for name in workers
        if (row := summarise(name, at, cells, next(iter(workers)), clips)) is not None
    ]
    out.print(table(summary, len(clips), rounds, threads))
    if swept:
        out.print(sweep_table(swept, levels, rounds))
    for title, reasons in (("not installed", missing), ("left out", left_out)):
        for name, reason in reasons.items():
            out.print(f"{title}: {name}: {reason}", markup=False, highlight=False)
    for (name, at), cell in cells.items():
        for number, reason in cell.errors.items():
            text = f"not decoded: {name}, {at}, {clips[number].path}: {reason}"
            out.print(text, markup=False, highlight=False)
    if json_out is not None:
        json_out.write_text(
            json.dumps(record(summary, swept, missing, left_out, cells, clips), indent=1)
        )
    if pyplot is not None:
        draw(pyplot, summary, str(plot))


def _split(text: str, known: Sequence[str] | dict[str, Any], option: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} {name!r}: choose from {', '.join(known)}")
    return names


def _clips(
    files: Sequence[Path], patterns: Sequence[str], progress: Progress
) -> tuple[list[Clip], dict[str, str]]:
    """The clips with the reference's frames; those that it can't decode are left out."""
    from ..decoders import pyav_stream

    task = progress.add_task("reference", total=len(files))
    clips, left_out = [], {}
    for path in files:
        try:
            data, info = open_clip(path)
            try:
                right, stream = reference(data, info)
            except pyav_stream.PYAV_ERRORS as error:
                raise MediaError(pyav_stream.why(error), stage="decode") from error
            if len(right.md5) != info.num_frames:
                raise MediaError(
                    f"{len(right.md5)} of {info.num_frames} frames decode", stage="decode"
                )
            frames = {at: frames_of(path, info, at) for at in patterns}
            clips.append(Clip(path, replace(info, clean=True), stream, right, frames))
        except (MediaError, StorageError) as error:
            left_out[str(path)] = str(error)
        progress.advance(task)
    if not clips:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ConfigError(f"no clip to measure ({reasons})")
    return clips, left_out


def frames_of(path: Path, info: VideoInfo, pattern: str) -> tuple[int, ...]:
    """The frames of a pattern: ``all``, ``uniform:16``, ``fps:2``, ``random:50``."""
    from ..media.sampling import sample_frames

    kind, _, number = pattern.partition(":")
    try:
        if kind == "all" and not number:
            return tuple(range(info.num_frames))
        if kind == "uniform":
            return sample_frames(info, VideoSampling(mode="uniform", num_frames=int(number)))
        if kind == "fps":
            return choose(path, info, fps=float(number))
        if kind == "random":
            draw = random.Random(int(number))
            return tuple(draw.randrange(info.num_frames) for _ in range(int(number)))
    except ValueError as error:
        raise ConfigError(f"--pattern {pattern!r}: {error}") from error
    raise ConfigError(f"--pattern {pattern!r}: expected all, uniform:N, fps:F or random:N")


class Worker:
    """A contestant's process. One that dies or hangs is started anew for the next job."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(self.name, theirs), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.missing: str | None = self._connection.recv()
        except EOFError:
            self.missing = "its process died while it was loaded"

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def ask(self, job: Job | Sweep) -> Reply:
        """Decode once; whatever goes wrong is the reply's ``error``."""
        try:
            self._connection.send(job)
            if self._connection.poll(PATIENCE):
                reply: Reply = self._connection.recv()
                return reply
            reason = f"no answer in {PATIENCE:.0f} s"
        except (EOFError, OSError):
            reason = "its process died"
        self.__exit__()
        self._start()
        return Reply(error=reason)


def measure(
    workers: dict[str, Worker],
    clips: Sequence[Clip],
    patterns: Sequence[str],
    threads: int,
    rounds: int,
    progress: Progress,
) -> dict[tuple[str, str], Cell]:
    """Check every decoder, then time those clips that it decodes, by (decoder, pattern)."""
    cells = {
        (name, at): Cell()
        for at in patterns
        for name in workers
        if at == "all" or not CONTESTANTS[name].whole
    }
    task = progress.add_task("checking", total=len(cells) * len(clips))
    for (name, at), cell in cells.items():
        for number, clip in enumerate(clips):
            job = Job(str(clip.path), clip.info, clip.stream, clip.frames[at], threads, check=True)
            reply = workers[name].ask(job)
            if reply.error is not None:
                cell.errors[number] = reply.error
            elif CONTESTANTS[name].gives != "nothing":
                absent = set(clip.frames[at]) - {index for index, _ in reply.marks}
                cell.checked += len(reply.marks) + len(absent)
                cell.wrong += clip.right.wrong(reply.marks) + len(absent)
            progress.advance(task)
    task = progress.add_task("timing", total=rounds * len(cells) * len(clips))
    for turn in range(rounds):
        for cell in cells.values():
            cell.rounds.append({})
        for number, clip in enumerate(clips):
            for at in patterns:
                for name in list(workers) if turn % 2 == 0 else list(workers)[::-1]:
                    if (name, at) not in cells:
                        continue
                    cell = cells[name, at]
                    progress.advance(task)
                    if number in cell.errors:
                        continue
                    job = Job(str(clip.path), clip.info, clip.stream, clip.frames[at], threads)
                    reply = workers[name].ask(job)
                    if reply.error is not None:
                        cell.errors[number] = reply.error
                        continue
                    cell.rounds[-1][number] = reply
                    cell.peak_bytes = max(cell.peak_bytes, reply.peak_bytes)
    return cells


def parse_levels(text: str | None) -> tuple[int, ...]:
    """``1,2,4`` as numbers; none without the option."""
    if text is None:
        return ()
    try:
        levels = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        levels = (0,)
    if levels[0] < 1:
        raise ConfigError(f"--concurrency {text!r}: expected whole numbers from 1, such as 1,2,4")
    return levels


def sweep(
    workers: dict[str, Worker],
    clips: Sequence[Clip],
    cells: dict[tuple[str, str], Cell],
    levels: Sequence[int],
    threads: int,
    rounds: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Frames a second of each decoder and pattern by clips in flight, over what it decodes.

    The list of clips is repeated until each level has at least two clips a thread, and is the same
    for all levels.
    """
    task = progress.add_task("clips in flight", total=rounds * len(levels) * len(cells))
    rates: dict[tuple[str, str], dict[int, list[float]]] = {}
    for turn in range(rounds):
        for name, at in list(cells) if turn % 2 == 0 else list(cells)[::-1]:
            done = [n for n in range(len(clips)) if n not in cells[name, at].errors]
            for level in levels:
                progress.advance(task)
                if not done:
                    continue
                jobs = tuple(
                    Job(str(clips[n].path), clips[n].info, clips[n].stream, frames, threads)
                    for n in done
                    for frames in [clips[n].frames[at]]
                ) * -(-2 * levels[-1] // len(done))
                reply = workers[name].ask(Sweep(jobs, level))
                if reply.error is None:
                    count = sum(len(set(job.frames)) for job in jobs)
                    found = rates.setdefault((name, at), {}).setdefault(level, [])
                    found.append(count / reply.wall)
    return [sweep_row(name, at, found) for (name, at), found in rates.items()]


def sweep_row(name: str, pattern: str, rates: dict[int, list[float]]) -> dict[str, Any]:
    """Medians by level, and the level that gives most."""
    medians = {level: median(found) for level, found in sorted(rates.items())}
    best = max(medians, key=lambda level: medians[level])
    return {
        "decoder": name, "pattern": pattern, "frames_per_second": medians,
        "saturated": medians[best], "in_flight": best,
    }  # fmt: skip
