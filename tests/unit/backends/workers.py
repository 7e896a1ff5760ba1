"""What the tests of worker processes run in them: importable, and free of pytest."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np


def who(_: object) -> tuple[int, str]:
    """Process id and what of this is loaded: torch."""
    return os.getpid(), " ".join(name for name in ("torch", "pytest") if name in sys.modules)


def threads(_: object) -> tuple[int, str]:
    import torch

    return torch.get_num_threads(), os.environ["TOKENIZERS_PARALLELISM"]


def variables(names: tuple[str, ...]) -> dict[str, str]:
    """Of the environment that the process, or the one that forked it, was started with."""
    pairs = Path("/proc/self/environ").read_text().split("\0")
    found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {name: found[name] for name in names}


def noise(item: tuple[int, int]) -> dict[str, Any]:
    """Arrays of a seed: one of ``size`` bytes, one small, one that is not contiguous."""
    seed, size = item
    random = np.random.Generator(np.random.Philox(key=seed))
    big = random.integers(0, 256, size, np.uint8)
    return {"seed": seed, "big": big, "small": big[:7].copy(), "odd": big.reshape(2, -1).T[::2]}


def filled(item: tuple[int, int]) -> np.ndarray:
    return np.full(item[1], item[0] % 251, np.uint8)


def nap(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def die_once(flag: str) -> str:
    """SIGKILL the first time, an answer the second."""
    if not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def die_at(item: tuple[int, int]) -> int:
    if item[0] == item[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    return item[0]


def leave(status: int) -> None:
    os._exit(status)


class Odd(Exception):
    """Pickles, and does not unpickle."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")


def fail(how: str) -> Any:
    match how:
        case "plain":
            error = ValueError("no good")
            error.add_note("noted in the worker")
            raise error
        case "odd":
            raise Odd(1, 2)
        case "inside":
            try:
                raise KeyError("gone")
            except KeyError as error:
                return ["fine", error]
        case "result":
            return lambda: how
        case "stop":
            raise StopIteration
    return how


class Part:
    """One object in a worker, however many refer to it; counts how often it was pickled."""

    one_a_worker = True

    def __init__(self) -> None:
        self.pickled = 0

    def __getstate__(self) -> dict[str, int]:
        self.pickled += 1
        return {"pickled": 0}


class Asks:
    """A callable with a part and counts."""

    def __init__(self, part: Part) -> None:
        self.part, self.calls, self.pickled = part, 0, 0

    def __getstate__(self) -> dict[str, Any]:
        self.pickled += 1
        return {"part": self.part, "calls": 0, "pickled": 0}

    def __call__(self, item: int) -> tuple[int, int, int]:
        self.calls += 1
        return item, os.getpid(), id(self.part)

    def take_counts(self) -> int:
        taken, self.calls = self.calls, 0
        return taken

    def add_counts(self, counts: int) -> None:
        self.calls += counts


class Wants:
    """A callable that needs a module for some items; says who answers, and whether it was there."""

    def modules_of(self, item: str) -> tuple[str, ...]:
        return (item,) if item else ()

    def __call__(self, item: str) -> tuple[int, bool]:
        return os.getpid(), item in sys.modules


class Shares:
    """A callable that is got ready before workers are forked; says where what was done to it."""

    def __init__(self, how: str = "") -> None:
        self.how = how
        self.where: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"how": self.how}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.how = state["how"]
        self.where = {"unpickled": os.getpid()}
        if self.how == "exits":
            sys.exit("while unpickling")

    def get_ready(self) -> None:
        self.where["ready"] = os.getpid()
        if self.how == "fails":
            raise ValueError("not ready")
        if self.how == "threads":
            threading.Thread(target=threading.Event().wait, daemon=True).start()

    def __call__(self, _: object) -> tuple[int, int, dict[str, int]]:
        return os.getpid(), os.getppid(), self.where
