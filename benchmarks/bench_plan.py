"""What the plan costs: ``python benchmarks/bench_plan.py [--draws N]``.

Prints one JSON row a case. *start*: seconds and growth of resident memory to make a plan over 10^9
samples in 10^5 shards (limits: 2 s, 300 MB) and its first draw. *draws*: references a second in one
lane (limit: 300,000), beside the peer of the same run, a plain Python loop that only builds as many
references. *find*: microseconds to find a draw again, near its neighbours and far from them.
*advance*: microseconds to move a cursor. All but the start's seconds are CPU time
of the one thread, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import time
from collections import deque
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from zephon_mm.config import DataConfig, Source
from zephon_mm.plan import Plan, SourceShape
from zephon_mm.sample import SampleRef

LANES = 64
CASES = {
    "one source, chunks of 256": [(1000, 10_000, 256)],
    "three sources, chunks of 256": [(1000, 10_000, 256)] * 3,
    "three sources, chunks of 13 (clips of 5 MB)": [(1000, 10_000, 13)] * 3,
    "one small source (100,000 samples)": [(10, 10_000, 256)],
}


def make_plan(sources: list[tuple[int, int, int]]) -> Plan:
    """A plan of sources given as (shards, samples a shard, most samples a chunk)."""
    config = DataConfig(
        sources=tuple(
            Source(id=f"s{i}", urls="a.tar", format="text", weight=1.0 + i)
            for i in range(len(sources))
        ),
        model="qwen3_vl",
        tokenizer="none",
        lanes=LANES,
        global_batch=LANES,
    )
    return Plan(
        config,
        [
            SourceShape(np.full(shards, samples), np.full(shards, largest))
            for shards, samples, largest in sources
        ],
    )


def start() -> dict[str, Any]:
    """Make the large plan and its first draw."""
    process = psutil.Process()
    before, begun = process.memory_info().rss, time.perf_counter()
    plan = make_plan([(100_000, 10_000, 256)])
    next(plan.draws(plan.cursor(0)))
    seconds = time.perf_counter() - begun
    grown = (process.memory_info().rss - before) / 1e6
    return {"samples": plan.num_samples(0), "seconds": seconds, "rss_growth_mb": grown}


def draws(sources: list[tuple[int, int, int]], count: int) -> dict[str, Any]:
    """References a second of one lane; the best and the median of five stretches of it."""
    plan = make_plan(sources)
    row = plan.draws(plan.cursor(7))
    rates, peers = [], []
    for _ in range(5):
        begun = time.process_time()
        deque(itertools.islice(row, count), maxlen=0)
        rates.append(count / (time.process_time() - begun))
        begun = time.process_time()
        deque((SampleRef(0, i, i, 0, i) for i in range(count)), maxlen=0)
        peers.append(count / (time.process_time() - begun))
    return {
        "refs_per_second": {"median": round(sorted(rates)[2]), "best": round(max(rates))},
        "peer_refs_per_second": {"median": round(sorted(peers)[2]), "best": round(max(peers))},
    }


def find() -> dict[str, Any]:
    """Cost of `Plan.ref` and of `Plan.advance`."""
    plan = make_plan([(100_000, 10_000, 256)])
    refs = list(itertools.islice(plan.draws(plan.cursor(7)), 100_000))
    cursor = plan.cursor(7)
    begun = time.process_time()
    for ref in refs:
        plan.advance(cursor, ref)
    advance = (time.process_time() - begun) / len(refs)
    costs = {}
    for name, some in (("near", refs[:1000]), ("far", refs[::4096] * 8)):
        begun = time.process_time()
        for ref in some:
            if plan.ref(7, 0, ref.position) != ref:
                raise SystemExit(f"found another draw than {ref}")
        costs[f"find_{name}_us"] = (time.process_time() - begun) / len(some) * 1e6
    return {"advance_us": advance * 1e6, **costs}


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200_000, help="references a stretch")
    count = parser.parse_args().draws
    about = {"numpy": np.__version__, "python": platform.python_version(), "lanes": LANES}
    print(json.dumps({"case": "start", **start(), **about}))
    for name, sources in CASES.items():
        print(json.dumps({"case": f"draws: {name}", **draws(sources, count), **about}))
    print(json.dumps({"case": "find and advance", **find(), **about}))


if __name__ == "__main__":
    main()
