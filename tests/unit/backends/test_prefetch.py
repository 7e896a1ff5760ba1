"""The prefetcher and its threadless twin: order, bounds, errors, every way to stop."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from tests.unit.backends.own_threads import our_threads
from zephon_mm.backends import (
    ByteBudget,
    Cancelled,
    Direct,
    Feed,
    Prefetcher,
    map_ordered,
    open_backend,
)
from zephon_mm.errors import StorageError

Wait = Callable[..., bool]
Open = Callable[[Iterator[int]], Feed[int]]

FEEDS: dict[str, Open] = {
    "direct": Direct,
    "depth 1": lambda source: Prefetcher(source, 1),
    "depth 4": lambda source: Prefetcher(source, 4),
}


class Source:
    """Counts what was made, and notes when and where it is closed."""

    def __init__(self, count: int, delay: float = 0.0, fail_at: int | None = None) -> None:
        self.made = 0
        self.closed_in: str | None = None
        self._count = count
        self._delay = delay
        self._fail_at = fail_at

    def run(self) -> Iterator[int]:
        try:
            for i in range(self._count):
                if i == self._fail_at:
                    raise StorageError("the disk is gone")
                if self._delay:
                    time.sleep(self._delay)
                self.made += 1
                yield i
        finally:
            self.closed_in = threading.current_thread().name


@pytest.mark.parametrize("feed", FEEDS)
def test_all_items_in_order_then_the_end(feed: str) -> None:
    source = Source(30)
    stream = FEEDS[feed](source.run())
    assert iter(stream) is stream
    assert list(stream) == list(range(30))
    assert our_threads() == []
    assert list(stream) == []
    assert (stream.held_items, stream.held_bytes) == (0, 0)
    stream.close()
    with pytest.raises(Cancelled):
        next(stream)


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("at", [0, 1, 9])
def test_an_error_comes_after_the_items_before_it_and_never_looks_like_the_end(
    feed: str, at: int
) -> None:
    stream = FEEDS[feed](Source(20, fail_at=at).run())
    assert [next(stream) for _ in range(at)] == list(range(at))
    time.sleep(0.01)
    with pytest.raises(StorageError, match="the disk is gone"):
        next(stream)
    assert our_threads() == []
    for _ in range(2):
        with pytest.raises(Cancelled, match=r"failed before \(StorageError: the disk is gone\)"):
            next(stream)
    stream.close()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_at_most_depth_finished_items_are_held(depth: int, wait_until: Wait) -> None:
    source = Source(40)
    stream = Prefetcher(source.run(), depth)
    for taken in range(10):
        assert wait_until(lambda taken=taken: source.made == taken + depth)
        time.sleep(0.003)
        assert source.made == taken + depth
        assert stream.held_items == depth
        assert next(stream) == taken
    stream.close()


def test_bytes_gate_the_items_that_wait(wait_until: Wait) -> None:
    budget = ByteBudget(25)
    source = Source(10)
    stream = Prefetcher(source.run(), 8, size_of=lambda item: 10, budget=budget)
    assert wait_until(lambda: source.made == 3)  # the third is finished and has no room
    time.sleep(0.02)
    assert (source.made, stream.held_items, stream.held_bytes) == (3, 2, 20)
    assert list(stream) == list(range(10))
    assert budget.held_bytes == 0
    assert budget.peak_bytes == 20


def test_an_item_above_the_budget_is_handed_out_alone(wait_until: Wait) -> None:
    budget = ByteBudget(5)
    stream = Prefetcher(Source(6).run(), 3, size_of=lambda item: 100, budget=budget)
    assert list(stream) == list(range(6))
    assert budget.peak_bytes == 100
    assert budget.held_bytes == 0


def test_a_budget_shared_with_the_backend_cannot_deadlock() -> None:
    budget = ByteBudget(7)
    backend = open_backend("threads", workers=2, budget=budget)

    def steps() -> Iterator[list[int]]:
        media = map_ordered(backend, abs, range(60), window=9, cost=lambda item: 1 + item % 9)
        for _ in range(20):
            yield [next(media) for _ in range(3)]

    stream = Prefetcher(steps(), 4, size_of=lambda item: 6, budget=budget, cancel=backend.close)
    got = []
    for step in stream:
        got.append(step)
        time.sleep(0.001)
    assert got == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(20)]
    stream.close()
    assert budget.held_bytes == 0


@pytest.mark.parametrize("phase", ["full", "no bytes", "making", "submitting", "waiting", "ended"])
def test_close_stops_promptly_whatever_the_thread_does(phase: str, wait_until: Wait) -> None:
    budget = ByteBudget(10)
    backend = open_backend("threads", workers=1, budget=budget)
    reached = threading.Event()
    source = Source(3 if phase == "ended" else 1000, delay=0.05 if phase == "making" else 0.0)

    def steps() -> Iterator[int]:
        try:
            if phase == "waiting":
                slow = backend.submit(time.sleep, 0.4, cost_bytes=4)
                queued = backend.submit(abs, 1, cost_bytes=4)
                reached.set()
                queued.result()
                slow.result()
            if phase == "submitting":
                while True:
                    backend.submit(abs, 1, cost_bytes=0).result()
                    reached.set()
            for item in source.run():
                reached.set()
                yield item
        finally:
            source.closed_in = threading.current_thread().name

    depth = 8 if phase == "no bytes" else 2
    stream = Prefetcher(steps(), depth, size_of=lambda item: 6, budget=budget, cancel=backend.close)
    assert reached.wait(5)
    if phase in ("full", "no bytes", "ended"):
        time.sleep(0.03)
    begin = time.monotonic()
    stream.close()
    assert time.monotonic() - begin < 5.0
    assert source.closed_in == "zephon_mm-producer"
    assert our_threads() == []
    assert budget.held_bytes == 0
    with pytest.raises(Cancelled):
        next(stream)
    stream.close()


@pytest.mark.parametrize("feed", FEEDS)
def test_break_and_garbage_collection_close_everything(feed: str, wait_until: Wait) -> None:
    source = Source(1000)

    def loop() -> None:
        for item in FEEDS[feed](source.run()):
            if item == 3:
                break

    loop()
    gc.collect()
    assert our_threads() == []
    assert source.closed_in is not None


def test_garbage_collection_ends_a_thread_that_waits_for_a_backend_and_its_workers() -> None:
    def loop() -> None:
        backend = open_backend("threads", workers=2)

        def steps() -> Iterator[int]:
            yield from map_ordered(backend, abs, range(3), window=2)
            backend.submit(time.sleep, 0.2)
            backend.submit(time.sleep, 0.2)
            yield backend.submit(abs, 1).result()

        stream = Prefetcher(steps(), 9, cancel=backend.close)
        assert next(stream) == 0

    loop()
    gc.collect()
    assert our_threads() == []


def test_an_error_that_was_raised_keeps_neither_stream_nor_workers_alive() -> None:
    def loop() -> None:
        backend = open_backend("threads", workers=2)
        stream = Prefetcher(Source(9, fail_at=1).run(), 3, cancel=backend.close)
        with pytest.raises(StorageError):
            list(stream)

    loop()
    gc.collect()
    assert our_threads() == []


def test_close_from_another_thread_wakes_the_consumer(wait_until: Wait) -> None:
    released = threading.Event()

    def steps() -> Iterator[int]:
        yield 0
        released.wait(10)
        yield 1

    stream = Prefetcher(steps(), 2, cancel=lambda seconds: released.set())
    assert next(stream) == 0
    closer = threading.Timer(0.05, stream.close)
    closer.start()
    with pytest.raises(Cancelled, match="closed"):
        next(stream)
    closer.join(5)
    assert our_threads() == []


def test_the_time_that_the_consumer_waits_is_measured(wait_until: Wait) -> None:
    stream: Feed[int]
    stream = Prefetcher(Source(4, delay=0.05).run(), 2)
    list(stream)
    assert 0.15 < stream.waited_seconds < 20.0
    stream = Direct(Source(4, delay=0.05).run())
    list(stream)
    assert 0.2 <= stream.waited_seconds < 20.0
    stream = Prefetcher(Source(4).run(), 4)
    assert wait_until(lambda: stream.held_items == 4)
    for _ in stream:
        time.sleep(0.2)
    assert stream.waited_seconds < 0.4  # the consumer's own time is not waiting


def test_with_closes() -> None:
    source = Source(100)
    with Prefetcher(source.run(), 2) as stream:
        assert next(stream) == 0
    assert our_threads() == []
    source = Source(100)
    with Direct(source.run()) as direct:
        assert next(direct) == 0
    assert source.closed_in == "MainThread"


def test_a_clean_up_that_fails_is_logged_and_hides_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def steps() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            raise ValueError("clean-up broke")

    stream = Prefetcher(steps(), 1)
    assert next(stream) == 1
    stream.close()
    assert "clean-up broke" in caplog.text
    assert our_threads() == []


def test_nothing_of_a_taken_item_is_kept_alive(wait_until: Wait) -> None:
    class Step:
        pass

    refs: list[weakref.ref[Step]] = []

    def steps() -> Iterator[Step]:
        while True:
            step = Step()
            refs.append(weakref.ref(step))
            yield step
            del step

    gc.disable()
    try:
        stream = Prefetcher(steps(), 1)
        for taken in range(1, 4):
            next(stream)
            assert wait_until(lambda taken=taken: len(refs) == taken + 1 and stream.held_items == 1)
            assert wait_until(lambda: sum(ref() is not None for ref in refs) == 1)
        stream.close()
        assert [ref() for ref in refs] == [None] * 4
    finally:
        gc.enable()


def test_a_taken_item_is_not_kept_alive_while_the_next_is_made(wait_until: Wait) -> None:
    class Step:
        pass

    gate = threading.Event()

    def steps() -> Iterator[Step]:
        yield Step()
        gate.wait(20)
        yield Step()

    stream = Prefetcher(steps(), 2, cancel=lambda seconds: gate.set())
    ref = weakref.ref(next(stream))
    assert wait_until(lambda: ref() is None, 2.0)
    stream.close()


def test_nothing_may_be_held_is_an_error() -> None:
    with pytest.raises(ValueError, match="depth=0"):
        Prefetcher(iter([1]), 0)


def test_two_hundred_streams_leave_threads_and_descriptors_as_they_were(wait_until: Wait) -> None:
    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    def cycle(i: int) -> None:
        backend = open_backend("threads", workers=2)
        items = map_ordered(backend, abs, range(50), window=4)
        stream = Prefetcher(items, 3, cancel=backend.close)
        for item in stream:
            if item == i % 7:
                break
        if i % 2:
            stream.close()

    for i in range(4):
        cycle(i)
    gc.collect()
    before = count()
    for i in range(200):
        cycle(i)
    gc.collect()
    assert wait_until(lambda: count() == before), (count(), before)
