"""Execution backends: one protocol, one byte gate, one reorder window. They know no samples."""

from __future__ import annotations

from typing import Final

from zephon_mm.backends.base import Backend, Cancelled, ForkedError, Ticket
from zephon_mm.backends.budget import ByteBudget
from zephon_mm.backends.pool import default_workers
from zephon_mm.backends.prefetch import Direct, Feed, Prefetcher
from zephon_mm.backends.processes import ProcessesBackend
from zephon_mm.backends.ray import RayBackend
from zephon_mm.backends.serial import SerialBackend
from zephon_mm.backends.threads import ThreadsBackend
from zephon_mm.backends.window import OrderedMap, map_ordered
from zephon_mm.errors import ConfigError

__all__ = [
    "BACKENDS",
    "Backend",
    "ByteBudget",
    "Cancelled",
    "Direct",
    "Feed",
    "ForkedError",
    "OrderedMap",
    "Prefetcher",
    "ProcessesBackend",
    "RayBackend",
    "SerialBackend",
    "ThreadsBackend",
    "Ticket",
    "default_workers",
    "map_ordered",
    "open_backend",
]

BACKENDS: Final = ("serial", "threads", "processes", "ray")


def open_backend(
    name: str,
    *,
    workers: int | None = None,
    budget: ByteBudget | None = None,
    ray_address: str | None = None,
) -> Backend:
    """The backend that ``ExecutionConfig.backend`` names.

    Args:
        name: one of ``BACKENDS``.
        workers: see the backend; ``serial`` has none.
        budget: bytes that items in flight may hold, shared with other users; None: no limit.
        ray_address: of the cluster of ``ray``, see ``ExecutionConfig``.

    Raises:
        ConfigError: there is no such backend.
        MissingDependencyError: its library is not installed.
    """
    if name == "serial":
        return SerialBackend(budget=budget)
    if name == "threads":
        return ThreadsBackend(workers, budget=budget)
    if name == "processes":
        return ProcessesBackend(workers, budget=budget)
    if name == "ray":
        return RayBackend(workers, budget=budget, address=ray_address)
    raise ConfigError(f"backend={name!r}: choose one of {', '.join(BACKENDS)}")
