"""What worker processes cost beside threads: ``python benchmarks/bench_backends.py``.

Clips (H.264, 640 × 360, 2 s) and pictures are packed and decoded by one loader, in a fresh process
a run, the backends in turns, so that all meet the same machine. A JSON row a run, then one a
backend with the medians and ranges over ``--repeat``:

- ``start_cpu_seconds``: CPU of the whole tree up to and with the first batch, imports included;
- ``cpu_seconds``: CPU of the whole tree for the steps after it, dead processes included;
- ``cpu_ratio_to_threads``: of the same round;
- ``peak_rss_bytes``, ``peak_pss_bytes``: of the tree, sampled every 200 ms: the sum of the resident
  sets, and the same with pages that processes share counted once.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import webdataset as wds
from compare.protocol import cpu_seconds, memory
from PIL import Image

from zephon_mm import DataConfig, ExecutionConfig, Loader, Source, VideoSampling
from zephon_mm.demo.tokenizer import build_tokenizer


def clip(seed: int) -> bytes:
    """2 s of moving gradients and noise, 25 frames a second."""
    random = np.random.Generator(np.random.Philox(key=seed))
    noise = random.integers(0, 32, (360, 640, 3), np.uint8)
    across = np.arange(640)[None, :, None]
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(25))
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        stream.options = {"preset": "veryfast", "crf": "26", "g": "50", "threads": "1"}
        for number in range(50):
            pixels = ((across + 3 * number) % 200 + np.roll(noise, number, 1)).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return out.getvalue()


def picture(seed: int) -> Image.Image:
    """640 × 480 of blurred noise."""
    raw = np.random.Philox(key=seed).random_raw(40 * 30 * 3).astype(np.uint8)
    return Image.fromarray(raw.reshape(30, 40, 3)).resize((640, 480))


def write_data(folder: Path) -> None:
    """The shards and the tokenizer."""
    build_tokenizer(folder / "tokenizer")
    with wds.TarWriter(str(folder / "clips.tar"), mtime=0) as writer:
        for number in range(8):
            writer.write({"__key__": f"{number:04d}", "mp4": clip(number), "txt": "a clip."})
    with wds.TarWriter(str(folder / "pictures.tar"), mtime=0) as writer:
        for number in range(40):
            writer.write({"__key__": f"{number:04d}", "jpg": picture(number), "txt": "a picture."})


def config_of(folder: Path) -> DataConfig:
    """The config of the run over what ``write_data`` wrote."""
    return DataConfig(
        sources=(
            Source(id="clips", urls=str(folder / "clips.tar"), format="video_text", weight=0.5),
            Source(id="pictures", urls=str(folder / "pictures.tar"), format="image_text"),
        ),
        model="qwen3_vl",
        tokenizer=str(folder / "tokenizer"),
        sequence_length=2048,
        global_batch=2,
        lanes=2,
        video=VideoSampling(fps=4.0, max_frames=16),
    )


def one(folder: Path, execution: ExecutionConfig, steps: int) -> None:
    """In a process of its own: make the batches; a line after the first, and one after the last."""
    with Loader(config_of(folder), execution) as loader:
        for batch in loader:
            if batch.step in (0, steps - 1):
                print(json.dumps({"cpu": cpu_seconds(os.getpid())}), flush=True)
                if batch.step == steps - 1:
                    sys.stdin.readline()  # until the peak was noted
                    return


def measured(folder: Path, backend: str, options: argparse.Namespace) -> dict[str, float]:
    """One run, watched from outside."""
    command = [sys.executable, __file__, "--one", backend, "--folder", str(folder)]
    for name in ("workers", "steps", "memory_budget"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    peaks = [0, 0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            peaks[:] = map(max, peaks, memory(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        first = json.loads(process.stdout.readline())["cpu"]
        first_seconds = time.perf_counter() - begin
        last = json.loads(process.stdout.readline())["cpu"]
        seconds = time.perf_counter() - begin - first_seconds
    finally:
        done.set()
        watcher.join()
        process.stdin.close()
        process.wait()
        process.stdout.close()
    return {
        "start_seconds": first_seconds,
        "start_cpu_seconds": first,
        "seconds": seconds,
        "cpu_seconds": last - first,
        "peak_rss_bytes": peaks[0],
        "peak_pss_bytes": peaks[1],
    }


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--memory-budget", type=int, default=256 << 20)
    parser.add_argument("--backends", nargs="+", default=["serial", "threads", "processes"])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        execution = ExecutionConfig(
            backend=options.one, workers=options.workers, memory_budget=options.memory_budget
        )
        one(options.folder, execution, options.steps)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        Loader(config_of(folder), ExecutionConfig(backend="serial")).close()  # index
        rounds: list[dict[str, dict[str, float]]] = []
        for number in range(options.repeat):
            rounds.append({})
            for backend in options.backends:
                rounds[-1][backend] = measured(folder, backend, options)
                one_row = {"round": number, "backend": backend, **rounds[-1][backend]}
                print(json.dumps(one_row), flush=True)
    for backend in options.backends:
        row: dict[str, Any] = {
            "medians of": backend,
            "workers": options.workers,
            "steps": options.steps - 1,
            "memory_budget": options.memory_budget,
            "repeat": options.repeat,
        }
        for field in rounds[0][backend]:
            values = [one_round[backend][field] for one_round in rounds]
            row[field] = round(statistics.median(values), 3)
            row[f"{field}_range"] = [round(min(values), 3), round(max(values), 3)]
        if "threads" in options.backends:
            ratios = [r[backend]["cpu_seconds"] / r["threads"]["cpu_seconds"] for r in rounds]
            row["cpu_ratio_to_threads"] = round(statistics.median(ratios), 3)
            row["cpu_ratio_range"] = [round(min(ratios), 3), round(max(ratios), 3)]
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
