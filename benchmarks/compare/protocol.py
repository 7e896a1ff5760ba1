"""What the harness and a contestant say to each other. Standard library only.

A contestant is a script of this folder, run in a virtual environment of its own as
``VENV/bin/python -m benchmarks.compare.NAME JOB.json``. It reads the `Job`, does it, and writes
one JSON object to the job's ``reply`` path, all of it through `Meter`::

    job, meter = begin()          # where the data lie is not said yet
    import peer                   # what the contestant needs
    job = meter.imported()        # now it is, and the clock of the first batch starts
    for batch in peer.loader():   # without end: the data are repeated
        ended = meter.batch(samples=8, tokens=8 * 4097, look=lambda: seen(batch))
        meter.save(peer.save)     # writes a state if one is wanted of this step
        if ended:
            break
    meter.finish(version=peer.__version__)

What a contestant can't do is said with ``meter.skip("why")``, which ends the process.

**Memory** is seen from outside, except in the window, and once by `Meter` at its end: looking at
three processes of half a GB takes a tenth of a second of a core, and holds up their allocations.

**The clocks.** ``import_s`` is from the start of the process, Python's own included, to
`Meter.imported`. ``first_batch_s`` is from there to the first batch: tokenizer, index, plan,
workers. Nobody can begin it early, as the paths of data and tokenizer are not known before.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
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
            ``warmup_steps``) and for ``seconds`` (and at least ``window_steps``).
            ``rows``: the first ``steps`` batches (after those of ``state``, if given) by digests.
            ``save``: batches up to the last of ``saves``, and after each of these steps the state,
            pickled or not, as the file ``STATE-STEP`` (see `Meter.save`).
            ``restore``: from the file ``state`` to the first batch after it; without a state, to
            the first batch of all.
        data: Folder that `benchmarks.workloads` wrote: ``WORK-*.tar`` and ``tokenizer/``.
        reply: Where the reply goes.
        workers: 0: all in the caller's thread.
        mode: What the workers are. With 0 workers always ``serial``.
        sequence_length: Tokens a packed row, the label's shift included (text: 4,097).
        batch: Packed rows a step on all ranks together.
        variant: What follows the colon of a contestant's name; scripts with one way ignore it.
        lanes: Parallel streams of the run, for those that have such; others ignore it.
        end: Id of the token that ends each document.
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
    window_steps: int = 1
    steps: int = 0
    saves: tuple[int, ...] = ()
    state: str | None = None
    end: int = -1

    @property
    def resumes(self) -> bool:
        """Whether the run goes on from the file ``state``."""
        return self.state is not None and self.kind != "save"

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


def window_file(job: Job) -> Path:
    """A file that is there while a contestant is in the window of its job."""
    return Path(job.reply).with_suffix(".window")


def digest(*parts: bytes) -> str:
    """Of a row or a document: the first 16 hexadecimal digits of SHA-256 over the parts."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def process_start() -> float:
    """When this process began, as ``time.monotonic``; to a hundredth of a second."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a packed row holds, for digests.

    Attributes:
        row: Token ids as little-endian int32, padding left out, then all pixels.
        documents: Token ids of each document that lies in the row as a whole.
        media: Pixels of each picture or clip.
    """

    row: bytes
    documents: Sequence[bytes] = ()
    media: Sequence[bytes] = ()


