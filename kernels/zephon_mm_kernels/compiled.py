"""Compiling with numba once for each machine: cached on disk, one process at a time.

numba's cache is an index file and a file of code for each signature. Two processes that compile at
once can write each other's numbers into the index, and one then loads the other's code. A lock on a
file beside the cache keeps them apart; a process that waited finds the code in the cache. The lock
ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba import njit

_LOG = logging.getLogger("zephon_mm_kernels")
_WAIT_SECONDS = 120.0


class Compiled:
    """A function compiled at its first call, for the given signatures and no others.

    Safe to call from many threads. Where nothing can be cached on disk (neither beside the code nor
    in the user's cache folder) it is compiled in every process, and a warning is logged.
    """

    def __init__(self, function: Callable[..., Any], signatures: tuple[Any, ...]) -> None:
        self._function = function
        self._signatures = signatures
        self._lock = threading.Lock()
        self._ready: Any = None

    def __call__(self, *args: Any) -> Any:
        if self._ready is None:
            self.load()
        return self._ready(*args)

    def load(self) -> None:
        """Compile it, or find it compiled on disk: what the first call would do."""
        with self._lock:
            if self._ready is not None:
                return
            try:
                ready = njit(nogil=True, cache=True)(self._function)
                folder: Path | None = Path(ready.stats.cache_path or ".")
            except RuntimeError as error:  # numba's "no locator available"
                _LOG.warning(
                    "the compiled pixel kernels can't be kept on disk (%s), so every process "
                    "compiles them for some seconds; give numba a folder it may write to in "
                    "NUMBA_CACHE_DIR",
                    error,
                )
                ready, folder = njit(nogil=True)(self._function), None
            with _locked(folder):
                for signature in self._signatures:
                    ready.compile(signature)
            ready.disable_compile()
            self._ready = ready


@contextlib.contextmanager
def _locked(folder: Path | None) -> Iterator[None]:
    """Hold the folder's lock, or go on without it if it can't be had: then only time is lost."""
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "zephon_mm_kernels.lock").open("a")
    except OSError:  # a cache that others filled, and that we may only read
        yield
        return
    with file:
        end = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    _LOG.warning("another process has compiled for %.0f s", _WAIT_SECONDS)
                    break
                time.sleep(0.05)
            except OSError:  # a file system without locks
                break
        yield
