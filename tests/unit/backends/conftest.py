"""What the tests of backends share: a watchdog, and a check that no thread outlives a test."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from tests.unit.backends.own_threads import our_threads

WATCHDOG_SECONDS = 60.0


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., bool]:
    return wait_until


@pytest.fixture(autouse=True)
def watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    """A hang becomes a failure: waits in the main thread are interruptible.

    A module whose tests take longer sets its own ``WATCHDOG_SECONDS``.
    """
    seconds = getattr(request.module, "WATCHDOG_SECONDS", WATCHDOG_SECONDS)

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test hung for {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def no_thread_left(watchdog: None) -> Iterator[None]:
    yield
    if our_threads():
        gc.collect()
    assert wait_until(lambda: not our_threads()), our_threads()
