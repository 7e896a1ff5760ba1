"""What a restore costs, however far the run has come: ``python benchmarks/bench_resume.py``.

A config of texts and pictures is packed up to each of ``--at``, and its state kept: by plan,
measure and sequencer, without decoding, which gives the loader's own state (at the first of
``--at`` that is compared with a run of the loader). Each state is then restored into a fresh
loader, in turns with a cold start of the same loader, so that both meet the same machine.

A JSON row a step: size of the state, seconds and CPU seconds from nothing to the first batch
(median, least and most of ``--repeat``), the ratio to the cold start, members read by both, and,
beside them, how many documents wait and the CPU seconds of measuring them all.

``--short`` takes short texts, small pictures, rows of 128 tokens, 2 lanes and a small vocabulary,
so that step 100,000 is some minutes away: ``--short --at 10 100 1000 10000 100000``.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import webdataset as wds
from bench_first_batch import WORDS, write_texts
from PIL import Image

from zephon_mm import DataConfig, ExecutionConfig, Loader, Source
from zephon_mm.backends import SerialBackend
from zephon_mm.demo.tokenizer import SPECIALS, build_tokenizer, trained_tokenizer
from zephon_mm.pipeline import open_run
from zephon_mm.pipeline.lane import BLOCK
from zephon_mm.state import LoaderState

SERIAL = ExecutionConfig(backend="serial")


def write_pictures(folder: Path, count: int, side: int = 224) -> str:
    """One shard of captioned square JPEGs of noise; its path."""
    with wds.TarWriter(str(folder / "pictures.tar"), mtime=0) as writer:
        for number in range(count):
            raw = np.random.Philox(key=number).random_raw(14 * 14 * 3).astype(np.uint8)
            image = Image.fromarray(raw.reshape(14, 14, 3)).resize((side, side))
            sample: dict[str, Any] = {"__key__": f"{number:06d}", "jpg": image}
            writer.write(sample | {"txt": f"Picture number {number} of blurred noise."})
    return str(folder / "pictures.tar")


def write_short_texts(folder: Path, count: int) -> str:
    """One shard of texts of 5 to 104 common words; its path."""
    with wds.TarWriter(str(folder / "texts.tar"), mtime=0) as writer:
        for number in range(count):
            raw = np.random.Philox(key=number).random_raw(5 + 37 * number % 100) % len(WORDS)
            text = " ".join(WORDS[int(word)] for word in raw)
            writer.write({"__key__": f"{number:06d}", "txt": text})
    return str(folder / "texts.tar")


def small_tokenizer(folder: Path) -> str:
    """A BPE trained on a few words, with Qwen's special tokens; its folder. Reads in no time."""
    folder.mkdir(parents=True, exist_ok=True)
    trained_tokenizer([" ".join(WORDS)]).save(str(folder / "tokenizer.json"))
    settings = {"eos_token": SPECIALS[0], "pad_token": SPECIALS[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


def make_config(folder: Path, short: bool) -> DataConfig:
    """The config, and its shards and tokeniser in ``folder``."""
    if short:
        tokenizer, side = small_tokenizer(folder / "tokenizer"), 64
        texts, rows, length = write_short_texts(folder, 2000), 2, 128
    else:
        build_tokenizer(folder / "tokenizer")
        tokenizer, side = str(folder / "tokenizer"), 224
        texts, rows, length = write_texts(folder, 4), 8, 2048
    pictures = write_pictures(folder, 400, side)
    return DataConfig(
        sources=(
            Source(id="texts", urls=texts, format="text", weight=0.7),
            Source(id="pictures", urls=pictures, format="image_text", weight=0.3),
        ),
        model="qwen3_vl",
        tokenizer=tokenizer,
        sequence_length=length,
        global_batch=rows,
        lanes=rows,
    )


def packed_states(config: DataConfig, at: Sequence[int]) -> dict[int, dict[str, Any]]:
    """The states before the steps of ``at``, and the first of them checked against a loader's."""
    run, backend = open_run(config, SERIAL), SerialBackend()
    lanes = [run.lane(number, backend) for number in range(config.lanes)]
    states = {}
    for step in range(max(at) + 1):
        if step in at:
            encoded = {lane.number: lane.snapshot().encode() for lane in lanes}
            states[step] = LoaderState(step, config.lanes, run.identity, encoded).to_dict()
        for lane in lanes:
            for _ in range(config.global_batch_at(step) // config.lanes):
                lane.next(step)
    with Loader(config, SERIAL) as loader:
        for batch in loader:
            if batch.step + 1 == min(at):
                if loader.state_dict() != states[min(at)]:
                    raise SystemExit("packing alone gave another state than the loader")
                break
    return states


def measure_live(config: DataConfig, state: dict[str, Any]) -> tuple[float, int]:
    """CPU seconds of measuring a state's live documents again, everything being warm; how many."""
    run = open_run(config, SERIAL)
    read = LoaderState.from_dict(state)
    refs = []
    for number in range(config.lanes):
        lane = read.lane(number)
        live = [*lane.live, *([lane.rest] if lane.rest else [])]
        draws = dict.fromkeys((piece.source, piece.position) for piece in live)
        refs.append([run.plan.ref(number, *draw) for draw in draws])
    run.measure([refs[0][0]])
    begin = time.process_time()
    for mine in refs:
        for at in range(0, len(mine), BLOCK):
            run.measure(mine[at : at + BLOCK])
    return time.process_time() - begin, sum(map(len, refs))


def to_first_batch(config: DataConfig, state: dict[str, Any] | None) -> dict[str, float]:
    """Seconds from nothing to the first batch, cold or from a state, in one thread."""
    wall, cpu = time.perf_counter(), time.process_time()
    with Loader(config, SERIAL) as loader:
        if state is not None:
            loader.load_state_dict(state)
        next(iter(loader))
        return {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "members_read": loader.read_counts.members,
        }


def bench(config: DataConfig, state: dict[str, Any], repeat: int) -> dict[str, Any]:
    """One row."""
    trials = []
    for _ in range(repeat):
        cold, warm = to_first_batch(config, None), to_first_batch(config, state)
        trials.append((cold, warm, measure_live(config, state)[0]))
    ratios = [warm["cpu_seconds"] / cold["cpu_seconds"] for cold, warm, _ in trials]
    seconds = [warm["seconds"] for _, warm, _ in trials]
    lane_bytes = [len(base64.b64decode(text)) for text in state["lanes"].values()]
    return {
        "step": state["step"],
        "lane_bytes": max(lane_bytes),
        "state_json_bytes": len(json.dumps(state)),
        "live_documents": measure_live(config, state)[1],
        "members_read": trials[0][1]["members_read"],
        "cold_members_read": trials[0][0]["members_read"],
        "seconds": statistics.median(seconds),
        "seconds_range": [min(seconds), max(seconds)],
        "cpu_seconds": statistics.median(warm["cpu_seconds"] for _, warm, _ in trials),
        "cold_seconds": statistics.median(cold["seconds"] for cold, _, _ in trials),
        "cold_cpu_seconds": statistics.median(cold["cpu_seconds"] for cold, _, _ in trials),
        "measure_live_cpu_seconds": statistics.median(measuring for _, _, measuring in trials),
        "cpu_ratio_to_cold": statistics.median(ratios),
        "cpu_ratio_range": [min(ratios), max(ratios)],
    }


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="short rows, to reach far steps")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        config = make_config(Path(name), options.short)
        begin = time.process_time()
        states = packed_states(config, options.at)
        print(json.dumps({"packing_cpu_seconds": time.process_time() - begin}), flush=True)
        to_first_batch(config, None)  # the lazily loaded libraries
        for state in states.values():
            row = bench(config, state, options.repeat)
            print(
                json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}),
                flush=True,
            )


if __name__ == "__main__":
    main()
