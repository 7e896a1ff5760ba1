"""The trainers of `chaos.py`: forked, one a job, from a process that has only imported.

``python benchmarks/chaos_trainer.py FOLDER`` imports what a loader needs, makes the data in FOLDER,
and then takes jobs from the socket that is its stdin: each
is a JSON message and one end of a pipe, on which the trainer tells what it does. A trainer leads a
session of its own, by which all that it starts is found. It is the foster parent of what a killed
trainer leaves, so that such processes don't stay as zombies.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # before the libraries are loaded: a thread here forbids the fork
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "benchmarks")]

import pyarrow.dataset  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import zephon_mm_kernels.cpu  # noqa: E402
from chaos_plan import make_data  # noqa: E402
from PIL import Image  # noqa: E402

from zephon_mm import Batch, DataConfig, ExecutionConfig, Loader, Source  # noqa: E402
from zephon_mm.backends.ray_session import Session  # noqa: E402
from zephon_mm.cli.digest import step_digest  # noqa: E402
from zephon_mm.state import merge_states, write_state  # noqa: E402

CALLS = {("save", "file"): 500, ("save", "dcp"): 8000, ("restore", ""): 8000}
"""Calls of the main thread in a phase, about: where a trainer that kills itself is to do it."""


class Voice:
    """Tells on the pipe what the trainer does, and kills it where its job says so.

    Args:
        pipe: file descriptor to write to.
        kill: a `Kill` by call, as plain data; None: none.
        form: of the checkpoints.
    """

    def __init__(self, pipe: int, kill: Mapping[str, Any] | None, form: str) -> None:
        self._pipe, self._kill = pipe, kill
        self._visits: Counter[str] = Counter()
        self._left = 0
        if kill is not None:
            calls = CALLS[kill["phase"], form if kill["phase"] == "save" else ""]
            self._calls = 1 + int(calls ** kill["fraction"])

    def say(self, **facts: Any) -> None:
        """One line, with the time."""
        line = json.dumps(facts | {"time": time.monotonic()}) + "\n"
        os.write(self._pipe, line.encode())

    def phase(self, name: str) -> None:
        """The trainer goes over to this phase."""
        if self._left > 0:  # the phase was shorter than thought: not killed inside of it
            self.say(phase="past the end")
            self._die()
        self.say(phase=name)
        self._visits[name] += 1
        kill = self._kill
        if kill is not None and kill["phase"] == name and self._visits[name] == kill["visit"]:
            self._left = self._calls
            sys.setprofile(self._count)

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self._left -= 1
            if self._left == 0:
                self._die()

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def tensors_of(loaders: Sequence[Loader], step: int) -> dict[str, Any]:
    """The lanes of all ranks of one process, as DCP keeps them."""
    states = [loader.state_dict(step, tensors=True) for loader in loaders]
    return states[0] | {"lanes": {k: v for state in states for k, v in state["lanes"].items()}}


def save(loaders: Sequence[Loader], step: int, form: str, folder: Path) -> None:
    """Write the boundary before ``step``, of all ranks."""
    if form == "dcp":
        dcp.save({"loader": tensors_of(loaders, step)}, checkpoint_id=folder / f"dcp-{step:06d}")
    elif len(loaders) == 1:
        loaders[0].save_state(folder / "state.json", step=step)
    else:
        states = [loader.state_dict(step) for loader in loaders]
        write_state(folder / "state.json", merge_states(states))


def restore(loader: Loader, path: Path) -> None:
    """Go on from what `save` has written, of any number of ranks."""
    if path.is_dir():
        dcp.load({"loader": loader}, checkpoint_id=path)
    else:
        loader.load_state(path)


def whole_step(iterator: Iterator[Batch], rows: int) -> list[Batch]:
    """The micro-batches of a rank's next step; empty at the end."""
    found: list[Batch] = []
    while sum(len(batch.slots) for batch in found) < rows:
        batch = next(iterator, None)
        if batch is None:
            break
        found.append(batch)
    return found


def train(job: Mapping[str, Any], voice: Voice) -> None:
    """One life of a trainer: restore, train, save, to the end of the run."""
    config = DataConfig.from_dict(job["config"])
    execution = ExecutionConfig(**job["execution"])
    ranks, folder = job["dp_size"], Path(job["folder"])
    loaders: list[Loader] = []
    books = Books()
    try:
        voice.phase("restore" if job["state"] else "start")
        for rank in range(ranks):
            loaders.append(Loader(config, execution, dp_rank=rank, dp_size=ranks))
            if job["state"]:
                restore(loaders[-1], Path(job["state"]))
        step = begun = loaders[0].state_dict()["step"]
        if job["every"] and not job["state"]:
            voice.phase("save")
            save(loaders, 0, job["form"], folder)
            voice.say(saved=0)
        voice.phase("refill" if job["state"] else "decode")
        iterators = [iter(loader) for loader in loaders]
        while True:
            rows = config.global_batch_at(step) // ranks
            batches = [batch for each in iterators for batch in whole_step(each, rows)]
            if not batches:
                break
            voice.say(step=step, steps=sorted({b.step for b in batches}), rows=_digest(batches))
            books.enter(batches)
            step += 1
            due = step - job["behind"]
            if job["every"] and due > begun and due % job["every"] == 0:
                voice.phase("save")
                save(loaders, due, job["form"], folder)
                voice.say(saved=due)
            voice.phase("decode")
        voice.phase("end")
        voice.say(end=step, wrong=books.wrong(config, loaders) if job["account"] else "")
    finally:
        for loader in loaders:
            loader.close()


