"""Runs contestants, checks what they deliver, and writes a JSON row for each run.

A run is a process of its own, in the contestant's environment. It measures its own times and CPU
seconds (see `compare.protocol`); from outside come the wall time and CPU of the whole process, and
the most memory of its tree, sampled from time to time outside its window. A run that fails, hangs
or delivers something else than it should is a row that says so.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare.protocol import Job, memory, window_file
from benchmarks.environments import CONTESTANTS, interpreter
from benchmarks.summaries import Row, rounded

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "compare.jsonl"
SETTINGS = {
    "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Of the environment, the same for all: workers are the only parallelism."""

TIMEOUT_S = 150.0
"""Of a run, beside the seconds that its job asks for."""
PATIENCE = 2
"""Failures of a contestant one after another, after which it is left out of later rounds."""
LOOKS_APART = 20
"""Between two looks at the memory of a tree, so many times what the first took: a twentieth of a
core at most is taken from it."""
SAVING_S = 300.0
"""Of one that saves states: some go 10,000 steps for them."""


@dataclass(frozen=True)
class Entry:
    """A contestant with a job.

    Attributes:
        name: Of a script, or ``script:variant``.
        job: What it does.
        role: What tells it from another with the same backend in its round.
        against: Label of the entry that it is divided by; empty: that of its round.
        facts: Further fields of its rows.
    """

    name: str
    job: Job
    role: str = ""
    against: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How it is told from the others of its round."""
        return f"{self.name} {self.job.mode}{self.job.workers or ''} {self.role}".strip()

    @property
    def timeout_s(self) -> float:
        """After which the run is ended."""
        return TIMEOUT_S + self.job.warmup_s + self.job.seconds + SAVING_S * bool(self.job.saves)


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
    """The repository's; with a digest of what differs from it, results left out; or ``unknown``."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return "unknown"
    where = ["--", ".", ":!benchmarks/results"]
    changes = subprocess.run([*git, "diff", "HEAD", *where], capture_output=True).stdout
    dirty = f"-dirty-{hashlib.sha256(changes).hexdigest()[:6]}" if changes else ""
    return head.stdout.strip() + dirty


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


