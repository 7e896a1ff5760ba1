"""What runs in a Ray actor: one item at a time, as in a worker process (``worker``).

The actor's class travels by value and imports nothing before ``sys.path`` is the trainer's, so the
package is found wherever the trainer found it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

import zephon_mm
from zephon_mm.backends import wire
from zephon_mm.backends.callables import Received
from zephon_mm.backends.worker import answer, import_main, pack
from zephon_mm.errors import WorkerError

__all__ = ["RayWorker", "actor_class"]


class RayWorker:
    """Serves one backend.

    Args:
        setup: ``version``: of the trainer's package; ``main``: how ``multiprocessing.spawn``
            finds its main module; ``shared_from``: bytes from which on an array leaves the pickle.

    Raises:
        WorkerError: the package here is of another version.
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        if zephon_mm.__version__ != setup["version"]:
            raise WorkerError(
                f"this node has zephon_mm {zephon_mm.__version__} ({zephon_mm.__file__}), the "
                f"trainer has {setup['version']}: install the same on every node"
            )
        self._received = Received(lambda: import_main(setup["main"]))
        self._shared_from = setup["shared_from"]

    def call(
        self, objects: list[tuple[int, bytes]], forgotten: list[int], fn: int, item: bytes
    ) -> tuple[bytes, list[NDArray[np.uint8]], Any]:
        """Do one item; the arguments are those of ``wire.Task``.

        Returns:
            The pickle of (value, error), the big arrays that it leaves out, which Ray puts into
            its object store, and the callable's counts.
        """
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # Ray may have imported it before the variables
        outcome, counts = answer(
            self._received, wire.Task(objects, forgotten, fn, item, free=[], dropped=[])
        )
        body, arrays = pack(outcome, self._shared_from)
        return body, [np.frombuffer(array, np.uint8) for array in arrays], counts


def actor_class() -> type:
    """The class of the actors. A local class: Ray sends its code and not its name."""

    class ZephonWorker:
        def __init__(self, setup: dict[str, Any]) -> None:
            import contextlib
            import os
            import sys

            os.environ.update(setup["environment"])
            if setup["folder"] is not None:
                with contextlib.suppress(OSError):  # another node may not have it
                    os.chdir(setup["folder"])
            own = [entry for entry in sys.path if entry not in setup["path"]]
            sys.path[:] = setup["path"] + own
            from zephon_mm.backends.ray_worker import RayWorker

            self._worker = RayWorker(setup)

        def ready(self) -> int:
            import os

            return os.getpid()

        def call(self, *task: Any) -> Any:
            return self._worker.call(*task)

    return ZephonWorker
