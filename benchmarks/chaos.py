"""Trainers killed at random and restored elsewhere: ``python benchmarks/chaos.py --seed 1``.

A round draws a config (texts, pictures, clips, pages; lanes, rows, lengths, epochs or steps), runs
it once in one thread, and then as a chain of two to four trainers. Each goes on from the last state
that was saved, by another backend, with other workers, into another number of ranks, out of a file
or of torch.distributed.checkpoint, and is killed with SIGKILL while it makes batches, writes a
checkpoint or restores one; workers are killed in between. The steps put together must be those of
the run in one thread, byte for byte with pixels, and over finite epochs no token is lost or
repeated. 5 s after each trainer none of its processes may live, /dev/shm must hold nothing of it,
and one that ended by itself must have closed every descriptor.

The plan of a round depends on its seed alone: ``--only SEED`` does that of a failure again. (When
exactly a kill by the clock strikes depends on the machine, too; one by a call does not.)

``--ray`` adds trainers with workers on a cluster of Ray that is started for it; there, too, workers
are killed (those of any program on this machine that uses this package on Ray). Sockets of such a
trainer are not counted: Ray keeps one, closed, for an actor that was ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "benchmarks")]

from chaos_plan import BACKENDS, draw  # noqa: E402
from chaos_round import ChaosError, Tally, Zygote, run_round  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: E402


def summary(
    tally: Tally, seed: int, rounds: int, failures: list[int], begun: float
) -> dict[str, Any]:
    """A row of results."""
    phases = {
        "decoding": "decode",
        "writing a checkpoint": "save",
        "restoring": "restore",
        "making batches after a restore": "refill",
    }
    by_phase = {
        name: sum(n for kind, n in tally.kills.items() if f" in {phase} " in kind)
        for name, phase in phases.items()
    }
    return {
        "seed": seed,
        "rounds": rounds,
        "failures": failures,
        "kills": sum(tally.kills.values()),
        "kills_by_phase": by_phase,
        "kills_by_kind": dict(sorted(tally.kills.items())),
        "trainers": dict(sorted(tally.lives.items())),
        "restores": dict(sorted(tally.restores.items())),
        "steps": tally.steps,
        "longest_end_seconds": round(tally.longest_end, 3),
        "seconds": round(time.monotonic() - begun, 1),
    }


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """The address of a cluster of Ray on this machine, of one node."""
    from tests.ray_nodes import Nodes

    nodes = Nodes()
    try:
        yield nodes.address
    finally:
        nodes.close()


def main() -> int:
    """Run the rounds; exit status 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="of all rounds [random]")
    parser.add_argument("--only", type=int, metavar="SEED", help="one round, by its own seed")
    parser.add_argument("--minutes", type=float, default=None, help="begin no round after so many")
    parser.add_argument("--out", "--json", type=Path, help="append the row of results to this file")
    parser.add_argument("--ray", action="store_true", help="also workers on a cluster of Ray")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    backends = BACKENDS | ({"ray": 2} if options.ray else {})
    console = Console(stderr=True)
    console.print(f"seed {seed}")
    seeds = [options.only] if options.only is not None else _seeds(seed, options.rounds)
    tally, failures, done, begun = Tally(), [], 0, time.monotonic()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with (
        tempfile.TemporaryDirectory(prefix="zephon_mm-chaos-") as folder,
        Zygote(Path(folder)) as zygote,
        cluster() if options.ray else contextlib.nullcontext() as address,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("rounds", total=len(seeds))
        for each in seeds:
            if options.minutes is not None and time.monotonic() - begun > 60 * options.minutes:
                break
            plan = draw(random.Random(each), Path(folder), backends, address)
            try:
                run_round(zygote, plan, tally)
            except ChaosError as error:
                failures.append(each)
                console.print(f"round --only {each} failed: {error}", markup=False)
                console.print(json.dumps(plan.to_dict()), markup=False, soft_wrap=True)
            done += 1
            kills = sum(tally.kills.values())
            about = f"{kills} kills, {len(failures)} failures"
            progress.update(task, advance=1, description=about)
    row = summary(tally, seed, done, failures, begun)
    print(json.dumps(row))
    if options.out is not None:
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return 1 if failures else 0


def _seeds(seed: int, rounds: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(1 << 31) for _ in range(rounds)]


if __name__ == "__main__":
    sys.exit(main())
