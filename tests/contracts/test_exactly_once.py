"""C3, C9: over finite epochs every sample is accounted for exactly as often as planned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from zephon_mm import DataConfig, ExecutionConfig, Loader, Packing, Source, Stop
from zephon_mm.config import check_dp_size

from . import media

SERIAL = ExecutionConfig(backend="serial")


def text_config(
    folder: Path, tokenizer: Path, sizes: dict[str, int], **changes: object
) -> DataConfig:
    sources = tuple(
        Source(id=name, urls=media.write(folder, name, media.texts(size), 1), format="text")
        for name, size in sizes.items()
    )
    config = DataConfig(
        sources=sources,
        model="qwen2_5_vl",
        tokenizer=str(tokenizer),
        sequence_length=256,
        global_batch=12,
        lanes=4,
        stop=Stop(epochs=1),
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def delivered(
    config: DataConfig, dp_size: int, execution: ExecutionConfig
) -> tuple[Counter[tuple[str, str, int]], list[int], list[int]]:
    """Delivered documents (their last piece), steps of each rank, and each rank's ``len``."""
    found: Counter[tuple[str, str, int]] = Counter()
    steps, lengths = [], []
    for rank in range(dp_size):
        with Loader(config, execution, dp_rank=rank, dp_size=dp_size) as loader:
            count = 0
            for batch in loader:
                count += 1
                for row in batch.documents:
                    for span in row:
                        if span.token_start == 0:
                            found[(span.source, span.key, span.epoch)] += 1
            steps.append(count)
            lengths.append(len(loader))
    return found, steps, lengths


def test_mixed_media_over_two_epochs(mixed: DataConfig) -> None:
    sizes = {"texts": 90, "pictures": 40, "clips": 7, "pages": 3}
    found, steps, lengths = delivered(mixed, 3, ExecutionConfig(workers=2))
    assert found == Counter(
        {
            (name, f"{name}{i:05d}", e): 1
            for name, n in sizes.items()
            for i in range(n)
            for e in (0, 1)
        }
    )
    assert len(set(steps)) == 1 and lengths == steps


@pytest.mark.parametrize("dp_size", [2, 3])
@pytest.mark.parametrize("samples", [1, 7])
def test_fewer_samples_than_lanes_and_ranks(
    tmp_path: Path, tokenizer_folder: Path, samples: int, dp_size: int
) -> None:
    """S01, S03: equal steps on every rank, the union has no sample twice, the tail is padding."""
    config = text_config(tmp_path, tokenizer_folder, {"few": samples})
    found, steps, lengths = delivered(config, dp_size, SERIAL)
    assert found == Counter({("few", f"few{i:05d}", 0): 1 for i in range(samples)})
    assert len(set(steps)) == 1 and steps == lengths


def test_a_source_of_one_sample_beside_one_of_a_hundred(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    """S04."""
    config = text_config(tmp_path, tokenizer_folder, {"many": 100, "one": 1})
    found, _, _ = delivered(config, 2, ExecutionConfig(workers=4))
    assert sum(found.values()) == 101 and set(found.values()) == {1}


def test_an_empty_source_leaves_the_others_their_samples(
    tmp_path: Path, tokenizer_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """D08: exactly the three samples, and the empty source is reported; first and last alike."""
    for order in (["none", "two", "one"], ["two", "one", "none"]):
        sizes = {name: {"none": 0, "two": 2, "one": 1}[name] for name in order}
        caplog.clear()
        config = text_config(tmp_path / order[0], tokenizer_folder, sizes)
        found, _, _ = delivered(config, 1, SERIAL)
        assert sorted(found) == [
            ("one", "one00000", 0),
            ("two", "two00000", 0),
            ("two", "two00001", 0),
        ]
        assert "'none' has no samples" in caplog.text


def test_all_exhausted_and_realised_weights(tmp_path: Path, tokenizer_folder: Path) -> None:
    """D09: stops when all are exhausted, and a long run realises the weights."""
    sizes = {"a": 3, "b": 4, "c": 3}
    config = text_config(tmp_path, tokenizer_folder, sizes)
    weights = {"a": 0.2, "b": 0.6, "c": 0.2}
    config = replace(
        config, sources=tuple(replace(s, weight=weights[s.id]) for s in config.sources)
    )
    found, _, _ = delivered(config, 1, SERIAL)
    assert sum(found.values()) == 10 and set(found.values()) == {1}
    with Loader(replace(config, stop=Stop(num_steps=60)), SERIAL) as loader:
        assert len(loader) == 60
        assert len(list(loader)) == 60
        shares = {k: v["samples_share"] for k, v in loader.stats()["sources"].items()}
    assert shares == pytest.approx(weights, abs=0.04)


@pytest.mark.parametrize("execution", [SERIAL, *(ExecutionConfig(workers=w) for w in (2, 4))])
def test_steps_of_an_epoch_do_not_depend_on_workers(
    tmp_path: Path, tokenizer_folder: Path, execution: ExecutionConfig
) -> None:
    """S05."""
    config = text_config(tmp_path, tokenizer_folder, {"t": 120})
    steps = [delivered(config, n, execution)[1] for n in (1, 2)]
    assert steps[0] == steps[1][:1] == steps[1][1:]


def test_the_same_shards_in_two_sources_are_not_mixed_up(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    config = text_config(tmp_path, tokenizer_folder, {"x": 9})
    twin = replace(config.sources[0], id="y")
    found, _, _ = delivered(replace(config, sources=(*config.sources, twin)), 1, SERIAL)
    assert found == Counter({(s, f"x{i:05d}", 0): 1 for s in "xy" for i in range(9)})


@pytest.mark.parametrize("over_long", ["split", "truncate", "drop"])
def test_the_over_long_policy_keeps_the_same_set_however_full_the_rows(
    tmp_path: Path, tokenizer_folder: Path, over_long: str
) -> None:
    """K02: what is kept follows from the policy and the length alone, not from the packing."""
    kept = []
    for pool in (1, 64):
        config = text_config(
            tmp_path,
            tokenizer_folder,
            {"t": 60},
            packing=Packing(over_long=over_long, pool=pool),  # type: ignore[arg-type]
        )
        found, _, _ = delivered(config, 1, SERIAL)
        kept.append(found)
        with Loader(config, SERIAL) as loader:
            list(loader)
            counts = loader.stats()["sources"]["t"]
        assert counts["delivered"] + counts["dropped"] == 60
        assert (counts["dropped"] > 0) == (over_long == "drop")
    assert kept[0] == kept[1]


def test_an_uncounted_run_ends_and_says_that_it_has_no_length(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    config = text_config(tmp_path, tokenizer_folder, {"t": 30}, stop=Stop(epochs=1, count="never"))
    with Loader(config, SERIAL) as loader:
        with pytest.raises(TypeError, match="no known length"):
            len(loader)
        keys = [
            d.key for batch in loader for row in batch.documents for d in row if not d.token_start
        ]
    assert sorted(keys) == [f"t{i:05d}" for i in range(30)]


def test_valid_rank_counts_are_named() -> None:
    from zephon_mm import ConfigError

    with pytest.raises(ConfigError, match="nearest that do: 4, 6"):
        check_dp_size(24, 5, 0)
