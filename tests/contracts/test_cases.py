"""The loader on real media and on shards from public bug reports (``--cases``)."""

from __future__ import annotations

import json
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import webdataset as wds

from zephon_mm import (
    DataConfig,
    ExecutionConfig,
    Loader,
    ShardIndexError,
    Source,
    Stop,
    VideoSampling,
)
from zephon_mm.cli.digest import Ranks, step_digest
from zephon_mm.media.probe import probe_member
from zephon_mm.media.verify import verify_member
from zephon_mm.shards import open_source

SERIAL = ExecutionConfig(backend="serial")
THREADS = ExecutionConfig(backend="threads", workers=2)


def config_of(
    tokenizer: Path, urls: dict[str, list[Path]], form: str, **options: object
) -> DataConfig:
    return DataConfig(
        sources=tuple(
            Source(
                id=name,
                urls=tuple(map(str, paths)),
                format=form,
                options=options,
            )
            for name, paths in urls.items()
        ),
        model="qwen3_vl",
        tokenizer=str(tokenizer),
        sequence_length=512,
        global_batch=4,
        lanes=2,
        video=VideoSampling(fps=2.0, max_frames=6),
        stop=Stop(epochs=1),
    )


def copied(cases: Path, folder: Path, *names: str) -> list[Path]:
    return [
        Path(shutil.copy(cases / "inputs" / name, folder / name.replace("/", "-")))
        for name in names
    ]


def outcomes(config: DataConfig, execution: ExecutionConfig = SERIAL) -> tuple[list[str], Loader]:
    """Keys of the delivered documents, and the loader for its counts."""
    loader = Loader(config, execution)
    keys = [d.key for b in loader for row in b.documents for d in row if d.token_start == 0]
    loader.close()
    return sorted(keys), loader


def test_k06_texts_without_a_target(cases: Path, tmp_path: Path, tokenizer_folder: Path) -> None:
    shards = copied(cases, tmp_path, "K06/empty_text.tar")
    config = config_of(tokenizer_folder, {"k": shards}, "image_text")
    keys, loader = outcomes(config)
    counts = loader.stats()["sources"]["k"]
    assert keys == ["000000", "000006"]
    assert counts["filtered"] + counts["quarantined"] + counts["dropped"] == 5
    assert {e["key"] for e in loader.rejected} == {f"00000{i}" for i in range(1, 6)}


@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_s01_one_shard_on_many_ranks(
    cases: Path, tmp_path: Path, tokenizer_folder: Path, dp_size: int
) -> None:
    shards = copied(cases, tmp_path, "W11/full.tar")
    config = config_of(tokenizer_folder, {"k": shards}, "image_text")
    keys: list[str] = []
    steps = set()
    for rank in range(dp_size):
        with Loader(config, THREADS, dp_rank=rank, dp_size=dp_size) as loader:
            batches = list(loader)
            steps.add(len(batches))
        keys += [d.key for b in batches for row in b.documents for d in row]
    assert len(steps) == 1
    assert sorted(keys) == [f"{i:06d}" for i in range(len(keys))] and len(keys) >= 6


def test_w10_d08_empty_shards_and_sources(
    cases: Path, tmp_path: Path, tokenizer_folder: Path
) -> None:
    ok, empty, folders = copied(cases, tmp_path, "W10/ok.tar", "W10/empty.tar", "W10/dir_only.tar")
    keys, _ = outcomes(config_of(tokenizer_folder, {"k": [empty, ok, folders]}, "image_text"))
    assert keys == ["000000", "000001", "000002"]
    two = {"none": [empty], "three": [ok]}
    for order in (two, dict(reversed(two.items()))):
        assert outcomes(config_of(tokenizer_folder, order, "image_text"))[0] == keys
    zero = copied(cases, tmp_path, "W10/zero_bytes.tar")
    with pytest.raises(ShardIndexError, match="zero_bytes"):
        outcomes(config_of(tokenizer_folder, {"k": [ok, *zero]}, "image_text"))


def test_p10_a_picture_that_claims_900_megapixels(
    cases: Path, tmp_path: Path, tokenizer_folder: Path
) -> None:
    shards = copied(cases, tmp_path, "P10/shard.tar")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    keys, loader = outcomes(config_of(tokenizer_folder, {"k": shards}, "image_text"))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert keys == ["000000", "000001", "000003", "000004"]
    assert [e["key"] for e in loader.rejected] == ["000002"]
    assert grown < 200_000, "KiB"


def all_media(cases: Path, folder: Path, kind: str) -> tuple[Path, int]:
    """One shard of every file of a kind, each with a caption."""
    rows = map(json.loads, (cases / "media/manifest.jsonl").read_text().splitlines())
    files = [cases / "media" / row["file"] for row in rows if row["kind"] == kind]
    with wds.TarWriter(str(folder / f"{kind}.tar"), mtime=0) as writer:
        for file in files:
            name = f"{file.stem}-{file.suffix[1:]}".replace(".", "_")
            sample = {"__key__": name, file.suffix[1:].lower(): file.read_bytes()}
            writer.write(sample | {"txt": f"This is {name}."})
    return folder / f"{kind}.tar", len(files)


@pytest.mark.parametrize(
    ("kind", "form", "model", "other"),
    [
        ("image", "image_text", "qwen3_vl", {"image_decoder": "torchvision"}),
        ("image", "image_text", "qwen2_5_vl", {}),
        ("video", "video_text", "qwen3_vl", {"decoder": "torchcodec"}),
        ("video", "video_text", "qwen2_5_vl", {}),
    ],
)
def test_every_real_file_has_one_outcome_whatever_runs_it(
    cases: Path,
    tmp_path: Path,
    tokenizer_folder: Path,
    kind: str,
    form: str,
    model: str,
    other: dict[str, str],
) -> None:
    shard, count = all_media(cases, tmp_path, kind)
    source = Source(id="all", urls=str(shard), format=form)
    open_source(source, cache_dir=None, probe=probe_member, verify=verify_member if other else None)
    config = config_of(tokenizer_folder, {"all": [shard]}, form)
    config = replace(
        config,
        model=model,
        sequence_length=1024,
        video=replace(config.video, max_pixels=64 * 28 * 28),
    )
    runs = []
    for execution, dp_size in ((SERIAL, 1), (replace(THREADS, **other), 2)):
        with Ranks(config, execution, dp_size) as ranks:
            digests = []
            while (batches := ranks.next()) is not None:
                digests.append(step_digest(batches, pixels=True))
            stats = [loader.stats()["sources"]["all"] for loader in ranks._loaders]
        runs.append(digests)
        totals = {
            name: sum(s[name] for s in stats)
            for name in ("delivered", "filtered", "dropped", "quarantined")
        }
        assert sum(totals.values()) == count, totals
        assert totals["delivered"] > count * 0.6
    assert runs[0] == runs[1]
