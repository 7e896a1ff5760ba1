"""C1 on Ray: the batches of the serial run, byte for byte with pixels, whatever is lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.ray_nodes import Nodes
from zephon_mm import DataConfig, ExecutionConfig, Loader
from zephon_mm.backends import child
from zephon_mm.cli.digest import step_digest
from zephon_mm.errors import WorkerDiedError

from .workers import SERIAL, before_the_poison, poisoned, run, until_an_error


def on_ray(workers: int, **other: Any) -> ExecutionConfig:
    return ExecutionConfig(backend="ray", workers=workers, **other)


def test_two_nodes_all_through_the_object_store_an_actor_killed_and_then_a_node(
    ray_cluster: Nodes,
    clips: DataConfig,
    serial_clips: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(child, "SHARED_FROM_BYTES", 1)  # read-only arrays do, all the way
    second = ray_cluster.add(2)
    assert len(serial_clips) > 8

    def lose_an_actor() -> None:
        os.kill(ray_cluster.actors_of(second)[0], signal.SIGKILL)

    def lose_a_node() -> None:
        assert ray_cluster.actors_of(second), "both nodes work"
        ray_cluster.kill(second)

    found, _ = run(
        clips, on_ray(4, memory_budget=1 << 20), before={2: lose_an_actor, 5: lose_a_node}
    )
    assert found == serial_clips
    assert "was lost" in caplog.text


def test_resume_from_and_into_ray(
    ray_cluster: Nodes, clips: DataConfig, serial_run: tuple[list[str], dict[str, Any]]
) -> None:
    before, state = run(clips, on_ray(1), stop_at=3)
    after, end = run(clips, on_ray(1), 2, json.loads(json.dumps(state)))
    assert (before + after, end) == serial_run


def test_pictures_and_counts_on_ray(ray_cluster: Nodes, pictures: DataConfig) -> None:
    found, counts = [], []
    for execution in (SERIAL, on_ray(1)):
        with Loader(pictures, execution) as loader:
            found.append([step_digest([batch], pixels=True) for batch in loader])
        counts.append(loader._run.materialise.counts.clips)
        assert loader.read_counts.members > 0
    assert found[0] == found[1] and counts[0] == counts[1] > 0


def test_a_sample_that_kills_its_actors_is_named_at_its_place(
    ray_cluster: Nodes, tmp_path: Path, tokenizer_folder: Path
) -> None:
    place = 8
    config = poisoned(tmp_path, tokenizer_folder, 20, place)
    found, error = until_an_error(config, on_ray(1))
    assert isinstance(error, WorkerDiedError) and "3 Ray workers died of it" in str(error)
    assert error.key == f"texts{place:05d}" and error.shard.endswith("texts-0.tar")
    assert found == before_the_poison(config) != []
