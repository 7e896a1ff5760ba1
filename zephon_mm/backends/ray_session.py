"""The connection of this process to Ray, of which there is one, shared by its backends.

A connection that the program has made itself is used and left alone. Otherwise the first backend
makes one, to the cluster that is named or to a local one of its own, and the last one to close ends
it: a cluster of others goes on, a local one ends with all of its processes.

A local cluster is started by a thread that lives as long as it does: the kernel ends Ray's
processes when the thread that started them is gone, so they don't outlive this process, however it
ends; ``ray_reaper`` ends those that Ray's processes started, and removes the logs. In that thread
Ray also can't put a handler of its own on the trainer's SIGTERM.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing.spawn
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

from zephon_mm.backends import ray_reaper
from zephon_mm.backends.base import ForkedError
from zephon_mm.errors import MissingDependencyError, WorkerError

__all__ = ["Session", "load_ray"]

_log = logging.getLogger(__name__)

_LEAST_STORE_BYTES: Final = 80 << 20  # Ray refuses less than 75 MiB
_SHARE_OF_SHM: Final = 0.8

_lock = threading.Lock()
_open: Session | None = None
_inherited = False


def load_ray() -> Any:
    """The package ``ray``.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingDependencyError(
            f"backend='ray' needs Ray ({error}): install it with `pip install 'zephon-mm[ray]'`"
        ) from error


class Session:
    """A connection that backends hold; see ``hold``.

    Attributes:
        local: the cluster is our own.
        folder: of a local cluster, where Ray logs.
    """

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.local = False
        self.folder = ""
        self._reaper: subprocess.Popen[bytes] | None = None
        self._pid = os.getpid()
        self._holders = 1
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._end = threading.Event()
        self._error: BaseException | None = None

    @staticmethod
    def hold(address: str | None, workers: int, store_bytes: int) -> Session:
        """The connection of this process, made if there is none; ``release`` it.

        Args:
            address: of a cluster, as ``ray.init`` takes it; None: that of the variable
                ``RAY_ADDRESS``, or else a local cluster.
            workers: CPUs of a local cluster.
            store_bytes: wanted for the object store of a local cluster.

        Raises:
            MissingDependencyError: Ray is not installed.
            WorkerError: no connection, or no cluster can be started.
            ForkedError: this process is a fork of one that was connected.
        """
        global _open
        with _lock:
            ray = load_ray()
            if _inherited:
                raise ForkedError(
                    "Ray was connected in the process that this one is a fork of, and its "
                    "connection doesn't survive that: start this process with spawn, or use "
                    "backend='threads'"
                )
            if _open is not None and ray.is_initialized():
                _open._holders += 1
                return _open
            session = Session(ray)
            if not ray.is_initialized():
                session._connect(address, workers, store_bytes)
            _open = session
            return session

    def release(self) -> None:
        """One backend needs it no longer; the last one ends what was made for them."""
        global _open
        if os.getpid() != self._pid:
            return
        with _lock:
            self._holders -= 1
            if self._holders or self._thread is None:
                return
            if _open is self:
                _open = None
            self._end.set()
            self._thread.join()

    def keep_logs(self) -> None:
        """A worker died: the folder of a local cluster is not removed at the end."""
        self._tell("keep")

    def alive(self) -> bool:
        """Whether Ray is still connected."""
        return bool(self.ray.is_initialized())

    def _connect(self, address: str | None, workers: int, store_bytes: int) -> None:
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.local = address == "local"
        how: dict[str, Any] = {"address": address}
        if self.local:
            how |= {
                "num_cpus": workers,
                "num_gpus": 0,
                "include_dashboard": False,
                "object_store_memory": _store_size(store_bytes),
            }
        self._thread = threading.Thread(
            target=self._live, args=(how,), name="zephon_mm_ray_session", daemon=True
        )
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C: it ends once it has started
            self._end.set()
            raise
        if self._error is not None:
            self._thread.join()
            error, self._error = self._error, None
            what = "a local Ray cluster can't be started" if self.local else f"no Ray at {address}"
            raise WorkerError(
                f"{what} ({type(error).__name__}: {error}): see `ray status`, and name a cluster "
                "that runs (ray_address, or RAY_ADDRESS), or use backend='processes'"
            ) from error

    def _tell(self, line: str) -> None:
        if self._reaper is not None and self._reaper.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it is gone, or told to end
                self._reaper.stdin.write(f"{line}\n".encode())
                self._reaper.stdin.flush()

    def _live(self, how: dict[str, Any]) -> None:
        """In the thread: connect, stay until the end, disconnect."""
        try:
            if self.local:
                self._reaper = _start_reaper()
            with _quiet():
                context = self.ray.init(**how, log_to_driver=False, configure_logging=False)
            if self.local:
                self.folder = context.address_info["session_dir"]
                self._tell(self.folder)
            del context
        except BaseException as error:
            self._error = error
        self._ready.set()
        if self._error is None:
            self._end.wait()
            with _quiet():
                self.ray.shutdown()
        if self._reaper is not None:
            self._reaper.communicate()


def _start_reaper() -> subprocess.Popen[bytes]:
    """See ``ray_reaper``; in a session of its own, so that what ends the trainer's group spares it.

    Raises:
        OSError: it can't be started.
    """
    return subprocess.Popen(
        [
            os.fsdecode(multiprocessing.spawn.get_executable() or sys.executable),
            *("-I", "-S", ray_reaper.__file__, str(os.getpid())),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing but errors from Ray's loggers, as they start and end."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _store_size(wanted: int) -> int:
    """What is wanted, as far as ``/dev/shm`` has room; Ray takes a folder on disk otherwise."""
    try:
        room = os.statvfs("/dev/shm")
        free = int(room.f_bavail * room.f_frsize * _SHARE_OF_SHM)
    except OSError:
        free = 0
    return max(_LEAST_STORE_BYTES, min(wanted, free))


def _after_fork() -> None:
    global _inherited, _lock, _open
    ray = sys.modules.get("ray")
    _inherited = _inherited or bool(ray is not None and ray.is_initialized())
    _lock, _open = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
