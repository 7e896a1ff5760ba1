"""Ray actors: what crosses over, what a loss does, what is left behind (nothing)."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ray_nodes import Nodes
from tests.unit.backends import workers
from tests.unit.backends.test_processes import alive
from zephon_mm.backends import ByteBudget, Cancelled, RayBackend, open_backend, ray, ray_session
from zephon_mm.config import ExecutionConfig
from zephon_mm.errors import ConfigError, MissingDependencyError, WorkerDiedError, WorkerError

Wait = Callable[..., bool]
BUDGET = 16 << 20
WATCHDOG_SECONDS = 200.0  # where Ray starts on a busy machine


@pytest.fixture(scope="module")
def budget() -> ByteBudget:
    return ByteBudget(BUDGET)


@pytest.fixture(scope="module")
def backend(ray_cluster: Nodes, budget: ByteBudget) -> Iterator[RayBackend]:
    made = RayBackend(2, budget=budget)
    yield made
    made.close()
    assert budget.held_bytes == 0
    assert ray_cluster.ray.is_initialized(), "a connection that others hold stays"


@pytest.fixture(autouse=True)
def no_thread_left() -> None:
    """In place of the folder's: the module's backend lives on."""


def pids(backend: RayBackend, count: int) -> set[int]:
    found: set[int] = set()
    while len(found) < count:
        found |= {t.result()[0] for t in [backend.submit(workers.who, None) for _ in range(8)]}
    return found


def test_items_run_in_actors_that_import_little_and_use_one_thread(backend: RayBackend) -> None:
    answers = [backend.submit(workers.who, None).result() for _ in range(20)]
    assert os.getpid() not in {pid for pid, _ in answers}
    assert {loaded for _, loaded in answers} == {""}
    tickets = [backend.submit(abs, -i, cost_bytes=i % 5) for i in range(100)]
    assert [t.result() for t in reversed(tickets)] == list(range(99, -1, -1))
    with pytest.raises(RuntimeError, match="taken already"):
        tickets[0].result()
    with pytest.raises(ValueError, match="cost_bytes=-1"):
        backend.submit(abs, 1, cost_bytes=-1)


def test_arrays_are_read_only_views_of_the_object_store_and_stay_as_they_were(
    backend: RayBackend,
) -> None:
    items = [(seed, (10, 200_000, 1 << 20, 3 << 20)[seed % 4]) for seed in range(16)]
    kept = []
    for seed, ticket in enumerate([backend.submit(workers.noise, item) for item in items]):
        found, wanted = ticket.result(), workers.noise(items[seed])
        for name in ("big", "small", "odd"):
            assert np.array_equal(found[name], wanted[name])
        assert found["big"].flags.writeable == (seed % 4 == 0)
        kept.append((found["big"], hashlib.sha256(wanted["big"]).digest()))
    for i in range(40):  # more than the store has room for
        backend.submit(workers.filled, (i, 4 << 20)).result()
    assert all(hashlib.sha256(array).digest() == digest for array, digest in kept)


def test_errors_come_with_the_actors_traceback_in_their_place(backend: RayBackend) -> None:
    tickets = [backend.submit(workers.fail, how) for how in ("a", "plain", "odd", "inside", "b")]
    assert tickets[0].result() == "a"
    with pytest.raises(ValueError, match="no good") as caught:
        tickets[1].result()
    assert type(caught.value) is ValueError and caught.value.__notes__ == ["noted in the worker"]
    assert "in fail" in str(caught.value.__cause__)
    with pytest.raises(WorkerError, match=r"Odd: 1 and 2 .* does not pickle"):
        tickets[2].result()
    fine, error = tickets[3].result()
    assert fine == "fine" and isinstance(error, KeyError)
    assert tickets[4].result() == "b"
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        backend.submit(workers.fail, "stop").result()
    with pytest.raises(WorkerError, match=r"lambda.*use backend='threads'"):
        backend.submit(lambda item: item, 1).result()
    with pytest.raises(WorkerError, match="a result of type function can't be sent"):
        backend.submit(workers.fail, "result").result()


def test_a_callable_is_sent_once_shares_its_parts_and_its_counts_come_back(
    backend: RayBackend,
) -> None:
    part = workers.Part()
    first, second = workers.Asks(part), workers.Asks(part)
    parts: dict[int, set[int]] = {}
    for i in range(20):
        item, pid, place = backend.submit((first, second)[i % 2], i).result()
        assert item == i
        parts.setdefault(pid, set()).add(place)
    assert (first.pickled, second.pickled, part.pickled) == (1, 1, 1)
    assert all(len(places) == 1 for places in parts.values())
    assert (first.calls, second.calls) == (10, 10)


def test_the_libraries_of_an_actor_use_one_thread(backend: RayBackend) -> None:
    assert backend.submit(workers.threads, None).result() == (1, "false")


def test_a_lost_actor_is_replaced_and_its_item_done_again(
    backend: RayBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert backend.submit(workers.die_once, str(tmp_path / "flag")).result() == "done"
    assert "was lost (its worker process has died" in caplog.text
    idle = pids(backend, 2)
    for pid in idle:
        os.kill(pid, signal.SIGKILL)
    tickets = [backend.submit(abs, -i) for i in range(6)]
    assert [t.result() for t in tickets] == list(range(6)), "idle actors cost no item its tries"
    assert not pids(backend, 2) & idle


def test_the_third_loss_at_an_item_is_its_error_in_its_place(backend: RayBackend) -> None:
    tickets = [backend.submit(workers.die_at, (i, 1)) for i in range(4)]
    assert tickets[0].result() == 0
    with pytest.raises(WorkerDiedError, match=r"3 Ray workers died of it.*at \(1, 1\)") as caught:
        tickets[1].result()
    assert [t.result() for t in tickets[2:]] == [2, 3]
    assert str(caught.value.of_sample("a.tar", "0007")).startswith("a.tar, key '0007': 3 Ray")


def test_closing_ends_busy_actors_at_once_and_wakes_who_waits(
    ray_cluster: Nodes, wait_until: Wait
) -> None:
    with_budget = ByteBudget(1 << 20)
    backend = RayBackend(1, budget=with_budget)
    running = pids(backend, 1)
    kept = backend.submit(workers.filled, (9, 1 << 20)).result()
    tickets = [backend.submit(workers.nap, 60, cost_bytes=5) for _ in range(3)]
    outcome: list[str] = []

    def wait() -> None:
        with contextlib.suppress(Cancelled):
            outcome.append(str(tickets[0].result()))
        outcome.append("woken")

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.1)
    begin = time.monotonic()
    backend.close()
    waiter.join(5)
    assert time.monotonic() - begin < 20
    assert outcome == ["woken"]
    assert wait_until(lambda: not any(map(alive, running)))
    assert (with_budget.held_bytes, backend.in_flight_items) == (0, 0)
    with pytest.raises(Cancelled, match="closed"):
        backend.submit(abs, 1)
    assert kept.sum() == 9 << 20


def test_without_a_free_cpu_the_others_work_on_and_alone_it_is_an_error(
    backend: RayBackend,
    ray_cluster: Nodes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wait_until: Wait,
) -> None:
    pids(backend, 2)
    monkeypatch.setattr(ray, "_TELL_SECONDS", 0.1)
    larger = RayBackend(2)  # where one CPU is free
    assert len(pids(larger, 1)) == 1
    monkeypatch.setattr(ray, "_START_SECONDS", 0.6)
    assert wait_until(lambda: "waits for a free CPU" in caplog.text)
    starved = RayBackend(1)
    with pytest.raises(WorkerError, match=r"no Ray worker could start .* no free CPU"):
        starved.submit(abs, 1).result()
    starved.close()
    assert larger.submit(abs, -5).result() == 5
    del larger
    gc.collect()
    assert wait_until(lambda: len(ray_cluster.actors()) == 2), "a dropped backend ends its actors"


def test_an_actor_that_cannot_start_says_why(
    ray_cluster: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[object] = []
    tried: list[int] = []
    start, do = ray._Crew.start, ray._do

    def counted(crew: ray._Crew) -> ray.RayActor:
        starts.append(crew)
        return start(crew)

    def noted(*args: Any) -> None:
        do(*args)
        tried.append(len(starts))

    monkeypatch.setattr(ray._Crew, "start", counted)
    monkeypatch.setattr(ray, "_do", noted)
    with monkeypatch.context() as patch:
        patch.setattr(ray.zephon_mm, "__version__", "9.9")
        backend = RayBackend(1)
    with pytest.raises(WorkerError, match=r"can't be started \(.*the trainer has 9.9: install"):
        backend.submit(abs, 1).result()
    backend.close()
    assert tried[0] == 3, "not once more for the item"


def test_an_unexpected_error_at_the_start_is_that_of_an_item_and_the_next_one_tries_again(
    ray_cluster: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(ray._Crew, "start", start)
    backend = RayBackend(1)
    with pytest.raises(RuntimeError, match="out of order"):
        backend.submit(abs, -1).result()
    monkeypatch.undo()
    with contextlib.suppress(RuntimeError):  # it may have been tried before
        assert backend.submit(abs, -2).result() == 2
    assert backend.submit(abs, -3).result() == 3
    backend.close()


def test_another_cluster_than_the_connected_one_is_an_error(ray_cluster: Nodes) -> None:
    with pytest.raises(ConfigError, match=r"ray_address='local': this program is connected to"):
        RayBackend(1, address="local")
    RayBackend(1, address=ray_cluster.address).close()
    with pytest.raises(ConfigError, match="Ray Client is not supported"):
        ExecutionConfig(backend="ray", ray_address="ray://head:10001")


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'zephon-mm\[ray\]'"):
        open_backend("ray")


def test_the_object_store_of_a_local_cluster_fits_into_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_session._store_size(1) == 80 << 20
    monkeypatch.setattr(
        os, "statvfs", lambda _: os.statvfs_result((1, 1, 0, 0, 200 << 20, 0, 0, 0, 0, 0))
    )
    assert ray_session._store_size(1 << 40) == int((200 << 20) * 0.8)
