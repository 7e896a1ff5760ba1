"""Memory that a worker and its parent share: leases, idle buffers and what they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from zephon_mm.backends import ByteBudget
from zephon_mm.backends.shared import Buffers, IdleRoom, Leases

LIMIT = 16 << 20
SIZE = 512 << 10  # of a buffer that 300 kB were written into


class Pair:
    """A worker's buffers and its parent's leases, both in this process."""

    def __init__(self, budget: ByteBudget | None) -> None:
        self.room = IdleRoom(budget)
        self.buffers, self.leases = Buffers(), Leases(self.room)
        self.made = 0

    def pass_on(self, *arrays: np.ndarray) -> tuple[int, list[np.ndarray]]:
        """Write arrays in the worker and lease them in the parent; the buffer's number."""
        number, size, spans, fd = self.buffers.write([memoryview(a) for a in arrays])
        if fd is not None:
            self.made += 1
            self.leases.attach(number, size, fd)
            os.close(fd)
        return number, self.leases.lease(number, spans)

    def sweep(self) -> tuple[list[int], list[int]]:
        free, gone = self.leases.sweep()
        self.buffers.release(free)
        self.buffers.drop(gone)
        return free, gone


@pytest.fixture
def budget() -> Iterator[ByteBudget]:
    made = ByteBudget(LIMIT)
    yield made
    assert made.held_bytes == 0


def test_an_idle_buffer_holds_its_bytes_until_all_is_closed(budget: ByteBudget) -> None:
    pair = Pair(budget)
    written = [np.arange(300_000, dtype=np.uint32).view(np.uint8)[:300_000], np.ones(7, np.uint8)]
    first, arrays = pair.pass_on(*written)
    assert all(np.array_equal(*both) for both in zip(arrays, written, strict=True))
    assert (pair.sweep(), budget.held_bytes) == (([], []), 0), "it is leased"
    last = arrays[1]
    del arrays
    assert pair.sweep() == ([], []), "one array is enough"
    del last
    assert pair.sweep() == ([first], [])
    assert budget.held_bytes == pair.room.held_bytes == SIZE
    again, arrays = pair.pass_on(*written)
    assert (again, pair.made) == (first, 1), "used again"
    assert (budget.held_bytes, pair.room.held_bytes) == (SIZE, 0), "kept for when it is idle again"
    del arrays
    pair.sweep()
    assert budget.held_bytes == pair.room.held_bytes == SIZE
    pair.leases.close()
    assert (budget.held_bytes, pair.room.held_bytes) == (SIZE, 0), "another worker's may need them"
    pair.room.close()
    assert budget.held_bytes == 0
    assert not pair.room.take(1)


def test_what_has_no_room_is_unmapped_on_both_sides(budget: ByteBudget) -> None:
    pair = Pair(budget)
    budget.take(LIMIT)
    first, arrays = pair.pass_on(np.ones(300_000, np.uint8))
    del arrays
    assert pair.sweep() == ([], [first])
    budget.release(LIMIT)
    several = [pair.pass_on(np.ones(300_000, np.uint8)) for _ in range(5)]
    numbers = {number for number, _ in several}
    assert len(numbers) == 5 and first not in numbers
    del several
    free, gone = pair.sweep()
    assert (len(free), len(gone)) == (4, 1), "an eighth of the budget"
    assert budget.held_bytes == 4 * SIZE == LIMIT // 8
    pair.leases.close()
    pair.room.close()


def test_what_the_budget_refused_is_had_when_bytes_are_released(budget: ByteBudget) -> None:
    pair = Pair(budget)
    budget.take(LIMIT)
    for _ in range(9):  # more than an eighth
        _, arrays = pair.pass_on(np.ones(300_000, np.uint8))
        del arrays
        pair.sweep()
    pair.room.grow()
    assert budget.held_bytes == LIMIT, "there is none"
    budget.release(3 * SIZE)
    pair.room.grow()
    assert budget.held_bytes == LIMIT - 3 * SIZE, "not yet all of it"
    budget.release(SIZE)
    pair.room.grow()
    assert budget.held_bytes == LIMIT, "before an item that waits"
    made = pair.made
    for _ in range(9):
        _, arrays = pair.pass_on(np.ones(300_000, np.uint8))
        del arrays
        pair.sweep()
    assert pair.made == made + 1, "used again, though the budget is full"
    pair.leases.close()
    pair.room.close()
    budget.release(LIMIT - 4 * SIZE)


def test_an_array_outlives_the_worker(budget: ByteBudget) -> None:
    pair = Pair(budget)
    _, (kept,) = pair.pass_on(np.full(300_000, 3, np.uint8))
    pair.leases.close()
    assert kept.sum() == 900_000
    del kept
    assert budget.held_bytes == 0
