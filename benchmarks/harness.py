"""Runs contestants in paired rounds, and writes a JSON row for each run and each summary.

A round runs every entry once, one after another, so that all meet the same machine; ratios are
taken within a round, and their median and 20th and 80th percentiles over the rounds. A run is a
process of its own, in the contestant's environment. It measures its own times and CPU seconds (see
`compare.protocol`); from outside come the wall time and CPU of the whole process, and the most
memory of its tree, sampled every 250 ms. A run that fails is a row that says why.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.protocol import Job, memory
from benchmarks.environments import CONTESTANTS, interpreter
from benchmarks.spreads import paired_ratios, spread

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "compare.jsonl"
SETTINGS = {
    "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Of the environment, the same for all: workers are the only parallelism."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A contestant with a job; ``name`` is that of a script, or ``script:variant``."""

    name: str
    job: Job

    @property
    def label(self) -> str:
        """How it is told from the others of its round."""
        return f"{self.name} {self.job.mode}{self.job.workers or ''}"


def machine() -> Row:
    """What the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), None)
    return {
        "cpu": cpu or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def commit() -> str:
    """The repository's, with a mark if files differ from it; ``unknown`` without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def read_reply(path: Path, status: int, printed: str) -> Row:
    """A contestant's reply, or ``{"failed": why}``."""
    end = " | ".join(printed.strip().splitlines()[-3:])[-400:]
    if status < 0:
        return {"failed": f"ended by signal {-status}: {end}"}
    if status:
        return {"failed": f"exit status {status}: {end}"}
    try:
        reply = json.loads(path.read_text("utf-8"))
    except OSError:
        return {"failed": f"no reply; it printed: {end}"}
    except ValueError as error:
        return {"failed": f"the reply is no JSON: {error}"}
    if not isinstance(reply, dict):
        return {"failed": f"the reply is a {type(reply).__name__}, expected an object"}
    return reply


