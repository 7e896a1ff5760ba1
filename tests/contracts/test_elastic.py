"""C1, C2, C8: the same global batches, pixels and all, whatever runs them, wherever it stops."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import zephon_mm.loader
from zephon_mm import DataConfig, ExecutionConfig, Loader, merge_states
from zephon_mm.backends import Backend, Ticket, open_backend
from zephon_mm.cli.digest import Ranks, step_digest

SERIAL = ExecutionConfig(backend="serial")


def run(
    config: DataConfig,
    execution: ExecutionConfig,
    dp_size: int = 1,
    state: dict[str, Any] | None = None,
    stop_at: int | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """Digests of the steps from ``state`` on (to the end, or before ``stop_at``), and the state."""
    with Ranks(config, execution, dp_size, state) as ranks:
        found = []
        while stop_at is None or ranks.step < stop_at:
            batches = ranks.next()
            if batches is None:
                break
            found.append(step_digest(batches, pixels=True))
        return found, ranks.state()


@pytest.fixture(scope="module")
def serial(mixed: DataConfig) -> list[str]:
    """The yardstick: one rank, one thread."""
    found, _ = run(mixed, SERIAL)
    assert len(found) > 4
    return found


@pytest.mark.parametrize("dp_size", [2, 3, 4, 6, 8, 12])
def test_any_number_of_ranks(mixed: DataConfig, serial: list[str], dp_size: int) -> None:
    workers = 1 + dp_size % 4
    execution = ExecutionConfig(backend="threads", workers=workers, prefetch=1 + dp_size % 8)
    assert run(mixed, execution, dp_size)[0] == serial


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("prefetch", [1, 8])
def test_any_workers_and_prefetch(
    mixed: DataConfig, serial: list[str], workers: int, prefetch: int
) -> None:
    execution = ExecutionConfig(backend="threads", workers=workers, prefetch=prefetch)
    assert run(mixed, execution)[0] == serial


def test_a_memory_budget_below_one_medium(mixed: DataConfig, serial: list[str]) -> None:
    execution = ExecutionConfig(backend="threads", workers=3, memory_budget=1000)
    assert run(mixed, execution, 2)[0] == serial


def test_micro_batches_only_cut_a_step(mixed: DataConfig, serial: list[str]) -> None:
    execution = ExecutionConfig(backend="threads", workers=2, micro_batch=5)
    with Loader(mixed, execution) as loader:
        steps: dict[int, list[Any]] = {}
        for batch in loader:
            steps.setdefault(batch.step, []).append(batch)
            done = loader.state_dict()["step"]
            assert done == batch.step + (batch.slots[-1] == 23)
        assert len(loader) == sum(map(len, steps.values()))
    assert [step_digest(batches, pixels=True) for batches in steps.values()] == serial


class Jitter:
    """A backend whose items finish in another order each time."""

    def __init__(self, inner: Backend, seed: int) -> None:
        self._inner = inner
        self._random = random.Random(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, fn: Callable[..., Any], item: Any, **more: Any) -> Ticket[Any]:
        pause = self._random.choice([0.0, 0.0, 0.001, 0.02])

        def late(item: Any, **more: Any) -> Any:
            time.sleep(pause)
            return fn(item, **more)

        return self._inner.submit(late, item, **more)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_completion(
    mixed: DataConfig, serial: list[str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jittery(*args: Any, **kwargs: Any) -> Any:
        return Jitter(open_backend(*args, **kwargs), seed)

    monkeypatch.setattr(zephon_mm.loader, "open_backend", jittery)
    execution = ExecutionConfig(backend="threads", workers=4, prefetch=3)
    assert run(mixed, execution, 1 + seed)[0] == serial


def test_resume_after_every_step_into_another_number_of_ranks(
    mixed: DataConfig, serial: list[str]
) -> None:
    sizes = [1, 4, 3, 12, 2, 8, 6]
    state: dict[str, Any] | None = None
    found: list[str] = []
    for step in range(len(serial)):
        execution = replace(SERIAL, backend=("serial", "threads")[step % 2])  # type: ignore[arg-type]
        digests, state = run(mixed, execution, sizes[step % 7], state, stop_at=step + 1)
        state = json.loads(json.dumps(state))
        found += digests
    assert found == serial


def test_one_resume_from_each_step(mixed: DataConfig, serial: list[str]) -> None:
    with Loader(mixed, SERIAL) as loader:
        states = [loader.state_dict()]
        for _ in loader:
            states.append(loader.state_dict())
    for step, state in enumerate(states):
        digests, end = run(mixed, ExecutionConfig(workers=2), 1, state)
        assert digests == serial[step:]
        assert end == states[-1], "the last state does not depend on how it was reached"


def test_a_state_saved_right_after_a_restore_is_the_same(mixed: DataConfig) -> None:
    _, state = run(mixed, SERIAL, 3, stop_at=2)
    for dp_size in (1, 2, 8):
        with Ranks(mixed, ExecutionConfig(workers=3), dp_size, state) as ranks:
            assert ranks.state() == state
            ranks.next()
            again = ranks.state()
        assert again == run(mixed, SERIAL, 1, state, stop_at=3)[1]


def test_a_break_and_a_second_loop_lose_nothing(mixed: DataConfig, serial: list[str]) -> None:
    with Loader(mixed, ExecutionConfig(workers=2, prefetch=4)) as loader:
        found = []
        while True:
            before = len(found)
            for batch in loader:
                found.append(step_digest([batch], pixels=True))
                if len(found) % 2 == 0:
                    break
            if len(found) == before:
                break
    assert found == serial


def test_recent_boundaries_are_kept(mixed: DataConfig) -> None:
    with Loader(mixed, ExecutionConfig(prefetch=4)) as loader:
        states = []
        for _, _batch in zip(range(4), loader, strict=False):
            states.append(loader.state_dict())
        assert [loader.state_dict(step=k + 1) for k in range(4)] == states


def test_peers_that_pass_the_same_rank_load_the_same(mixed: DataConfig) -> None:
    """D05: tensor-, pipeline- and context-parallel peers never enter the order."""
    found = []
    for _ in range(3):
        with Loader(mixed, ExecutionConfig(workers=2), dp_rank=1, dp_size=4) as loader:
            found.append([step_digest([batch], pixels=True) for batch in loader])
    assert found[0] == found[1] == found[2]


def test_states_of_some_ranks_only_are_refused(mixed: DataConfig) -> None:
    from zephon_mm import StateError

    with Loader(mixed, SERIAL, dp_rank=0, dp_size=2) as loader:
        next(iter(loader))
        half = loader.state_dict()
    with Loader(mixed, SERIAL) as loader, pytest.raises(StateError, match="merge_states"):
        loader.load_state_dict(half)
    with pytest.raises(StateError, match="gather those of all ranks"):
        merge_states([half, half])
    assert merge_states([half], partial=True) == half