def _digest(batches: Sequence[Batch]) -> str:
    return step_digest(batches, pixels=True)


class Books:
    """Which pieces of which documents were delivered."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, str, int], list[tuple[int, int]]] = {}

    def enter(self, batches: Sequence[Batch]) -> None:
        """A step was delivered."""
        for batch in batches:
            for row in batch.documents:
                for d in row:
                    draw = (d.source, d.key, d.epoch)
                    self._pieces.setdefault(draw, []).append((d.token_start, d.token_stop))

    def wrong(self, config: DataConfig, loaders: Sequence[Loader]) -> str:
        """What was lost or repeated in a run from step 0 on; empty if nothing was."""
        whole = config.stop.epochs is not None and config.stop.when == "all_exhausted"
        for draw, pieces in self._pieces.items():
            pieces.sort()
            starts = [start for start, _ in pieces]
            ends = [0, *(stop for _, stop in pieces)][:-1]
            # a run that ends before its data may have packed a later piece first
            if starts != ends if whole else any(a < b for a, b in zip(starts, ends, strict=True)):
                return f"{draw} was delivered as tokens {pieces}"
        if not whole:
            return ""
        for source in config.sources:
            seen = sum(draw[0] == source.id for draw in self._pieces)
            counts = [loader.stats()["sources"][source.id] for loader in loaders]
            others = sum(c[k] for c in counts for k in ("filtered", "dropped", "quarantined"))
            expected = samples_of(source) * config.stop.epochs
            if seen + others != expected:
                return f"{source.id}: {seen} delivered + {others} others, not {expected}"
        return ""


def samples_of(source: Source) -> int:
    """Samples in the shards of a source, counted from the tars."""
    import tarfile

    keys = set()
    for url in source.urls:
        with tarfile.open(url) as tar:
            keys |= {name.split(".")[0] for name in tar.getnames()}
    return len(keys)


def open_files() -> Counter[str]:
    """What the descriptors of this process are open on; numbers of pipes and sockets left out.

    And names of Ray's logs, of which the last connection stays open.
    """
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}").split(":[")[0]
            found["a log of Ray" if name.startswith("/tmp/ray/session") else name] += 1
        except OSError:  # of this listing
            pass
    return found


def children() -> list[str]:
    """Child processes of this one, zombies too."""
    found = []
    for task in Path("/proc/self/task").glob("*/children"):
        found += task.read_text().split()
    return found


def leaks(before: Counter[str], spared: str | None) -> dict[str, Any]:
    """What a closed loader has left in this process.

    Args:
        before: what was open.
        spared: descriptors on this don't count.
    """
    found = {
        "descriptors": {name: n for name, n in (open_files() - before).items() if name != spared},
        "children": children(),
        "threads": [thread.name for thread in threading.enumerate()][1:],
    }
    return {name: left for name, left in found.items() if left}


def live(job: Mapping[str, Any], pipe: int) -> None:
    """A trainer from its fork to its end, which it does not survive."""
    os.setsid()
    log = os.open(Path(job["folder"]) / "stderr.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    os.close(log)
    on_ray = job["execution"]["backend"] == "ray"
    if on_ray:  # what Ray opens once in a process, it keeps
        Session.hold(job["execution"]["ray_address"], 1, 0).release()
    before = open_files()
    kill = next((k for k in job["kills"] if k["how"] == "call"), None)
    voice = Voice(pipe, kill, job["form"])
    try:
        train(job, voice)
        # after ray.kill() Ray keeps a closed socket, also without us
        voice.say(left=leaks(before, "socket" if on_ray else None))
    except BaseException as error:
        told = "".join(traceback.format_exception(error))
        voice.say(error=f"{type(error).__name__}: {str(error)[:300]}", trace=told[-2000:])
    os._exit(0)


def serve(link: socket.socket) -> None:
    """Fork a trainer a job, until the other end of ``link`` is gone."""
    statuses: dict[int, int] = {}
    link.settimeout(0.05)
    while True:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                statuses[ended[0]] = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            pass
        try:
            data, fds, _, _ = socket.recv_fds(link, 1 << 20, 1)
        except TimeoutError:
            continue
        if not data:
            return
        job = json.loads(data)
        if "status" in job:
            link.send(json.dumps(statuses.get(job["status"])).encode())
            continue
        pid = os.fork()
        if pid == 0:
            _die_with_parent()
            link.close()
            live(job, fds[0])
        os.close(fds[0])
        link.send(json.dumps(pid).encode())


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))


def main() -> None:
    """Serve on stdin's socket."""
    folder = Path(sys.argv[1])
    # a child subreaper: what trainers leave is reaped here
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    torch.set_num_threads(1)
    zephon_mm_kernels.cpu.load()
    Image.init()
    make_data(folder)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise SystemExit(f"{threads} threads after the imports: trainers can't be forked")
    with socket.socket(fileno=os.dup(0)) as link:
        link.send(b"ready")
        serve(link)
    os._exit(0)  # there is nothing to tidy up


if __name__ == "__main__":
    main()
