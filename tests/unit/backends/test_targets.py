"""Arrays of this process that worker processes write into."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_mm.backends import ByteBudget, ProcessesBackend, SerialBackend, ThreadsBackend
from zephon_mm.backends import targets as module
from zephon_mm.backends.shared import IdleRoom
from zephon_mm.backends.targets import MOST_FILES, Place, TargetMaps, Targets

SHAPE = (100, 1536)
SIZE = 256 << 10  # of its buffer


@pytest.fixture
def targets() -> Iterator[Targets]:
    made = Targets(IdleRoom(None))
    yield made
    made.close()
    gc.collect()
    assert not made._buffers, "everything was let go of"


def number_of(targets: Targets, *arrays: np.ndarray) -> int:
    place = targets.place(arrays)
    assert place is not None
    return place.number


def descriptors() -> int:
    gc.collect()  # what other tests left
    return sum("memfd:zephon_mm" in os.readlink(f"/proc/self/fd/{fd}") for fd in own_fds())


def own_fds() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]


def test_a_worker_sees_what_it_is_given_a_place_of(targets: Targets) -> None:
    whole = targets.empty(SHAPE)
    whole[...] = 7
    parts = [whole[:10], whole[10:11], whole[60:]]
    place = targets.place(parts)
    assert place is not None and place.size == SIZE
    worker = TargetMaps()
    fd = targets.descriptor(place.number)
    assert fd is not None
    found = worker.arrays(Place(*tuple(place)), fd)
    os.close(fd)
    assert [a.shape for a in found] == [p.shape for p in parts]
    found[1][...] = 9
    assert (whole[10] == 9).all() and (whole[11:] == 7).all() and (whole[:10] == 7).all()
    assert worker.arrays(place, None)[0].shape == (10, 1536), "it has the buffer by now"
    worker.drop([place.number])
    assert worker.arrays(place, None) == [], "and no more"


def test_only_parts_of_one_array_have_a_place(targets: Targets) -> None:
    one, other = targets.empty(SHAPE), targets.empty(SHAPE)
    assert number_of(targets, one[3:], one[:1]) != number_of(targets, other)
    for parts in ([], [one, other], [np.zeros(SHAPE, np.uint8)], [one[:, :5]], [one, np.zeros(3)]):
        assert targets.place(parts) is None
    assert targets.empty((0, 1536)).shape == (0, 1536)


def test_a_buffer_is_used_again_once_its_last_part_is_garbage(targets: Targets) -> None:
    whole = targets.empty(SHAPE)
    number = number_of(targets, whole)
    part = whole[3:5]
    del whole
    assert number_of(targets, targets.empty(SHAPE)) != number, "a part is there"
    del part
    again = targets.empty((50, 1536))
    assert number_of(targets, again) in (number, number + 1)
    assert len(targets._buffers) == 2
    assert targets.gone({number, 99}) == [99]


def test_idle_buffers_hold_bytes_of_the_budget_and_have_a_bound() -> None:
    budget = ByteBudget(8 * SIZE)  # one idle buffer
    targets = Targets(IdleRoom(budget))
    arrays = [targets.empty(SHAPE) for _ in range(3)]
    numbers = {number_of(targets, array) for array in arrays}
    assert budget.held_bytes == 0
    arrays.clear()
    targets.empty((0, 1))
    kept = targets.empty(SHAPE)
    assert len(targets._buffers) == 1 and len(targets.gone(numbers)) == 2
    assert budget.held_bytes == SIZE
    kept[...] = 3
    before = descriptors()
    targets.close()
    assert descriptors() == before - 1, "it needs none any more"
    targets.room.close()
    assert (budget.held_bytes, kept.max()) == (0, 3), "what is leased outlives the backend"
    private = targets.empty(SHAPE)
    assert targets.place([private]) is None
    with pytest.raises(EOFError):
        targets.descriptor(1)


def pages_of(fd: int) -> int:
    return os.fstat(fd).st_blocks


def test_pages_that_find_no_room_go_back_before_anything_else_is_asked_for() -> None:
    targets = Targets(IdleRoom(ByteBudget(8 * SIZE)))  # one idle buffer
    arrays = [targets.empty(SHAPE) for _ in range(4)]
    for array in arrays:
        array[...] = 5
    kept = [targets.descriptor(number_of(targets, array)) for array in arrays]
    fds = [fd for fd in kept if fd is not None]
    full = pages_of(fds[0])
    assert [pages_of(fd) for fd in fds] == [full] * 4 and full > 0
    part = arrays[3][:1]
    del array
    while arrays:
        del arrays[0]
    assert [pages_of(fd) for fd in fds] == [full, 0, 0, full], "the last has a part that lives"
    assert (part == 5).all()
    targets.close()
    assert [pages_of(fd) for fd in fds] == [0, 0, 0, full]
    del part
    assert [pages_of(fd) for fd in fds] == [0] * 4
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("closed", [False, True])
def test_what_is_garbage_in_a_fork_keeps_its_pages_here(closed: bool) -> None:
    targets = Targets(IdleRoom(ByteBudget(8)))  # no idle buffer
    arrays = [targets.empty(SHAPE) for _ in range(3)]
    for array in arrays:
        array[...] = 5
    del array
    if closed:
        targets.close()
    child = os.fork()
    if child == 0:
        arrays.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert all((array == 5).all() for array in arrays)
    targets.close()


def test_where_few_files_may_be_open_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.resource, "getrlimit", lambda which: (64, 4096))
    targets, before = Targets(IdleRoom(None)), descriptors()
    arrays = [targets.empty(SHAPE) for _ in range(9)]
    assert descriptors() == before + 4
    arrays.clear()
    targets.close()


def test_a_worker_that_may_map_no_more_makes_arrays_of_its_own() -> None:
    worker = TargetMaps()
    with open(os.devnull) as nothing:  # can't be mapped
        assert worker.arrays(Place(1, SIZE, [(0, (1, 8))]), nothing.fileno()) == []
    worker.drop([1])


def test_few_descriptors_are_kept_and_a_buffer_without_is_not_used_again(targets: Targets) -> None:
    before = descriptors()
    arrays = [targets.empty(SHAPE) for _ in range(MOST_FILES + 5)]
    assert descriptors() == before + MOST_FILES
    numbers = [number_of(targets, array) for array in arrays]
    kept = [targets.descriptor(number) for number in numbers]
    assert [fd is None for fd in kept] == [True] * 5 + [False] * MOST_FILES
    for fd in kept[5:]:
        assert fd is not None
        os.close(fd)
    arrays.clear()
    fresh = targets.empty(SHAPE)
    assert targets.gone(set(numbers)) == numbers[:5] and number_of(targets, fresh) in numbers[5:]
    large = targets.empty((2000, 1536))
    assert descriptors() == before + MOST_FILES, "a small idle one has made room"
    assert targets.place([large]) is not None


def test_without_a_descriptor_memory_is_private(
    targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(module, "make_file", refuse)
    array = targets.empty(SHAPE)
    array[...] = 1
    assert targets.place([array]) is None


def fill(value: int, into: Sequence[np.ndarray] | None = None) -> tuple[list[Any], str]:
    """Arrays of ``value``, ``value + 1`` …, and where they lie."""
    arrays = [np.empty((4, 1536), np.uint8) for _ in range(3)] if into is None else list(into)
    for number, array in enumerate(arrays):
        array[...] = value + number
    return arrays, "own" if into is None else "given"


def parts_of(backend: Any) -> list[np.ndarray]:
    whole = backend.empty((12, 1536))
    return [whole[:4], whole[4:8], whole[8:]]


@pytest.mark.parametrize("make", [SerialBackend, lambda: ThreadsBackend(2), lambda: two()])
def test_what_an_item_writes_into_comes_back_as_it_was_given(make: Callable[[], Any]) -> None:
    backend = make()
    try:
        given = [parts_of(backend) for _ in range(MOST_FILES // 2)]
        tickets = [backend.submit(fill, n, into=parts) for n, parts in enumerate(given)]
        for n, (ticket, parts) in enumerate(zip(tickets, given, strict=True)):
            arrays, where = ticket.result()
            assert where == "given" and all(a is b for a, b in zip(arrays, parts, strict=True))
            assert [int(a[0, 0]) for a in parts] == [n, n + 1, n + 2]
            assert all((a == a[0, 0]).all() for a in parts)
    finally:
        backend.close()


def two() -> ProcessesBackend:
    return ProcessesBackend(2, budget=ByteBudget(1 << 30))


def test_many_batches_that_are_kept() -> None:
    """Beyond the descriptors, workers that have a buffer write there, others into their own."""
    backend = two()
    try:
        kept = [parts_of(backend) for _ in range(3 * MOST_FILES)]
        found = [backend.submit(fill, n, into=parts) for n, parts in enumerate(kept)]
        results = [ticket.result() for ticket in found]
        assert {where for _, where in results} == {"own", "given"}
        for n, (arrays, _) in enumerate(results):
            assert (
                [int(a.min()) for a in arrays]
                == [int(a.max()) for a in arrays]
                == [n, n + 1, n + 2]
            )
    finally:
        backend.close()


def die_once(folder: str, into: Sequence[np.ndarray] | None = None) -> Sequence[np.ndarray]:
    assert into is not None
    into[0][...] = 1
    flag = Path(folder) / "died"
    if not flag.exists():
        flag.touch()
        os._exit(3)
    into[1][...] = 2
    into[2][...] = 3
    return into


def test_a_worker_that_dies_while_it_writes_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = ProcessesBackend(1)
    try:
        parts = parts_of(backend)
        assert backend.submit(fill, 5, into=parts).result()[1] == "given"
        found = backend.submit(die_once, str(tmp_path), into=parts).result()
        assert [id(a) for a in found] == [id(a) for a in parts]
        assert [int(a.min()) for a in parts] == [int(a.max()) for a in parts] == [1, 2, 3]
    finally:
        backend.close()
    assert re.search("exit status 3|died", caplog.text)


def slow(seconds: float, into: Sequence[np.ndarray] | None = None) -> None:
    import time

    assert into is not None
    for _ in range(20):
        time.sleep(seconds / 20)
        into[0][...] = 255


def test_what_a_cancelled_item_writes_into_is_not_given_to_another() -> None:
    backend = ProcessesBackend(1)
    try:
        parts = parts_of(backend)
        first = number_of(backend._targets, *parts)
        ticket = backend.submit(slow, 0.5, into=parts)
        while not backend._pool.running:
            threading.Event().wait(0.01)
        ticket.cancel()
        del parts, ticket
        gc.collect()
        other = backend.empty((12, 1536))
        assert number_of(backend._targets, other) != first, "its worker still writes there"
        other[...] = 0
        assert backend.submit(fill, 0, into=[other]).result()[1] == "given"
        assert (other == 0).all()
        deadline = threading.Event()
        for _ in range(100):
            if number_of(backend._targets, backend.empty((12, 1536))) == first:
                break
            deadline.wait(0.02)
        else:
            raise AssertionError("it is used again once that has ended")
    finally:
        backend.close()
