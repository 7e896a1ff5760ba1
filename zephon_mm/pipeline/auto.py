"""``format="auto"``: a look at some samples of a source, before a run is made of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..config import DataConfig
from ..formats import AUTO, DATASET_FILE, LOOKED_AT, Sample, choose, read_field_map
from ..shards import Manifest, ShardReader
from ..shards.storage import local_path
from ..stages.measure import read_sample

_log = logging.getLogger("zephon_mm")


def resolve_formats(
    config: DataConfig, manifests: Sequence[Manifest], reader: ShardReader
) -> tuple[DataConfig, dict[str, str]]:
    """The config with every ``auto`` replaced, and for each such source what was taken and why.

    The choice depends on the shards alone, so it is the same on every rank; it is logged.

    Raises:
        ConfigError: no sample of a source has a known shape.
        StorageError, ShardIndexError: a sample can't be read.
    """
    chosen: dict[str, str] = {}
    sources = []
    for number, source in enumerate(config.sources):
        if source.format == AUTO and manifests[number].num_total:
            samples = list(_samples(number, manifests[number], reader))
            choice = choose(source.id, samples, source.options, _field_map(samples))
            chosen[source.id] = f"format {choice.format}: {choice.reason}"
            _log.info("source %r: %s", source.id, chosen[source.id])
            options = {**choice.options, **source.options}
            source = replace(source, format=choice.format, options=options)
        elif source.format == AUTO:
            source = replace(source, format="text")  # it has no sample
        sources.append(source)
    return replace(config, sources=tuple(sources)), chosen


def _samples(source: int, manifest: Manifest, reader: ShardReader) -> Iterator[Sample]:
    """At most `LOOKED_AT` samples, evenly spread, those left out that the index quarantines."""
    for shard, sample in manifest.spread(LOOKED_AT):
        index = reader.index(source, shard)
        if index.problem(sample) is None:
            yield read_sample(reader, source, shard, sample)


def _field_map(samples: Sequence[Sample]) -> dict[str, str]:
    """What Energon's ``dataset.yaml`` says, in the shards' folder or the one above; local only."""
    if not samples or "://" in samples[0].shard.removeprefix("file://"):
        return {}
    folder = Path(local_path(samples[0].shard)).parent
    for file in (folder / DATASET_FILE, folder.parent / DATASET_FILE):
        if file.is_file():
            return read_field_map(file.read_text(encoding="utf-8", errors="replace"))
    return {}