class Meter:
    """Keeps the times of a job and writes its reply.

    Attributes:
        decoded: media decoded so far, for loaders that do it all in this process: what was decoded
            before the window and delivered in it was no work of the window.
    """

    def __init__(self, job: Job) -> None:
        self.decoded: Callable[[], int] | None = None
        self._media = self._decoded = 0
        self._job = job
        self._start = process_start()
        self._imported: float | None = None
        self._reply: dict[str, Any] = {}
        self._digests: dict[str, list[str]] = {"rows": [], "documents": [], "media": []}
        self._steps = 0
        self._samples = self._tokens = 0
        self._room = self._window_steps = 0
        self._window: tuple[float, float] | None = None  # time and CPU seconds at its begin

    @property
    def _in_window(self) -> Path:
        """There while times are taken: what watches from outside then keeps still."""
        return window_file(self._job)

    def imported(self) -> Job:
        """The imports are done, what follows is the way to the first batch; the whole job."""
        self._imported = time.monotonic()
        self._reply["import_s"] = self._imported - self._start
        return self._job

    def batch(
        self,
        *,
        samples: int,
        tokens: int,
        room: int = 0,
        media: int = 0,
        look: Callable[[], Iterable[Seen]] = tuple,
    ) -> bool:
        """A batch was delivered to the training loop; True when no further one is wanted.

        Args:
            samples: Documents that end in it.
            tokens: Its tokens, padding left out.
            room: Its places for tokens, padding included; 0 if rows aren't padded.
            media: Its pictures and clips; of use to those that say what they `decoded`.
            look: Gives its rows in order. Called once the times are taken, and only of the first
                batch, or of each where all are compared.

        Raises:
            RuntimeError: `imported` was not called.
        """
        now = time.monotonic()
        if self._imported is None:
            raise RuntimeError("meter.imported() comes before the first batch")
        self._steps += 1
        if self._steps == 1:
            self._reply["first_batch_s"] = now - self._imported
            self._reply["first_batch_cpu_s"] = cpu_seconds(os.getpid())  # the imports included
        if self._steps == 1 or self._job.kind == "rows":
            for row in look():
                self._digests["rows"].append(digest(row.row))
                self._digests["documents"] += map(digest, row.documents)
                self._digests["media"] += map(digest, row.media)
        if self._job.kind == "throughput":
            return self._measure(now, samples, tokens, room, media)
        last = {"restore": 1, "save": max(self._job.saves, default=0)}
        return self._steps >= last.get(self._job.kind, self._job.steps)

    def _measure(self, now: float, samples: int, tokens: int, room: int, media: int) -> bool:
        """Warm up, then count for the window; True at its end."""
        if self._window is None:
            warming_s = now - (self._imported or 0) - self._reply["first_batch_s"]
            if warming_s >= self._job.warmup_s and self._steps >= self._job.warmup_steps:
                self._in_window.touch()
                self._decoded = self.decoded() if self.decoded else 0
                self._window = (time.monotonic(), cpu_seconds(os.getpid()))
            return False
        self._samples += samples
        self._tokens += tokens
        self._room += room
        self._media += media
        self._window_steps += 1
        short = self._window_steps < self._job.window_steps
        if short or now - self._window[0] < self._job.seconds:
            return False
        begin, cpu = self._window
        self._reply["steady"] = {
            "samples": self._samples,
            "tokens": self._tokens,
            "wall_s": now - begin,
            "cpu_s": cpu_seconds(os.getpid()) - cpu,
            "fill": self._tokens / self._room if self._room else None,
            "media": self._media,
            "decoded": self.decoded() - self._decoded if self.decoded else None,
        }
        self._in_window.unlink(missing_ok=True)
        self._reply["memory"] = memory(os.getpid())
        return True

    def save(self, write: Callable[[str], object]) -> None:
        """After each `batch`: ``write`` the state to a file, if one is wanted of this step."""
        if self._job.kind != "save" or self._steps not in self._job.saves:
            return
        path = f"{self._job.state}-{self._steps}"
        begin = time.monotonic()
        write(path)
        taken = {"save_s": time.monotonic() - begin, "state_bytes": Path(path).stat().st_size}
        self._reply.setdefault("states", {})[str(self._steps)] = taken

    def finish(self, *, version: str, **more: Any) -> None:
        """Write the reply; ``more`` are further facts, such as ``note``.

        Raises:
            RuntimeError: a state that was wanted was not saved.
        """
        states = self._reply.get("states", {})
        if missing := [n for n in self._job.saves if str(n) not in states]:
            raise RuntimeError(f"no states were saved of the steps {missing}: call meter.save")
        if self._job.kind == "throughput":
            self._digests["rows"] = []
        self._reply |= self._digests
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
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    return Job(**{**found, "saves": tuple(found.get("saves", ()))})


def begin() -> tuple[Job, Meter]:
    """The job that the command line names, without the place of its data, and its meter."""
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python -m benchmarks.compare.NAME JOB.json, not {sys.argv[1:]}")
    job = read_job(sys.argv[1])
    return dataclasses.replace(job, data=""), Meter(job)
