"""Logs of real runs: equal whatever ran them; what differs between two runs is found and named."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from typer.testing import CliRunner

import zephon_mm.stages.materialise
import zephon_mm.stages.measure
from zephon_mm import DataConfig, ExecutionConfig, Loader, Source, VideoSampling
from zephon_mm.cli.digest import Ranks
from zephon_mm.cli.main import app
from zephon_mm.config import Packing
from zephon_mm.digests import DigestLog, compare_logs, read_log
from zephon_mm.errors import StorageError

from . import media

STEPS = 4


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> DataConfig:
    """Texts, pictures and clips, 6 rows a step in 3 lanes."""
    folder = tmp_path_factory.mktemp("verify")
    return DataConfig(
        sources=(
            Source(
                id="texts", urls=media.write(folder, "texts", media.texts(40), 2), format="text"
            ),
            Source(
                id="pictures",
                urls=media.write(folder, "pictures", media.captioned(9), 1),
                format="image_text",
            ),
            Source(
                id="clips",
                urls=media.write(folder, "clips", media.clips(3), 1),
                format="video_text",
            ),
        ),
        model="qwen3_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=256,
        global_batch=6,
        lanes=3,
        seed=5,
        video=VideoSampling(fps=4.0, max_frames=8),
        packing=Packing(pool=16),
    )


def run(
    config: DataConfig,
    folder: Path,
    dp_size: int = 1,
    steps: int = STEPS,
    state: dict[str, Any] | None = None,
    **execution: Any,
) -> dict[str, Any]:
    """Make ``steps`` steps with a log in ``folder``; the state after them."""
    execution = {"backend": "serial", "digest_log": str(folder)} | execution
    with Ranks(config, ExecutionConfig(**execution), dp_size, state) as ranks:
        for _ in range(steps):
            ranks.next()
        return ranks.state()


@pytest.fixture(scope="module")
def serial(config: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of one rank in one thread."""
    folder = tmp_path_factory.mktemp("logs") / "serial"
    run(config, folder)
    return folder


