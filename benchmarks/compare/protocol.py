"""What the harness and a contestant say to each other. Standard library only.

A contestant is a script of this folder, run in a virtual environment of its own as
``VENV/bin/python -m benchmarks.compare.NAME JOB.json``. It reads the `Job`, does it, and writes
one JSON object to the job's ``reply`` path, all of it through `Meter`::

    job, meter = begin()          # first of all: the clock of the imports starts here
    import peer                   # what the contestant needs
    meter.imported()              # the clock of the first batch starts here
    for batch in peer.loader():   # without end: the data are repeated
        if meter.batch(samples=8, tokens=8 * 4097, rows=[row.tobytes() for row in batch]):
            break
    meter.finish(version=peer.__version__)

What a contestant can't do is said with ``meter.skip("why")``, which ends the process.

Times are of ``time.monotonic``, which all processes of a Linux machine share. CPU seconds are those
of the process and all its descendants, the ended ones included once they were waited for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn

Work = Literal["text", "image_text", "video_360p", "video_720p", "interleaved"]
Kind = Literal["throughput", "rows", "save", "restore"]
Mode = Literal["serial", "threads", "processes"]

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One run of one contestant.

    Attributes:
        work: What to make of which data.
        kind: ``throughput``: the first batch, then batches for ``warmup_s`` (and at least
            ``warmup_steps``) and for ``seconds``.
            ``rows``: the first ``steps`` batches (after those of ``state``, if given) by digests.
            ``save``: ``steps`` batches, then the state, pickled or not, as a file at ``state``.
            ``restore``: from the file at ``state`` to the first batch after it; without a state, to
            the first batch of all.
        data: Folder that `benchmarks.workloads` wrote: ``WORK-*.tar`` and ``tokenizer/``.
        reply: Where the reply goes.
        workers: 0: all in the caller's thread.
        mode: What the workers are. With 0 workers always ``serial``.
        sequence_length: Tokens a packed row, the label's shift included (text: 4,097).
        batch: Packed rows a step on all ranks together.
        variant: What follows the colon of a contestant's name; scripts with one way ignore it.
        lanes: Parallel streams of the run, for those that have such; others ignore it.
    """

    work: Work
    kind: Kind
    data: str
    reply: str
    workers: int = 0
    mode: Mode = "serial"
    sequence_length: int = 4096
    batch: int = 8
    variant: str = ""
    lanes: int = 8
    seed: int = 0
    dp_rank: int = 0
    dp_size: int = 1
    warmup_s: float = 2.0
    warmup_steps: int = 0
    seconds: float = 8.0
    steps: int = 0
    state: str | None = None

    @property
    def shards(self) -> list[str]:
        """Paths of the work's shards, in order."""
        return sorted(map(str, Path(self.data).glob(f"{self.work}-*.tar")))

    @property
    def tokenizer(self) -> str:
        """Folder of the tokenizer; ``tokenizer.json`` in it is for the library tokenizers."""
        return str(Path(self.data) / "tokenizer")


def tree(root: int) -> Iterator[int]:
    """The process and its living descendants."""
    yield root
    try:
        for task in os.listdir(f"/proc/{root}/task"):
            for child in Path(f"/proc/{root}/task/{task}/children").read_text().split():
                yield from tree(int(child))
    except OSError:
        return


def cpu_seconds(root: int) -> float:
    """CPU of the tree so far: of the living, and of the dead that were waited for."""
    total = 0
    for pid in tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return total / _TICKS


def memory(root: int) -> tuple[int, int]:
    """Resident and proportional set of the tree, in bytes."""
    sums = {"Rss:": 0, "Pss:": 0}
    for pid in tree(root):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, *rest = line.split()
            if name in sums:
                sums[name] += int(rest[0]) * 1024
    return sums["Rss:"], sums["Pss:"]


