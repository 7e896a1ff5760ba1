"""``Loader(mode="eval")``: every sample once, in the order of the shards, on any ranks."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from zephon_mm import Batch, ConfigError, DataConfig, ExecutionConfig, Loader, Source, Stop
from zephon_mm.config import evaluation

SERIAL = ExecutionConfig(backend="serial")
Row = tuple[tuple[str, str, int, int], ...]
Key = tuple[str, str]


@pytest.fixture(scope="module")
def config(mixed: DataConfig) -> DataConfig:
    """Three kinds of sources, and what a training run has that an evaluation has not."""
    sources = tuple(source for source in mixed.sources if source.id in ("texts", "clips", "pages"))
    return replace(
        mixed,
        sources=(*sources[1:], replace(sources[0], epochs=3)),
        sequence_length=((0, 256), (100, 512)),
        stop=Stop(num_steps=3),
    )


def in_order(source: Source) -> list[Key]:
    """Source and key of every sample as the shards hold them."""
    keys = []
    for url in sorted(Path(str(source.urls)).parent.glob(f"{source.id}-*.tar")):
        with tarfile.open(url) as tar:
            keys += [key for key, _ in groupby(name.partition(".")[0] for name in tar.getnames())]
    return [(source.id, key) for key in keys]


def rows_of(config: DataConfig, mode: Any, ranks: int = 1) -> tuple[list[Row], set[Key]]:
    """Rows of the whole run in order, each as the pieces of documents that it holds: source, key,
    first token, end. And the samples that gave no document.
    """
    found: dict[tuple[int, int], Row] = {}
    rejected: set[Key] = set()
    for rank in range(ranks):
        with Loader(config, SERIAL, dp_rank=rank, dp_size=ranks, mode=mode) as loader:
            batches: list[Batch] = list(loader)
            assert len(loader) == len(batches)
            rejected |= {(str(entry["source"]), str(entry["key"])) for entry in loader.rejected}
        for batch in batches:
            for slot, documents in zip(batch.slots, batch.documents, strict=True):
                found[batch.step, slot] = tuple(
                    (d.source, d.key, d.token_start, d.token_stop) for d in documents
                )
    return [found[place] for place in sorted(found)], rejected


def test_a_document_a_row_in_order(config: DataConfig) -> None:
    rows, rejected = rows_of(config, "eval")
    assert {len(row) for row in rows} <= {0, 1}
    assert not any(rows[len([row for row in rows if row]) :])  # padding comes last
    pieces = [piece for row in rows for piece in row]
    seen = []
    for key, spans in groupby(pieces, lambda piece: piece[:2]):
        seen.append(key)
        at = 0
        for _, _, start, stop in spans:  # each joins the one before
            assert start == at < stop, key
            at = stop
    wanted = [key for source in config.sources for key in in_order(source)]
    assert len(seen) > 60 and seen == [key for key in wanted if key not in rejected]
    assert {source for source, _ in seen} == {"texts", "clips", "pages"}
    assert rows_of(config, "eval", ranks=2) == (rows, rejected)


def test_packed_neighbours_in_order(config: DataConfig) -> None:
    single = [piece for row in rows_of(config, "eval")[0] for piece in row]
    rows, rejected = rows_of(config, "eval_packed")
    assert [piece for row in rows for piece in row] == single
    assert max(map(len, rows)) > 1
    assert rows_of(config, "eval_packed", ranks=2) == (rows, rejected)


def test_it_goes_on_from_a_state(config: DataConfig) -> None:
    def run(state: Any, most: int | None) -> tuple[list[Any], Any]:
        with Loader(config, SERIAL, mode="eval_packed") as loader:
            if state is not None:
                loader.load_state_dict(state)
            seen = []
            for batch in loader:
                seen += [[d.key for d in documents] for documents in batch.documents]
                if most is not None and batch.step + 1 == most:
                    break
            return seen, loader.state_dict()

    whole, _ = run(None, None)
    first, state = run(None, 1)
    assert first + run(state, None)[0] == whole


def test_what_an_evaluation_changes_of_a_config(config: DataConfig) -> None:
    made = evaluation(config)
    assert (made.lanes, made.shuffle, made.sequence_length) == (1, False, 512)
    assert made.stop == Stop(epochs=1) and made.packing.order == "single"
    assert evaluation(config, packed=True).packing.order == "arrival"
    with pytest.raises(ConfigError, match="mode='test'"):
        Loader(config, SERIAL, mode="test")  # type: ignore[arg-type]


def test_sources_in_order_must_end(config: DataConfig) -> None:
    endless = replace(config, shuffle=False)
    with pytest.raises(ConfigError, match=r"'clips', 'pages' would never end"):
        Loader(endless, SERIAL)
