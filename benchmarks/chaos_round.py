"""Runs a round of chaos: trainers one after the other, killed as planned, and judges it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos_plan import Kill, Round, Segment

from zephon_mm.digests import compare_logs, read_log

SECONDS = {"decode": 0.03, "save": 0.015, "restore": 0.15, "refill": 0.1}
"""A phase, about: when to kill in it by the clock."""

WORKERS_START_SECONDS = 1.0
END_SECONDS = 5.0
"""Processes of a trainer must be gone so long after it."""

SILENT_SECONDS = 150.0
"""A trainer that says nothing for so long hangs."""


class ChaosError(Exception):
    """A promise was broken; the words say which."""


@dataclass
class Tally:
    """What was done in all rounds.

    Attributes:
        kills: by victim, phase and how.
        lives: trainers, by backend.
        restores: by form of the state, and whether ranks or backend were others.
        steps: handed out, repeated ones too.
        longest_end: seconds until the last process of a killed trainer was gone.
    """

    kills: Counter[str] = field(default_factory=Counter)
    lives: Counter[str] = field(default_factory=Counter)
    restores: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    longest_end: float = 0.0


class Zygote:
    """The process that forks trainers, see `chaos_trainer`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = Path(__file__).with_name("chaos_trainer.py")
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, str(script), str(folder)]
        self._process = subprocess.Popen(command, stdin=theirs)
        theirs.close()
        if self._link.recv(100) != b"ready":
            self._link.close()
            raise SystemExit(f"the trainers' process ended with {self._process.wait()}")

    def start(self, job: dict[str, Any]) -> tuple[int, int]:
        """Process id of a new trainer, and the pipe that it tells on."""
        ours, theirs = os.pipe()
        socket.send_fds(self._link, [json.dumps(job).encode()], [theirs])
        os.close(theirs)
        return json.loads(self._link.recv(100)), ours

    def status(self, pid: int) -> int | None:
        """Exit status of a trainer, negative after a signal; None: it has not ended."""
        self._link.send(json.dumps({"status": pid}).encode())
        found: int | None = json.loads(self._link.recv(100))
        return found

    def close(self) -> None:
        """End it."""
        self._link.close()
        self._process.wait(30)

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def session_of(leader: int) -> dict[int, str]:
    """Processes of the session that ``leader`` leads or led, zombies too, and their names."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, rest = (folder / "stat").read_text().partition(" (")[2].rpartition(") ")
            if int(rest.split()[3]) == leader:
                found[int(folder.name)] = name
    return found


def ray_workers() -> dict[int, str]:
    """Processes of actors of ours on any cluster of this machine, and what they are called."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            if line.startswith(b"ray::ZephonWorker"):
                found[int(folder.name)] = line.split(b"\0")[0].decode()
    return found


def workers_of(leader: int) -> list[int]:
    """Worker processes of a trainer, and the template that they are forked from."""
    found = []
    for pid in session_of(leader):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(word.startswith((b"zephon_mm-worker", b"zephon_mm-template")) for word in words):
                found.append(pid)
    return sorted(found)


def unowned(names: set[str]) -> list[str]:
    """Those of the files of /dev/shm that no living process has mapped or open."""
    left = {f"/dev/shm/{name}" for name in names}
    for folder in Path("/proc").glob("[0-9]*"):
        if not left:
            break
        with contextlib.suppress(OSError):
            maps = (folder / "maps").read_text()
            left -= {name for name in left if name in maps}
            for link in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    left.discard(os.readlink(link))
    return sorted(left)


