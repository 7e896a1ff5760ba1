"""Tickets, order and the byte gate of the serial and the threads backend."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.backends.own_threads import our_threads
from zephon_mm.backends import (
    ByteBudget,
    ThreadsBackend,
    open_backend,
)
from zephon_mm.errors import ConfigError

Wait = Callable[..., bool]
LOCAL = ("serial", "threads", "processes")  # Ray's costs seconds to start: test_ray


def test_an_unknown_backend_is_a_config_error_that_names_the_choices() -> None:
    with pytest.raises(ConfigError, match="backend='fibres': choose one of serial, threads"):
        open_backend("fibres")


@pytest.mark.parametrize("name", LOCAL)
def test_a_result_is_taken_once(name: str) -> None:
    backend = open_backend(name)
    ticket = backend.submit(len, "abc")
    assert ticket.result() == 3
    with pytest.raises(RuntimeError, match="taken already"):
        ticket.result()
    backend.close()


@pytest.mark.parametrize("name", LOCAL)
def test_a_negative_cost_is_an_error(name: str) -> None:
    backend = open_backend(name)
    with pytest.raises(ValueError, match="cost_bytes=-1"):
        backend.submit(len, "abc", cost_bytes=-1)
    backend.close()


def test_serial_runs_in_the_callers_thread_and_only_when_asked() -> None:
    backend = open_backend("serial")
    ran: list[int] = []

    def work(item: int) -> int:
        ran.append(threading.get_ident())
        return item

    first, second = backend.submit(work, 1), backend.submit(work, 2)
    assert ran == []
    assert second.result() == 2
    assert first.result() == 1
    assert ran == [threading.get_ident()] * 2
    assert our_threads() == []
    backend.close()


def test_serial_interrupted_by_ctrl_c_can_be_asked_again() -> None:
    backend = open_backend("serial")
    tries = 0

    def work(item: int) -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise KeyboardInterrupt
        return item

    ticket = backend.submit(work, 5)
    with pytest.raises(KeyboardInterrupt):
        ticket.result()
    assert ticket.result() == 5


def test_older_items_begin_first_and_an_awaited_one_before_them(wait_until: Wait) -> None:
    backend = ThreadsBackend(1)
    gate, begun = threading.Event(), threading.Event()
    order: list[int] = []

    def work(item: int) -> int:
        if item == 0:
            begun.set()
            gate.wait(10)
        order.append(item)
        return item

    tickets = [backend.submit(work, i) for i in range(6)]
    assert begun.wait(5)
    waiter = threading.Thread(target=tickets[4].result)
    waiter.start()
    assert wait_until(lambda: tickets[4].event is not None)
    gate.set()
    waiter.join(5)
    assert [t.result() for i, t in enumerate(tickets) if i != 4] == [0, 1, 2, 3, 5]
    assert order == [0, 4, 1, 2, 3, 5]
    backend.close()


def test_bytes_are_held_until_taken_and_nothing_more_begins(wait_until: Wait) -> None:
    budget = ByteBudget(30)
    backend = open_backend("threads", workers=4, budget=budget)
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return item

    tickets = [backend.submit(work, i, cost_bytes=10) for i in range(10)]
    assert wait_until(lambda: len(begun) == 3)
    time.sleep(0.03)
    assert sorted(begun) == [0, 1, 2]
    assert (backend.in_flight_items, backend.in_flight_bytes) == (3, 30)
    free = backend.submit(work, 99)  # costs nothing: not held back by those that wait
    assert free.result() == 99
    for i, ticket in enumerate(tickets):
        assert ticket.result() == i
    assert (backend.in_flight_items, backend.in_flight_bytes, backend.peak_bytes) == (0, 0, 30)
    assert budget.peak_bytes == 30
    backend.close()


def test_an_item_above_the_budget_is_alone(wait_until: Wait) -> None:
    backend = open_backend("threads", workers=4, budget=ByteBudget(10))
    lock = threading.Lock()
    running: list[int] = []
    seen: list[tuple[int, ...]] = []

    def work(cost: int) -> int:
        with lock:
            running.append(cost)
            seen.append(tuple(running))
        time.sleep(0.002)
        with lock:
            running.remove(cost)
        return cost

    costs = [3, 4, 50, 2, 2, 11, 11, 9, 1, 10, 5, 5]
    tickets = [backend.submit(work, c, cost_bytes=c) for c in costs]
    assert [t.result() for t in tickets] == costs
    assert all(sum(together) <= 10 or len(together) == 1 for together in seen)
    assert backend.peak_bytes == 50
    backend.close()


@settings(max_examples=30, deadline=None)
@given(
    costs=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    limit=st.integers(1, 12),
    workers=st.integers(1, 4),
    seed=st.integers(0, 999),
)
def test_one_thread_may_take_tickets_in_any_order_without_deadlock(
    costs: list[int], limit: int, workers: int, seed: int
) -> None:
    budget = ByteBudget(limit)
    backend = open_backend("threads", workers=workers, budget=budget)
    tickets = [backend.submit(abs, i, cost_bytes=c) for i, c in enumerate(costs)]
    order = list(range(len(costs)))
    random.Random(seed).shuffle(order)
    for i in order:
        assert tickets[i].result() == i
    assert budget.held_bytes == 0
    assert backend.in_flight_items == 0
    backend.close()


def test_many_threads_may_submit_and_take(wait_until: Wait) -> None:
    budget = ByteBudget(7)
    backend = open_backend("threads", workers=3, budget=budget)
    got: dict[int, list[int]] = {}

    def drive(who: int) -> None:
        rng = random.Random(who)
        tickets = [
            backend.submit(abs, who * 1000 + i, cost_bytes=rng.randrange(4)) for i in range(100)
        ]
        got[who] = [t.result() for t in tickets]

    drivers = [threading.Thread(target=drive, args=(who,)) for who in range(6)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(20)
    assert got == {who: [who * 1000 + i for i in range(100)] for who in range(6)}
    assert budget.held_bytes == 0
    backend.close()


def test_workers_use_one_core_an_operator_and_nobody_elses_setting_changes() -> None:
    done: list[int] = []

    def ask(_: object = None) -> int:
        return torch.get_num_threads()

    def ask_in_new_thread() -> int:
        thread = threading.Thread(target=lambda: done.append(ask()))
        thread.start()
        thread.join()
        return done.pop()

    before = ask()
    torch.set_num_threads(3)
    try:
        backend = open_backend("threads", workers=2)
        assert [backend.submit(ask, None).result() for _ in range(4)] == [1] * 4
        assert ask() == 3
        assert ask_in_new_thread() == 3
        backend.close()
        assert ask() == 3
        assert ask_in_new_thread() == 3
    finally:
        torch.set_num_threads(before)


def test_an_item_costs_little() -> None:
    """Far above what was measured (10 to 20 µs on two cores), far below a design fault."""
    backend = open_backend("threads", workers=2)
    tickets = [backend.submit(abs, i) for i in range(200)]
    [t.result() for t in tickets]
    begin = time.process_time()
    tickets = [backend.submit(abs, i) for i in range(5000)]
    assert [t.result() for t in tickets] == list(range(5000))
    assert (time.process_time() - begin) / 5000 < 150e-6
    backend.close()
