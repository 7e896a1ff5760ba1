"""C1 with worker processes: the batches of the serial run, byte for byte with pixels, whatever
dies. Texts and clips, which need no torch in a worker; pictures once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zephon_mm import DataConfig, ExecutionConfig, Loader, collate
from zephon_mm.backends import ProcessesBackend, child, targets
from zephon_mm.cli.digest import step_digest
from zephon_mm.errors import WorkerDiedError
from zephon_mm.pipeline.run import open_run
from zephon_mm.stages.materialise import Materialiser, MediaTask

from . import formats_of_tests
from .workers import SERIAL, before_the_poison, poisoned, run, until_an_error


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


@pytest.mark.parametrize("files", [0, 1, targets.MOST_FILES])
def test_three_workers_all_through_shared_memory_two_of_them_killed(
    clips: DataConfig, serial_clips: list[str], monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """``files``: without a descriptor of the batch's rows, workers make arrays of their own."""
    monkeypatch.setattr(child, "SHARED_FROM_BYTES", 1)
    monkeypatch.setattr(targets, "MOST_FILES", files)
    assert len(serial_clips) > 8

    def kill() -> None:
        os.kill(workers_of(os.getpid())[0], signal.SIGKILL)

    before = {2: kill, 5: kill}
    assert run(clips, processes(3, memory_budget=1 << 20), before=before)[0] == serial_clips
    assert workers_of(os.getpid()) == []


def test_resume_from_and_into_worker_processes_of_another_number(
    clips: DataConfig, serial_run: tuple[list[str], dict[str, Any]]
) -> None:
    before, state = run(clips, processes(1), stop_at=3)
    state = json.loads(json.dumps(state))
    after, end = run(clips, processes(1), 2, state)
    assert (before + after, end) == serial_run


def test_v01_z08_a_loader_that_is_iterated_on_both_sides_of_a_fork(
    clips: DataConfig, serial_clips: list[str], capfd: pytest.CaptureFixture[str]
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
                status = 0 if rest == serial_clips[3:] and not workers_of(os.getpid()) else 2
            os._exit(status)
        found += [step_digest([batch], pixels=True) for batch in stream]
        assert os.waitstatus_to_exitcode(os.waitpid(child_id, 0)[1]) == 0, capfd.readouterr()
    assert found == serial_clips


def test_pictures_in_worker_processes(pictures: DataConfig) -> None:
    assert run(pictures, processes(1)) == run(pictures, SERIAL)


def test_the_tokenizer_is_read_once_for_all_workers_and_nothing_is_loaded_in_vain(
    clips: DataConfig,
) -> None:
    opened = open_run(clips, processes(1))
    assert opened.family.tokenizer is opened.tokenizer
    looks = formats_of_tests.Looks(opened.tokenizer)
    backend = ProcessesBackend(1)
    try:
        assert backend.submit(looks, ()).result() == (False, set())
        assert backend.submit(opened.measure, []).result() == []
        assert backend.submit(looks, ()).result() == (True, {"tokenizers"})
        ready = "zephon_mm.media.ready_for_clips"  # see the test below
        assert backend.submit(looks, (ready,)).result() == (True, {"tokenizers", "numba", "av"})
    finally:
        backend.close()


@pytest.mark.parametrize("decoder", ["pillow", "torchvision"])
def test_the_modules_that_workers_share_are_there(decoder: str) -> None:
    """The template says nothing of a module that it can't import."""
    for kind, probe in (("image", b" i"), ("video", b" v"), ("video", b" i")):  # an animation
        member = SimpleNamespace(probe=probe)
        reader = cast(Any, SimpleNamespace(member=lambda *_, found=member: found))
        ref, span = SimpleNamespace(source=0, shard=0), SimpleNamespace(kind=kind, member=0)
        materialise = Materialiser(reader, cast(Any, None), image_decoder=decoder)
        names = materialise.modules_of([MediaTask(cast(Any, ref), cast(Any, span))])
        other = kind == "image" and decoder == "torchvision"
        assert len(names) == 1 + other + (kind == "video" and probe == b" i")
        if other:  # what it takes to import it, its own tests say
            assert importlib.util.find_spec(names[-1])
        for name in names[: len(names) - other]:
            assert importlib.import_module(name).__name__ == name


def test_z01_kept_batches_hold_few_descriptors_and_reads_are_counted(clips: DataConfig) -> None:
    counts = []
    for execution in (SERIAL, processes(2, micro_batch=1)):
        with Loader(clips, execution) as loader:
            stream = iter(loader)
            kept = [next(stream)]
            before = len(os.listdir("/proc/self/fd"))
            kept += list(stream)
            after = len(os.listdir("/proc/self/fd"))
        counts.append((loader.read_counts.members, loader._run.materialise.counts.clips))
    assert len(kept) > 60 and after <= before + targets.MOST_FILES
    assert counts[0][1] == counts[1][1] > 0
    assert counts[1][0] > 90


def test_workers_write_into_the_rows_of_the_batch(
    clips: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def adjacent(patches: Any) -> Any:
        found.append(patches_of_one(patches) is not None)
        return patches_of_one(patches)

    patches_of_one = collate.adjacent
    monkeypatch.setattr(collate, "adjacent", adjacent)
    with Loader(clips, processes(2)) as loader:
        assert sum(1 for _ in loader) > 4
    assert len(found) > 4 and all(found), "they lie together, so that nothing is copied"


def test_a_sample_that_kills_its_workers_is_named_at_its_place(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    place = 30
    config = poisoned(tmp_path, tokenizer_folder, 60, place)
    found, error = until_an_error(config, processes(1))
    assert isinstance(error, WorkerDiedError) and re.search("died of it.*SIGKILL", str(error))
    assert error.key == f"texts{place:05d}" and error.shard.endswith("texts-0.tar")
    assert found == before_the_poison(config) != []
