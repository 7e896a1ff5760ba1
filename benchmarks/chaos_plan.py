"""What a round of chaos does, drawn from one random generator: a config, and a chain of trainers.

Each trainer goes on from the last saved state, by another backend and number of ranks, until it is
killed; the last one is left to finish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests import tiny
from tests.contracts import media
from zephon_mm import DataConfig, Packing, Source, Stop
from zephon_mm.config import VideoSampling

PHASES = ("decode", "save", "restore", "refill")
"""What a trainer can be killed in: making batches; writing a checkpoint; `load_state` and what goes
before it; from there to the first batch, which restoring ends with."""

FORMATS = {
    "texts": ("text", 3),
    "pictures": ("image_text", 2),
    "clips": ("video_text", 2),
    "pages": ("interleaved", 1),
}
"""Format and shards of each source."""


BACKENDS = {"serial": 3, "threads": 5, "processes": 2}
"""How often each is drawn. Worker processes take seconds to start, which is what a round costs."""


@dataclass(frozen=True)
class Kill:
    """A SIGKILL.

    Attributes:
        victim: ``trainer`` or ``worker``.
        phase: one of `PHASES`.
        visit: the how manyth time in that phase, from 1; if it comes too late, the next one.
        how: by the ``clock``, from outside; or at a ``call`` of the main thread, by itself.
        fraction: 0 to 1: how far in the phase; of workers also, which one.
    """

    victim: str
    phase: str
    visit: int
    how: str
    fraction: float


@dataclass(frozen=True)
class Segment:
    """One life of the trainer.

    Attributes:
        execution: fields of `ExecutionConfig`.
        dp_size: ranks, each a loader of the one trainer.
        every: steps from checkpoint to checkpoint.
        form: ``file`` (one, written over and over) or ``dcp`` (a folder a step).
        behind: steps that the loop trains behind what the loader has handed out.
        kills: of workers, and at most one of the trainer, the last.
    """

    execution: dict[str, Any]
    dp_size: int
    every: int
    form: str
    behind: int
    kills: tuple[Kill, ...]


@dataclass(frozen=True)
class Round:
    """A run from its first step to its end."""

    config: DataConfig
    segments: tuple[Segment, ...]
    digest_log: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a report."""
        return asdict(self) | {"config": self.config.to_dict()}


def make_data(folder: Path) -> None:
    """Shards of every kind and a tokeniser: what `draw` takes its configs from."""
    tiny.write_tokenizer(folder / "tokenizer")
    made = {
        "texts": media.texts(90),
        "pictures": media.captioned(32),
        "clips": media.clips(12),
        "pages": media.pages(4),
    }
    for name, samples in made.items():
        media.write(folder, name, samples, FORMATS[name][1])


def draw(
    random: Random,
    folder: Path,
    backends: Mapping[str, int] = BACKENDS,
    ray_address: str | None = None,
) -> Round:
    """A round over the data that `make_data` has put into ``folder``."""
    config = _config(random, folder)
    sizes = [n for n in range(1, 9) if all(b % n == 0 for b in _batches(config))]
    if config.stop.count == "never":  # the ranks would not know when to end
        sizes = [1]
    lives = random.choice((2, 3, 3, 4))
    segments = tuple(
        _segment(random, sizes, life == 0, life == lives - 1, backends, ray_address)
        for life in range(lives)
    )
    return Round(config, segments, digest_log=random.random() < 0.3)


def _batches(config: DataConfig) -> list[int]:
    batch = config.global_batch
    return [batch] if isinstance(batch, int) else [rows for _, rows in batch]


def _config(random: Random, folder: Path) -> DataConfig:
    names = random.sample(sorted(FORMATS), random.randint(1, len(FORMATS)))
    over_long = random.choice(("split", "split", "truncate", "drop"))
    if over_long == "drop" and "texts" not in names:  # or nothing might be left, which is an error
        names.append("texts")
    sources = []
    for name in names:
        kind, shards = FORMATS[name]
        taken = sorted(random.sample(range(shards), random.randint(1, shards)))
        urls = tuple(str(folder / f"{name}-{shard}.tar") for shard in taken)
        weight = random.choice((0.5, 1.0, 3.0))
        sources.append(Source(id=name, urls=urls, format=kind, weight=weight))
    lanes = random.choice((1, 2, 3, 4, 6, 8))
    length: Any = random.choice((192, 256, 320, 448))
    batch: Any = lanes * random.randint(1, max(1, 4 // lanes))
    if random.random() < 0.2:
        length = ((0, length), (random.randint(1, 4), random.choice((256, 320))))
    if random.random() < 0.2:
        batch = ((0, batch), (random.randint(1, 4), batch + lanes))
    if random.random() < 0.7:
        stop = Stop(
            epochs=random.randint(1, 2),
            when=random.choice(("all_exhausted", "all_exhausted", "first_exhausted")),
            count=random.choice(("exact", "exact", "never")),
        )
    else:
        stop = Stop(num_steps=random.randint(4, 12))
    return DataConfig(
        sources=tuple(sources),
        model=random.choice(tiny.QWEN),
        tokenizer=str(folder / "tokenizer"),
        sequence_length=length,
        global_batch=batch,
        lanes=lanes,
        seed=random.randint(0, 2**31),
        video=VideoSampling(mode=random.choice(("fps", "uniform", "random")), max_frames=8),
        packing=Packing(
            over_long=over_long,
            order=random.choice(("oldest", "largest")),
            pool=random.choice((4, 64)),
        ),
        stop=stop,
    )


def _segment(
    random: Random,
    sizes: list[int],
    first: bool,
    last: bool,
    backends: Mapping[str, int],
    ray_address: str | None,
) -> Segment:
    backend = random.choices(list(backends), list(backends.values()))[0]
    if backend in ("processes", "ray"):  # each rank has workers of its own
        sizes = [size for size in sizes if size <= 2]
    execution: dict[str, Any] = {
        "backend": backend,
        "workers": random.choice((1, 2, 3, 4) if backend in ("serial", "threads") else (1, 1, 2)),
        "prefetch": random.randint(1, 4),
        "memory_budget": random.choice((1000, 1 << 20, 2 << 30)),
        "micro_batch": random.choice((None, None, 1, 3)),
    }
    if backend == "ray":
        execution["ray_address"] = ray_address
    dp_size = random.choice(sizes)
    kills = []
    if backend in ("processes", "ray"):
        for _ in range(random.randint(1, 2)):
            phase = random.choice(("decode", "decode", "save", "refill", "refill"))
            kills.append(_kill(random, "worker", phase))
    if not last:
        phases = ("decode", "save") if first else ("restore", *PHASES)
        kills.append(_kill(random, "trainer", random.choice(phases)))
    return Segment(
        execution=execution,
        dp_size=dp_size,
        every=random.randint(1, 2),
        form=random.choice(("file", "file", "dcp")),
        behind=random.choice((0, 0, 1, 2)),
        kills=tuple(kills),
    )


def _kill(random: Random, victim: str, phase: str) -> Kill:
    by_itself = victim == "trainer" and phase in ("save", "restore") and random.random() < 0.6
    return Kill(
        victim=victim,
        phase=phase,
        visit=random.randint(1, 2) if phase in ("decode", "save") else 1,
        how="call" if by_itself else "clock",
        fraction=random.random(),
    )