def run_once(entry: Entry, python: Path, timeout_s: float = 900.0) -> Row:
    """One run; the reply and what was seen from outside."""
    script, _, variant = entry.name.partition(":")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = dataclasses.replace(entry.job, reply=str(folder / "reply.json"), variant=variant)
        (folder / "job.json").write_text(json.dumps(dataclasses.asdict(job)))
        command = [str(python), "-m", f"benchmarks.compare.{script}", str(folder / "job.json")]
        begin = time.monotonic()
        with (folder / "printed").open("wb") as printed:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **SETTINGS}, stdin=subprocess.DEVNULL,
                stdout=printed, stderr=printed, start_new_session=True,
            )  # fmt: skip
        ended, peaks = threading.Event(), [0, 0]

        def watch() -> None:
            while not ended.wait(0.25):
                peaks[:] = map(max, peaks, memory(process.pid))
                if time.monotonic() - begin > timeout_s:
                    os.killpg(process.pid, signal.SIGKILL)
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            ended.set()
            watcher.join()
            _end_session(process.pid)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begin
        text = (folder / "printed").read_text("utf-8", errors="replace")
        reply = read_reply(folder / "reply.json", process.returncode, text)
        if process.returncode == -signal.SIGKILL and wall > timeout_s:
            reply = {"failed": f"not done after {timeout_s:g} s"}
    seen = {"wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime}
    return reply | seen | {"peak_rss_bytes": peaks[0], "peak_pss_bytes": peaks[1]}


def _end_session(leader: int) -> None:
    """End what a contestant left running; nothing is there as a rule."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def values(name: str, reply: Row) -> dict[str, float]:
    """The figures of a run that are compared; of a limit, which has no start, only its rates."""
    starts = not name.startswith("limits")
    found = {
        name: float(reply[name])
        for name in ("first_batch_s", "first_batch_cpu_s", "import_s", "state_bytes",
                     "peak_rss_bytes", "peak_pss_bytes")
        if starts and isinstance(reply.get(name), int | float)
    }  # fmt: skip
    steady = reply.get("steady")
    if isinstance(steady, dict):
        for what in ("samples", "tokens"):
            if steady[what] and steady["cpu_s"] and steady["wall_s"]:
                found[f"{what}_per_cpu_s"] = steady[what] / steady["cpu_s"]
                found[f"{what}_per_s"] = steady[what] / steady["wall_s"]
        if steady.get("fill") is not None:
            found["fill"] = steady["fill"]
    return found


class Bench:
    """Runs entries and keeps their rows.

    Args:
        cache: where the environments lie.
        results: the file to append rows to; None: rows are only returned.
        say: told of what is going on, a line at a time.
    """

    def __init__(
        self,
        cache: Path,
        results: Path | None = RESULTS,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cache, self._results, self._say = cache, results, say
        self._commit = commit()
        self._pythons: dict[str, Path | str] = {}

    def run(self, entry: Entry, **more: Any) -> Row:
        """One run as a row; ``more`` is added to it."""
        self._say(f"{entry.job.work} {entry.job.kind}: {entry.label}")
        python = self._python(entry.name, entry.job.data)
        if isinstance(python, str):
            reply: Row = {"failed": python}
        else:
            reply = run_once(entry, python)
        job = {
            field.name: getattr(entry.job, field.name)
            for field in dataclasses.fields(Job)
            if field.name not in ("reply", "data", "state", "variant")
        }
        row = {"bench": "compare", "row": "run", "contestant": entry.name, "job": job, **more}
        return self.keep(row | {"values": values(entry.name, reply)} | reply)

    def rounds(self, entries: Sequence[Entry], rounds: int, against: str, **more: Any) -> list[Row]:
        """Every entry in every round, in turns; the summaries.

        Args:
            entries: what a round runs.
            rounds: how many.
            against: label of the entry that the others are divided by.
            more: added to every row.
        """
        found: dict[str, list[Row]] = {entry.label: [] for entry in entries}
        for number in range(rounds):
            for entry in entries:
                past = found[entry.label]
                if past and ("skipped" in past[0] or "failed" in past[0]):
                    past.append(past[0])  # it will not do better
                else:
                    past.append(self.run(entry, round=number, **more))
        jobs = {entry.label: entry for entry in entries}
        return [
            self.keep(summary(jobs[label], runs, found.get(against, []), against) | more)
            for label, runs in found.items()
        ]

    def keep(self, row: Row) -> Row:
        """Complete a row and write it down, the digests of rows left out."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        row = row | {"commit": self._commit, "machine": machine(), "at": now}
        if self._results is not None:
            shown = {key: value for key, value in row.items() if key not in ("rows", "documents")}
            self._results.parent.mkdir(parents=True, exist_ok=True)
            with self._results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rounded(shown)) + "\n")
        return row

    def _python(self, name: str, data: str) -> Path | str:
        """The contestant's interpreter, its data prepared; or why there is none."""
        place = f"{name} {data}"
        if place not in self._pythons:
            try:
                python = interpreter(name, self._cache, self._say)
                if CONTESTANTS[name].prepare:
                    self._prepare(name, python, data)
            except (RuntimeError, OSError) as error:
                self._pythons[place] = str(error)
            else:
                self._pythons[place] = python
        return self._pythons[place]

    def _prepare(self, name: str, python: Path, data: str) -> None:
        script = name.partition(":")[0]
        self._say(f"{name}: writing its own format")
        command = [str(python), "-m", f"benchmarks.compare.{script}", "--prepare", data]
        env = {**os.environ, **SETTINGS}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            end = " | ".join(done.stderr.strip().splitlines()[-3:])
            raise RuntimeError(f"--prepare failed with {done.returncode}: {end}")


def summary(entry: Entry, runs: Sequence[Row], others: Sequence[Row], against: str) -> Row:
    """Medians of an entry's runs, and of the ratios to another's of the same rounds."""
    first = runs[0]
    row: Row = {
        "bench": "compare",
        "row": "summary",
        "contestant": entry.name,
        "work": entry.job.work,
        "kind": entry.job.kind,
        "workers": entry.job.workers,
        "mode": entry.job.mode,
        "version": first.get("version"),
        "rounds": len(runs),
    }
    for reason in ("skipped", "failed"):
        if reason in first:
            return row | {reason: first[reason]}
    done = [run["values"] for run in runs if "failed" not in run]
    names = sorted({name for one in done for name in one})
    row["values"] = {n: spread([one[n] for one in done if n in one]) for n in names}
    row["failures"] = len(runs) - len(done)
    row["against"], row["ratios"] = against, {}

    def values(name: str, of: Sequence[Row]) -> list[Any]:
        return [None if "failed" in run else run["values"].get(name) for run in of]

    for name in names:
        pairs = paired_ratios(values(name, runs), values(name, others)) if others else []
        if pairs:
            row["ratios"][name] = spread(pairs)
    return row


def rounded(value: Any) -> Any:
    """Floats to five significant digits, at any depth."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
