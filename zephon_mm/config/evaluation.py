"""The config of an evaluation over the samples of a training config."""

from __future__ import annotations

from dataclasses import replace

from .data import DataConfig, Stop
from .schedule import schedule_steps


def evaluation(config: DataConfig, *, packed: bool = False) -> DataConfig:
    """Every sample once, in the order of the shards, one source after the other.

    One lane, so that rows come in that order over the ranks' batches of a step; one pass; the last
    values of schedules; a document a row, or neighbours packed. Sources of weight 0 stay out.
    """
    return replace(
        config,
        sources=tuple(replace(source, epochs=None) for source in config.sources),
        sequence_length=schedule_steps(config.sequence_length)[-1][1],
        global_batch=schedule_steps(config.global_batch)[-1][1],
        lanes=1,
        shuffle=False,
        stop=Stop(epochs=1, count=config.stop.count),
        packing=replace(config.packing, order="arrival" if packed else "single"),
    )
