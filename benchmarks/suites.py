"""What is measured, in units that are done in one go: paired rounds, restores, matrices, scripts.

A unit that was cut short is done again as a whole, so that what is divided was of one sitting.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.compare.protocol import Job, Mode, Work
from benchmarks.harness import ROOT, SETTINGS, Bench, Entry, Row

BATCH = {"text": 8, "image_text": 2, "video_360p": 2, "video_720p": 1, "interleaved": 4}
"""Packed rows a step: so few that what workers make ahead of the caller is made before the window,
as it is in a run of hours (8 rows are 370 pictures, more than a second of work)."""
LENGTH = {"text": 4097}
SECONDS = {"text": (1.5, 4.0), "image_text": (1.5, 4.0), "interleaved": (2.0, 5.0)}
"""Of warming up and of the window; others take `LONG`."""
LONG = (1.0, 6.0)
WARMUP_STEPS = {"text": 32}
"""Ours deepens the pool of documents that wait by two a sequence, from 8 to 64: until then it
measures more than it delivers. Pictures and clips fill it at once, by their tokens."""
WINDOW_STEPS = 4
"""At least, since some make several batches at once: the window holds more than what was ready."""
LANES = ((8, 1), (64, 1), (1024, 1), (1024, 1024))
"""Lanes of the run, and ranks; the row of one rank is measured."""
STATES = {1: 32, 64: 32, 1024: 2}
"""Lanes of which a state is taken, and after which step: of 32, as many documents wait as ever."""
GUESS_S = {"throughput": 5.0, "rows": 6.0, "restore": 5.0, "save": 20.0}
"""Of a run that was never done, to tell how long a sitting takes; to it come its own seconds."""
NO_THREADS = frozenset(
    ("torchdata_stateful", "datasets", "webdataset", "energon", "streaming", "litdata")
)
"""Those whose workers are processes: they say so at once."""
ALONE = frozenset(("streaming",))
"""Those of whom no two run at a time: names in /dev/shm that they share."""


class Unit(Protocol):
    """What is done in one go."""

    @property
    def name(self) -> str:
        """Tells it from all others."""

    def seconds(self, known: Mapping[str, float]) -> float:
        """How long it takes, of known times of runs; see `place_of`."""

    def do(self, bench: Bench, done: Callable[[float], None]) -> None:
        """Do it; ``done`` is told of the seconds that a part was thought to take."""


def place_of(suite: str, entry: Entry) -> str:
    """Under which the time of a run is known."""
    return f"{suite} {entry.job.work} {entry.job.kind} {entry.label}"


def seconds_of(suite: str, entry: Entry, known: Mapping[str, float]) -> float:
    """How long a run takes."""
    if entry.name in NO_THREADS and entry.job.mode == "threads":
        return 1.0
    job, guess = entry.job, GUESS_S[entry.job.kind]
    window = 1.5 * (job.warmup_s + job.seconds) if job.kind == "throughput" else 0.0
    return known.get(place_of(suite, entry), guess + window)


@dataclass(frozen=True)
class Round:
    """Entries that run one after another, in odd rounds the last one first.

    Attributes:
        suite: What is measured.
        group: Of which rounds this is one.
        number: Which, from 0.
        entries: What runs.
        against: Label of the entry that the others are divided by.
    """

    suite: str
    group: str
    number: int
    entries: tuple[Entry, ...]
    against: str

    @property
    def name(self) -> str:
        """Tells it from all others."""
        return f"{self.suite}, {self.group}, round {self.number}"

    def seconds(self, known: Mapping[str, float]) -> float:
        """How long it takes."""
        return sum(seconds_of(self.suite, entry, known) for entry in self.entries)

    def do(self, bench: Bench, done: Callable[[float], None], unit: str | None = None) -> None:
        """Run the entries; rows are of the unit ``unit``, if it isn't this round alone."""
        more = {"suite": self.suite, "group": self.group, "round": self.number}
        more |= {"unit": unit or self.name}
        for entry in self.entries if self.number % 2 == 0 else reversed(self.entries):
            bench.run(entry, against=entry.against or self.against, **more)
            done(seconds_of(self.suite, entry, {}))


