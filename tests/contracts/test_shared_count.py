"""C9 over a process group: ranks share the count of a finite run, and agree about its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from zephon_mm import DataConfig, ExecutionConfig, Loader, Source, Stop

from . import media

ROOT = Path(__file__).resolve().parents[2]
RANK = """
import json, sys
import torch.distributed as dist
from zephon_mm import DataConfig, ExecutionConfig, Loader

rank, size, data, cache = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", init_method="file://" + sys.argv[5], rank=rank, world_size=size)
execution = ExecutionConfig(workers=1, cache_dir=cache)
with Loader(DataConfig.from_dict(data), execution, dp_rank=rank, dp_size=size) as loader:
    found = {"len": len(loader), "read": loader.read_counts.members}
    batches = list(loader)
    found["steps"] = len(batches)
    found["targets"] = sum(loader.reduce_target_tokens(batch) for batch in batches)
    found["own"] = sum(batch.num_target_tokens for batch in batches)
print(json.dumps(found))
dist.destroy_process_group()
"""


def ranks(config: DataConfig, size: int, cache: list[Path], meet: Path) -> list[dict[str, int]]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    data = json.dumps(config.to_dict())
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(size), data, str(cache[rank]), str(meet)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    outputs = [process.communicate(timeout=110)[0] for process in running]
    assert [process.returncode for process in running] == [0] * size
    return [json.loads(output) for output in outputs]


def test_ranks_share_the_count_and_agree(tmp_path: Path, tokenizer_folder: Path) -> None:
    config = DataConfig(
        sources=(
            Source(id="t", urls=media.write(tmp_path, "t", media.texts(80), 2), format="text"),
        ),
        model="qwen3_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=256,
        global_batch=12,
        lanes=4,
        stop=Stop(epochs=1),
    )
    alone = ExecutionConfig(backend="serial", cache_dir=str(tmp_path / "alone"))
    with Loader(config, alone) as loader:
        length = len(loader)
        targets = sum(batch.num_target_tokens for batch in loader)
    with Loader(replace(config), alone) as loader:
        assert len(loader) == length and loader.read_counts.members == 0, "it is cached"
    # one rank finds the count in its cache and the other does not: both must count all the same
    caches = [tmp_path / "alone", tmp_path / "other"]
    found = ranks(config, 2, caches, tmp_path / "meet")
    assert [f["len"] for f in found] == [f["steps"] for f in found] == [length, length]
    assert all(0 < f["read"] < 80 for f in found), "each measured its share of the lanes"
    assert sum(f["own"] for f in found) == targets == found[0]["targets"] == found[1]["targets"]
