"""The two configs (C1): what decides the batches, and what must not.

``DataConfig`` decides order and content, byte by byte, and is fingerprinted. ``ExecutionConfig``
says how the work is done and changes no batch. Both are frozen and checked when they are made.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from .errors import ConfigError

Schedule = int | tuple[tuple[int, int], ...]
"""A whole number, or ``((first_step, value), …)`` with rising steps from 0."""


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _positive(name: str, value: float | None) -> None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{name}={value!r}: must be a number above 0")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One named collection of shards.

    Args:
        id: a name that never changes; randomness is keyed by it, so renaming reshuffles.
        urls: brace expressions or paths of ``.tar`` shards, local or (later) remote.
        format: ``text``, ``image_text``, ``video_text``, ``interleaved``, ``chat``, or
            ``package.module:function`` for your own.
        weight: share in the mixture, relative to the other sources.
        epochs: passes over this source; None takes the run's ``stop.epochs``.
        mean_tokens: tokens of a mean document (``zephon-mm measure`` prints it); needed by every
            source when ``mixture="tokens"``.
        key: how a member's name splits into key and field: at the first or at the last dot of its
            base name.
        allow_truncated: keep the whole members of a shard that is cut short.
        options: plain values handed to the format function.
    """

    id: str
    urls: str | tuple[str, ...]
    format: str
    weight: float = 1.0
    epochs: int | None = None
    mean_tokens: float | None = None
    key: Literal["first_dot", "last_dot"] = "first_dot"
    allow_truncated: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(bool(self.id) and self.id.isprintable(), f"Source.id={self.id!r}: give it a name")
        if isinstance(self.urls, list):
            object.__setattr__(self, "urls", tuple(self.urls))
        _check(bool(self.urls), f"source {self.id!r}: urls is empty")
        _check(
            math.isfinite(self.weight) and self.weight >= 0,
            f"source {self.id!r}: weight={self.weight!r} must be a finite number, 0 or more",
        )
        _positive(f"source {self.id!r}: epochs", self.epochs)
        _positive(f"source {self.id!r}: mean_tokens", self.mean_tokens)
        _check(
            self.key in ("first_dot", "last_dot"),
            f"source {self.id!r}: key={self.key!r} must be 'first_dot' or 'last_dot'",
        )


@dataclass(frozen=True, kw_only=True)
class VideoSampling:
    """Which frames of a clip are shown to the model, and how large.

    Args:
        mode: ``fps`` (a frame every 1/fps seconds), ``uniform`` (``num_frames`` over the whole
            clip), ``random`` (one random frame in each of ``num_frames`` equal segments), ``all``.
        fps: frames per second, for ``mode="fps"``.
        num_frames: frames, for ``uniform`` and ``random``. A clip with fewer gives all it has.
        min_frames: fewest frames asked of a clip that has them.
        max_frames: most frames.
        min_pixels, max_pixels: pixel budget, by the model family's own rule (Qwen2.5-VL: of a
            frame; Qwen3-VL: of the whole clip); None takes the family's default.
    """

    mode: Literal["fps", "uniform", "random", "all"] = "fps"
    fps: float = 2.0
    num_frames: int = 16
    min_frames: int = 4
    max_frames: int = 768
    min_pixels: int | None = None
    max_pixels: int | None = None

    def __post_init__(self) -> None:
        _check(
            self.mode in ("fps", "uniform", "random", "all"),
            f"video.mode={self.mode!r} must be one of fps, uniform, random, all",
        )
        for name in ("fps", "num_frames", "min_frames", "max_frames", "min_pixels", "max_pixels"):
            _positive(f"video.{name}", getattr(self, name))
        _check(
            self.min_frames <= self.max_frames,
            f"video.min_frames={self.min_frames} is above video.max_frames={self.max_frames}",
        )


