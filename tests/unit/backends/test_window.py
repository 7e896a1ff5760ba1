"""Order, bounds and errors of the reorder window, over every backend."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_mm.backends import (
    BACKENDS,
    Backend,
    ByteBudget,
    Cancelled,
    map_ordered,
    open_backend,
)
from zephon_mm.errors import StorageError

EVERY = [("serial", None), ("threads", 1), ("threads", 2), ("threads", 4)]


def jitter(seed: int, most: float = 0.003) -> Callable[[int], int]:
    """``x -> x * x`` after a delay that depends on seed and item."""

    def work(item: int) -> int:
        rng = random.Random(seed * 1_000_003 + item)
        if rng.random() < 0.7:
            time.sleep(rng.random() * most)
        return item * item

    return work


@pytest.mark.parametrize(("name", "workers"), EVERY)
@pytest.mark.parametrize("window", [1, 2, 3, 8, 100])
def test_results_come_in_order_whatever_the_delays(
    name: str, workers: int | None, window: int
) -> None:
    assert name in BACKENDS
    backend = open_backend(name, workers=workers)
    for seed in range(3):
        results = map_ordered(backend, jitter(seed), range(40), window=window)
        assert list(results) == [i * i for i in range(40)]
    assert backend.in_flight_items == 0
    backend.close()


@pytest.mark.parametrize("window", [1, 2, 5])
def test_no_more_than_the_window_is_begun_ahead_of_the_consumer(window: int) -> None:
    backend = open_backend("threads", workers=4)
    lock = threading.Lock()
    begun = 0

    def work(item: int) -> int:
        nonlocal begun
        with lock:
            begun += 1
        return item

    drawn = 0

    def source() -> Iterator[int]:
        nonlocal drawn
        for i in range(30):
            drawn += 1
            yield i

    results = map_ordered(backend, work, source(), window=window)
    assert drawn == 0
    for consumed, _ in enumerate(results, start=1):
        time.sleep(0.003)
        with lock:
            assert begun - consumed <= window
        assert drawn - consumed <= window
        assert results.ahead <= window
    assert begun == 30
    backend.close()


def test_nothing_runs_or_is_drawn_before_the_first_next_unless_primed() -> None:
    backend = open_backend("threads", workers=2)
    drawn: list[int] = []

    def source() -> Iterator[int]:
        for i in range(9):
            drawn.append(i)
            yield i

    results = map_ordered(backend, str, source(), window=3)
    assert drawn == []
    results.prime()
    assert drawn == [0, 1, 2]
    results.prime()
    assert drawn == [0, 1, 2]
    assert next(results) == "0"
    assert drawn == [0, 1, 2, 3]
    results.close()
    backend.close()


class OddError(Exception):
    def __init__(self, *, where: int) -> None:  # pickle would not rebuild it
        super().__init__(f"at {where}")
        self.where = where


@pytest.mark.parametrize(("name", "workers"), EVERY)
@pytest.mark.parametrize("at", [0, 1, 7])
def test_an_error_keeps_its_place_its_type_and_its_traceback(
    name: str, workers: int | None, at: int
) -> None:
    backend = open_backend(name, workers=workers)

    def break_here(item: int) -> int:
        if item == at:
            raise OddError(where=item)
        time.sleep(0.001)
        return item

    results = map_ordered(backend, break_here, range(12), window=5, label="measure")
    for i in range(at):
        assert next(results) == i
    with pytest.raises(OddError, match=f"at {at}") as caught:
        next(results)
    assert caught.value.where == at
    assert caught.value.__notes__ == [f"measure, item {at}"]
    assert "break_here" in "".join(traceback.format_exception(caught.value))
    assert list(results) == list(range(at + 1, 12))  # those after it follow
    backend.close()


@pytest.mark.parametrize(("name", "workers"), EVERY)
@pytest.mark.parametrize("kind", [StopIteration, SystemExit, GeneratorExit, StorageError])
def test_no_exception_of_a_worker_looks_like_the_end(
    name: str, workers: int | None, kind: type[BaseException]
) -> None:
    backend = open_backend(name, workers=workers)

    def work(item: int) -> int:
        if item == 2:
            raise kind
        return item

    results = map_ordered(backend, work, range(4), window=3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(RuntimeError if kind is StopIteration else kind):
        next(results)
    assert list(results) == [3]
    backend.close()


@pytest.mark.parametrize(("name", "workers"), EVERY)
@pytest.mark.parametrize("window", [1, 3, 20])
def test_an_error_of_the_source_comes_after_what_was_drawn_and_never_looks_like_the_end(
    name: str, workers: int | None, window: int
) -> None:
    backend = open_backend(name, workers=workers)

    def source() -> Iterator[int]:
        yield from range(6)
        raise StorageError("the disk is gone")

    results = map_ordered(backend, jitter(1), source(), window=window)
    assert [next(results) for _ in range(6)] == [i * i for i in range(6)]
    with pytest.raises(StorageError, match="the disk is gone"):
        next(results)
    with pytest.raises(Cancelled, match=r"failed before \(StorageError: the disk is gone\)"):
        next(results)
    backend.close()


@pytest.mark.parametrize(("name", "workers"), EVERY)
def test_many_maps_on_one_backend_and_one_thread_in_any_order(
    name: str, workers: int | None
) -> None:
    lanes = 64
    budget = ByteBudget(5)
    backend = open_backend(name, workers=workers, budget=budget)
    maps = [
        map_ordered(backend, jitter(lane, 2e-4), range(12), window=2, cost=lambda item: item % 4)
        for lane in range(lanes)
    ]
    for results in maps:
        results.prime()
    got: list[list[int]] = [[] for _ in range(lanes)]
    rng = random.Random(5)
    turns = [lane for lane in range(lanes) for _ in range(12)]
    rng.shuffle(turns)
    for lane in turns:
        got[lane].append(next(maps[lane]))
    assert got == [[i * i for i in range(12)]] * lanes
    assert budget.held_bytes == 0
    backend.close()


@pytest.mark.parametrize(("name", "workers"), EVERY)
def test_close_of_a_map_frees_its_bytes_and_leaves_the_backend_usable(
    name: str, workers: int | None
) -> None:
    budget = ByteBudget(100)
    backend = open_backend(name, workers=workers, budget=budget)
    results = map_ordered(backend, jitter(3), range(50), window=20, cost=lambda item: 10)
    assert next(results) == 0
    results.close()
    results.close()
    with pytest.raises(Cancelled):
        next(results)
    again = map_ordered(backend, jitter(4), range(20), window=20, cost=lambda item: 10)
    assert list(again) == [i * i for i in range(20)]
    assert budget.held_bytes == 0
    assert backend.in_flight_items == 0
    backend.close()


def run_map(backend: Backend, costs: list[int], window: int, seed: int) -> list[int]:
    return list(
        map_ordered(
            backend,
            jitter(seed, 1e-4),
            range(len(costs)),
            window=window,
            cost=lambda item: costs[item],
        )
    )


@settings(max_examples=25, deadline=None)
@given(
    costs=st.lists(st.integers(0, 30), max_size=30),
    limit=st.integers(1, 25),
    window=st.integers(1, 12),
    workers=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_any_costs_any_window_any_budget_equal_serial_and_keep_the_budget(
    costs: list[int], limit: int, window: int, workers: int, seed: int
) -> None:
    budget = ByteBudget(limit)
    threads = open_backend("threads", workers=workers, budget=budget)
    serial = open_backend("serial")
    assert run_map(threads, costs, window, seed) == run_map(serial, costs, window, seed)
    # In order, an item above the budget is alone, and nothing else passes the limit.
    assert threads.peak_bytes <= max([limit, *costs])
    assert budget.held_bytes == 0
    threads.close()
    serial.close()


def test_a_window_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="window=0"):
        map_ordered(open_backend("serial"), str, [1], window=0)