@dataclass(frozen=True)
class Restores:
    """A contestant's states of some steps, saved in one run, and the way to the first batch.

    Beside a cold start, all in one round.

    Attributes:
        contestant: Which.
        job: Of a cold start.
        steps: Of the states, each with its share of an epoch, if it was chosen by that.
        number: Of the round.
    """

    contestant: str
    job: Job
    steps: Mapping[int, float | None]
    number: int

    @property
    def name(self) -> str:
        """Tells it from all others."""
        return f"{self._round(()).name}, steps {', '.join(map(str, self.steps))}"

    def _round(self, entries: tuple[Entry, ...]) -> Round:
        job = self.job
        group = f"{job.work}, {self.contestant}, {job.batch} rows of {job.sequence_length}"
        return Round("restore", group, self.number, entries, f"{self.contestant} serial cold")

    def _saving(self, state: str) -> Entry:
        saving = dataclasses.replace(self.job, kind="save", saves=tuple(self.steps), state=state)
        return Entry(self.contestant, saving, "save")

    def seconds(self, known: Mapping[str, float]) -> float:
        """How long it takes."""
        entries = [Entry(self.contestant, self.job, "cold")] * (1 + len(self.steps))
        saving = seconds_of("restore", self._saving(""), known)
        return saving + sum(seconds_of("restore", entry, known) for entry in entries)

    def do(self, bench: Bench, done: Callable[[float], None]) -> None:
        """Save, then restore; what can't be saved is a row."""
        entries = [Entry(self.contestant, self.job, "cold")]
        with tempfile.TemporaryDirectory() as folder:
            saving = self._saving(str(Path(folder) / "state"))
            one = self._round(())
            more = {"suite": one.suite, "group": one.group, "round": one.number, "against": ""}
            saved = bench.run(saving, unit=self.name, **more)
            done(GUESS_S["save"])
            for step, taken in (saved.get("states") or {}).items():
                facts = {"at_step": int(step), "share": self.steps[int(step)], **taken}
                job = dataclasses.replace(self.job, state=f"{saving.job.state}-{step}")
                entries.append(Entry(self.contestant, job, f"at {step}", facts=facts))
            if len(entries) > 1:
                self._round(tuple(entries)).do(bench, done, self.name)


@dataclass(frozen=True)
class Matrix:
    """Whether the rows are those of the plain run: again, by workers, ranks, after a resume.

    Of the first ``job.steps`` steps; states are of half of them. Two runs at a time where that can
    be, as no time is measured.
    """

    contestant: str
    job: Job

    @property
    def name(self) -> str:
        """Tells it from all others."""
        return f"determinism, {self.job.work}, {self.contestant}, {self.job.steps} steps"

    def seconds(self, known: Mapping[str, float]) -> float:
        """How long it takes."""
        return 7 * seconds_of("determinism", Entry(self.contestant, self.job), known)

    def do(self, bench: Bench, done: Callable[[float], None]) -> None:
        """A verdict a case."""
        half = self.job.steps // 2
        at_once = 1 if self.contestant in ALONE else 2
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as pool:
            saving = dataclasses.replace(
                self.job, kind="save", saves=(half,), state=str(Path(folder) / "state")
            )
            first = pool.submit(self._run, bench, "plain", self.job)
            saved = pool.submit(self._run, bench, "save", saving).result()
            plain = first.result()
            rows: list[str] = plain.get("rows", [])
            if len(rows) != self.job.steps * self.job.batch:
                self._verdict(bench, "plain", self._why(plain, f"{len(rows)} rows came"))
                return
            lacking = None if saved.get("states") else self._why(saved, "no state")
            resumed = dataclasses.replace(
                self.job, steps=self.job.steps - half, state=f"{saving.state}-{half}"
            )

            def case(name: str, jobs: Sequence[Job]) -> None:
                resuming = jobs[0].state is not None
                if resuming and lacking is not None:
                    self._verdict(bench, name, lacking)
                    return
                replies = [self._run(bench, name, job) for job in jobs]
                for reply in replies:
                    if "skipped" in reply or "failed" in reply:
                        self._verdict(bench, name, self._why(reply, ""))
                        return
                expected = rows[half * self.job.batch :] if resuming else rows
                equal = same([reply["rows"] for reply in replies], expected, self.job.batch)
                self._verdict(bench, name, None, equal)

            list(pool.map(lambda one: case(*one), self._cases(resumed)))
        done(self.seconds({}))

    def _cases(self, resumed: Job) -> Iterator[tuple[str, list[Job]]]:
        plain = self.job
        processes: dict[str, Any] = {"mode": "processes", "workers": 2}
        yield "again", [plain]
        yield "2 threads", [dataclasses.replace(plain, mode="threads", workers=2)]
        yield "1 process", [dataclasses.replace(plain, mode="processes", workers=1)]
        yield "2 processes", [dataclasses.replace(plain, **processes)]
        yield "2 ranks", [dataclasses.replace(plain, dp_rank=r, dp_size=2) for r in range(2)]
        yield "resume", [resumed]
        yield "resume with 2 processes", [dataclasses.replace(resumed, **processes)]
        on_ranks = [dataclasses.replace(resumed, dp_rank=r, dp_size=2) for r in range(2)]
        yield "resume on 2 ranks", on_ranks

    def _run(self, bench: Bench, case: str, job: Job) -> Row:
        entry = Entry(self.contestant, job, case)
        return bench.run(entry, suite="determinism", case=case, unit=self.name)

    @staticmethod
    def _why(reply: Row, otherwise: str) -> str:
        return reply.get("skipped") or reply.get("failed") or otherwise

    def _verdict(self, bench: Bench, case: str, why: str | None, equal: bool | None = None) -> None:
        verdict = f"no: {why}" if equal is None else "equal" if equal else "differs"
        facts = {"bench": "compare", "row": "summary", "suite": "determinism", "unit": self.name}
        more = {"contestant": self.contestant, "work": self.job.work, "case": case}
        bench.keep(facts | more | {"verdict": verdict})


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