def verify(a: Path, b: Path, *options: str) -> tuple[int, str]:
    """Exit status and output of the command."""
    result = CliRunner().invoke(app, ["verify", str(a), str(b), *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def named(a: Path, b: Path, *options: str) -> list[str]:
    """The causes that ``--json`` names for the first row that differs."""
    status, text = verify(a, b, "--json", *options)
    assert status == 1
    return [difference["cause"] for difference in json.loads(text)["first"]["differences"]]


@pytest.mark.parametrize("dp_size", [2, 3])
def test_ranks_and_threads_don_t_matter(
    config: DataConfig, serial: Path, tmp_path: Path, dp_size: int
) -> None:
    run(config, tmp_path / "log", dp_size, backend="threads", workers=dp_size, prefetch=3)
    assert len(list((tmp_path / "log").iterdir())) == dp_size
    status, text = verify(serial, tmp_path / "log")
    assert status == 0 and "equal: all 24 rows" in text


def test_micro_batches_don_t_matter(config: DataConfig, serial: Path, tmp_path: Path) -> None:
    execution = ExecutionConfig(backend="serial", micro_batch=4, digest_log=str(tmp_path / "log"))
    with Loader(config, execution) as loader:
        for batch in loader:
            if batch.step == 2 and batch.slots[-1] < 5:
                break  # in mid-step: the step is not in the log
    found = compare_logs(read_log(serial), read_log(tmp_path / "log"))
    assert found.equal and found.common == 12 and found.lacks["b"].steps == ((2, 3),)


class Full:
    """A log's file on a disk that is full for one write, of which it takes some bytes."""

    def __init__(self, file: IO[bytes], left: list[int]) -> None:
        self._file, self._left = file, left
        self.close = file.close

    def write(self, data: memoryview) -> int:
        if self._left and not (taken := self._left.pop(0)) < 0:
            self._file.write(data[:taken])
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(data)


@pytest.mark.parametrize("writes", [[40], [-1, -1, 700]])  # in the header, in a row
def test_a_step_that_could_not_be_logged_is_made_again(
    config: DataConfig,
    serial: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writes: list[int],
) -> None:
    log, steps = tmp_path / "log", []
    whole = DigestLog._open

    def opened(self: DigestLog) -> None:
        whole(self)
        self._file = Full(self._file, writes)  # type: ignore[assignment, arg-type]

    monkeypatch.setattr(DigestLog, "_open", opened)
    with Loader(config, ExecutionConfig(backend="serial", digest_log=str(log))) as loader:
        with pytest.raises(StorageError, match="free some room"):
            for batch in loader:
                steps.append(batch.step)
        for batch in loader:
            steps.append(batch.step)
            if batch.step == STEPS - 1:
                break
    assert steps == list(range(STEPS)) and not writes
    found = read_log(log)
    assert found.cut == 1
    found = compare_logs(read_log(serial), found)
    assert found.equal and found.common == 24


KILLED = """
import json, os, pickle, signal, sys
from zephon_mm import ExecutionConfig, Loader
config = pickle.load(open(sys.argv[1], "rb"))
execution = ExecutionConfig(backend="threads", workers=2, digest_log=sys.argv[2])
with Loader(config, execution) as loader:
    for batch in loader:
        if batch.step == 1:
            json.dump(loader.state_dict(), open(sys.argv[3], "w"))
        if batch.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_that_goes_on_is_equal(
    config: DataConfig, serial: Path, tmp_path: Path
) -> None:
    import pickle

    (tmp_path / "config").write_bytes(pickle.dumps(config))
    log, state = tmp_path / "log", tmp_path / "state.json"
    arguments = [str(tmp_path / "config"), str(log), str(state)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], env=environment, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL
    file = log / "0-of-1.jsonl"
    assert set(read_log(log).step.tolist()) == {0, 1, 2}  # the step handed out last is there
    file.write_bytes(file.read_bytes()[:-40])
    run(config, log, 3, steps=2, state=json.loads(state.read_text()))  # steps 2 and 3
    found = read_log(log)
    assert found.cut == 1 and len(found) == 12 + 5 + 12
    assert verify(serial, log)[0] == 0


def test_a_config_field_is_named(config: DataConfig, serial: Path, tmp_path: Path) -> None:
    run(replace(config, seed=6), tmp_path / "log", 2)
    status, text = verify(serial, tmp_path / "log")
    assert status == 1 and "config field: seed: 5 in A, 6 in B" in text
    assert text.index("config field") < text.index("document: number 0 of the row: ")
    assert "show CONFIG --step 0 --slot 0" in text


def test_the_document_drawn_is_named(config: DataConfig, serial: Path, tmp_path: Path) -> None:
    run(replace(config, seed=6), tmp_path / "log")
    assert named(serial, tmp_path / "log", "--ignore-config") == ["document"]


def test_the_token_is_named(
    config: DataConfig, serial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = zephon_mm.stages.measure.encode_documents

    def other(*args: Any) -> Any:
        for document in encode(*args):
            if len(document.tokens) > 200:
                tokens = document.tokens.copy()
                tokens[130] += 1
                document = document._replace(tokens=tokens)
            yield document

    monkeypatch.setattr(zephon_mm.stages.measure, "encode_documents", other)
    run(config, tmp_path / "log", 2)
    assert named(serial, tmp_path / "log") == ["token", "labels"]
    assert "which are 128 to 191 of document texts/" in verify(serial, tmp_path / "log")[1]


def test_the_frames_are_named(
    config: DataConfig, serial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = zephon_mm.stages.measure.sample_frames

    def other(*args: Any, **options: Any) -> Any:
        *frames, last = sample(*args, **options)
        return (*frames, last - 1)

    monkeypatch.setattr(zephon_mm.stages.measure, "sample_frames", other)
    run(config, tmp_path / "log", 3)
    causes = named(serial, tmp_path / "log")
    assert causes[0] == "frames" and "pixels" in causes and "document" not in causes
    assert "frames of video 0 of document clips/clips0" in verify(serial, tmp_path / "log")[1]


def test_the_pixels_are_named(
    config: DataConfig, serial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = zephon_mm.stages.materialise.Materialiser.one

    def other(self: Any, task: Any, into: Any = None) -> Any:
        result = decode(self, task, into)
        if task.span.kind == "video":
            np.bitwise_xor(result.patches[-1:, -1:], 1, out=result.patches[-1:, -1:])
        return result

    monkeypatch.setattr(zephon_mm.stages.materialise.Materialiser, "one", other)
    run(config, tmp_path / "log", 2)
    assert named(serial, tmp_path / "log") == ["pixels"]
    assert "pixels of video 0 of document clips/clips0" in verify(serial, tmp_path / "log")[1]


def test_logs_that_can_not_be_compared(config: DataConfig, serial: Path, tmp_path: Path) -> None:
    assert verify(serial, tmp_path / "none") == (
        2,
        f"DigestLogError: {tmp_path}/none: there is no such folder; name the digest_log of a run, "
        "or a file of it\n",
    )
    state = run(config, tmp_path / "log", steps=STEPS)
    run(config, tmp_path / "later", steps=1, state=state)
    status, text = verify(serial, tmp_path / "later")
    assert status == 2 and "no row is in both runs" in text
