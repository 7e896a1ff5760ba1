"""C1 with worker processes: the batches of the serial run, byte for byte with pixels, whatever
dies. Texts and clips, which need no torch in a worker; pictures once.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zephon_mm import DataConfig, ExecutionConfig, Loader, Source, Stop
from zephon_mm.backends import child
from zephon_mm.cli.digest import Ranks, step_digest
from zephon_mm.errors import WorkerDiedError
from zephon_mm.stages.materialise import Materialiser, MediaTask

from . import media

SERIAL = ExecutionConfig(backend="serial")


def processes(workers: int, **other: Any) -> ExecutionConfig:
    return ExecutionConfig(backend="processes", workers=workers, **other)


def workers_of(parent: int) -> list[int]:
    """Process ids of the worker processes of this process, which a process of its forked."""
    found = []
    for pid in children_of(parent):
        if b"zephon_mm-template" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found += children_of(pid)
    return found


def children_of(parent: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread or the process has just ended
            found += [int(pid) for pid in children.read_text().split()]
    return found


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
    kill_at: tuple[int, ...] = (),
) -> tuple[list[str], dict[str, Any]]:
    """Digests of the steps from ``state`` on, and the state at the end."""
    with Ranks(config, execution, dp_size, state) as ranks:
        found = []
        while stop_at is None or ranks.step < stop_at:
            if ranks.step in kill_at:
                os.kill(workers_of(os.getpid())[0], signal.SIGKILL)
            batches = ranks.next()
            if batches is None:
                break
            found.append(step_digest(batches, pixels=True))
        return found, ranks.state()


def test_three_workers_all_through_shared_memory_two_of_them_killed(
    clips: DataConfig, serial: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "SHARED_FROM_BYTES", 1)
    assert len(serial) > 8
    assert run(clips, processes(3, memory_budget=1 << 20), kill_at=(2, 5))[0] == serial
    assert workers_of(os.getpid()) == []


def test_resume_from_and_into_worker_processes_of_another_number(
    clips: DataConfig, serial: list[str]
) -> None:
    before, state = run(clips, processes(1), stop_at=3)
    state = json.loads(json.dumps(state))
    after, end = run(clips, processes(1), 2, state)
    assert before + after == serial
    assert end == run(clips, SERIAL, 1, state)[1]


def test_v01_z08_a_loader_that_is_iterated_on_both_sides_of_a_fork(
    clips: DataConfig, serial: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The child's own loop goes on from where the loader stood; the parent's is not disturbed."""
    with Loader(clips, processes(1)) as loader:
        stream = iter(loader)
        found = [step_digest([next(stream)], pixels=True) for _ in range(3)]
        child_id = os.fork()
        if child_id == 0:
            status = 1
            with contextlib.suppress(BaseException):
                signal.alarm(100)
                rest = [step_digest([batch], pixels=True) for batch in loader]
                loader.close()
                status = 0 if rest == serial[3:] and not workers_of(os.getpid()) else 2
            os._exit(status)
        found += [step_digest([batch], pixels=True) for batch in stream]
        assert os.waitstatus_to_exitcode(os.waitpid(child_id, 0)[1]) == 0, capfd.readouterr()
    assert found == serial


def test_pictures_in_worker_processes(mixed: DataConfig) -> None:
    kept = tuple(source for source in mixed.sources if source.id == "pictures")
    config = replace(mixed, sources=kept, stop=Stop(num_steps=2))
    assert run(config, processes(1))[0] == run(config, SERIAL)[0]


@pytest.mark.parametrize("decoder", ["pillow", "torchvision"])
def test_the_modules_that_workers_share_are_there(decoder: str) -> None:
    """The template says nothing of a module that it can't import."""
    materialise = Materialiser(cast(Any, None), cast(Any, None), image_decoder=decoder)
    for kind in ("image", "video"):
        task = MediaTask(cast(Any, None), cast(Any, SimpleNamespace(kind=kind)))
        names = materialise.modules_of(task)
        assert len(names) == 1 + (kind == "image" and decoder == "torchvision")
        assert all(importlib.import_module(name).__name__ == name for name in names)


def test_z01_kept_batches_hold_no_descriptor_and_reads_are_counted(clips: DataConfig) -> None:
    counts = []
    for execution in (SERIAL, processes(2, micro_batch=1)):
        with Loader(clips, execution) as loader:
            stream = iter(loader)
            kept = [next(stream)]
            before = len(os.listdir("/proc/self/fd"))
            kept += list(stream)
            after = len(os.listdir("/proc/self/fd"))
        counts.append((loader.read_counts.members, loader._run.materialise.counts.clips))
    assert len(kept) > 60 and after <= before
    assert counts[0][1] == counts[1][1] > 0
    assert counts[1][0] > 90


def test_a_sample_that_kills_its_workers_is_named_at_its_place(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    place = 30
    samples: list[dict[str, object]] = [{"txt": media.sentence(i, 20)} for i in range(60)]
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
    clean = replace(config, sources=(replace(config.sources[0], format="text"),))
    with Loader(config, processes(1)) as loader:
        found = []
        with pytest.raises(WorkerDiedError, match=r"died of it.*SIGKILL") as caught:
            for batch in loader:
                found.append(step_digest([batch], pixels=True))
    assert caught.value.key == f"texts{place:05d}" and caught.value.shard.endswith("texts-0.tar")
    with Loader(clean, SERIAL) as loader:
        for digest, batch in zip(found, loader, strict=False):
            assert step_digest([batch], pixels=True) == digest
