from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_mm.backends import ByteBudget


def test_admits_what_fits_and_refuses_what_does_not() -> None:
    budget = ByteBudget(10)
    assert budget.try_acquire(6)
    assert not budget.try_acquire(5)
    assert budget.try_acquire(4)
    assert budget.held_bytes == 10
    budget.release(10)
    assert budget.held_bytes == 0
    assert budget.peak_bytes == 10


def test_a_request_above_the_limit_goes_alone() -> None:
    budget = ByteBudget(10)
    assert budget.try_acquire(1)
    assert not budget.try_acquire(25)
    budget.release(1)
    assert budget.try_acquire(25)
    assert not budget.try_acquire(1)
    budget.release(25)
    assert budget.try_acquire(1)


def test_a_request_above_the_limit_is_refused_where_asked_so() -> None:
    with pytest.raises(ValueError, match="25 bytes asked of a budget of 10"):
        ByteBudget(10).acquire(25, admit_alone=False)


def test_wrong_sizes_are_errors() -> None:
    budget = ByteBudget(10)
    with pytest.raises(ValueError, match="a byte budget is 1 or more"):
        ByteBudget(0)
    with pytest.raises(ValueError, match="a size is 0 or more"):
        budget.try_acquire(-1)
    with pytest.raises(ValueError, match="only 0 are held"):
        budget.release(1)


def test_who_waits_is_served_in_order_and_a_small_one_never_passes_a_big_one(
    wait_until: object,
) -> None:
    budget = ByteBudget(10)
    assert budget.try_acquire(10)
    served: list[int] = []

    def ask(size: int) -> None:
        budget.acquire(size)
        served.append(size)

    threads = []
    for size in (30, 2, 3):
        thread = threading.Thread(target=ask, args=(size,))
        thread.start()
        threads.append(thread)
        time.sleep(0.02)
    assert not budget.try_acquire(0)  # nor does a newcomer
    assert served == []
    budget.release(10)
    threads[0].join(5)
    assert served == [30]
    budget.release(30)
    for thread in threads:
        thread.join(5)
    assert sorted(served[1:]) == [2, 3]
    assert budget.held_bytes == 5


def test_force_when_lets_a_waiter_in_without_room() -> None:
    budget = ByteBudget(10)
    budget.take(10)
    forced = threading.Event()
    thread = threading.Thread(target=lambda: budget.acquire(4, force_when=forced.is_set))
    thread.start()
    time.sleep(0.02)
    assert thread.is_alive()
    forced.set()
    budget.wake()
    thread.join(5)
    assert not thread.is_alive()
    assert budget.held_bytes == 14


@settings(max_examples=30, deadline=None)
@given(
    limit=st.integers(1, 40),
    sizes=st.lists(st.lists(st.integers(0, 60), max_size=12), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_many_threads_keep_the_rule_and_all_finish(
    limit: int, sizes: list[list[int]], seed: int
) -> None:
    budget = ByteBudget(limit)
    lock = threading.Lock()
    holding: list[int] = []
    broken: list[list[int]] = []

    def run(mine: list[int], rng: random.Random) -> None:
        for size in mine:
            budget.acquire(size)
            with lock:
                holding.append(size)
                if sum(holding) > limit and len([s for s in holding if s]) > 1:
                    broken.append(list(holding))
            if rng.random() < 0.3:
                time.sleep(rng.random() * 1e-3)
            with lock:
                holding.remove(size)
            budget.release(size)

    threads = [
        threading.Thread(target=run, args=(mine, random.Random(seed + i)))
        for i, mine in enumerate(sizes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert broken == []
    assert budget.held_bytes == 0
    largest = max((s for mine in sizes for s in mine), default=0)
    assert budget.peak_bytes <= max(limit, largest)
