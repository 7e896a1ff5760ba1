"""Ray nodes on this host for the tests, and a connection of the tests' process to them."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import psutil

from zephon_mm.backends.ray_session import Session

STORE_BYTES = 100 << 20
CPUS = 3

_QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
"""A node that is killed is known to be dead within some seconds."""


class Nodes:
    """A head of three CPUs; further nodes come and go.

    Attributes:
        address: as ``ray.init`` takes it.
        ray: the package.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
            from ray.cluster_utils import Cluster

            logging.getLogger("ray").setLevel(logging.ERROR)
            self.ray = ray
            self._cluster = Cluster()
            self._add(CPUS, _system_config=_QUICK, include_dashboard=False, no_monitor=True)
            self.address: str = self._cluster.address

    def add(self, cpus: int) -> Any:
        """A second node."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._add(cpus)

    def kill(self, node: Any) -> None:
        """SIGKILL to all of a node's processes, as if its machine were gone."""
        for process in self._processes(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def actors(self) -> list[int]:
        """Process ids of the actors of ours."""
        return [p.pid for p in psutil.Process().children(recursive=True) if _is_actor(p)]

    def actors_of(self, node: Any) -> list[int]:
        """Of those, the ones on this node."""
        return [process.pid for process in self._processes(node) if _is_actor(process)]

    def _processes(self, node: Any) -> list[psutil.Process]:
        raylets = [psutil.Process(info.process.pid) for info in node.all_processes["raylet"]]
        return [p for raylet in raylets for p in (raylet, *raylet.children(recursive=True))]

    def close(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._cluster.shutdown()

    def _add(self, cpus: int, **how: Any) -> Any:
        return self._cluster.add_node(
            num_cpus=cpus, object_store_memory=STORE_BYTES, include_log_monitor=False, **how
        )


def _is_actor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "".join(process.cmdline()).startswith("ray::ZephonWorker")
    return False


@contextlib.contextmanager
def connected() -> Iterator[Nodes]:
    """The nodes, and a connection to them that all backends here share."""
    nodes = Nodes()
    try:
        session = Session.hold(nodes.address, 1, 0)
        try:
            assert not session.local
            yield nodes
        finally:
            session.release()
    finally:
        nodes.close()
    assert os.environ.get("RAY_AUTH_MODE") is None