class Life:
    """One trainer, watched from its fork to its end, and killed as its segment says."""

    def __init__(self, zygote: Zygote, segment: Segment, job: dict[str, Any], tally: Tally) -> None:
        self._segment, self._tally = segment, tally
        self._on_ray = segment.execution["backend"] == "ray"
        self._clocks = [kill for kill in segment.kills if kill.how == "clock"]
        self._visits: Counter[str] = Counter()
        self._strikes: dict[int, tuple[float, str]] = {}
        self._unborn: set[int] = set()  # kills that were due before there was a worker
        self.phase, self.step = "", -1
        self.digests: dict[int, str] = {}
        self.saved = -1
        self.ended = False
        self._killed = False
        self._zygote = zygote
        self.pid, self._pipe = zygote.start(job | {"kills": [asdict(k) for k in segment.kills]})

    def run(self) -> None:
        """Until the trainer has ended; ChaosError if it fails, hangs or leaves anything."""
        shm = set(os.listdir("/dev/shm"))
        try:
            self._watch()
            self._reap()
        finally:
            os.close(self._pipe)
            for pid in session_of(self.pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if (left := set(os.listdir("/dev/shm")) - shm) and (left := set(unowned(left))):
            raise ChaosError(f"left in /dev/shm: {sorted(left)}")

    def _watch(self) -> None:
        held = b""
        heard = time.monotonic()
        while True:
            now = time.monotonic()
            wait = min([at - now for at, _ in self._strikes.values()], default=1.0)
            if not select.select([self._pipe], [], [], max(0.0, min(wait, 1.0)))[0]:
                self._strike()
                if time.monotonic() - heard > SILENT_SECONDS:
                    raise ChaosError(f"it hangs in {self.phase!r} after step {self.step}")
                continue
            data = os.read(self._pipe, 1 << 16)
            if not data:
                return
            heard = time.monotonic()
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))
            self._strike()

    def _hear(self, said: dict[str, Any]) -> None:
        if "phase" in said:
            self.phase = said["phase"]
            self._visits[self.phase] += 1
            self._strikes.clear()
            for number, kill in enumerate(self._clocks):
                if kill.phase == self.phase and kill.visit <= self._visits[self.phase]:
                    self._strikes[number] = said["time"] + self._delay(kill), self.phase
        elif "rows" in said:
            self.step = said["step"]
            if said["steps"] != [self.step]:
                raise ChaosError(f"the ranks gave steps {said['steps']}, not {self.step}")
            self.digests[self.step] = said["rows"]
            self._tally.steps += 1
        elif "saved" in said:
            self.saved = said["saved"]
        elif "error" in said:
            raise ChaosError(f"{said['error']}\n{said['trace']}")
        elif "end" in said:
            self.ended = True
            if said["wrong"]:
                raise ChaosError(f"over finite epochs: {said['wrong']}")
        elif said.get("left"):
            raise ChaosError(f"left in the trainer after close(): {said['left']}")

    def _delay(self, kill: Kill) -> float:
        slow = self._segment.execution["backend"] in ("processes", "ray")
        slow = slow and kill.victim == "trainer"  # of a worker it counts from its start
        first = self.phase == "refill" or (self.phase == "decode" and self.step < 0)
        more = WORKERS_START_SECONDS if slow and first else 0.0
        return kill.fraction * (SECONDS[self.phase] + more)

    def _strike(self) -> None:
        """Do the kills by the clock that are due."""
        now = time.monotonic()
        for number, (at, phase) in list(self._strikes.items()):
            if at > now or phase != self.phase:
                continue
            kill = self._clocks[number]
            victim = self.pid
            if kill.victim == "worker":
                workers = self._workers()
                if not workers:
                    self._unborn.add(number)
                    self._strikes[number] = now + 0.005, phase
                    continue
                if number in self._unborn:
                    self._unborn.remove(number)
                    self._strikes[number] = now + self._delay(kill), phase
                    continue
                victim = workers[int(kill.fraction * len(workers))]
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                self._killed |= victim == self.pid
                ray = kill.victim == "worker" and self._on_ray
                who = "Ray worker" if ray else kill.victim
                self._tally.kills[f"{who} in {phase} by the clock"] += 1
            self._clocks[number] = Kill("none", "none", 0, "clock", 0.0)
            del self._strikes[number]

    def _workers(self) -> list[int]:
        return sorted(ray_workers()) if self._on_ray else workers_of(self.pid)

    def _left(self) -> dict[int, str]:
        return session_of(self.pid) | (ray_workers() if self._on_ray else {})

    def _reap(self) -> None:
        """Its status, and the end of all its processes."""
        begun = time.monotonic()
        while (left := self._left()) and time.monotonic() - begun < END_SECONDS:
            time.sleep(0.005)
        if left:
            raise ChaosError(f"processes live {END_SECONDS} s after their trainer: {left}")
        self._tally.longest_end = max(self._tally.longest_end, time.monotonic() - begun)
        while (status := self._zygote.status(self.pid)) is None:
            time.sleep(0.01)
        if status == -signal.SIGKILL and not self._killed:
            if not any(kill.how == "call" for kill in self._segment.kills):
                raise ChaosError("the trainer was killed by somebody else")
            self._tally.kills[f"trainer in {self.phase} by a call"] += 1
        elif status not in (0, -signal.SIGKILL):
            raise ChaosError(f"the trainer ended with status {status}")


