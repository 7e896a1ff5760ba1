"""Media as tasks: what shares one, and whom the death of a worker is laid to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from zephon_mm.backends import ProcessesBackend
from zephon_mm.backends.serial import SerialBackend
from zephon_mm.errors import WorkerDiedError
from zephon_mm.patches import adjacent
from zephon_mm.pipeline.media_tasks import MOST, MOST_BYTES, MediaTasks
from zephon_mm.sample import MeasuredDocument, MediaSpan, SampleRef
from zephon_mm.stages.materialise import MediaResult, MediaTask

Media = tuple[MediaTask, MeasuredDocument]
LARGE = 2 << 30


def medium(number: int, kind: Any = "image") -> Media:
    ref = SampleRef(0, 0, number, 0, number)
    span = MediaSpan(kind, number, 0, 1, (1, 1, 1), (1, 1), (1, 1))
    ids, loss = np.zeros(1, np.int32), np.ones(1, np.bool_)
    document = MeasuredDocument(ref, "a.tar", f"key{number}", ids, loss, (span,), b"")
    return MediaTask(ref, span), document


def numbered(tasks: Sequence[MediaTask]) -> list[MediaResult]:
    return [MediaResult(np.full((1, 1), task.span.member, np.uint8)) for task in tasks]


class Backend(SerialBackend):
    """The real one, with a note of what is submitted."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.costs: list[int] = []

    def submit(self, fn: Any, item: Any, *, cost_bytes: int = 0, into: Any = None) -> Any:
        self.sizes.append(len(item))
        self.costs.append(cost_bytes)
        return super().submit(fn, item, cost_bytes=cost_bytes, into=into)


def number_of(result: MediaResult) -> int:
    return int(np.asarray(result.patches)[0, 0])


def run(
    backend: Backend, wanted: list[Media], workers: int, cost: Callable[[MediaTask], int]
) -> list[int]:
    media = MediaTasks(backend, numbered, cost, workers, LARGE)
    return [number_of(result) for result in media.results(media.begin(wanted))]


def one_byte(task: MediaTask) -> int:
    return 1


@pytest.mark.parametrize(
    ("count", "workers", "sizes"),
    [
        (100, 0, [1] * 100),
        (100, 2, [MOST] * 12 + [4]),
        (24, 2, [3] * 8),
        (7, 2, [1] * 7),
        (0, 2, []),
    ],
)
def test_pictures_are_shared_out(count: int, workers: int, sizes: list[int]) -> None:
    backend = Backend()
    found = run(backend, [medium(n) for n in range(count)], workers, one_byte)
    assert found == list(range(count))
    assert backend.sizes == sizes and backend.costs == sizes


def test_a_clip_is_a_task_of_its_own() -> None:
    wanted = [medium(n, "video" if n in (3, 4, 9) else "image") for n in range(40)]
    backend = Backend()
    assert run(backend, wanted, 1, one_byte) == list(range(40))
    assert backend.sizes == [3, 1, 1, 4, 1, 8, 8, 8, 6]


def test_a_task_needs_no_more_than_its_share_of_memory() -> None:
    costs = {0: MOST_BYTES // 2, 1: MOST_BYTES // 2, 2: 1, 3: 2 * MOST_BYTES, 4: 1}
    backend = Backend()
    wanted = [medium(n) for n in range(40)]
    found = run(backend, wanted, 1, lambda task: costs.get(task.span.member, 1))
    assert found == list(range(40))
    assert backend.sizes[:3] == [2, 1, 1]
    assert backend.costs[:3] == [MOST_BYTES, 1, 2 * MOST_BYTES]


@pytest.mark.parametrize(("budget", "most"), [(8 << 20, 1), (64 << 20, 2), (1 << 30, 8)])
def test_a_small_budget_is_not_overrun_by_sharing_tasks(budget: int, most: int) -> None:
    backend = Backend()
    media = MediaTasks(backend, numbered, lambda task: 4 << 20, 2, budget)
    media.begin([medium(n) for n in range(100)])
    assert max(backend.sizes) == most and sum(backend.sizes) == 100
    assert max(backend.costs) <= max(4 << 20, budget // 8)


@pytest.mark.parametrize("deadly", [0, 5, 39])
def test_a_death_is_laid_to_its_sample(deadly: int) -> None:
    def dying(tasks: Sequence[MediaTask]) -> list[MediaResult]:
        if deadly in [task.span.member for task in tasks]:
            raise WorkerDiedError("3 workers died of it")
        return numbered(tasks)

    media = MediaTasks(Backend(), dying, one_byte, 1, LARGE)
    results = media.results(media.begin([medium(n) for n in range(40)]))
    for number in range(deadly):  # those before it come all the same
        assert number_of(next(results)) == number
    with pytest.raises(WorkerDiedError, match=f"a.tar, key 'key{deadly}': 3 workers died"):
        next(results)


@pytest.mark.parametrize("workers", [0, 1])
def test_media_of_a_kind_are_decoded_into_one_array(workers: int) -> None:
    """Whatever shares a task: each gets as many rows as it has patches, in order."""

    def filled(tasks: Sequence[MediaTask], into: Sequence[Any]) -> list[MediaResult]:
        for task, rows in zip(tasks, into, strict=True):
            assert rows.shape == (task.span.num_patches, 6)
            rows[...] = task.span.member
        return [MediaResult(rows) for rows in into]

    kinds = ["video" if number % 5 == 2 else "image" for number in range(40)]
    wanted = []
    for number, kind in enumerate(kinds):
        task, owner = medium(number, kind)
        span = replace(task.span, grid=(1, 1 + number % 3, 1))
        wanted.append((replace(task, span=span), owner))
    media = MediaTasks(Backend(), filled, one_byte, workers, LARGE, columns=6)
    results = list(media.results(media.begin(wanted)))
    assert [number_of(result) for result in results] == list(range(40))
    for kind in ("image", "video"):
        rows = [r.patches for r, of in zip(results, kinds, strict=True) if of == kind]
        together = adjacent(rows)
        assert together is not None and np.array_equal(together, np.concatenate(rows))
        assert together.shape == np.asarray(together.base).shape


def deadly(tasks: Sequence[MediaTask]) -> list[MediaResult]:
    if any(task.span.member == 5 for task in tasks):
        os.kill(os.getpid(), signal.SIGKILL)
    return numbered(tasks)


def test_a_picture_that_kills_workers_is_found_among_those_it_shared_a_task_with() -> None:
    backend = ProcessesBackend(1)
    try:
        media = MediaTasks(backend, deadly, one_byte, 1, LARGE)
        bundles = media.begin([medium(number) for number in range(32)])
        assert [len(bundle.tasks) for bundle in bundles] == [8, 8, 8, 8]
        results = media.results(bundles)
        assert [number_of(next(results)) for _ in range(5)] == list(range(5))
        with pytest.raises(WorkerDiedError, match=r"a\.tar, key 'key5': 3 worker processes died"):
            next(results)
        others = media.results(bundles[1:])
        assert [number_of(result) for result in others] == list(range(8, 32))
    finally:
        backend.close()
