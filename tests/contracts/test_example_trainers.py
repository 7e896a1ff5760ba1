"""``examples/train_hf.py`` and ``train_lightning.py``: killed and resumed, and on two ranks.

One rank runs in this process. Two ranks are forked from a process that has only imported.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import webdataset
import yaml
from PIL import Image

from tests.tiny import write_tokenizer
from zephon_mm import Loader

from .test_example_ddp import ROOT, environment, free_port

pytestmark = pytest.mark.filterwarnings("ignore")  # the trainers' own
NAMES = ("train_hf", "train_lightning")
STEPS = 5


class Killed(BaseException):
    """What a kill is to a test in this process: nothing catches it."""


def load(name: str) -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def losses(name: str, arguments: list[str]) -> dict[int, float]:
    """Run an example; the loss of each step that it trained, as its trainer reports them."""
    example = load(name)
    found: dict[int, float] = {}
    sys.argv = [name, *arguments, "--save-every", "2", "--lr", "1e-3"]
    if name == "train_hf":

        class Spy(example.SaveLoader):  # type: ignore[misc, name-defined]
            def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
                if "loss" in logs:
                    found[state.global_step - 1] = logs["loss"]

        example.SaveLoader = Spy
    else:

        class Module(example.VisionLanguageModule):  # type: ignore[misc, name-defined]
            def on_train_batch_end(self, *_: Any) -> None:
                found[self.global_step - 1] = float(self.trainer.logged_metrics["loss"])

        example.VisionLanguageModule = Module
    try:
        example.main()
    except Killed:
        pass
    return found


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six rows a step without an end, in micro-batches for one of the trainers."""
    folder = tmp_path_factory.mktemp("trainers")
    rng = np.random.default_rng(7)
    words = ["two", "dogs", "play", "on", "the", "beach"]
    with webdataset.TarWriter(str(folder / "text.tar")) as writer:
        for index in range(60):
            text = " ".join(rng.choice(words, int(rng.integers(2, 40))))
            writer.write({"__key__": f"{index:03d}", "txt": text})
    with webdataset.TarWriter(str(folder / "photos.tar")) as writer:
        for index in range(8):
            image = Image.fromarray(rng.integers(0, 256, (64, 96, 3), dtype=np.uint8))
            writer.write({"__key__": f"{index:03d}", "png": image, "txt": "a man rides a horse"})
    data = {
        "sources": [
            {"id": "text", "urls": str(folder / "text.tar"), "format": "text", "weight": 8},
            {"id": "photos", "urls": str(folder / "photos.tar"), "format": "image_text"},
        ],
        "model": "qwen3_vl",
        "tokenizer": str(write_tokenizer(folder / "tokenizer")),
        "sequence_length": 64,
        "global_batch": 6,
        "lanes": 3,
        "seed": 3,
        "image": {"min_pixels": 32 * 64, "max_pixels": 64 * 96},
    }
    for name, micro_batch in (("train_hf", 3), ("train_lightning", None)):
        execution = {"workers": 1, "prefetch": 3, "micro_batch": micro_batch}
        text = yaml.safe_dump({**data, "execution": execution})
        (folder / f"{name}.yaml").write_text(text, "utf-8")
    return folder


def arguments(name: str, config: Path, output: Path, steps: int, ranks: int = 1) -> list[str]:
    found = [str(config / f"{name}.yaml"), "--output", str(output), "--steps", str(steps)]
    return [*found, "--accumulate", str(2 // ranks)] if name == "train_hf" else found


def killed(name: str, flags: list[str]) -> dict[int, float]:
    """Run an example until step 3, after the checkpoint of two steps; losses until then."""
    true_sum = Loader.reduce_target_tokens
    steps: list[int] = []

    def killing(self: Loader, batch: Any, *rest: Any) -> int:
        steps.append(len(steps))
        if len(steps) == 4:
            raise Killed
        return true_sum(self, batch, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loader, "reduce_target_tokens", killing)
        return losses(name, flags)


@dataclass(frozen=True)
class Runs:
    """The losses of a run that was never stopped, of a killed one, and where that was."""

    whole: dict[int, float]
    first: dict[int, float]
    folder: Path


@pytest.fixture(scope="module")
def runs(config: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runs]:
    """Both examples on one rank."""
    found = {}
    for name in NAMES:
        folder = tmp_path_factory.mktemp(name)
        whole = losses(name, arguments(name, config, folder / "whole", STEPS))
        first = killed(name, arguments(name, config, folder / "killed", STEPS))
        found[name] = Runs(whole, first, folder / "killed")
        assert list(whole) == [*range(STEPS)] and list(first) == [0, 1, 2]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_killed_and_resumed_gives_the_same_losses(
    name: str, runs: dict[str, Runs], config: Path, tmp_path: Path
) -> None:
    run = runs[name]
    shutil.copytree(run.folder, tmp_path / "resumed")
    if name == "train_hf":  # a newer checkpoint that was not finished is passed over
        (tmp_path / "resumed" / "checkpoint-3").mkdir()
    rest = losses(name, arguments(name, config, tmp_path / "resumed", STEPS))
    assert list(rest) == [2, 3, 4]
    assert run.first | rest == run.whole == rest | run.first


def test_two_ranks_go_on_from_one_with_the_same_losses(
    runs: dict[str, Runs], config: Path, tmp_path: Path
) -> None:
    jobs = {}
    for name in NAMES:
        shutil.copytree(runs[name].folder, tmp_path / name)
        jobs[name] = arguments(name, config, tmp_path / name, STEPS, ranks=2)
    command = [sys.executable, "-m", "tests.contracts.test_example_trainers"]
    done = subprocess.run(
        [*command, str(tmp_path), json.dumps(jobs)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name, run in runs.items():
        data = json.loads((tmp_path / f"{name}0.json").read_text())
        assert {int(step): loss for step, loss in data.items()} == pytest.approx(
            {step: run.whole[step] for step in (2, 3, 4)}, abs=2e-5
        )


def main(folder: Path, jobs: dict[str, list[str]]) -> int:
    """Run each example on two ranks, forked so that the libraries are imported once."""
    codes = [0]
    for name, flags in jobs.items():
        load(name)
        port, children = free_port(), []
        for rank in range(2):
            child = os.fork()
            if child == 0:
                os._exit(as_rank(rank, port, folder / f"{name}{rank}.json", name, flags))
            children.append(child)
        codes += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return max(codes)


def as_rank(rank: int, port: int, found: Path, name: str, flags: list[str]) -> int:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": 0}  # type: ignore[dict-item]
    os.environ |= {key: str(value) for key, value in place.items()} | {"TORCHELASTIC_RUN_ID": "t"}
    try:
        found.write_text(json.dumps(losses(name, flags)))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
