"""What is measured: throughput, restores, lanes, and a matrix of what stays equal."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.protocol import Job, Kind, Mode, Work
from benchmarks.harness import Bench, Entry, Row, summary

BATCH = {"text": 8, "image_text": 8, "video_360p": 2, "video_720p": 2, "interleaved": 4}
"""Packed rows a step."""
LENGTH = {"text": 4097}
SECONDS = {"text": (3.0, 8.0), "image_text": (3.0, 10.0)}
"""Of warming up and of the window; others take `LONG`."""
LONG = (5.0, 20.0)
WARMUP_STEPS = {"text": 32}
"""Ours deepens the pool of documents that wait by two a sequence, from 8 to 64: until then it
measures more than it delivers. Pictures and clips fill it at once, by their tokens."""
LANES = ((1, 1), (8, 1), (64, 1), (1024, 1), (1024, 1024))
"""Lanes of the run, and ranks; the row of one rank is measured."""


def base_job(work: Work, data: Path, quick: bool = False) -> Job:
    """The throughput of a work in the caller's thread."""
    warmup, seconds = (0.2, 1.0) if quick else SECONDS.get(work, LONG)
    rows = 2 if quick else BATCH[work]
    return Job(
        work=work,
        kind="throughput",
        data=str(data),
        reply="",
        sequence_length=LENGTH.get(work, 4096),
        batch=rows,
        lanes=rows,
        warmup_s=warmup,
        warmup_steps=0 if quick else WARMUP_STEPS.get(work, 0),
        seconds=seconds,
    )


def backends(workers: Iterable[int]) -> Iterator[tuple[Mode, int]]:
    """Each number of workers as threads and as processes; 0 is the caller's thread."""
    for number in workers:
        modes: tuple[Mode, ...] = ("threads", "processes") if number else ("serial",)
        for mode in modes:
            yield mode, number


def throughput(
    bench: Bench, job: Job, peers: Sequence[str], workers: Sequence[int], rounds: int
) -> list[Row]:
    """First batch and steady rates; all are divided by the limit, or by our serial run."""
    entries = [
        Entry(name, dataclasses.replace(job, mode=mode, workers=number))
        for name in peers
        for mode, number in backends(workers)
        if number == 0 or not name.startswith("limits")
    ]
    against = "limits serial" if "limits" in peers else "ours serial"
    return bench.rounds(entries, rounds, against, suite="throughput")


def restore(
    bench: Bench, job: Job, peers: Sequence[str], at: Sequence[int], rounds: int
) -> list[Row]:
    """To the first batch from states of the steps ``at``, beside a cold start, in turns."""
    found = []
    for name in peers:
        with tempfile.TemporaryDirectory() as folder:
            for step in at:
                state = str(Path(folder) / f"state-{step}")
                saving = dataclasses.replace(job, kind="save", steps=step, state=state)
                saved = bench.run(Entry(name, saving), suite="restore", at_step=step)
                if "failed" in saved or "skipped" in saved:
                    found.append(_without_runs(bench, name, saved, step))
                    continue
                cold = Entry(name, dataclasses.replace(job, kind="restore"))
                warm = Entry(name, dataclasses.replace(job, kind="restore", state=state))
                found.append(_restored(bench, cold, warm, rounds, step, saved["state_bytes"]))
    return found


def _restored(
    bench: Bench, cold: Entry, warm: Entry, rounds: int, step: int, state_bytes: int
) -> Row:
    more = {"suite": "restore", "at_step": step}
    pairs = [
        (bench.run(cold, round=number, cold=True, **more), bench.run(warm, round=number, **more))
        for number in range(rounds)
    ]
    row = summary(warm, [b for _, b in pairs], [a for a, _ in pairs], "cold start")
    return bench.keep(row | more | {"state_bytes": state_bytes})


def _without_runs(bench: Bench, name: str, saved: Row, step: int) -> Row:
    why = {key: saved[key] for key in ("failed", "skipped") if key in saved}
    facts = {"bench": "compare", "row": "summary", "contestant": name, "suite": "restore"}
    return bench.keep(facts | {"work": saved["job"]["work"], "at_step": step} | why)


