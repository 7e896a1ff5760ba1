"""Time to the first batch of a cold run: ``python benchmarks/bench_first_batch.py``.

A text-only config of 64 lanes on one rank, one sequence of 8,192 tokens a lane, over documents
whose lengths are the text part of ``data/mixed_lengths.json``. Shards are written and indexed
beforehand; the clock starts before the loader is made (tokeniser, manifests, plan) and stops at the
first batch.
Beside it, in the same run, the limit: the bare tokeniser over as many texts as were measured, in
one thread. A JSON row a repetition, and one with the medians.
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

from zephon_mm import DataConfig, ExecutionConfig, Loader, Source
from zephon_mm.demo.tokenizer import build_tokenizer

LENGTHS = Path(__file__).with_name("data") / "mixed_lengths.json"
WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from "
    "or had an they which one you were all her she there would their we him been has when who will"
).split()


def write_texts(folder: Path, shards: int) -> str:
    """Shards of texts of common words, about one token a word; the brace expression."""
    rows = [parts for kind, parts in json.loads(LENGTHS.read_text()) if kind == "text"]
    writers = [wds.TarWriter(str(folder / f"text-{i}.tar"), mtime=0) for i in range(shards)]
    for number, ((_, length),) in enumerate(rows):
        raw = np.random.Philox(key=number).random_raw(int(length)) % len(WORDS)
        text = " ".join(WORDS[int(w)] for w in raw)
        writers[number % shards].write({"__key__": f"{number:06d}", "txt": text})
    for writer in writers:
        writer.close()
    return str(folder / f"text-{{0..{shards - 1}}}.tar")


def first_batch(config: DataConfig, execution: ExecutionConfig) -> dict[str, Any]:
    """Wall and CPU seconds from nothing to the first batch."""
    wall, cpu = time.perf_counter(), time.process_time()
    with Loader(config, execution) as loader:
        opened = time.perf_counter() - wall
        batch = next(iter(loader))
        row = {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "open_seconds": opened,
            "rows": len(batch),
            "tokens": batch.num_tokens,
            "members_read": loader.read_counts.members,
        }
    return row


def bare_tokenizer(config: DataConfig, count: int) -> dict[str, float]:
    """Seconds the tokeniser alone takes over ``count`` of the texts."""
    from zephon_mm.models import load_tokenizer

    tokenizer = load_tokenizer(config.tokenizer)
    urls = config.sources[0].urls
    texts = []
    for sample in wds.WebDataset(str(urls), shardshuffle=False):
        texts.append(sample["txt"].decode())
        if len(texts) == count:
            break
    start, cpu = time.perf_counter(), time.process_time()
    for text in texts:
        tokenizer.encode(text, special=False)
    return {
        "tokenizer_seconds": time.perf_counter() - start,
        "tokenizer_cpu_seconds": time.process_time() - cpu,
    }


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokenizer", help="folder; None: Qwen's vocabulary of 151,657 tokens")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.tokenizer is None:
            build_tokenizer(folder / "tokenizer")
        config = DataConfig(
            sources=(Source(id="text", urls=write_texts(folder, 8), format="text"),),
            model="qwen3_vl",
            tokenizer=options.tokenizer or str(folder / "tokenizer"),
            sequence_length=8192,
            global_batch=options.lanes,
            lanes=options.lanes,
        )
        execution = ExecutionConfig(workers=options.workers)
        Loader(config, execution).close()  # index
        rows = []
        for _ in range(options.repeat):
            row = first_batch(config, execution)
            row |= bare_tokenizer(config, row["members_read"])
            row["ratio"] = row["cpu_seconds"] / row["tokenizer_cpu_seconds"]
            rows.append(row)
            print(json.dumps({k: round(v, 4) for k, v in row.items()}), flush=True)
    median = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    row = {"median of": len(rows), "lanes": options.lanes, "workers": options.workers, **median}
    print(json.dumps({k: round(v, 4) for k, v in row.items()}))


if __name__ == "__main__":
    main()