@dataclass(frozen=True, kw_only=True)
class ImageSizing:
    """Pixel budget of a picture; None takes the model family's default."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    max_source_pixels: int = 178_956_970

    def __post_init__(self) -> None:
        for name in ("min_pixels", "max_pixels", "max_source_pixels"):
            _positive(f"image.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How documents share sequences.

    Args:
        over_long: what happens to a document longer than a sequence: ``split`` (at text tokens
            and between media, never inside a medium), ``truncate``, ``drop`` or ``error``.
        order: ``oldest`` starts a sequence with the oldest documents; ``largest`` with the largest,
            which fills sequences of video only better.
        max_patches: vision patches a sequence may hold; None: as many as its tokens allow.
        pool: most documents that wait in a lane for a sequence.
    """

    over_long: Literal["split", "truncate", "drop", "error"] = "split"
    order: Literal["oldest", "largest"] = "oldest"
    max_patches: int | None = None
    pool: int = 64

    def __post_init__(self) -> None:
        _check(
            self.over_long in ("split", "truncate", "drop", "error"),
            f"packing.over_long={self.over_long!r} must be one of split, truncate, drop, error",
        )
        _check(
            self.order in ("oldest", "largest"),
            f"packing.order={self.order!r} must be oldest or largest",
        )
        _positive("packing.max_patches", self.max_patches)
        _check(1 <= self.pool <= 1024, f"packing.pool={self.pool} must be between 1 and 1024")


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When a run ends (C9).

    Args:
        num_steps: after so many steps; None: not by steps.
        epochs: after so many passes over every source; None: sources repeat for ever.
        when: with ``epochs``: ``all_exhausted`` ends when every source has (a source that has run
            out leaves the mixture), ``first_exhausted`` when one has.
        count: ``exact`` counts the steps of a finite run before it starts, so that ``len(loader)``
            is true and every rank makes as many steps; ``never`` skips that, and ``len`` raises.
    """

    num_steps: int | None = None
    epochs: int | None = None
    when: Literal["all_exhausted", "first_exhausted"] = "all_exhausted"
    count: Literal["exact", "never"] = "exact"

    def __post_init__(self) -> None:
        _positive("stop.num_steps", self.num_steps)
        _positive("stop.epochs", self.epochs)
        _check(
            self.when in ("all_exhausted", "first_exhausted"),
            f"stop.when={self.when!r} must be all_exhausted or first_exhausted",
        )
        _check(
            self.count in ("exact", "never"), f"stop.count={self.count!r} must be exact or never"
        )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Everything that decides the order and content of every batch.

    Args:
        sources: the sources of the mixture; ids must differ.
        model: the model family: ``qwen2_5_vl`` or ``qwen3_vl``.
        tokenizer: a Hugging Face folder or hub id.
        sequence_length: tokens a row; a number or a schedule ``((0, 4096), (1000, 8192))``.
        global_batch: rows a step over all ranks; a number or a schedule. Every value is a multiple
            of ``lanes``.
        lanes: independent streams that the global order is made of; never changes in a run, and
            has nothing to do with ranks.
        seed: of every random decision.
        template: what a document without a chat template reads; ``{media}`` and ``{text}`` stand
            for its parts. Loss is on the text and what follows it.
        mixture: whether weights are shares of ``samples`` or of ``tokens``.
        on_bad_sample: ``quarantine`` counts and logs a sample whose bytes make it impossible;
            ``raise`` stops.
        max_consecutive_quarantined: failures in a row in a lane that stop the run.
        pixel_class: C7; which pixels are trained on. ``planes-v1`` is the only one yet.
    """

    sources: tuple[Source, ...]
    model: str
    tokenizer: str
    sequence_length: Schedule = 8192
    global_batch: Schedule = 16
    lanes: int = 8
    seed: int = 0
    video: VideoSampling = VideoSampling()
    image: ImageSizing = ImageSizing()
    packing: Packing = Packing()
    stop: Stop = Stop()
    template: str = "{media}{text}<|endoftext|>"
    mixture: Literal["samples", "tokens"] = "samples"
    on_bad_sample: Literal["quarantine", "raise"] = "quarantine"
    max_consecutive_quarantined: int = 1000
    pixel_class: Literal["planes-v1"] = "planes-v1"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", tuple(self.sources))
        for name in ("sequence_length", "global_batch"):
            object.__setattr__(self, name, _freeze_schedule(name, getattr(self, name)))
        _check(len(self.sources) > 0, "sources is empty: name at least one Source")
        ids = [s.id for s in self.sources]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        _check(not twice, f"source ids must differ; {', '.join(map(repr, twice))} come twice")
        _check(
            sum(s.weight for s in self.sources) > 0, "every source has weight 0: nothing to draw"
        )
        _check(self.lanes >= 1, f"lanes={self.lanes} must be 1 or more")
        _check(0 <= self.seed < 2**63, f"seed={self.seed} must be in [0, 2**63)")
        for _, batch in schedule_steps(self.global_batch):
            if batch % self.lanes:
                low = batch // self.lanes * self.lanes
                near = [v for v in (low, low + self.lanes) if v > 0]
                raise ConfigError(
                    f"global_batch={batch} is not a multiple of lanes={self.lanes}; "
                    f"nearest: {' or '.join(map(str, near))}"
                )
        for _, length in schedule_steps(self.sequence_length):
            _check(length >= 16, f"sequence_length={length} must be 16 or more")
        if self.mixture == "tokens":
            bare = [s.id for s in self.sources if s.mean_tokens is None]
            _check(
                not bare,
                f"mixture='tokens' needs mean_tokens of every source; {', '.join(bare)} have none: "
                "`zephon-mm measure CONFIG` prints them",
            )
        _check(
            self.mixture in ("samples", "tokens"),
            f"mixture={self.mixture!r} must be samples or tokens",
        )
        _check(
            "{text}" in self.template, f"template={self.template!r} must contain {{text}}"
        )
        _check(
            self.on_bad_sample in ("quarantine", "raise"),
            f"on_bad_sample={self.on_bad_sample!r} must be quarantine or raise",
        )
        _positive("max_consecutive_quarantined", self.max_consecutive_quarantined)
        _check(
            self.pixel_class == "planes-v1",
            f"pixel_class={self.pixel_class!r}: only 'planes-v1' is provided",
        )

    def global_batch_at(self, step: int) -> int:
        """Rows of step ``step`` over all ranks."""
        return schedule_at(self.global_batch, step)

    def sequence_length_at(self, step: int) -> int:
        """Tokens a row in step ``step``."""
        return schedule_at(self.sequence_length, step)

    def to_dict(self) -> dict[str, Any]:
        """The config as plain lists, dicts, strings and numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DataConfig:
        """Read plain data, as from YAML or JSON. Raises ConfigError naming each wrong field."""
        return _read(cls, data)

    @classmethod
    def from_yaml(cls, path: str | Path) -> DataConfig:
        """Read a YAML file; a section ``execution`` in it is left to `load_yaml`."""
        return load_yaml(path)[0]


@dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """How the work is done. No field here changes one byte of any batch.

    Args:
        backend: ``serial`` (in the caller's thread) or ``threads``.
        workers: worker threads; None: one a CPU, at most 8.
        prefetch: finished steps that may wait for the trainer.
        memory_budget: bytes of media and pixels in flight; an item above it goes alone.
        decoder: the video library; ``pyav`` is the only one yet.
        device: where pixels are made; ``cpu`` is the only one yet.
        cache_dir: where indices go when a shard's own folder can't be written; None: the user's
            cache folder.
        read_retries: tries after a failed read, before the failure is raised.
        verify_reads: check the checksum of every member read against the index.
    """

    backend: Literal["serial", "threads"] = "threads"
    workers: int | None = None
    prefetch: int = 2
    memory_budget: int = 2 << 30
    decoder: Literal["pyav"] = "pyav"
    device: Literal["cpu"] = "cpu"
    cache_dir: str | None = None
    read_retries: int = 3
    verify_reads: bool = True

    def __post_init__(self) -> None:
        _check(
            self.backend in ("serial", "threads"),
            f"backend={self.backend!r} must be serial or threads",
        )
        _positive("workers", self.workers)
        _positive("prefetch", self.prefetch)
        _positive("memory_budget", self.memory_budget)
        _check(self.decoder == "pyav", f"decoder={self.decoder!r}: only 'pyav' is provided")
        _check(self.device == "cpu", f"device={self.device!r}: only 'cpu' is provided")
        _check(self.read_retries >= 0, f"read_retries={self.read_retries} must be 0 or more")


def _freeze_schedule(name: str, value: Any) -> Schedule:
    if isinstance(value, bool) or not isinstance(value, (int, list, tuple)):
        raise ConfigError(f"{name}={value!r}: must be a whole number or [[step, value], …]")
    if isinstance(value, int):
        _check(value >= 1, f"{name}={value} must be 1 or more")
        return value
    pairs = tuple((int(step), int(v)) for step, v in value)
    _check(
        bool(pairs) and pairs[0][0] == 0 and all(a[0] < b[0] for a, b in zip(pairs, pairs[1:], strict=False)),
        f"{name}={value!r}: a schedule starts at step 0 and its steps rise",
    )
    _check(all(v >= 1 for _, v in pairs), f"{name}={value!r}: every value must be 1 or more")
    return pairs


def schedule_steps(schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """The schedule as ``((first_step, value), …)``."""
    return ((0, schedule),) if isinstance(schedule, int) else schedule


def schedule_at(schedule: Schedule, step: int) -> int:
    """The value in force at ``step``."""
    if isinstance(schedule, int):
        return schedule
    return schedule[bisect.bisect_right(schedule, step, key=lambda pair: pair[0]) - 1][1]


def schedule_min(schedule: Schedule, first: int, last: int) -> int:
    """The least value in force at any step of ``[first, last]``."""
    values = [v for step, v in schedule_steps(schedule) if first < step <= last]
    return min([schedule_at(schedule, first), *values])


def load_yaml(path: str | Path) -> tuple[DataConfig, ExecutionConfig]:
    """Read both configs from one YAML file: DataConfig's fields, and a section ``execution``."""
    import yaml

    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be a mapping of DataConfig's fields")
    execution = data.pop("execution", None) or {}
    return _read(DataConfig, data), _read(ExecutionConfig, execution)


def _read(cls: type[Any], data: Mapping[str, Any]) -> Any:
    import difflib

    from pydantic import TypeAdapter, ValidationError

    known = [f.name for f in fields(cls)]
    for name in data:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"fields are {', '.join(known)}"
            raise ConfigError(f"{cls.__name__} has no field {name!r}; {hint}")
    try:
        return TypeAdapter(cls).validate_python(dict(data))
    except ValidationError as error:
        lines = [
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors()
        ]
        raise ConfigError(f"{cls.__name__}: " + "; ".join(lines)) from error


def lane_range(lanes: int, dp_rank: int, dp_size: int) -> range:
    """The lanes that a rank runs: those that its slots touch (C2)."""
    return range(dp_rank * lanes // dp_size, -(-(dp_rank + 1) * lanes // dp_size))


def check_dp_size(global_batch: Schedule, dp_size: int, dp_rank: int) -> None:
    """Raise ConfigError unless ``dp_size`` divides every batch of the schedule."""
    _check(dp_size >= 1, f"dp_size={dp_size} must be 1 or more")
    _check(0 <= dp_rank < dp_size, f"dp_rank={dp_rank} must be in [0, {dp_size})")
    common = math.gcd(*(value for _, value in schedule_steps(global_batch)))
    if common % dp_size:
        valid: Sequence[int] = [d for d in range(1, common + 1) if common % d == 0]
        at = bisect.bisect_left(valid, dp_size)
        near = valid[max(0, at - 1) : at + 1]
        raise ConfigError(
            f"dp_size={dp_size} does not divide global_batch={common}; nearest that do: "
            f"{', '.join(map(str, near))} (a batch with many divisors, as 480, 720 or 960, "
            "leaves more choice)"
        )
