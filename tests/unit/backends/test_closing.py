"""Cancelling, closing and dropping: no thread, byte or result of the threads backend stays."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.backends.own_threads import our_threads
from zephon_mm.backends import ByteBudget, Cancelled, ThreadsBackend, Ticket, open_backend

Wait = Callable[..., bool]


@pytest.mark.parametrize("phase", ["waiting", "ready", "running", "done"])
def test_cancel_frees_the_ticket_in_every_phase(phase: str, wait_until: Wait) -> None:
    budget = ByteBudget(20)
    backend = open_backend("threads", workers=1, budget=budget)
    gate = threading.Event()
    ran: list[int] = []

    def work(item: int) -> int:
        ran.append(item)
        gate.wait(10)
        return item

    first = backend.submit(work, 0, cost_bytes=10)
    second = backend.submit(work, 1, cost_bytes=10)
    third = backend.submit(work, 2, cost_bytes=10)
    assert wait_until(lambda: ran == [0])
    if phase == "done":
        gate.set()
        assert wait_until(lambda: len(ran) == 2)
        time.sleep(0.02)
    victim = {"waiting": third, "ready": second, "running": first, "done": first}[phase]
    victim.cancel()
    victim.cancel()
    gate.set()
    with pytest.raises(Cancelled):
        victim.result()
    rest = [t for t in (first, second, third) if t is not victim]
    assert [t.result() for t in rest] == [i for i in (0, 1, 2) if (first, second, third)[i] in rest]
    assert wait_until(lambda: backend.in_flight_items == 0)
    assert budget.held_bytes == 0
    assert (2 in ran) == (phase != "waiting")
    assert (1 in ran) == (phase != "ready")
    backend.close()


@pytest.mark.parametrize("phase", ["waiting", "ready", "running", "done"])
def test_close_wakes_whoever_waits_and_leaves_nothing(phase: str, wait_until: Wait) -> None:
    budget = ByteBudget(20)
    backend = open_backend("threads", workers=1, budget=budget)
    gate = threading.Event()
    ran: list[int] = []

    def work(item: int) -> int:
        ran.append(item)
        gate.wait(20)
        return item

    tickets = [backend.submit(work, i, cost_bytes=10) for i in range(4)]
    assert wait_until(lambda: ran == [0])
    outcome: list[str] = []

    def wait_for(ticket: Ticket[int]) -> None:
        try:
            outcome.append(f"got {ticket.result()}")
        except Cancelled:
            outcome.append(f"cancelled after {len(ran)}")

    if phase == "done":
        gate.set()
        assert wait_until(lambda: len(ran) == 2)
        waiter = threading.Thread(target=lambda: None)
    else:
        victim = {"waiting": tickets[3], "ready": tickets[1], "running": tickets[0]}[phase]
        waiter = threading.Thread(target=wait_for, args=(victim,))
    waiter.start()
    time.sleep(0.03)
    opener = threading.Timer(0.2, gate.set)  # what runs is waited for
    opener.start()
    backend.close()
    assert gate.is_set()
    waiter.join(5)
    opener.join(5)
    assert our_threads() == []
    if phase != "done":
        assert outcome == ["cancelled after 1"]
    for ticket in tickets:
        with pytest.raises(Cancelled):
            ticket.result()
    with pytest.raises(Cancelled, match="closed"):
        backend.submit(work, 9)
    assert budget.held_bytes == 0
    assert (backend.in_flight_items, backend.in_flight_bytes) == (0, 0)
    backend.close()


def test_two_threads_may_close_at_once() -> None:
    backend = open_backend("threads", workers=3)
    for _ in range(20):
        backend.submit(time.sleep, 0.005)
    closers = [threading.Thread(target=backend.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(5)
        assert not closer.is_alive()
    assert our_threads() == []


def test_a_dropped_backend_ends_its_threads(wait_until: Wait) -> None:
    backend = ThreadsBackend(3)
    assert backend.submit(abs, -1).result() == 1
    assert len(our_threads()) == 3
    del backend
    gc.collect()
    assert our_threads() == []


def test_a_dropped_ticket_frees_its_bytes(wait_until: Wait) -> None:
    budget = ByteBudget(10)
    backend = open_backend("threads", workers=2, budget=budget)
    ran: list[int] = []
    tickets = [backend.submit(ran.append, i, cost_bytes=5) for i in range(6)]
    assert wait_until(lambda: len(ran) == 2)
    time.sleep(0.02)
    del tickets
    last = backend.submit(abs, -3, cost_bytes=10)
    assert wait_until(lambda: (backend.submit(abs, 0).result(), len(ran) == 6)[1])
    assert last.result() == 3
    assert wait_until(lambda: (backend.submit(abs, 0).result(), budget.held_bytes == 0)[1])
    assert backend.in_flight_items == 0
    backend.close()


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_taken_item_is_kept_alive(fails: bool, wait_until: Wait) -> None:
    backend = open_backend("threads", workers=1)
    gc.collect()
    gc.disable()  # by reference counts alone: a cycle would hold media for a long time
    try:
        refs: list[weakref.ref[object]] = []

        def work(item: np.ndarray) -> np.ndarray:
            made = item + 1
            refs.append(weakref.ref(made))
            if fails:
                raise ValueError("no")
            return made

        item = np.zeros(10)
        refs.append(weakref.ref(item))
        ticket = backend.submit(work, item)
        del item
        if fails:
            try:
                ticket.result()
            except ValueError:
                pass
        else:
            assert ticket.result()[0] == 1
        assert wait_until(lambda: len(refs) == 2 and all(ref() is None for ref in refs), 2.0)
    finally:
        gc.enable()
    backend.close()


def test_a_dropped_result_is_not_kept_alive_by_an_idle_worker(wait_until: Wait) -> None:
    backend = open_backend("threads", workers=1)
    refs: list[weakref.ref[object]] = []

    def work(item: int) -> np.ndarray:
        made = np.zeros(item)
        refs.append(weakref.ref(made))
        return made

    ticket = backend.submit(work, 5)
    assert wait_until(lambda: len(refs) == 1)
    del ticket
    assert wait_until(lambda: refs[0]() is None, 2.0)
    backend.close()


def test_threads_that_cannot_be_started_are_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start

    def limited(self: threading.Thread) -> None:
        if self.name == "zephon_mm-worker-2":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match=r"only 2 of 5 worker threads .* fewer workers"):
        ThreadsBackend(5)
    assert our_threads() == []


def test_two_hundred_openings_leave_threads_and_descriptors_as_they_were(
    wait_until: Wait,
) -> None:
    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    def cycle(i: int) -> None:
        backend = open_backend("threads", workers=3)
        tickets = [backend.submit(abs, j) for j in range(5)]
        assert tickets[i % 5].result() == i % 5
        if i % 2:
            backend.close()

    for i in range(4):
        cycle(i)
    gc.collect()
    before = count()
    for i in range(200):
        cycle(i)
    gc.collect()
    assert wait_until(lambda: count() == before), (count(), before)
