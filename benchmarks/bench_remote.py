"""Remote shards against local ones: ``python benchmarks/bench_remote.py``.

A web server on loopback, in a process of its own, serves shards of captioned pictures and of clips,
each answer after ``--delay`` seconds. One loader reads them from the disk and one from the server,
in turns, cold (indices there, nothing of the shards). A JSON row a kind: of both loaders seconds
and CPU seconds a sample and (of the remote one) requests and bytes a member that was read, medians
of ``--repeat``, and the ratio of speeds. A sample here has two members. ``video_text`` are 10 s at
360p, 30 frames a second; ``small_clips`` 80 frames of 320 × 240, which take as long to ask for as
to decode. The server works on the same cores: what it takes is missing to the remote loader.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import webdataset as wds
from bench_resume import write_pictures
from bench_text import machine

from zephon_mm import DataConfig, ExecutionConfig, Loader, Source, VideoSampling
from zephon_mm.demo.tokenizer import build_tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.workloads import clips
from tests.contracts.media import clip
from tests.unit.shards.servers import serve

RESULTS = Path(__file__).with_name("results") / "remote.jsonl"


def write_small_clips(folder: Path, count: int) -> str:
    """One shard of captioned clips of 10 seconds, 320 × 240; its path."""
    return write_shard(folder / "small.tar", [clip(seed, 80, 320, 240) for seed in range(4)], count)


def write_clips(folder: Path, count: int) -> str:
    """One shard of captioned clips of 10 seconds at 360p; its path."""
    return write_shard(folder / "clips.tar", list(clips(4, (640, 360))), count)


def write_shard(path: Path, data: Sequence[bytes], count: int) -> str:
    """Samples with one of these clips each."""
    with wds.TarWriter(str(path), mtime=0) as writer:
        for number in range(count):
            sample = {"mp4": data[number % 4], "txt": f"Clip number {number} of a moving edge."}
            writer.write({"__key__": f"{number:06d}", **sample})
    return str(path)


def serve_until(folder: Path, delay: float, pipe: Any) -> None:
    """In a process: serve, and answer each message with requests and bytes so far."""
    with serve(folder) as web:
        web.delay = delay
        pipe.send(web.url)
        while pipe.recv():
            ranges = [at.removeprefix("bytes=").split("-") for at in web.of_shards() if at]
            pipe.send((len(web.requests), sum(int(b) - int(a) + 1 for a, b in ranges)))


def measure(config: DataConfig, execution: ExecutionConfig, steps: int) -> dict[str, float]:
    """Seconds and CPU seconds a sample of the steps after the first two."""
    with Loader(config, execution) as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        wall, cpu, samples = time.perf_counter(), time.process_time(), 0
        for _ in range(steps):
            samples += sum(len(row) for row in next(batches).documents)
        return {
            "seconds": (time.perf_counter() - wall) / samples,
            "cpu_seconds": (time.process_time() - cpu) / samples,
            "members": loader.read_counts.members,
        }


def compare(
    config: Callable[[str], DataConfig],
    here: str,
    there: str,
    options: argparse.Namespace,
    counts: Callable[[], tuple[int, int]],
    cache: Path,
) -> dict[str, Any]:
    """The row of one kind of shard."""
    pairs = []
    for number in range(options.repeat):
        local = measure(config(here), ExecutionConfig(workers=options.workers), options.steps)
        before = counts()
        remote = measure(
            config(there),
            ExecutionConfig(
                workers=options.workers,
                cache_dir=str(cache / str(number)) if options.cache_bytes else str(cache),
                storage_cache_bytes=options.cache_bytes,
            ),
            options.steps,
        )
        after = counts()
        remote |= {
            "requests": (after[0] - before[0]) / remote["members"],
            "bytes": (after[1] - before[1]) / remote["members"],
        }
        pairs.append((local, remote))
    row: dict[str, Any] = {"delay": options.delay, "workers": options.workers}
    for place, name in enumerate(("local", "remote")):
        for key in pairs[0][place]:
            if key != "members":
                unit = "sample" if "seconds" in key else "member"
                row[f"{name}_{key}_a_{unit}"] = statistics.median(p[place][key] for p in pairs)
    ratios = [local["seconds"] / remote["seconds"] for local, remote in pairs]
    return row | {"speed_of_local": statistics.median(ratios), "range": [min(ratios), max(ratios)]}


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--cache-bytes", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=["image_text", "small_clips", "video_text"])
    parser.add_argument("--save", action="store_true", help=f"add the rows to {RESULTS.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_tokenizer(folder / "tokenizer")
        pipe, other = multiprocessing.get_context("spawn").Pipe()
        server = multiprocessing.get_context("spawn").Process(
            target=serve_until, args=(folder, options.delay, other), daemon=True
        )
        server.start()
        url = pipe.recv()

        def counts() -> tuple[int, int]:
            pipe.send(True)
            found: tuple[int, int] = pipe.recv()
            return found

        write = {  # no sample comes twice
            "image_text": (write_pictures, 1200),
            "small_clips": (write_small_clips, 480),
            "video_text": (write_clips, 300),
        }
        formats = {"small_clips": "video_text"}
        for kind in options.kinds:
            path = write[kind][0](folder, write[kind][1])

            def config(urls: str, kind: str = kind) -> DataConfig:
                return DataConfig(
                    sources=(Source(id="s", urls=urls, format=formats.get(kind, kind)),),
                    model="qwen3_vl",
                    tokenizer=str(folder / "tokenizer"),
                    sequence_length=2048,
                    global_batch=4,
                    lanes=2,
                    video=VideoSampling(fps=1.0, max_frames=8),
                )

            there = f"{url}/{Path(path).name}"
            row = compare(config, path, there, options, counts, folder / "cache")
            line = json.dumps({"kind": kind, **row, **machine()})
            print(line, flush=True)
            if options.save:
                with RESULTS.open("a") as file:
                    file.write(line + "\n")
        pipe.send(False)
        server.join()


if __name__ == "__main__":
    main()
