"""``examples/pretrain_vlm.py``: gradients don't depend on the number of ranks, and it resumes.

Ranks are processes on the loopback interface (gloo). Each runs this file as a script, and works for
1, 2 and then 3 ranks, so that libraries are imported once.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import webdataset
import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "pretrain_vlm.py"
WORLDS = (1, 2, 3)
STEPS = 3


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six rows a step in which pictures are rare: some ranks get none."""
    from tests.tiny import write_tokenizer

    folder = tmp_path_factory.mktemp("ddp")
    rng = np.random.default_rng(7)
    with webdataset.TarWriter(str(folder / "text.tar")) as writer:
        for index in range(60):
            words = " ".join(rng.choice(["two", "dogs", "play", "on", "the", "beach"], 20))
            writer.write({"__key__": f"{index:03d}", "txt": words})
    with webdataset.TarWriter(str(folder / "photos.tar")) as writer:
        for index in range(8):
            pixels = rng.integers(0, 256, (64, 96, 3), dtype=np.uint8)
            image = Image.fromarray(pixels)
            writer.write({"__key__": f"{index:03d}", "png": image, "txt": "a man rides a horse"})
    write_tokenizer(folder / "tokenizer")
    data = {
        "sources": [
            {"id": "text", "urls": str(folder / "text.tar"), "format": "text", "weight": 8},
            {"id": "photos", "urls": str(folder / "photos.tar"), "format": "image_text"},
        ],
        "model": "qwen3_vl",
        "tokenizer": str(folder / "tokenizer"),
        "sequence_length": 64,
        "global_batch": 6,
        "lanes": 3,
        "seed": 3,
        "image": {"min_pixels": 32 * 64, "max_pixels": 64 * 96},
        "execution": {"backend": "serial"},
    }
    path = folder / "vlm.yaml"
    path.write_text(yaml.safe_dump(data), "utf-8")
    return path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
    quiet = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    return {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_all(commands: Sequence[Sequence[str | Path]], timeout: float = 240) -> list[str]:
    """Run commands side by side; their outputs, or a failure with what they said."""
    processes = [
        subprocess.Popen(
            [str(part) for part in command],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        said = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, said, strict=True):
        assert process.returncode == 0, out + err
    return [out for out, _ in said]


def test_gradients_agree_at_1_2_and_3_ranks(config: Path, tmp_path: Path) -> None:
    run_all([(sys.executable, __file__, rank, config, tmp_path) for rank in ("0", "1", "2")])
    results = {world: torch.load(tmp_path / f"{world}.pt", weights_only=True) for world in WORLDS}
    pictures = results[3]["pictures"]  # steps × ranks
    assert any(0 in counts and sum(counts) for counts in pictures), "no rank was without a picture"
    for world in WORLDS[1:]:
        for one, other in zip(results[1]["steps"], results[world]["steps"], strict=True):
            assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)
            assert one["gradients"].keys() == other["gradients"].keys()
            for name, gradient in one["gradients"].items():
                difference = (gradient - other["gradients"][name]).abs().max().item()
                assert difference <= 1e-5, f"step gradients of {name} at {world} ranks"
    seen = [
        step["gradients"]["model.visual.patch_embed.proj.weight"] for step in results[1]["steps"]
    ]
    assert any(gradient.abs().max() > 1e-4 for gradient in seen)


def losses(output: str) -> dict[int, float]:
    lines = [line.split() for line in output.splitlines() if line.startswith("step ")]
    return {int(step): float(loss) for _, step, _, loss in lines}


def test_it_resumes_on_another_number_of_ranks(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def command(steps: int, folder: str) -> list[str]:
        flags = ("--steps", steps, "--checkpoint", tmp_path / folder, "--lr", "1e-3")
        return [str(part) for part in (EXAMPLE, config, *flags)]

    def alone(steps: int, folder: str) -> dict[int, float]:
        """One rank, in this process."""
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        with monkeypatch.context() as patch:
            for name, value in {**place, **rank}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", command(steps, folder))
            load_example().main()
        return losses(capsys.readouterr().out)

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    (said,) = run_all([[*torchrun, "--nproc-per-node", "2", *command(2, "stopped")]])
    first, rest, whole = losses(said), alone(4, "stopped"), alone(4, "whole")
    assert first.keys() == {0, 1} and rest.keys() == {2, 3}
    assert {**first, **rest} == pytest.approx(whole, abs=2e-4)


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("pretrain_vlm", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def work(rank: int, config: Path, folder: Path) -> None:
    """One rank of each world that it belongs to: a few steps, gradients of all parameters."""
    from torch.nn.parallel import DistributedDataParallel

    from zephon_mm import Loader
    from zephon_mm.config import load_yaml

    example = load_example()
    torch.set_num_threads(1)
    for world in WORLDS:
        if rank >= world:
            continue
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous{world}", rank=rank, world_size=world
        )
        with Loader(*load_yaml(config), dp_rank=rank, dp_size=world) as loader:
            plain = example.build_model("tiny", loader)
            model = DistributedDataParallel(plain, find_unused_parameters=True)
            steps, pictures = [], []
            for batch in loader:
                counts: list[int] = [0] * world
                dist.all_gather_object(counts, len(batch.image_grids))
                pictures.append(counts)
                loss = torch.tensor(example.backward(model, loader, batch))
                dist.all_reduce(loss)
                gradients = {
                    name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                    for name, p in plain.named_parameters()
                }
                steps.append({"loss": loss.item(), "gradients": gradients})
                plain.zero_grad()
                if len(steps) == STEPS:
                    break
        if rank == 0:
            torch.save({"steps": steps, "pictures": pictures}, folder / f"{world}.pt")
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    work(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
