"""`DataConfig`: everything that decides the order and content of every batch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError
from .checks import check, instance, pixel_budget, positive, text, whole
from .filter import Filter
from .schedule import Schedule, freeze_schedule, schedule_at, schedule_steps


@dataclass(frozen=True, kw_only=True)
class Source:
    """One named collection of shards.

    Args:
        id: a name that never changes; randomness is keyed by it, so renaming reshuffles.
        urls: brace expressions or paths of ``.tar`` shards, local or remote.
        format: ``text``, ``image_text``, ``video_text``, ``interleaved``, ``obelics``, ``mmc4``,
            ``chat``, ``packed``, ``energon``, ``auto`` (told from some samples, and said in the
            log), or ``package.module:function`` for your own.
        weight: share in the mixture, relative to the other sources.
        epochs: passes over this source; None takes the run's ``stop.epochs``.
        mean_tokens: tokens of a mean document (``zephon-mm measure`` prints it); needed by every
            source when ``mixture="tokens"``.
        key: how a member's name splits into key and field: at the first or at the last dot of its
            base name.
        allow_truncated: keep the whole members of a shard that is cut short.
        options: plain values handed to the format function.
        filter: which of its samples are used.
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
    filter: Filter = field(default_factory=Filter)

    def __post_init__(self) -> None:
        text("Source.id", self.id)
        check(self.id.isprintable(), f"Source.id={self.id!r}: give it a printable name")
        if isinstance(self.urls, list):
            object.__setattr__(self, "urls", tuple(self.urls))
        urls = (self.urls,) if isinstance(self.urls, str) else self.urls
        check(
            isinstance(urls, tuple) and bool(urls) and all(u and isinstance(u, str) for u in urls),
            f"source {self.id!r}: urls={self.urls!r} must be a path or URL, or a list of them, "
            "none empty",
        )
        text(f"source {self.id!r}: format", self.format)
        positive(f"source {self.id!r}: weight", self.weight, or_zero=True)
        whole(f"source {self.id!r}: epochs", self.epochs, optional=True)
        positive(f"source {self.id!r}: mean_tokens", self.mean_tokens, optional=True)
        instance(f"source {self.id!r}: allow_truncated", self.allow_truncated, bool)
        instance(f"source {self.id!r}: options", self.options, Mapping)
        instance(f"source {self.id!r}: filter", self.filter, Filter)
        try:
            json.dumps(dict(self.options), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"source {self.id!r}: options must hold plain values, as in JSON ({error})"
            ) from error
        check(
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
        check(
            self.mode in ("fps", "uniform", "random", "all"),
            f"video.mode={self.mode!r} must be one of fps, uniform, random, all",
        )
        positive("video.fps", self.fps)
        for name in ("num_frames", "min_frames", "max_frames"):
            whole(f"video.{name}", getattr(self, name))
        check(
            self.min_frames <= self.max_frames,
            f"video.min_frames={self.min_frames} is above video.max_frames={self.max_frames}",
        )
        pixel_budget("video", self.min_pixels, self.max_pixels)


@dataclass(frozen=True, kw_only=True)
class ImageSizing:
    """How pictures are shown to the model.

    Args:
        min_pixels, max_pixels: pixel budget; None takes the family's default.
        max_source_pixels: a sample with a picture file of more pixels is dropped.
        animated: of an animated picture the ``first`` one, or all as a ``video``, of which
            `VideoSampling` chooses frames.
    """

    min_pixels: int | None = None
    max_pixels: int | None = None
    max_source_pixels: int = 178_956_970
    animated: Literal["first", "video"] = "first"

    def __post_init__(self) -> None:
        check(
            self.animated in ("first", "video"),
            f"image.animated={self.animated!r} must be first or video",
        )
        pixel_budget("image", self.min_pixels, self.max_pixels)
        whole("image.max_source_pixels", self.max_source_pixels)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How documents share sequences.

    Args:
        over_long: what happens to a document longer than a sequence: ``split`` (at text tokens
            and between media, never inside a medium), ``truncate``, ``drop`` or ``error``.
        order: ``oldest`` starts a sequence with the oldest documents; ``largest`` does so in one
            sequence of four, and in the others with the largest, which fills sequences of only
            clips better (with a deeper ``pool``, too); ``arrival`` packs neighbours, in order;
            ``single`` gives every document a sequence of its own, in order.
        max_patches: vision patches a sequence may hold; None: as many as its tokens allow.
        pool: most documents that wait in a lane for a sequence.
    """

    over_long: Literal["split", "truncate", "drop", "error"] = "split"
    order: Literal["oldest", "largest", "arrival", "single"] = "oldest"
    max_patches: int | None = None
    pool: int = 64

    def __post_init__(self) -> None:
        check(
            self.over_long in ("split", "truncate", "drop", "error"),
            f"packing.over_long={self.over_long!r} must be one of split, truncate, drop, error",
        )
        check(
            self.order in ("oldest", "largest", "arrival", "single"),
            f"packing.order={self.order!r} must be one of oldest, largest, arrival, single",
        )
        whole("packing.max_patches", self.max_patches, optional=True)
        whole("packing.pool", self.pool, 1, 1024)


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
        whole("stop.num_steps", self.num_steps, optional=True)
        whole("stop.epochs", self.epochs, optional=True)
        check(
            self.when in ("all_exhausted", "first_exhausted"),
            f"stop.when={self.when!r} must be all_exhausted or first_exhausted",
        )
        check(self.count in ("exact", "never"), f"stop.count={self.count!r} must be exact or never")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Everything that decides the order and content of every batch.

    Args:
        sources: the sources of the mixture; ids must differ.
        model: the model family: ``qwen2_vl``, ``qwen2_5_vl``, ``qwen3_vl``, ``qwen3_5``,
            ``llava_onevision``, ``internvl``, ``idefics3``, ``smolvlm``, ``gemma3``, ``gemma4``,
            ``molmo2``, or ``text`` for any causal language model.
        tokenizer: a Hugging Face folder or hub id.
        sequence_length: tokens a row; a number or a schedule ``((0, 4096), (1000, 8192))``.
        global_batch: rows a step over all ranks; a number or a schedule. Every value is a multiple
            of ``lanes``.
        lanes: independent streams that the global order is made of; never changes in a run, and
            has nothing to do with ranks.
        seed: of every random decision.
        shuffle: false: samples in the order of their shards, one source after the other (with
            several lanes, each has its share of the chunks in order).
        template: what a document without a chat template reads; ``{media}`` and ``{text}`` stand
            for its parts. Loss is on the text and what follows it.
        mixture: whether weights are shares of ``samples`` or of ``tokens``.
        on_bad_sample: ``quarantine`` counts and logs a sample whose bytes make it impossible;
            ``raise`` stops.
        max_consecutive_quarantined: failures in a row in a lane that stop the run.
        pixel_class: which pixels of clips are trained on: ``planes-v1`` (exact planes, resized by
            this package: the same on every exact decoder), ``rgb-decord``, ``rgb-dali-cpu`` or
            ``rgb-dali-gpu`` (the RGB of that library, equal to no other).
    """

    sources: tuple[Source, ...]
    model: str
    tokenizer: str
    sequence_length: Schedule = 8192
    global_batch: Schedule = 16
    lanes: int = 8
    seed: int = 0
    shuffle: bool = True
    video: VideoSampling = VideoSampling()
    image: ImageSizing = ImageSizing()
    packing: Packing = Packing()
    stop: Stop = Stop()
    template: str = "{media}{text}<|endoftext|>"
    mixture: Literal["samples", "tokens"] = "samples"
    on_bad_sample: Literal["quarantine", "raise"] = "quarantine"
    max_consecutive_quarantined: int = 1000
    pixel_class: Literal["planes-v1", "rgb-decord", "rgb-dali-cpu", "rgb-dali-gpu"] = "planes-v1"

    def __post_init__(self) -> None:
        if isinstance(self.sources, list):
            object.__setattr__(self, "sources", tuple(self.sources))
        check(
            isinstance(self.sources, tuple) and all(isinstance(s, Source) for s in self.sources),
            f"sources={self.sources!r}: must be a list of Source",
        )
        for name, kind in SECTIONS.items():
            instance(name, getattr(self, name), kind)
        for name in ("model", "tokenizer", "template"):
            text(name, getattr(self, name))
        for name in ("sequence_length", "global_batch"):
            object.__setattr__(self, name, freeze_schedule(name, getattr(self, name)))
        check(len(self.sources) > 0, "sources is empty: name at least one Source")
        ids = [s.id for s in self.sources]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        check(not twice, f"source ids must differ; {', '.join(map(repr, twice))} come twice")
        check(sum(s.weight for s in self.sources) > 0, "every source has weight 0: nothing to draw")
        check(math.isfinite(sum(s.weight for s in self.sources)), "the weights' sum is not finite")
        whole("lanes", self.lanes)
        whole("seed", self.seed, 0, 2**63 - 1)
        instance("shuffle", self.shuffle, bool)
        for _, batch in schedule_steps(self.global_batch):
            if batch % self.lanes:
                low = batch // self.lanes * self.lanes
                near = [v for v in (low, low + self.lanes) if v > 0]
                raise ConfigError(
                    f"global_batch={batch} is not a multiple of lanes={self.lanes}; "
                    f"nearest: {' or '.join(map(str, near))}"
                )
        for _, length in schedule_steps(self.sequence_length):
            check(length >= 16, f"sequence_length={length} must be 16 or more")
        if self.mixture == "tokens":
            bare = [s.id for s in self.sources if s.mean_tokens is None]
            check(
                not bare,
                "mixture='tokens' needs mean_tokens of every source, and "
                f"{', '.join(map(repr, bare))} have none: "
                "`zephon-mm measure CONFIG` prints them",
            )
        check(
            self.mixture in ("samples", "tokens"),
            f"mixture={self.mixture!r} must be samples or tokens",
        )
        check("{text}" in self.template, f"template={self.template!r} must contain {{text}}")
        check(
            self.on_bad_sample in ("quarantine", "raise"),
            f"on_bad_sample={self.on_bad_sample!r} must be quarantine or raise",
        )
        whole("max_consecutive_quarantined", self.max_consecutive_quarantined)
        check(
            self.pixel_class in PIXEL_CLASSES,
            f"pixel_class={self.pixel_class!r} must be one of {', '.join(PIXEL_CLASSES)}",
        )

    def global_batch_at(self, step: int) -> int:
        """Rows of step ``step`` over all ranks."""
        return schedule_at(self.global_batch, step)

    def sequence_length_at(self, step: int) -> int:
        """Tokens a row in step ``step``."""
        return schedule_at(self.sequence_length, step)

    def to_dict(self) -> dict[str, Any]:
        """The config as plain lists, dicts, strings and numbers, which `from_dict` reads."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DataConfig:
        """Read plain data, as from YAML or JSON. Raises ConfigError naming each wrong field."""
        from .reading import read

        return read(cls, data, "")

    @classmethod
    def from_yaml(cls, path: str | Path) -> DataConfig:
        """Read a YAML file; a section ``execution`` in it is left to `load_yaml`."""
        from .reading import load_yaml

        return load_yaml(path)[0]


SECTIONS: dict[str, type] = {
    "video": VideoSampling,
    "image": ImageSizing,
    "packing": Packing,
    "stop": Stop,
}

PIXEL_CLASSES = ("planes-v1", "rgb-decord", "rgb-dali-cpu", "rgb-dali-gpu")
