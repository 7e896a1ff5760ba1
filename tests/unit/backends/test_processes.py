"""Worker processes: what crosses over, what a death does, what is left behind (nothing)."""

from __future__ import annotations

import gc
import hashlib
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.backends import workers
from zephon_mm.backends import ByteBudget, Cancelled, ProcessesBackend, child, template, wire
from zephon_mm.errors import WorkerDiedError, WorkerError

Wait = Callable[..., bool]
BUDGET = 16 << 20


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pids(backend: ProcessesBackend, count: int) -> set[int]:
    """The workers' process ids: items are given out until every worker has answered."""
    found: set[int] = set()
    while len(found) < count:
        found |= {t.result()[0] for t in [backend.submit(workers.who, None) for _ in range(8)]}
    return found


@pytest.fixture(scope="module")
def budget() -> ByteBudget:
    return ByteBudget(BUDGET)


@pytest.fixture(scope="module")
def backend(budget: ByteBudget) -> Iterator[ProcessesBackend]:
    made = ProcessesBackend(2, budget=budget)
    yield made
    made.close()
    assert budget.held_bytes == 0


@pytest.fixture(scope="module")
def single() -> Iterator[ProcessesBackend]:
    """One worker, which has room for idle buffers."""
    made = ProcessesBackend(1)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_thread_left() -> None:
    """In place of the folder's: the module's backend lives on."""


def test_items_run_in_other_processes_that_import_little(backend: ProcessesBackend) -> None:
    answers = [backend.submit(workers.who, None).result() for _ in range(20)]
    assert os.getpid() not in {pid for pid, _ in answers}
    assert {loaded for _, loaded in answers} == {""}
    tickets = [backend.submit(abs, -i) for i in range(300)]
    assert [t.result() for t in reversed(tickets)] == list(range(299, -1, -1))


def test_arrays_of_any_size_arrive_whole_and_are_kept_as_they_were(
    backend: ProcessesBackend, budget: ByteBudget
) -> None:
    items = [(seed, (10, 200_000, 1 << 20, 3 << 20)[seed % 4]) for seed in range(40)]
    kept = []
    for seed, result in enumerate(backend.submit(workers.noise, item) for item in items):
        found, wanted = result.result(), workers.noise(items[seed])
        for name in ("big", "small", "odd"):
            assert np.array_equal(found[name], wanted[name])
        assert found["big"].flags.writeable
        if seed % 3 == 0:
            kept.append((found["big"], hashlib.sha256(wanted["big"]).digest()))
    gc.collect()
    for _ in range(40):
        backend.submit(workers.filled, (1, 1 << 20)).result()
    assert all(hashlib.sha256(array).digest() == digest for array, digest in kept)
    assert budget.held_bytes <= BUDGET // 8, "idle buffers count, and are few"


def test_buffers_are_used_again(single: ProcessesBackend) -> None:
    def inodes() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[4] for line in lines if "/memfd:zephon_mm" in line}

    others = inodes()
    for seed in range(60):
        assert single.submit(workers.filled, (seed, 500_000)).result()[-1] == seed
        if seed == 20:
            gc.collect()
            before = inodes() - others
    assert before and len(inodes() - others - before) <= 1


def test_no_descriptor_is_held_for_a_result_that_is_kept(backend: ProcessesBackend) -> None:
    """Z01, at its root: a descriptor a result would meet the limit of open files."""
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 12, hard))
    try:
        kept = [backend.submit(workers.filled, (i, 140_000)).result() for i in range(200)]
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [int(array[-1]) for array in kept] == [i % 251 for i in range(200)]


def test_at_the_limit_of_open_files_the_error_names_it(backend: ProcessesBackend) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pids(backend, 2)
    full = []
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard)
    )
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                full.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match=r"limit of open files; raise it \(ulimit -n\)"):
            backend.submit(workers.filled, (1, 30 << 20)).result()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in full:
            os.close(fd)
    assert backend.submit(workers.filled, (7, 30 << 20)).result()[-1] == 7


def test_errors_come_with_the_workers_traceback_in_their_place(backend: ProcessesBackend) -> None:
    tickets = [backend.submit(workers.fail, how) for how in ("a", "plain", "odd", "inside", "b")]
    assert tickets[0].result() == "a"
    with pytest.raises(ValueError, match="no good") as caught:
        tickets[1].result()
    assert caught.value.__notes__ == ["noted in the worker"]
    assert "workers.py" in str(caught.value.__cause__) and "in fail" in str(caught.value.__cause__)
    with pytest.raises(WorkerError, match=r"Odd: 1 and 2 .* does not pickle"):
        tickets[2].result()
    fine, error = tickets[3].result()
    assert fine == "fine" and isinstance(error, KeyError) and "in fail" in str(error.__cause__)
    assert tickets[4].result() == "b"
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        backend.submit(workers.fail, "stop").result()


