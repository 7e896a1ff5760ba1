"""What a loader reports of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ..config import DataConfig
from ..sequencer import SourceCounts
from ..stages.materialise import MediaCounts
from .lane import LaneSnapshot


def loader_stats(
    config: DataConfig,
    lanes: Sequence[LaneSnapshot],
    *,
    step: int,
    rows: int,
    tokens: int,
    targets: int,
    damaged: Mapping[str, int],
    media: MediaCounts,
    waited: float,
    elapsed: float,
    held_bytes: int,
) -> dict[str, Any]:
    """Figures of one rank, as plain data.

    ``sources`` counts the whole run so far, earlier sessions included, over the lanes whose first
    slot is this rank's, so that the ranks add up to the run; ``weight`` is the share of the mixture
    that the config asks for, ``samples_share`` and ``tokens_share`` what was realised. The rest
    counts this process since the loader was made.

    Returns:
        ``step``; ``rows``, ``tokens`` (padding left out), ``target_tokens``;
        ``waiting_seconds`` and ``waiting_share`` (of the time since the first batch was asked for);
        ``tokens_per_second``; ``bytes_in_flight``; ``media``, the fields of `MediaCounts`;
        ``sources``.
    """
    totals = [
        [sum(lane.sequencer.counts[i][k] for lane in lanes) for k in range(5)]
        for i in range(len(config.sources))
    ]
    drawn = [sum(total[:4]) for total in totals]
    packed = [total[4] for total in totals]
    weights = sum(source.weight for source in config.sources)
    names = [field.name for field in fields(SourceCounts)]
    return {
        "step": step,
        "rows": rows,
        "tokens": tokens,
        "target_tokens": targets,
        "waiting_seconds": waited,
        "waiting_share": waited / elapsed if elapsed else 0.0,
        "tokens_per_second": tokens / elapsed if elapsed else 0.0,
        "bytes_in_flight": held_bytes,
        "media": asdict(media),
        "sources": {
            source.id: {
                **dict(zip(names, total, strict=True)),
                "damaged": damaged.get(source.id, 0),
                "weight": source.weight / weights,
                "samples_share": sum(total[:4]) / max(1, sum(drawn)),
                "tokens_share": total[4] / max(1, sum(packed)),
            }
            for source, total in zip(config.sources, totals, strict=True)
        },
    }
