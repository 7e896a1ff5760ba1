"""C1 on Ray: the batches of the serial run, byte for byte with pixels, whatever is lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ray_nodes import Nodes
from zephon_mm import DataConfig, ExecutionConfig, Loader, Source, Stop
from zephon_mm.backends import child
from zephon_mm.cli.digest import Ranks, step_digest
from zephon_mm.errors import WorkerDiedError

from . import media

SERIAL = ExecutionConfig(backend="serial")


def on_ray(workers: int, **other: Any) -> ExecutionConfig:
    return ExecutionConfig(backend="ray", workers=workers, **other)


@pytest.fixture(scope="module")
def clips(mixed: DataConfig) -> DataConfig:
    """Texts and clips of the mixed data."""
    kept = tuple(source for source in mixed.sources if source.id in ("texts", "clips"))
    return replace(mixed, sources=kept, sequence_length=256, global_batch=8, lanes=4)


@pytest.fixture(scope="module")
def serial(clips: DataConfig) -> list[str]:
    return run(clips, SERIAL)[0]


def run(
    config: DataConfig,
    execution: ExecutionConfig,
    dp_size: int = 1,
    state: dict[str, Any] | None = None,
    stop_at: int | None = None,
    before: Mapping[int, Callable[[], None]] | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """Digests of the steps from ``state`` on, and the state at the end; ``before``: what to do
    before a step.
    """
    with Ranks(config, execution, dp_size, state) as ranks:
        found = []
        while stop_at is None or ranks.step < stop_at:
            (before or {}).get(ranks.step, lambda: None)()
            batches = ranks.next()
            if batches is None:
                break
            found.append(step_digest(batches, pixels=True))
        return found, ranks.state()


def test_two_nodes_all_through_the_object_store_an_actor_killed_and_then_a_node(
    ray_cluster: Nodes,
    clips: DataConfig,
    serial: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(child, "SHARED_FROM_BYTES", 1)  # read-only arrays do, all the way
    second = ray_cluster.add(2)
    assert len(serial) > 8

    def lose_an_actor() -> None:
        os.kill(ray_cluster.actors_of(second)[0], signal.SIGKILL)

    def lose_a_node() -> None:
        assert ray_cluster.actors_of(second), "both nodes work"
        ray_cluster.kill(second)

    found, _ = run(
        clips, on_ray(4, memory_budget=1 << 20), before={2: lose_an_actor, 5: lose_a_node}
    )
    assert found == serial
    assert "was lost" in caplog.text


def test_resume_from_and_into_ray(ray_cluster: Nodes, clips: DataConfig, serial: list[str]) -> None:
    before, state = run(clips, on_ray(1), stop_at=3)
    after, end = run(clips, on_ray(1), 2, json.loads(json.dumps(state)))
    assert before + after == serial
    assert end == run(clips, SERIAL, 1, state)[1]


def test_pictures_and_counts_on_ray(ray_cluster: Nodes, mixed: DataConfig) -> None:
    kept = tuple(source for source in mixed.sources if source.id in ("pictures", "clips"))
    config = replace(mixed, sources=kept, stop=Stop(num_steps=2))
    found, counts = [], []
    for execution in (SERIAL, on_ray(1)):
        with Loader(config, execution) as loader:
            found.append([step_digest([batch], pixels=True) for batch in loader])
        counts.append(loader._run.materialise.counts.clips)
        assert loader.read_counts.members > 0
    assert found[0] == found[1] and counts[0] == counts[1] > 0


def test_a_sample_that_kills_its_actors_is_named_at_its_place(
    ray_cluster: Nodes, tmp_path: Path, tokenizer_folder: Path
) -> None:
    place = 8
    samples = [{"txt": media.sentence(i, 20)} for i in range(20)]
    samples[place]["txt"] = "poison"
    config = DataConfig(
        sources=(
            Source(
                id="texts",
                urls=media.write(tmp_path, "texts", iter(samples), 1),
                format="tests.contracts.formats_of_tests:poison",
            ),
        ),
        model="qwen3_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=64,
        global_batch=1,
        lanes=1,
        stop=Stop(num_steps=1000),
    )
    with Loader(config, on_ray(1)) as loader:
        with pytest.raises(WorkerDiedError, match="3 Ray workers died of it") as caught:
            for _ in loader:
                pass
    assert caught.value.key == f"texts{place:05d}" and caught.value.shard.endswith("texts-0.tar")