def test_what_does_not_pickle_is_named(backend: ProcessesBackend) -> None:
    with pytest.raises(WorkerError, match=r"lambda.*use backend='threads'"):
        backend.submit(lambda item: item, 1).result()
    with pytest.raises(WorkerError, match="or its item can't be sent"):
        backend.submit(abs, threading.Lock()).result()  # type: ignore[arg-type]
    with pytest.raises(WorkerError, match="a result of type function can't be sent"):
        backend.submit(workers.fail, "result").result()


def test_a_callable_whose_first_item_does_not_pickle_is_sent_with_the_next(
    single: ProcessesBackend,
) -> None:
    fresh = workers.Asks(workers.Part())
    with pytest.raises(WorkerError, match="or its item can't be sent"):
        single.submit(fresh, threading.Lock()).result()  # type: ignore[arg-type]
    assert single.submit(fresh, 5).result()[0] == 5


def test_after_an_error_within_a_message_no_item_gets_the_answer_of_another(
    single: ProcessesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert single.submit(abs, -1).result() == 1

    def receive(link: object) -> None:
        monkeypatch.undo()
        raise MemoryError("no room for the answer")

    monkeypatch.setattr(wire, "receive", receive)
    with pytest.raises(MemoryError, match="no room for the answer"):
        single.submit(abs, -2).result()
    assert single.submit(abs, -3).result() == 3


def test_a_callable_is_sent_once_shares_its_parts_and_its_counts_come_back(
    backend: ProcessesBackend,
) -> None:
    part = workers.Part()
    first, second = workers.Asks(part), workers.Asks(part)
    parts: dict[int, set[int]] = {}
    for i in range(40):
        item, pid, place = backend.submit((first, second)[i % 2], i).result()
        assert item == i
        parts.setdefault(pid, set()).add(place)
    assert (first.pickled, second.pickled, part.pickled) == (1, 1, 1)
    assert all(len(places) == 1 for places in parts.values())
    assert (first.calls, second.calls) == (20, 20)
    for i in range(150):  # callables made on the fly push each other out
        assert backend.submit(workers.Asks(part), i).result()[0] == i


def test_the_libraries_of_a_worker_use_one_thread(backend: ProcessesBackend) -> None:
    """A worker's environment from its first moment: libraries that it loads later obey it."""
    assert backend.submit(workers.variables, tuple(child.ONE_THREAD)).result() == child.ONE_THREAD
    assert child.ONE_THREAD["OMP_NUM_THREADS"] == "1"
    assert child.ONE_THREAD["TOKENIZERS_PARALLELISM"] == "false"


def test_a_dead_worker_is_replaced_and_its_item_done_again(
    backend: ProcessesBackend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tickets = [backend.submit(workers.die_once, str(tmp_path / f"{i % 3}")) for i in range(6)]
    assert [t.result() for t in tickets] == ["done"] * 6
    assert "died (killed by SIGKILL)" in caplog.text
    idle = pids(backend, 2)
    for pid in idle:
        os.kill(pid, signal.SIGTERM)  # what schedulers send to a whole job is not for workers
    assert pids(backend, 2) == idle
    for pid in idle:
        os.kill(pid, signal.SIGKILL)
    assert not pids(backend, 2) & idle


def test_workers_are_forked_and_replaced_when_they_lack_an_import(
    backend: ProcessesBackend,
) -> None:
    before = pids(backend, 2)
    (template,) = {parent(pid) for pid in before}
    assert parent(template) == os.getpid()
    assert Path(f"/proc/{template}/cmdline").read_bytes().rstrip(b"\0 ").endswith(b"-template")
    names = {Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ")[-18:] for pid in before}
    assert names == {b"zephon_mm-worker-0", b"zephon_mm-worker-1"}
    wants = workers.Wants()
    seen = set(before)
    for _ in range(100):
        tickets = [backend.submit(wants, ("colorsys", "")[i % 2]) for i in range(8)]
        answers = [ticket.result() for ticket in tickets]
        assert all(there for _, there in answers[::2])
        seen |= {pid for pid, _ in answers}
        after = pids(backend, 2)
        if not after & before:
            break
    assert {parent(pid) for pid in after} == {template}
    assert seen <= before | after and not before & after, "each was replaced, once"
    backend.submit(wants, "no.such_module").result()
    assert pids(backend, 2) == after, "nothing was imported"


def test_what_callables_share_is_loaded_where_workers_are_forked(backend: ProcessesBackend) -> None:
    shares, fails, part = workers.Shares(), workers.Shares("fails"), workers.Part()
    found = set()
    for i in range(150):  # what is made on the fly does not push it out
        backend.submit(workers.Asks(part), i).result()
        for one in (shares, fails):
            pid, template, where = backend.submit(one, i).result()
            assert where == {"unpickled": template, "ready": template} and pid != template
            found.add(pid)
    assert len(found) <= 4, "each worker was replaced when one of the two was new, and then no more"


def test_what_cannot_be_shared_is_the_error_of_its_items(backend: ProcessesBackend) -> None:
    (template,) = {parent(pid) for pid in pids(backend, 2)}
    with pytest.raises(WorkerDiedError, match="exit status 1"):
        backend.submit(workers.Shares("exits"), None).result()
    assert {parent(pid) for pid in pids(backend, 2)} == {template}


def test_a_killed_template_is_replaced_with_its_workers(
    backend: ProcessesBackend, wait_until: Wait
) -> None:
    shares = workers.Shares()
    backend.submit(shares, None).result()
    before = pids(backend, 2)
    tickets = [backend.submit(workers.nap, 0.2) for _ in range(4)]
    os.kill(parent(next(iter(before))), signal.SIGKILL)
    assert not {ticket.result() for ticket in tickets[2:]} & before
    assert not pids(backend, 2) & before
    assert wait_until(lambda: not any(map(alive, before)))
    _, anew, where = backend.submit(shares, None).result()
    assert where == {"unpickled": anew, "ready": anew} and alive(anew)


def test_beside_a_thread_nothing_is_forked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = ProcessesBackend(2)
    for _ in range(10):
        pid, _ = backend.submit(workers.Wants(), "tests.unit.backends.threaded").result()
        assert parent(pid) == os.getpid(), "an interpreter of its own each"
    assert caplog.text.count("each worker imports everything for itself") == 1
    pid, _, where = backend.submit(workers.Shares("threads"), None).result()
    assert where == {"unpickled": pid}, "as it does by itself, at its first call"
    running = pids(backend, 2)
    assert backend.submit(workers.die_once, str(tmp_path / "died")).result() == "done"
    assert "died (killed by SIGKILL)" in caplog.text
    running |= pids(backend, 2)
    backend.close()
    assert not any(map(alive, running))


def test_the_third_death_at_an_item_is_its_error_in_its_place(backend: ProcessesBackend) -> None:
    tickets = [backend.submit(workers.die_at, (i, 3)) for i in range(6)]
    assert [t.result() for t in tickets[:3]] == [0, 1, 2]
    with pytest.raises(WorkerDiedError, match=r"3 worker processes died of it.*SIGKILL.*\(3, 3\)"):
        tickets[3].result()
    assert [t.result() for t in tickets[4:]] == [4, 5]
    with pytest.raises(WorkerDiedError, match="exit status 9") as caught:
        backend.submit(workers.leave, 9).result()
    named = caught.value.of_sample("a.tar", "0007")
    assert str(named).startswith("a.tar, key '0007': 3 worker processes died")


def test_closing_ends_busy_workers_at_once_and_wakes_who_waits(wait_until: Wait) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with_budget = ByteBudget(1 << 20)
    backend = ProcessesBackend(2, budget=with_budget)
    running = pids(backend, 2)
    tickets = [backend.submit(workers.nap, 60, cost_bytes=5) for _ in range(3)]
    outcome: list[str] = []

    def wait() -> None:
        try:
            tickets[0].result()
        except Cancelled:
            outcome.append("cancelled")

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    begin = time.monotonic()
    backend.close()
    waiter.join(5)
    assert time.monotonic() - begin < 20
    assert outcome == ["cancelled"]
    assert not any(map(alive, running))
    assert (with_budget.held_bytes, backend.in_flight_items) == (0, 0)
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(Cancelled, match="closed"):
        backend.submit(abs, 1)


def test_a_dropped_backend_ends_its_workers_and_arrays_outlive_it(wait_until: Wait) -> None:
    backend = ProcessesBackend(1)
    (running,) = pids(backend, 1)
    kept = backend.submit(workers.filled, (9, 1 << 20)).result()
    del backend
    gc.collect()
    assert wait_until(lambda: not alive(running))
    assert kept.sum() == 9 << 20


def test_a_backend_may_be_collected_by_a_thread_that_holds_its_lock(wait_until: Wait) -> None:
    backend = ProcessesBackend(1)
    pool, crew = backend._pool, backend._pool.interrupt.__self__  # type: ignore[attr-defined]
    assert wait_until(lambda: crew._template is not None and pool.idle == 1, 30)
    cycle: list[object] = [backend]
    cycle.append(cycle)
    del backend, cycle
    with crew._lock:
        gc.collect()
        assert pool.closed and crew.closed
    assert not any(thread.is_alive() for thread in pool.threads)


def test_workers_that_cannot_be_started_are_an_error_and_not_a_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(template, "_BOOT", "import sys; sys.exit(3)")
    backend = ProcessesBackend(1)
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"can't be started \(exit status 3; .*fewer workers"):
            backend.submit(abs, 1).result()
    backend.close()
