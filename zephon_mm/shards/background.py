"""A few threads that fetch bytes: all at once, or while others are read."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

MAX_THREADS: Final = 8
MAX_LISTED: Final = 4096
"""Things to fetch that may wait."""


class Background:
    """Does calls in a few threads, which live while there are any. Thread-safe.

    A call must not raise; what it raises nevertheless is dropped.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._left: deque[Callable[[], None]] = deque()
        self._threads = 0

    def begin(self, work: Callable[[], None]) -> None:
        """Do it soon; nothing is done in a forked child, or while very many calls wait."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if len(self._left) >= MAX_LISTED:
                return
            self._left.append(work)
            if self._threads >= MAX_THREADS:
                return
            self._threads += 1
        if not start(threading.Thread(target=self._run, name="zephon_mm-ahead", daemon=True)):
            with self._lock:
                self._threads -= 1

    def clear(self) -> None:
        """Forget what is not begun."""
        if os.getpid() == self._pid:
            with self._lock:
                self._left.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._left:
                    self._threads -= 1
                    return
                work = self._left.popleft()
            with contextlib.suppress(BaseException):
                work()


def in_parallel(work: Callable[[T], None], items: Iterable[T]) -> None:
    """``work`` on each item, some at once; it must not raise."""
    left = deque(items)

    def run() -> None:
        while True:
            try:
                item = left.popleft()
            except IndexError:
                return
            work(item)

    threads = [
        threading.Thread(target=run, name="zephon_mm-ahead", daemon=True)
        for _ in range(min(MAX_THREADS, len(left)) - 1)
    ]
    started = [thread for thread in threads if start(thread)]
    try:
        run()
    finally:
        left.clear()
    for thread in started:
        thread.join()


def start(thread: threading.Thread) -> bool:
    """Start it; False where there are no more threads."""
    try:
        thread.start()
    except RuntimeError:  # no more threads: fewer do it all
        return False
    return True