def last_saved(folder: Path) -> tuple[int, Path | None]:
    """The newest whole checkpoint in a folder, and its step; (-1, None): there is none."""
    found: list[tuple[int, Path]] = []
    plain = folder / "state.json"
    if plain.exists():
        found.append((json.loads(plain.read_text())["step"], plain))
    for path in folder.glob("dcp-*"):
        if (path / ".metadata").exists():  # which DCP writes last
            found.append((int(path.name[4:]), path))
    return max(found, default=(-1, None), key=lambda pair: pair[0])


def run_round(zygote: Zygote, plan: Round, tally: Tally) -> None:
    """Run one round.

    Raises:
        ChaosError: what was not as promised.
    """
    folder = zygote.folder / "round"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = plan.config.to_dict()
    logs = {name: str(folder / name) for name in ("log_a", "log_b")} if plan.digest_log else {}

    def job(segment: Segment, log: str | None, state: Path | None, account: bool) -> dict[str, Any]:
        return {
            "config": config,
            "execution": segment.execution | {"digest_log": log},
            "dp_size": segment.dp_size,
            "every": segment.every,
            "form": segment.form,
            "behind": segment.behind,
            "state": state and str(state),
            "folder": str(folder),
            "account": account,
        }

    alone = Segment({"backend": "serial"}, 1, 0, "file", 0, ())
    reference = Life(zygote, alone, job(alone, logs.get("log_a"), None, True), tally)
    reference.run()
    wanted = [reference.digests[step] for step in sorted(reference.digests)]
    found: list[str] = []
    before: Segment | None = None
    for number, segment in enumerate(plan.segments):
        step, state = last_saved(folder)
        tally.lives[segment.execution["backend"]] += 1
        if before is not None and state is not None:
            same = before.execution["backend"] == segment.execution["backend"]
            tally.restores["of a file" if state.is_file() else "of DCP"] += 1
            tally.restores["into another backend"] += not same
            tally.restores["into another dp_size"] += before.dp_size != segment.dp_size
        life = Life(zygote, segment, job(segment, logs.get("log_b"), state, False), tally)
        where = f"life {number}"
        try:
            life.run()
        except ChaosError as error:
            raise ChaosError(f"{where} ({life.phase}, step {life.step}): {error}") from None
        del found[max(0, step) :]
        for at, digest in sorted(life.digests.items()):
            if at != len(found):
                raise ChaosError(f"{where}: step {at} came where {len(found)} was due")
            if at >= len(wanted) or digest != wanted[at]:
                raise ChaosError(f"{where}: step {at} is not that of the serial run")
            found.append(digest)
        if (now := last_saved(folder)[0]) < max(life.saved, step):
            raise ChaosError(f"{where}: the last state is of step {now}, {life.saved} was saved")
        before = segment
    if not life.ended or found != wanted:
        raise ChaosError(f"{len(found)} steps at the end, the serial run has {len(wanted)}")
    if logs and wanted:
        _compare_logs(logs)


def _compare_logs(logs: dict[str, str]) -> None:
    """The digest logs of the serial run and of the chain of trainers."""
    a, b = (read_log(Path(log)) for log in logs.values())
    comparison = compare_logs(a, b)
    if not comparison.equal or any(lack.rows or lack.steps for lack in comparison.lacks.values()):
        raise ChaosError(f"the digest logs differ: {comparison}")
