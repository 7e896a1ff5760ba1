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
import gc
import importlib
import logging
import multiprocessing.spawn
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, Final

from zephon_mm.backends import ray_reaper
from zephon_mm.backends.base import ForkedError, describe
from zephon_mm.errors import ConfigError, MissingDependencyError, WorkerError

__all__ = ["Session", "load_ray"]

_log = logging.getLogger(__name__)

_LEAST_STORE_BYTES: Final = 80 << 20  # Ray refuses less than 75 MiB
_SHARE_OF_SHM: Final = 0.8
_TRIES: Final = 3
_TURN_SECONDS: Final = 180.0

_lock = threading.RLock()  # a finaliser may release a session under it
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

    def __init__(self, ray: Any, address: str) -> None:
        self.ray = ray
        self._address = address
        self.local = False
        self.folder = ""
        self._reaper: subprocess.Popen[bytes] | None = None
        self._pid = os.getpid()
        self._holders = 0
        self._job = ""
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._end = threading.Event()
        self._error: str | None = None

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
            ConfigError: this process is connected to another cluster than ``address``.
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
            if ray.is_initialized():
                session = _open  # which a release in between would set to None
                if session is None or session._job != _job(ray):  # the program's own
                    session = Session(ray, ray.get_runtime_context().gcs_address)
                    session._job = _job(ray)
                    _open = session
                session._join(address)
                return session
            address = address or os.environ.get("RAY_ADDRESS") or "local"
            session = Session(ray, address)
            session._connect(workers, store_bytes)
            session._holders = 1
            _open = session
            return session

    def release(self) -> None:
        """One backend needs it no longer; the last one ends what was made for them."""
        global _open
        if os.getpid() != self._pid:
            return
        with _lock:
            self._holders -= 1
            if self._holders:
                return
            if _open is self:
                _open = None
            if self._thread is not None:
                self._end.set()
                self._thread.join()

    def keep_logs(self) -> None:
        """A worker died: the folder of a local cluster is not removed at the end."""
        self._tell("keep")

    def alive(self) -> bool:
        """Whether Ray is still connected."""
        return self._job == _job(self.ray)

    def _join(self, address: str | None) -> None:
        if address is not None and address not in (self._address, "auto"):
            raise ConfigError(
                f"ray_address={address!r}: this program is connected to {self._address!r} already, "
                "and a process has one connection to Ray: leave ray_address out, or call "
                "ray.shutdown() before"
            )
        self._holders += 1

    def _connect(self, workers: int, store_bytes: int) -> None:
        self.local = self._address == "local"
        how: dict[str, Any] = {"address": self._address}
        if self.local:
            how |= {
                "num_cpus": workers,
                "num_gpus": 0,
                "include_dashboard": False,
                "object_store_memory": _store_size(store_bytes),
            }
        for tries_left in reversed(range(_TRIES if self.local else 1)):
            with _turn() if self.local else contextlib.nullcontext():
                self._start(how)
            if self._error is None:
                return
            if not tries_left or "timed out" not in self._error:
                break
            _log.warning("the start of a local Ray cluster failed (%s), again", self._error)
        what = (
            "a local Ray cluster can't be started" if self.local else f"no Ray at {self._address}"
        )
        raise WorkerError(
            f"{what} ({self._error}): see `ray status`, and name a cluster that runs (ray_address, "
            "or RAY_ADDRESS), or use backend='processes'"
        )

    def _start(self, how: dict[str, Any]) -> None:
        self._error = None
        self._ready.clear()
        self._thread = threading.Thread(
            target=self._live, args=(how,), name="zephon_mm_ray_session", daemon=True
        )
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C: what has begun to start is ended
            self._end.set()
            self._thread.join()
            raise
        if self._error is not None:
            self._thread.join()  # and with it whatever it has started

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
            self._job = _job(self.ray)
            if self.local:
                self.folder = context.address_info["session_dir"]
                self._tell(self.folder)
            del context
        except BaseException as error:
            self._error = describe(error)
        if self._error is not None:
            _forget()
        self._ready.set()
        if self._error is None:
            self._end.wait()
            if self._job == _job(self.ray):  # else the program has ended it, and begun another
                with _quiet():
                    self.ray.shutdown()
        if self._reaper is not None:
            self._reaper.communicate()


def _forget() -> None:
    """Drop what a failed start has left, whose processes end with its thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """One local cluster at a time starts on this host: Ray gives up a start after 30 s.

    Who has the turn holds a socket with a name that is in no folder, and that ends with it.
    """
    deadline = time.monotonic() + _TURN_SECONDS
    with socket.socket(socket.AF_UNIX) as turn:
        while sys.platform == "linux" and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # another one has it
                turn.bind(f"\0zephon_mm-ray-{os.getuid()}")
                break
            time.sleep(0.1)
        yield


def _job(ray: Any) -> str:
    """Which connection this process has now; empty: none."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    return f"{context.gcs_address} {context.get_job_id()}"


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
    _lock, _open = threading.RLock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
