"""What the number of lanes and ranks costs: ``python benchmarks/bench_scale.py``.

Texts and captioned pictures, short rows, one thread. A JSON row each:

- *start*: nothing to first batch, for the only rank of one lane and for rank 0 of ``--ranks`` with
  as many lanes, in turns so that both meet the same machine; wall and CPU seconds, and the ratio;
- *one rank*: ``--ranks`` lanes on one rank: start, first batch, second batch, memory;
- *all ranks*: each of ``--ranks`` ranks started in turn, to its first batch, and whether the rows
  together are those of the one rank;
- *state*: ``state_dict()`` of 64 lanes and of ``--ranks`` lanes: milliseconds after a step, and of
  the first call after each of 50 steps; bytes.
"""

from __future__ import annotations

import argparse
import base64
import json
import resource
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_resume import make_config

from zephon_mm import DataConfig, ExecutionConfig, Loader
from zephon_mm.state import LoaderState, to_fixed

SERIAL = ExecutionConfig(backend="serial")


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": round(statistics.median(values), 5),
        "least": round(min(values), 5),
        "most": round(max(values), 5),
    }


def first_batch(config: DataConfig, rank: int, size: int) -> tuple[float, float, list[bytes]]:
    """Wall and CPU seconds of a rank from nothing to its first batch, and the rows' digests."""
    wall, cpu = time.perf_counter(), time.process_time()
    with Loader(config, SERIAL, dp_rank=rank, dp_size=size) as loader:
        batch = next(iter(loader))
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    return *seconds, batch.row_digests(pixels=True)


def bench_start(one: DataConfig, many: DataConfig, repeat: int) -> dict[str, Any]:
    """Rank 0 of many against the only rank of one lane."""
    pairs = []
    for _ in range(repeat):
        pairs.append((first_batch(one, 0, 1)[:2], first_batch(many, 0, many.lanes)[:2]))
    return {
        "case": "start",
        "ranks": many.lanes,
        "one_of_one_seconds": spread([a[0] for a, _ in pairs]),
        "first_of_many_seconds": spread([b[0] for _, b in pairs]),
        "ratio": spread([b[0] / a[0] for a, b in pairs]),
        "cpu_ratio": spread([b[1] / a[1] for a, b in pairs]),
    }


def bench_one_rank(many: DataConfig) -> tuple[dict[str, Any], list[bytes]]:
    """All lanes on one rank."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = [time.perf_counter()]
    with Loader(many, SERIAL) as loader:
        times.append(time.perf_counter())
        iterator = iter(loader)
        first = next(iterator)
        times.append(time.perf_counter())
        next(iterator)
        times.append(time.perf_counter())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    names = ("open_seconds", "first_batch_seconds", "second_batch_seconds")
    row = {"case": "one rank", "lanes": many.lanes} | {
        name: round(b - a, 4) for name, a, b in zip(names, times, times[1:], strict=False)
    }
    return row | {"peak_memory_growth_mb": grown // 1024}, first.row_digests(pixels=True)


def bench_all_ranks(many: DataConfig, whole: list[bytes]) -> dict[str, Any]:
    """Every rank in turn; their rows in order are those of the one rank."""
    made = [first_batch(many, rank, many.lanes) for rank in range(many.lanes)]
    return {
        "case": "all ranks",
        "ranks": many.lanes,
        "seconds": spread([seconds for seconds, _, _ in made]),
        "cpu_seconds": spread([cpu for _, cpu, _ in made]),
        "equal_to_one_rank": [row for _, _, rows in made for row in rows] == whole,
    }


def bench_state(config: DataConfig, steps: int) -> dict[str, Any]:
    """The state of all lanes on one rank, after each of some steps and again."""
    fresh, again = [], []
    with Loader(config, SERIAL) as loader:
        for batch in loader:
            for times in (fresh, again):
                begin = time.perf_counter()
                state = loader.state_dict()
                times.append(1000 * (time.perf_counter() - begin))
            if batch.step + 1 == steps:
                break
    lanes = state["lanes"].values()
    fixed = to_fixed(LoaderState.from_dict(state))["lanes"].values()
    return {
        "case": "state",
        "lanes": config.lanes,
        "milliseconds": spread(fresh),
        "milliseconds_again": spread(again),
        "json_bytes": len(json.dumps(state)),
        "largest_lane_bytes": max(len(base64.b64decode(text)) for text in lanes),
        "fixed_form_lane_bytes": max(array.nbytes for array in fixed),
    }


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        one = replace(make_config(Path(name), short=True), sequence_length=1024)
        one = replace(one, global_batch=1, lanes=1)
        many = replace(one, global_batch=options.ranks, lanes=options.ranks)
        first_batch(one, 0, 1)  # indices, and the lazily loaded libraries
        first_batch(many, 0, many.lanes)
        print(json.dumps(bench_start(one, many, options.repeat)), flush=True)
        row, whole = bench_one_rank(many)
        print(json.dumps(row), flush=True)
        print(json.dumps(bench_all_ranks(many, whole)), flush=True)
        for lanes, steps in ((64, options.steps), (options.ranks, 3)):
            config = replace(one, global_batch=lanes, lanes=lanes)
            print(json.dumps(bench_state(config, steps)), flush=True)


if __name__ == "__main__":
    main()
