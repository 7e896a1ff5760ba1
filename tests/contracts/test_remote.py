"""C1, C5 over a network: remote shards give the batches that local ones give, or a typed error."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tests.unit.shards.servers import Web, serve
from zephon_mm import DataConfig, ExecutionConfig, Loader, Stop
from zephon_mm.cli.digest import step_digest
from zephon_mm.errors import ShardChangedError, StorageError
from zephon_mm.shards import ShardReader
from zephon_mm.shards.access import Retry

STEPS = 3


def digests(config: DataConfig, execution: ExecutionConfig) -> tuple[str, list[str]]:
    """The run's fingerprint, and a digest of each step, pixels and all."""
    with Loader(config, execution) as loader:
        return loader.fingerprint, [step_digest([batch], pixels=True) for batch in loader]


@pytest.fixture(scope="module")
def few(mixed: DataConfig) -> DataConfig:
    return replace(mixed, stop=Stop(num_steps=STEPS))


@pytest.fixture(scope="module")
def local(few: DataConfig) -> tuple[str, list[str]]:
    return digests(few, ExecutionConfig(backend="serial"))


@pytest.fixture
def web(few: DataConfig, tmp_path: Path) -> Iterator[Web]:
    """A server of the shards alone, without indices."""
    folder = tmp_path / "web"
    folder.mkdir()
    for source in few.sources:
        for path in Path(str(source.urls)).parent.glob(f"{source.id}-*.tar"):
            shutil.copy(path, folder)
    with serve(folder) as web:
        yield web


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon_mm.pipeline.run.REMOTE_RETRY", Retry(3, 0.01))


def moved(config: DataConfig, web: Web) -> DataConfig:
    sources = tuple(
        replace(source, urls=f"{web.url}/{Path(str(source.urls)).name}")
        for source in config.sources
    )
    return replace(config, sources=sources)


@pytest.mark.parametrize(("backend", "cached"), [("threads", False), ("serial", True)])
def test_equal_batches_whatever_the_network_does(
    few: DataConfig,
    local: tuple[str, list[str]],
    web: Web,
    tmp_path: Path,
    backend: str,
    cached: bool,
) -> None:
    execution = ExecutionConfig(
        backend=backend,  # type: ignore[arg-type]
        workers=2,
        storage_timeout=1.0,
        read_retries=6,
        cache_dir=str(tmp_path / "cache"),
        storage_cache_bytes=64 << 20 if cached else 0,
    )
    web.faults[:] = ["503", "cut", "500"]
    Loader(moved(few, web), execution)  # indexed now
    assert not web.faults
    web.faults[:] = ["503", "", "cut", "wrong", "stalled", "", "500"]
    assert digests(moved(few, web), execution) == local
    assert not web.faults
    asked = len(web.of_shards())
    if cached:  # all that it needs is here now
        assert digests(moved(few, web), execution) == local
        assert len(web.of_shards()) == asked


@pytest.mark.parametrize(("backend", "told"), [("threads", True), ("processes", False)])
def test_blocks_are_announced_before_they_are_measured(
    few: DataConfig,
    web: Web,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: Literal["threads", "processes"],
    told: bool,
) -> None:
    expect, gather = ShardReader.expect_samples, ShardReader.gather
    expected: list[object] = []
    unknown: list[object] = []

    def expecting(self: ShardReader, samples: list[tuple[int, int, int]]) -> None:
        expected.append(list(samples))
        expect(self, samples)

    def gathering(self: ShardReader, samples: list[tuple[int, int, int]]) -> None:
        unknown.extend([] if list(samples) in expected else [samples])
        gather(self, samples)

    monkeypatch.setattr(ShardReader, "expect_samples", expecting)
    monkeypatch.setattr(ShardReader, "gather", gathering)
    execution = ExecutionConfig(backend=backend, workers=2, cache_dir=str(tmp_path / "cache"))
    with Loader(moved(few, web), execution) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    assert bool(expected) == told
    before = len(expected)
    with Loader(moved(few, web), execution) as loader:
        loader.load_state_dict(state)
        next(iter(loader))
    assert bool(expected[before:]) == told
    assert not told or not unknown


def test_an_outage_is_raised_in_its_place_and_the_run_goes_on_after_it(
    few: DataConfig, local: tuple[str, list[str]], web: Web, tmp_path: Path
) -> None:
    execution = ExecutionConfig(
        backend="threads",
        workers=2,
        prefetch=1,
        storage_timeout=0.5,
        read_retries=1,
        cache_dir=str(tmp_path / "cache"),
    )
    found = []
    with Loader(moved(few, web), execution) as loader:
        with pytest.raises(StorageError, match=r"http://.*\.tar: can't be read after 2 tries"):
            for batch in loader:
                found.append(step_digest([batch], pixels=True))
                web.forever = "503"
        assert 1 <= len(found) < STEPS
        state = loader.state_dict()
    web.forever = None
    with Loader(moved(few, web), execution) as loader:
        loader.load_state_dict(state)
        found += [step_digest([batch], pixels=True) for batch in loader]
    assert found == local[1]


def test_a_shard_that_is_replaced_in_a_run(few: DataConfig, web: Web, tmp_path: Path) -> None:
    execution = ExecutionConfig(backend="serial", cache_dir=str(tmp_path / "cache"))
    with Loader(moved(few, web), execution) as loader, pytest.raises(ShardChangedError):
        for _ in loader:
            for path in web.folder.glob("*.tar"):
                path.touch()
