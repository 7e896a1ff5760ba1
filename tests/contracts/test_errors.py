"""Bad input: a message that says what to do, and nothing lost or skipped in silence."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zephon_mm import (
    ConfigError,
    DataConfig,
    ExecutionConfig,
    Loader,
    ShardIndexError,
    Source,
    StateError,
    Stop,
    ZephonError,
)
from zephon_mm.cli.digest import Ranks, step_digest
from zephon_mm.errors import DocumentTooLongError, ShardChangedError, TooManyQuarantinedError

from . import media

SERIAL = ExecutionConfig(backend="serial")


@pytest.fixture
def config(tmp_path: Path, tokenizer_folder: Path) -> DataConfig:
    urls = media.write(tmp_path, "t", media.texts(60), 2)
    return DataConfig(
        sources=(Source(id="t", urls=urls, format="text"),),
        model="qwen3_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=256,
        global_batch=12,
        lanes=4,
        stop=Stop(epochs=1),
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "qwen9_vl"}, "must be one of .*qwen3_vl"),
        ({"tokenizer": "/no/such/folder"}, "no such folder"),
        ({"global_batch": 10}, "nearest: 8 or 12"),
        ({"lanes": 0}, "lanes"),
        ({"template": "{media}"}, "text"),
        ({"sources": ()}, "at least one"),
    ],
)
def test_config_errors_say_what_to_do(
    config: DataConfig, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Loader(replace(config, **changes), SERIAL)


@pytest.mark.parametrize(
    "urls", ["nothing-{0..3}.tar", "no/such/folder/*.tar", "hdfs://bucket/x.tar"]
)
def test_urls_that_name_nothing(config: DataConfig, tmp_path: Path, urls: str) -> None:
    named = urls if "://" in urls else str(tmp_path / urls)
    source = replace(config.sources[0], urls=named)
    with pytest.raises(ZephonError) as caught:
        Loader(replace(config, sources=(source,)), SERIAL)
    assert "tar" in str(caught.value)


def test_a_batch_that_the_ranks_do_not_divide(config: DataConfig) -> None:
    with pytest.raises(ConfigError, match="nearest that do: 4, 6"):
        Loader(config, SERIAL, dp_rank=0, dp_size=5)
    with pytest.raises(ConfigError, match="dp_rank"):
        Loader(config, SERIAL, dp_rank=4, dp_size=4)


def test_only_empty_sources(config: DataConfig, tmp_path: Path) -> None:
    source = replace(config.sources[0], urls=media.write(tmp_path, "none", iter([]), 1))
    with pytest.raises(ConfigError, match="empty"):
        Loader(replace(config, sources=(source,)), SERIAL)


def test_a_cut_shard_is_refused_or_kept_in_part(config: DataConfig, tmp_path: Path) -> None:
    whole = (tmp_path / "t-0.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) * 2 // 3 // 512 * 512 + 100])
    source = replace(config.sources[0], urls=str(tmp_path / "cut.tar"))
    with pytest.raises(ShardIndexError, match=r"cut\.tar at byte \d+"):
        Loader(replace(config, sources=(source,)), SERIAL)
    kept = replace(config, sources=(replace(source, allow_truncated=True),))
    with Loader(kept, SERIAL) as loader:
        keys = [d.key for b in loader for row in b.documents for d in row if not d.token_start]
        counts = loader.stats()["sources"]["t"]
    assert len(keys) == len(set(keys)) == counts["delivered"] > 10
    assert counts["quarantined"] <= 1


def flip(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data and len(old) == len(new)
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_a_shard_that_changes_is_an_error_at_its_place(
    config: DataConfig, tmp_path: Path, backend: str
) -> None:
    execution = ExecutionConfig(backend=backend, workers=2)  # type: ignore[arg-type]
    with Loader(config, SERIAL) as loader:
        clean = [step_digest([batch], pixels=True) for batch in loader]
    flip(tmp_path / "t-1.tar", b"people", b"PEOPLE")
    found = []
    with (
        Loader(config, execution) as loader,
        pytest.raises(ShardChangedError, match=r"t-1\.tar"),
    ):
        for batch in loader:
            found.append(step_digest([batch], pixels=True))
    assert found == clean[: len(found)]


def test_a_shard_of_another_size_names_the_way_out(config: DataConfig, tmp_path: Path) -> None:
    Loader(config, SERIAL).close()
    with (tmp_path / "t-0.tar").open("ab") as shard:
        shard.write(bytes(1024))
    with pytest.raises(ShardIndexError, match="index --force"), Loader(config, SERIAL) as loader:
        list(loader)


def test_a_quarantined_sample_may_stop_the_run(config: DataConfig, tmp_path: Path) -> None:
    samples = [{"json": b"{broken"}, *({"json": {"text": media.sentence(i, 30)}} for i in range(9))]
    source = replace(config.sources[0], urls=media.write(tmp_path, "bad", iter(samples), 1))
    strict = replace(config, sources=(source,), on_bad_sample="raise")
    with pytest.raises(ZephonError, match="bad00000"), Loader(strict, SERIAL) as loader:
        list(loader)
    log = tmp_path / "rejects.jsonl"
    lenient = replace(strict, on_bad_sample="quarantine")
    with Loader(lenient, replace(SERIAL, reject_log=str(log))) as loader:
        list(loader)
        assert loader.stats()["sources"]["t"]["quarantined"] == 1
    assert log.read_text().count("\n") == 1 and "bad00000" in log.read_text()
    log.unlink()
    with Loader(lenient, replace(SERIAL, reject_log=str(log))) as loader:
        loader.close()  # it may be iterated afterwards, and still reports
        list(loader)
    assert log.read_text().count("\n") == 1


def test_too_long_documents_may_stop_the_run(config: DataConfig) -> None:
    short = replace(config, sequence_length=64, packing=replace(config.packing, over_long="error"))
    with pytest.raises(DocumentTooLongError, match="over_long"), Loader(short, SERIAL) as loader:
        list(loader)


def test_a_state_of_another_run_names_every_field(config: DataConfig) -> None:
    with Loader(config, SERIAL) as loader:
        next(iter(loader))
        state = loader.state_dict()
    other = replace(
        config, seed=9, sequence_length=512, sources=(replace(config.sources[0], id="u"),)
    )
    with Loader(other, SERIAL) as loader, pytest.raises(StateError) as caught:
        loader.load_state_dict(state)
    for field in ("seed", "sequence_length", "sources.t.", "sources.u."):
        assert field in str(caught.value)


@pytest.mark.parametrize(
    ("allow", "changes"),
    [
        (["weights"], {}),
        (["sequence_length"], {"sequence_length": 512}),
        (["sequence_length"], {"sequence_length": 128}),
        (["global_batch"], {"global_batch": 24}),
        (["stop"], {"stop": Stop(epochs=2)}),
        (["sources", "weights"], {}),
    ],
)
def test_a_change_that_is_allowed_applies_from_the_saved_head_on(
    config: DataConfig, tmp_path: Path, allow: list[str], changes: dict[str, Any]
) -> None:
    more = Source(id="m", urls=media.write(tmp_path, "m", media.texts(30), 1), format="text")
    before = replace(config, sources=(*config.sources, more))
    after = replace(before, **changes)
    if allow == ["weights"]:
        after = replace(before, sources=(before.sources[0], replace(more, weight=5.0)))
    if "sources" in allow:
        added = Source(id="a", urls=media.write(tmp_path, "a", media.texts(20), 1), format="text")
        after = replace(before, sources=(added, *before.sources))
    with Loader(before, SERIAL) as loader:
        iterator = iter(loader)
        seen = [d for _ in range(2) for row in next(iterator).documents for d in row]
        state = loader.state_dict()
    with Loader(after, SERIAL) as loader:
        if allow != ["sources", "weights"]:
            with pytest.raises(StateError):
                loader.load_state_dict(state)
    runs = []
    for dp_size in (1, 3):
        with Ranks(after, ExecutionConfig(workers=2), dp_size) as ranks:
            for loader in ranks._loaders:
                loader.load_state_dict(state, allow=allow)
            ranks.step = 2
            ranks._iterators = [iter(loader) for loader in ranks._loaders]
            digests, documents = [], []
            while (batches := ranks.next()) is not None:
                digests.append(step_digest(batches, pixels=True))
                documents += [d for b in batches for row in b.documents for d in row]
            saved = ranks.state()
        runs.append(digests)
    assert runs[0] == runs[1]
    recorded = {change[0] for change in saved["changes"]}
    assert recorded and all(change[3] == 2 for change in saved["changes"])
    epochs = 2 if "stop" in allow else 1
    sizes = {"t": 60, "m": 30} | ({"a": 20} if "sources" in allow else {})
    starts = [(d.source, d.key, d.epoch) for d in [*seen, *documents] if d.token_start == 0]
    assert len(starts) == len(set(starts)) == epochs * sum(sizes.values())


def wrong_key(config: DataConfig, folder: Path) -> DataConfig:
    """A config whose format looks for a text where none is."""
    samples = ({"json": {"text": media.sentence(i, 9)}} for i in range(30))
    urls = media.write(folder, "typo", samples, 1)
    source = Source(id="typo", urls=urls, format="text", options={"text_key": "captoin"})
    return replace(config, sources=(source,))


def test_an_endless_run_without_a_document_stops(config: DataConfig, tmp_path: Path) -> None:
    endless = replace(
        wrong_key(config, tmp_path), stop=Stop(num_steps=3), max_consecutive_quarantined=20
    )
    for execution in (SERIAL, ExecutionConfig(workers=2)):
        with (
            pytest.raises(TooManyQuarantinedError, match="200 draws in a row gave nothing"),
            Loader(endless, execution) as loader,
        ):
            list(loader)
    long = replace(
        config,
        sequence_length=16,
        packing=replace(config.packing, over_long="drop"),
        stop=Stop(),
        max_consecutive_quarantined=5,
    )
    with pytest.raises(TooManyQuarantinedError, match="do not fit"), Loader(long, SERIAL) as loader:
        list(loader)


@pytest.mark.parametrize("count", ["exact", "never"])
def test_a_finite_run_without_a_document_says_so(
    config: DataConfig, tmp_path: Path, count: str
) -> None:
    finite = replace(
        wrong_key(config, tmp_path),
        stop=Stop(epochs=1, count=count),  # type: ignore[arg-type]
    )
    for _ in range(2):  # nothing of it is cached
        with (
            pytest.raises(ZephonError, match=r"no sample of this run .*\n.*typo0"),
            Loader(finite, SERIAL) as loader,
        ):
            list(loader)


def test_ranks_without_a_count_need_a_number_of_steps(config: DataConfig) -> None:
    open_ended = replace(config, stop=Stop(epochs=1, count="never"))
    with Loader(open_ended, SERIAL, dp_size=2) as loader:
        with pytest.raises(ConfigError, match=r"stop\.num_steps"):
            iter(loader)
    bounded = replace(config, stop=Stop(epochs=1, count="never", num_steps=7))
    for rank in (0, 1):
        with Loader(bounded, SERIAL, dp_rank=rank, dp_size=2) as loader:
            assert len(list(loader)) == len(loader) == 7


def test_places_that_cannot_be_written(config: DataConfig, tmp_path: Path) -> None:
    for log in (tmp_path / "no" / "log", tmp_path):
        with pytest.raises(ConfigError, match="reject_log"):
            Loader(config, replace(SERIAL, reject_log=str(log)))
    (tmp_path / "file").write_text("in the way")
    execution = replace(SERIAL, cache_dir=str(tmp_path / "file"))
    with Loader(config, execution) as loader:
        assert len(list(loader)) == len(loader)


def test_a_pixel_budget_above_the_model_s_own_is_refused(config: DataConfig) -> None:
    image = replace(config.image, min_pixels=10**12)
    with pytest.raises(ConfigError, match=r"set image\.max_pixels too"):
        Loader(replace(config, image=image), SERIAL)


def test_a_loader_is_not_pickled(config: DataConfig) -> None:
    with Loader(config, SERIAL) as loader, pytest.raises(TypeError, match="make one in each"):
        pickle.dumps(loader)


def test_a_state_is_plain_data(config: DataConfig) -> None:
    with Loader(config, SERIAL) as loader:
        next(iter(loader))
        state = loader.state_dict()
        assert json.loads(json.dumps(state)) == state
        with pytest.raises(StateError, match="what no state does"):
            loader.load_state_dict(state | {"lanes": {"0": b"bytes"}})


def test_a_source_of_a_mixture_that_gives_nothing_is_told_of(
    config: DataConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    typo = wrong_key(config, tmp_path).sources[0]
    mixture = replace(config, sources=(*config.sources, typo), stop=Stop(epochs=2))
    with Loader(mixture, SERIAL) as loader:
        list(loader)
    told = [r.getMessage() for r in caplog.records if "has given no document" in r.getMessage()]
    assert len(told) == 1 and "'typo'" in told[0] and "captoin" in told[0]


def test_names_are_looked_at_before_anything_is_opened(config: DataConfig) -> None:
    wrong = replace(config, tokenizer="/no/such/folder", model="qwen3_vll")
    with pytest.raises(ConfigError, match="did you mean 'qwen3_vl'"):
        Loader(wrong, SERIAL)
    source = replace(config.sources[0], format="imagetext")
    with pytest.raises(ConfigError, match="did you mean 'image_text'"):
        Loader(replace(wrong, model="qwen3_vl", sources=(source,)), SERIAL)
    with pytest.raises(ConfigError, match="from_yaml"):
        Loader("vlm.yaml", SERIAL)  # type: ignore[arg-type]
