"""``benchmarks/gpu_check.py`` without a GPU: its report, its kernel checks, its comparison."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_check.py"
CLIP = "hevc_10bit.mp4"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_every_part_says_so(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path / "report.json")])
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert script.main() == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report.pop("versions")["torch"] == torch.__version__.split("+")[0]
    assert len(report) == 8 and all(part == {"not_run": "no GPU"} for part in report.values())


def test_kernels_are_checked_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    command = [sys.executable, str(SCRIPT), "--interpret", "--out", str(tmp_path / "report.json")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["kernels"]["ok"] and report["kernels"]["cases"] == 4
    assert report["nvdec_speed"] == {"not_run": "no GPU"}


def by_pyav(path: Path) -> Iterator[list[Any]]:
    import av

    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            planes = []
            for plane in frame.planes:
                rows = np.frombuffer(plane, np.uint16).reshape(plane.height, -1)
                planes.append(rows[:, : plane.width])
            yield planes


def test_planes_are_compared_with_their_digests(script: Any) -> None:
    right = script.compare_planes(by_pyav, only=[CLIP])
    assert right["ok"] and right["clips"][CLIP]["frames"] == 48

    def at_the_top(path: Path) -> Iterator[list[Any]]:
        return ([plane << 6 for plane in planes] for planes in by_pyav(path))

    shifted = script.compare_planes(at_the_top, only=[CLIP])
    assert shifted["ok"] and shifted["clips"][CLIP]["samples_at_the_top_of_16_bits"]

    def one_sample_off(path: Path) -> Iterator[list[Any]]:
        for number, planes in enumerate(by_pyav(path)):
            if number == 7:
                planes[1] = planes[1] ^ 1
            yield planes

    wrong = script.compare_planes(one_sample_off, only=[CLIP])
    assert not wrong["ok"] and wrong["clips"][CLIP]["first_wrong"] == 7
    short = script.compare_planes(lambda path: list(by_pyav(path))[:-1], only=[CLIP])
    assert not short["ok"]

    def broken(path: Path) -> Iterator[list[Any]]:
        raise RuntimeError("no decoder")

    assert "no decoder" in script.compare_planes(broken, only=[CLIP])["clips"][CLIP]["error"]


def test_a_missing_library_is_a_reason_not_a_failure(script: Any) -> None:
    def part(device: str) -> Any:
        return script.library("no_such_library_anywhere")

    result = script.guarded(part, "cuda")
    assert result["not_run"] == "no_such_library_anywhere is not installed"

    def fails(device: str) -> Any:
        raise ValueError("wrong")

    assert script.guarded(fails, "cuda")["error"] == "ValueError: wrong"


def test_carried_clips_are_small_and_all_listed(script: Any) -> None:
    files = {path.name: path.stat().st_size for path in script.CLIPS.iterdir()}
    known = json.loads((script.CLIPS / "planes.json").read_text())
    assert {*known, "planes.json"} == set(files) and sum(files.values()) < 20e6


def test_the_loaders_part_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    gpu_loader = importlib.import_module("gpu_loader")
    clips = tmp_path / "clips"
    clips.mkdir()
    (clips / CLIP).symlink_to(SCRIPT.parent / "data" / "gpu_clips" / CLIP)
    report = gpu_loader.check("cpu", clips, tmp_path, steps=2)
    assert report["ok"] and report["equal"] and len(set(report["digests"])) == 2
    assert report["cpu"]["clips"] >= 2 and report["device"]["rerouted"] == 0
    true_run = gpu_loader.run

    def another(data: Any, device: str, steps: int) -> Any:  # the second run differs
        digests, facts = true_run(data, device, steps)
        monkeypatch.setattr(gpu_loader, "run", lambda *_: ([*digests[:-1], "other"], facts))
        return digests, facts

    monkeypatch.setattr(gpu_loader, "run", another)
    other = tmp_path / "other"
    other.mkdir()
    wrong = gpu_loader.check("cpu", clips, other, steps=2)
    assert not wrong["equal"] and not wrong["ok"]
