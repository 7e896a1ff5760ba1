"""What a restore costs, however far the run has come: ``python benchmarks/bench_resume.py``.

A config of texts and pictures runs on; at each of ``--at`` its state is kept. Each state is then
restored into a fresh loader, in turns with a cold start of the same loader, so that both meet the
same machine. A JSON row a step: size of the state, seconds and CPU seconds from nothing to the
first batch (median, least and most of ``--repeat``), members read, and the ratio to the cold start.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import webdataset as wds
from bench_first_batch import write_texts
from PIL import Image

from zephon_mm import DataConfig, ExecutionConfig, Loader, Source
from zephon_mm.demo.tokenizer import build_tokenizer


def write_pictures(folder: Path, count: int) -> str:
    """One shard of captioned JPEGs of 224 × 224 noise; its path."""
    with wds.TarWriter(str(folder / "pictures.tar"), mtime=0) as writer:
        for number in range(count):
            raw = np.random.Philox(key=number).random_raw(14 * 14 * 3).astype(np.uint8)
            image = Image.fromarray(raw.reshape(14, 14, 3)).resize((224, 224))
            sample: dict[str, Any] = {"__key__": f"{number:06d}", "jpg": image}
            writer.write(sample | {"txt": f"Picture number {number} of blurred noise."})
    return str(folder / "pictures.tar")


def to_first_batch(config: DataConfig, state: dict[str, Any] | None) -> dict[str, float]:
    """Seconds from nothing to the first batch, cold or from a state, in one thread."""
    wall, cpu = time.perf_counter(), time.process_time()
    with Loader(config, ExecutionConfig(backend="serial")) as loader:
        if state is not None:
            loader.load_state_dict(state)
        restored = loader.read_counts.members
        next(iter(loader))
        return {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "members_read_to_restore": restored,
        }


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_tokenizer(folder / "tokenizer")
        config = DataConfig(
            sources=(
                Source(id="texts", urls=write_texts(folder, 4), format="text", weight=0.7),
                Source(
                    id="pictures",
                    urls=write_pictures(folder, 400),
                    format="image_text",
                    weight=0.3,
                ),
            ),
            model="qwen3_vl",
            tokenizer=str(folder / "tokenizer"),
            sequence_length=2048,
            global_batch=8,
            lanes=8,
        )
        states = {}
        with Loader(config) as loader:
            for batch in loader:
                if batch.step + 1 in options.at:
                    states[batch.step + 1] = loader.state_dict()
                if batch.step + 1 == max(options.at):
                    break
        for step, state in states.items():
            pairs = [
                (to_first_batch(config, None), to_first_batch(config, state))
                for _ in range(options.repeat)
            ]
            ratios = [warm["cpu_seconds"] / cold["cpu_seconds"] for cold, warm in pairs]
            seconds = [warm["seconds"] for _, warm in pairs]
            lane_bytes = [len(text) * 3 // 4 for text in state["lanes"].values()]
            row = {
                "step": step,
                "lane_bytes": max(lane_bytes),
                "state_json_bytes": len(json.dumps(state)),
                "members_read_to_restore": pairs[0][1]["members_read_to_restore"],
                "seconds": statistics.median(seconds),
                "seconds_range": [min(seconds), max(seconds)],
                "cold_seconds": statistics.median(cold["seconds"] for cold, _ in pairs),
                "cpu_ratio_to_cold": statistics.median(ratios),
                "cpu_ratio_range": [min(ratios), max(ratios)],
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