def lanes(bench: Bench, job: Job, rounds: int) -> list[Row]:
    """Ours with 1 … 1,024 lanes on one rank, and one lane of 1,024; against one lane of one.

    64 rows a step on one rank, however many lanes up to 64; 1,024 with 1,024: to the first batch.
    Of one lane of 1,024 the steady rate, too, one row a step.
    """
    found = []
    for count, ranks in LANES:
        rows = 1 if ranks > 1 else max(64, count)
        kind: Kind = "throughput" if ranks > 1 else "restore"
        one = dataclasses.replace(job, kind=kind, lanes=1, batch=rows)
        many = dataclasses.replace(one, lanes=count, batch=rows * ranks, dp_size=ranks)
        entries = {"one": Entry("ours", one), "many": Entry("ours", many)}
        more = {"suite": "lanes", "lanes": count, "ranks": ranks}
        runs: dict[str, list[Row]] = {"one": [], "many": []}
        for number in range(rounds):
            for label, entry in entries.items():
                runs[label].append(bench.run(entry, round=number, side=label, **more))
        row = summary(entries["many"], runs["many"], runs["one"], "one lane")
        found.append(bench.keep(row | more))
    return found


def determinism(bench: Bench, job: Job, name: str, steps: int) -> list[Row]:
    """Whether the rows are those of the plain run: again, by workers, ranks, after a restore.

    The first ``steps`` steps; states are of half of them.
    """
    job = dataclasses.replace(job, kind="rows", steps=steps)
    plain = bench.run(Entry(name, job), suite="determinism", case="plain")
    if "rows" not in plain:
        return [_verdict(bench, name, job, "plain", plain.get("skipped") or plain.get("failed"))]
    rows: list[str] = plain["rows"]
    if len(rows) != steps * job.batch:
        why = f"{len(rows)} rows came of {steps} steps of {job.batch}"
        return [_verdict(bench, name, job, "plain", why)]
    per_step, half = len(rows) // steps, steps // 2
    found = []

    def compare(case: str, runs: Sequence[Job], expected: Sequence[str]) -> None:
        got: list[list[str]] = []
        for run in runs:
            reply = bench.run(Entry(name, run), suite="determinism", case=case)
            if "rows" not in reply:
                why = reply.get("skipped") or reply.get("failed")
                found.append(_verdict(bench, name, job, case, why))
                return
            got.append(reply["rows"])
        found.append(_verdict(bench, name, job, case, None, same(got, expected, per_step)))

    def with_workers(mode: Mode, number: int, **more: Any) -> Job:
        return dataclasses.replace(job, mode=mode, workers=number, **more)

    compare("again", [job], rows)
    for mode, number in (("threads", 2), ("processes", 1), ("processes", 2)):
        compare(f"{number} {mode}", [with_workers(mode, number)], rows)
    ranks = [dataclasses.replace(job, dp_rank=rank, dp_size=2) for rank in range(2)]
    compare("2 ranks", ranks, rows)
    with tempfile.TemporaryDirectory() as folder:
        state = str(Path(folder) / "state")
        saving = dataclasses.replace(job, kind="save", steps=half, state=state)
        saved = bench.run(Entry(name, saving), suite="determinism", case="save")
        if "state_bytes" not in saved:
            why = saved.get("skipped") or saved.get("failed")
            return [*found, _verdict(bench, name, job, "resume", why)]
        rest = rows[half * per_step :]
        resumed = dataclasses.replace(job, steps=steps - half, state=state)
        compare("resume", [resumed], rest)
        compare(
            "resume with 2 processes",
            [dataclasses.replace(resumed, mode="processes", workers=2)],
            rest,
        )
        compare(
            "resume on 2 ranks",
            [dataclasses.replace(resumed, dp_rank=rank, dp_size=2) for rank in range(2)],
            rest,
        )
    return found


def same(got: Sequence[Sequence[str]], expected: Sequence[str], per_step: int) -> bool:
    """Whether one rank gave exactly the expected rows, or several gave each step's, in any order.

    Args:
        got: of each rank, its rows in order, as many a step as the others have.
        expected: rows of all steps.
        per_step: rows a step.
    """
    if len(got) == 1:
        return list(got[0]) == list(expected)
    if sum(map(len, got)) != len(expected) or per_step % len(got):
        return False
    share = per_step // len(got)
    steps = range(len(expected) // per_step)
    return all(
        Counter(row for rows in got for row in rows[step * share : (step + 1) * share])
        == Counter(expected[step * per_step : (step + 1) * per_step])
        for step in steps
    )


def _verdict(
    bench: Bench, name: str, job: Job, case: str, why: str | None, equal: bool | None = None
) -> Row:
    verdict = f"no: {why}" if equal is None else "equal" if equal else "differs"
    facts = {"bench": "compare", "row": "summary", "suite": "determinism", "contestant": name}
    return bench.keep(facts | {"work": job.work, "case": case, "verdict": verdict})