@dataclass(frozen=True)
class Script:
    """Another bench of this folder, which prints JSON rows: they go to a file of its name."""

    script: str
    arguments: tuple[str, ...] = ()
    guess_s: float = 60.0
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Tells it from all others."""
        return " ".join((self.script, *self.arguments))

    def seconds(self, known: Mapping[str, float]) -> float:
        """How long it takes."""
        return known.get(self.name, self.guess_s)

    def do(self, bench: Bench, done: Callable[[float], None]) -> None:
        """Run it; one that fails is a row."""
        command = [sys.executable, f"benchmarks/bench_{self.script}.py", *self.arguments]
        env = {**os.environ, **SETTINGS}
        ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        rows = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        if ran.returncode:
            rows.append({"failed": " | ".join(ran.stderr.strip().splitlines()[-3:])})
        bench.keep_beside(self.script, [row | self.more for row in rows])
        done(self.guess_s)


def base_job(work: Work, data: Path, end: int, quick: bool = False) -> Job:
    """The throughput of a work in the caller's thread."""
    warmup, seconds = (0.2, 1.0) if quick else SECONDS.get(work, LONG)
    rows = min(2, BATCH[work]) if quick else BATCH[work]
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
        window_steps=1 if quick else WINDOW_STEPS,
        end=end,
    )


def throughput(job: Job, peers: Sequence[str], workers: int, rounds: int) -> list[Round]:
    """First batch and steady rates with so many workers, as threads and as processes.

    All are divided by the limit in one thread, or by our serial run; these are of each round. Ours
    makes pictures by ATen, as ``limits:aten`` does, and is divided by that; peers do it by Pillow.
    With workers there is our serial run, too, and the limits in as many processes at once.
    """
    modes: tuple[Mode, ...] = ("threads", "processes") if workers else ("serial",)
    pictures = job.work in ("image_text", "interleaved") and "limits:aten" in peers
    against = "limits serial" if "limits" in peers else "ours serial"
    own = "limits:aten serial" if pictures else ""
    entries = [Entry("ours", job, against=own)] if workers and "ours" in peers else []
    for name in peers:
        if name.startswith("limits"):
            if not workers or name == "limits" or (name == "limits:aten" and pictures):
                at_once = dataclasses.replace(job, mode="processes", workers=workers)
                entries += [Entry(name, one) for one in ([job, at_once] if workers else [job])]
            continue
        if name == "spdl" and not workers:  # it has nothing but threads
            entries.append(Entry(name, dataclasses.replace(job, mode="threads", workers=1)))
            continue
        entries += [
            Entry(
                name,
                dataclasses.replace(job, mode=mode, workers=workers),
                against=own if name == "ours" else "",
            )
            for mode in modes
        ]
    group = f"{job.work}, {workers} workers"
    return [Round("throughput", group, n, tuple(entries), against) for n in range(rounds)]


def restores(
    job: Job, peers: Sequence[str], steps: Mapping[int, float | None], rounds: int
) -> list[Restores]:
    """Of each contestant, states of the steps; ``job`` is of few tokens a step."""
    job = dataclasses.replace(job, kind="restore")
    names = [name for name in peers if not name.startswith("limits")]
    return [Restores(name, job, steps, number) for number in range(rounds) for name in names]


def lanes(job: Job, rounds: int) -> list[Round]:
    """Ours with 8 … 1,024 lanes on one rank, and one lane of 1,024; each against one lane of one.

    64 rows a step on one rank, however many lanes up to 64; 1,024 with 1,024: to the first batch.
    Of one lane of 1,024 the steady rate, too, one row a step. And the size of states.
    """
    found = []
    for number in range(rounds):
        for count, ranks in LANES:
            rows = 1 if ranks > 1 else max(64, count)
            kind: Any = "throughput" if ranks > 1 else "restore"
            one = dataclasses.replace(job, kind=kind, lanes=1, batch=rows)
            many = dataclasses.replace(one, lanes=count, batch=rows * ranks, dp_size=ranks)
            role, facts = f"{count} lanes", {"ranks": ranks}
            entries = (Entry("ours", one, "one lane"), Entry("ours", many, role, facts=facts))
            group = f"{job.work}, {count} lanes on {ranks} ranks"
            found.append(Round("lanes", group, number, entries, "ours serial one lane"))
    for count, step in STATES.items():
        rows = max(64, count) if count > 1 else 1
        saving = dataclasses.replace(job, kind="save", lanes=count, batch=rows, saves=(step,))
        entry = Entry("ours", saving, f"state of {count} lanes")
        found.append(Round("lanes", f"{job.work}, state of {count} lanes", 0, (entry,), ""))
    return found


def matrices(job: Job, peers: Sequence[str], steps: int) -> list[Matrix]:
    """Of each contestant."""
    job = dataclasses.replace(job, kind="rows", batch=2, lanes=2, steps=steps)
    thread = dataclasses.replace(job, mode="threads", workers=1)  # SPDL has nothing else
    names = [name for name in peers if not name.startswith("limits")]
    return [Matrix(name, thread if name == "spdl" else job) for name in names]