def digest(*parts: bytes) -> str:
    """Of a row or a document: the first 16 hexadecimal digits of SHA-256 over the parts."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


class Meter:
    """Keeps the times of a job and writes its reply."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._start = time.monotonic()
        self._imported = self._start
        self._reply: dict[str, Any] = {}
        self._rows: list[str] = []
        self._documents: list[str] = []
        self._steps = 0
        self._samples = self._tokens = 0
        self._room = 0
        self._window: tuple[float, float] | None = None  # time and CPU seconds at its begin

    def imported(self) -> None:
        """The imports are done: what follows is the way to the first batch."""
        self._imported = time.monotonic()
        self._reply["import_s"] = self._imported - self._start

    def batch(
        self,
        *,
        samples: int,
        tokens: int,
        room: int = 0,
        rows: Iterable[bytes] = (),
        documents: Iterable[bytes] = (),
    ) -> bool:
        """A batch was delivered to the training loop; True when no further one is wanted.

        Args:
            samples: Texts, pictures or clips in it.
            tokens: Its tokens, padding left out.
            room: Its places for tokens, padding included; 0 if rows aren't padded.
            rows: The packed rows in order: token ids as little-endian int32, padding left out,
                then pixels. Looked at for ``rows`` and ``restore`` only (see `wants_rows`).
            documents: Token ids of each whole document in it, likewise; may be left out.
        """
        now = time.monotonic()
        self._steps += 1
        if self._steps == 1:
            self._reply["first_batch_s"] = now - self._imported
            self._reply["first_batch_cpu_s"] = cpu_seconds(os.getpid())  # the imports included
        if self.wants_rows:
            self._rows += [digest(row) for row in rows]
            self._documents += [digest(document) for document in documents]
        if self._job.kind != "throughput":
            return self._job.kind == "restore" or self._steps >= self._job.steps
        if self._window is None:
            warming_s = now - self._imported - self._reply["first_batch_s"]
            if warming_s >= self._job.warmup_s and self._steps >= self._job.warmup_steps:
                self._window = (time.monotonic(), cpu_seconds(os.getpid()))
            return False
        self._samples += samples
        self._tokens += tokens
        self._room += room
        if now - self._window[0] < self._job.seconds:
            return False
        begin, cpu = self._window
        self._reply["steady"] = {
            "samples": self._samples,
            "tokens": self._tokens,
            "wall_s": now - begin,
            "cpu_s": cpu_seconds(os.getpid()) - cpu,
            "fill": self._tokens / self._room if self._room else None,
        }
        return True

    @property
    def wants_rows(self) -> bool:
        """Whether ``rows`` and ``documents`` are looked at; spare the work if not."""
        return self._job.kind in ("rows", "restore")

    def finish(self, *, version: str, **more: Any) -> None:
        """Write the reply; ``more`` are further facts, such as ``note``."""
        if self._job.kind == "save":
            if self._job.state is None or not Path(self._job.state).is_file():
                raise RuntimeError("a job of kind save leaves its state in the file job.state")
            self._reply["state_bytes"] = Path(self._job.state).stat().st_size
        if self.wants_rows:
            self._reply |= {"rows": self._rows, "documents": self._documents}
        self._write(self._reply | {"steps": self._steps, "version": version} | more)

    def skip(self, why: str, *, version: str | None = None) -> NoReturn:
        """The contestant can't do this job: say why, and end."""
        self._write({"skipped": why, "version": version})
        raise SystemExit(0)

    def _write(self, reply: dict[str, Any]) -> None:
        path = Path(self._job.reply)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(reply), encoding="utf-8")
        part.rename(path)


def read_job(path: str) -> Job:
    """The job of a file; what it doesn't say is the default."""
    return Job(**json.loads(Path(path).read_text(encoding="utf-8")))


def begin() -> tuple[Job, Meter]:
    """The job that the command line names, and its meter; the first thing a contestant calls."""
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python -m benchmarks.compare.NAME JOB.json, not {sys.argv[1:]}")
    job = read_job(sys.argv[1])
    return job, Meter(job)