def run_once(entry: Entry, python: Path) -> Row:
    """One run; the reply and what was seen from outside."""
    timeout_s = entry.timeout_s
    script, _, variant = entry.name.partition(":")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = dataclasses.replace(entry.job, reply=str(folder / "reply.json"), variant=variant)
        if job.kind == "save" and job.state is None:  # only its size is of use
            job = dataclasses.replace(job, state=str(folder / "state"))
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
            measuring, look_at = window_file(job), begin
            while not ended.wait(0.25):
                if time.monotonic() - begin > timeout_s:
                    os.killpg(process.pid, signal.SIGKILL)
                    return
                looks = time.monotonic()
                if looks >= look_at and not measuring.exists():
                    peaks[:] = map(max, peaks, memory(process.pid))
                    look_at = time.monotonic() + LOOKS_APART * (time.monotonic() - looks)

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
            reply = {"failed": f"hangs: not done after {timeout_s:g} s, and ended"}
    seen = {"wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime}
    peaks[:] = map(max, peaks, reply.get("memory", [0, 0]))
    return reply | seen | {"peak_rss_bytes": peaks[0], "peak_pss_bytes": peaks[1]}


def _end_session(leader: int) -> None:
    """End what a contestant left running; nothing is there as a rule."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def values(name: str, reply: Row) -> dict[str, float]:
    """The figures of a run that are compared; of a limit, which has no start, only its rates."""
    found = {}
    if not name.startswith("limits"):
        names = ("first_batch_s", "first_batch_cpu_s", "import_s", "peak_rss_bytes",
                 "peak_pss_bytes")  # fmt: skip
        found = {n: float(reply[n]) for n in names if isinstance(reply.get(n), int | float)}
    if {"import_s", "first_batch_s"} <= found.keys():
        found["start_s"] = found["import_s"] + found["first_batch_s"]
    for taken in (reply.get("states") or {}).values():  # the last one
        found |= {"state_bytes": float(taken["state_bytes"]), "save_s": taken["save_s"]}
    steady = reply.get("steady")
    if isinstance(steady, dict):
        share = 1.0  # of the media delivered in the window, what was decoded in it
        if steady.get("media") and steady.get("decoded") is not None:
            share = found["decoded_share"] = steady["decoded"] / steady["media"]
        for what in ("samples", "tokens"):
            if steady[what] and steady["cpu_s"] and steady["wall_s"]:
                found[f"{what}_per_cpu_s"] = share * steady[what] / steady["cpu_s"]
                found[f"{what}_per_s"] = share * steady[what] / steady["wall_s"]
        if steady["samples"] and steady["tokens"]:
            found["tokens_per_sample"] = steady["tokens"] / steady["samples"]
        if steady.get("fill") is not None:
            found["fill"] = steady["fill"]
    return found


def output(reply: Row, known: Mapping[str, frozenset[str]]) -> Row:
    """How much of what was delivered is known, or ``failed`` if some of it isn't."""
    counts = {
        what: [sum(one in known[what] for one in reply[what]), len(reply[what])]
        for what in ("documents", "media")
        if reply.get(what)
    }
    wrong = [f"{n - good} of {n} {what}" for what, (good, n) in counts.items() if good < n]
    if wrong:
        return {"output": counts, "failed": f"other output than expected: {', '.join(wrong)}"}
    return {"output": counts} if counts else {}


class Bench:
    """Runs entries and keeps their rows; of use in several threads at once.

    Args:
        cache: where the environments lie.
        results: the file to append rows to; None: rows are only returned.
        facts: fields of every row: what the data are.
        say: told of what is going on, a line at a time.
        runner: does a run in an interpreter; tests have another than `run_once`.
    """

    def __init__(
        self,
        cache: Path,
        results: Path | None = RESULTS,
        facts: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = lambda _: None,
        runner: Callable[[Entry, Path], Row] = run_once,
    ) -> None:
        self._cache, self._say, self._runner = cache, say, runner
        self.results, self.facts = results, dict(facts or {})
        self.commit = commit()
        self._pythons: dict[str, Path | str] = {}
        self._known: dict[str, dict[str, frozenset[str]]] = {}
        self._prepared: set[tuple[str, str, str]] = set()
        self._skips: dict[tuple[Any, ...], Row] = {}
        self._failures: Counter[tuple[Any, ...]] = Counter()
        self._lock, self._writing = threading.Lock(), threading.Lock()

    def run(self, entry: Entry, **more: Any) -> Row:
        """One run as a row; ``more`` is added to it.

        What a contestant can't do is asked once. One that failed is tried again in the next round,
        and given up after `PATIENCE` failures one after another.
        """
        job = entry.job
        can = (entry.name, job.work, job.kind, job.mode, job.workers, job.resumes)
        place = (*can, entry.role, more.get("suite"), more.get("group"))
        if can in self._skips:
            reply = dict(self._skips[can])
        elif self._failures[place] >= PATIENCE:
            reply = {"failed": f"not run: it failed {PATIENCE} times one after another"}
        else:
            self._say(f"{job.work}, {job.kind}: {entry.label}")
            reply = self._checked(entry)
            self._failures[place] = self._failures[place] + 1 if "failed" in reply else 0
            if "skipped" in reply:
                self._skips[can] = {key: reply.get(key) for key in ("skipped", "version")}
        return self._row(entry, reply, more)

    def _checked(self, entry: Entry) -> Row:
        """The reply of a run, its output compared with what the data give."""
        reply = self._reply(entry)
        if not entry.name.startswith("limits") and (reply.get("documents") or reply.get("media")):
            reply |= output(reply, self._reference(entry.job))
        return reply

    def _row(self, entry: Entry, reply: Row, more: Row) -> Row:
        job = {
            field.name: getattr(entry.job, field.name)
            for field in dataclasses.fields(Job)
            if field.name not in ("reply", "data", "state", "variant", "end")
        }
        row = {
            "bench": "compare",
            "row": "run",
            "contestant": entry.name,
            "label": entry.label,
            "job": job,
            "facts": dict(entry.facts),
            **more,
        }
        return self.keep(row | {"values": values(entry.name, reply)} | reply)

    def keep(self, row: Row) -> Row:
        """Complete a row and write it down, the digests left out."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        row = row | self.facts | {"commit": self.commit, "machine": machine(), "at": now}
        if self.results is not None:
            digests = ("rows", "documents", "media")
            shown = {key: value for key, value in row.items() if key not in digests}
            append(self.results, [shown], self._writing)
        return row

    def keep_beside(self, name: str, rows: Iterable[Row]) -> None:
        """Write rows of another script to the file ``name``.jsonl beside the results."""
        if self.results is not None:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            more = {"bench": name, "commit": self.commit, "machine": machine(), "at": now}
            append(self.results.with_name(f"{name}.jsonl"), [r | more for r in rows], self._writing)

    def _reply(self, entry: Entry) -> Row:
        with self._lock:  # an environment is made once
            python = self._python(entry.name, entry.job)
        return {"failed": python} if isinstance(python, str) else self._runner(entry, python)

    def _reference(self, job: Job) -> Mapping[str, frozenset[str]]:
        """Digests of all documents and media of the job's work, as its data make them."""
        with self._lock:
            key = f"{job.data} {job.work}"
            if key not in self._known:
                self._say(f"{job.work}: what is to be delivered")
                plain = Job(work=job.work, kind="rows", data=job.data, reply="", end=job.end)
                self._python("limits", plain)
                reply = self._runner(Entry("limits", plain), Path(sys.executable))
                if "documents" not in reply:
                    raise RuntimeError(f"no reference of {job.work}: {reply.get('failed')}")
                self._known[key] = {w: frozenset(reply[w]) for w in ("documents", "media")}
            return self._known[key]

    def _python(self, name: str, job: Job) -> Path | str:
        """The contestant's interpreter, its data prepared; or why there is none."""
        place = f"{name} {job.data} {job.work}"
        if place not in self._pythons:
            try:
                python = interpreter(name, self._cache, self._say)
                script = CONTESTANTS[name].prepare
                if script and (script, job.data, job.work) not in self._prepared:
                    self._prepare(script, python, job)
                    self._prepared.add((script, job.data, job.work))
            except (RuntimeError, OSError) as error:
                self._pythons[place] = str(error)
            else:
                self._pythons[place] = python
        return self._pythons[place]

    def _prepare(self, script: str, python: Path, job: Job) -> None:
        self._say(f"{job.work}: what {script} reads")
        command = [str(python), "-m", f"benchmarks.compare.{script}", "--prepare"]
        command += [job.data, job.work]
        env = {**os.environ, **SETTINGS}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            end = " | ".join(done.stderr.strip().splitlines()[-3:])
            raise RuntimeError(f"--prepare failed with {done.returncode}: {end}")


def append(path: Path, rows: Iterable[Row], lock: threading.Lock) -> None:
    """Rows to a file of JSON lines, floats to five digits."""
    lines = "".join(json.dumps(rounded(row)) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock, path.open("a", encoding="utf-8") as file:
        file.write(lines)
