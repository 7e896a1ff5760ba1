"""The configs: what they refuse and how they say it, reading, schedules, ranks and lanes."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from zephon_mm.config import (
    DataConfig,
    ExecutionConfig,
    Filter,
    ImageSizing,
    Packing,
    Source,
    Stop,
    VideoSampling,
    check_dp_size,
    lane_range,
    load_yaml,
    schedule_at,
    schedule_min,
    schedule_steps,
)
from zephon_mm.errors import ConfigError


def source(**changes: Any) -> Source:
    return Source(**{"id": "a", "urls": "a.tar", "format": "text", **changes})


def config(**changes: Any) -> DataConfig:
    given = {"sources": (source(),), "model": "qwen3_vl", "tokenizer": "tok", **changes}
    return DataConfig(**given)


@pytest.mark.parametrize(
    ("make", "changes", "says"),
    [
        (source, {"id": ""}, "Source.id"),
        (source, {"id": 3}, "Source.id"),
        (source, {"id": "a\nb"}, "Source.id"),
        (source, {"urls": ""}, "urls"),
        (source, {"urls": []}, "urls"),
        (source, {"urls": ["a.tar", ""]}, "urls"),
        (source, {"urls": 5}, "urls"),
        (source, {"format": ""}, "format"),
        (source, {"weight": -1.0}, "weight"),
        (source, {"weight": math.nan}, "weight=nan: must be 0, or a number above it"),
        (source, {"weight": False}, "weight"),
        (source, {"weight": math.inf}, "weight"),
        (source, {"weight": "big"}, "weight"),
        (source, {"epochs": 0}, "epochs"),
        (source, {"epochs": 1.5}, "epochs"),
        (source, {"epochs": True}, "epochs"),
        (source, {"mean_tokens": 0}, "mean_tokens"),
        (source, {"key": "dot"}, "first_dot"),
        (source, {"allow_truncated": 1}, "allow_truncated"),
        (source, {"options": {"f": print}}, "options"),
        (source, {"options": {"f": math.nan}}, "options"),
        (source, {"options": ["f"]}, "options"),
        (VideoSampling, {"mode": "each"}, "video.mode"),
        (VideoSampling, {"fps": 0}, "video.fps"),
        (VideoSampling, {"fps": None}, "video.fps"),
        (VideoSampling, {"num_frames": 0}, "video.num_frames"),
        (VideoSampling, {"num_frames": 2.5}, "video.num_frames"),
        (VideoSampling, {"min_frames": 9, "max_frames": 8}, "video.max_frames=8"),
        (VideoSampling, {"min_pixels": 9, "max_pixels": 8}, "video.max_pixels=8"),
        (ImageSizing, {"min_pixels": 9, "max_pixels": 8}, "image.max_pixels=8"),
        (ImageSizing, {"max_source_pixels": 0}, "image.max_source_pixels"),
        (Packing, {"over_long": "cut"}, "split, truncate, drop, error"),
        (Packing, {"order": "newest"}, "packing.order"),
        (Packing, {"max_patches": 0}, "packing.max_patches"),
        (Packing, {"pool": 0}, "packing.pool"),
        (Packing, {"pool": 1025}, "packing.pool"),
        (Stop, {"num_steps": 0}, "stop.num_steps"),
        (Stop, {"num_steps": 2.0}, "stop.num_steps"),
        (Stop, {"epochs": -1}, "stop.epochs"),
        (Stop, {"when": "never"}, "stop.when"),
        (Stop, {"count": "maybe"}, "stop.count"),
        (config, {"sources": ()}, "sources is empty"),
        (config, {"sources": "a.tar"}, "sources"),
        (config, {"sources": ({"id": "a"},)}, "sources"),
        (config, {"sources": (source(), source())}, "'a' come twice"),
        (config, {"sources": (source(weight=0),)}, "weight 0"),
        (config, {"sources": (source(weight=1e308), source(id="b", weight=1e308))}, "finite"),
        (config, {"model": ""}, "model"),
        (config, {"tokenizer": None}, "tokenizer"),
        (config, {"lanes": 0}, "lanes"),
        (config, {"lanes": 8.0}, "lanes"),
        (config, {"lanes": None}, "lanes"),
        (config, {"seed": -1}, "seed"),
        (config, {"seed": 2**63}, "seed"),
        (config, {"seed": True}, "seed"),
        (config, {"global_batch": 20}, "nearest: 16 or 24"),
        (config, {"global_batch": 4}, "nearest: 8"),
        (config, {"global_batch": ((0, 16), (10, 20))}, "global_batch=20"),
        (config, {"global_batch": ((1, 16),)}, "step 0"),
        (config, {"global_batch": ((0, 16), (0, 32))}, "rise"),
        (config, {"global_batch": ()}, "step 0"),
        (config, {"global_batch": "16"}, "whole number"),
        (config, {"sequence_length": 8}, "sequence_length=8"),
        (config, {"sequence_length": 8192.5}, "sequence_length"),
        (config, {"sequence_length": True}, "sequence_length"),
        (config, {"sequence_length": ((0, 64, 1),)}, "sequence_length"),
        (config, {"sequence_length": ((0, 64), (1.5, 128))}, "sequence_length"),
        (config, {"sequence_length": ((0, None),)}, "sequence_length"),
        (config, {"video": {"fps": 2.0}}, "VideoSampling"),
        (config, {"mixture": "tokens"}, "zephon-mm measure"),
        (config, {"mixture": "bytes"}, "mixture"),
        (config, {"template": "{media}"}, "{text}"),
        (config, {"on_bad_sample": "skip"}, "on_bad_sample"),
        (config, {"max_consecutive_quarantined": 0}, "max_consecutive_quarantined"),
        (config, {"pixel_class": "rgb"}, "planes-v1"),
        (ExecutionConfig, {"backend": "dask"}, "backend"),
        (ExecutionConfig, {"workers": 0}, "workers"),
        (ExecutionConfig, {"prefetch": 0}, "prefetch"),
        (ExecutionConfig, {"memory_budget": -1}, "memory_budget"),
        (ExecutionConfig, {"decoder": "opencv"}, "decoder"),
        (ExecutionConfig, {"device": "gpu"}, "cuda:0"),
        (ExecutionConfig, {"device": "cuda", "backend": "processes"}, "device='cuda'"),
        (ExecutionConfig, {"device": "cuda:1", "backend": "ray"}, "device='cuda:1'"),
        (ExecutionConfig, {"device": "auto", "backend": "ray"}, "backend='threads'"),
        (ExecutionConfig, {"surface_budget": 0}, "surface_budget"),
        (ExecutionConfig, {"cache_dir": ""}, "cache_dir"),
        (ExecutionConfig, {"read_retries": -1}, "read_retries"),
        (ExecutionConfig, {"verify_reads": None}, "verify_reads"),
    ],
)
def test_a_wrong_field_is_named(make: Any, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(**changes)
    assert says in str(error.value)


def test_defaults_and_lists_are_accepted() -> None:
    made = config(sources=[source(urls=["a.tar", "b.tar"], weight=0, epochs=2), source(id="b")])
    assert made.sources[0].urls == ("a.tar", "b.tar")
    assert (made.sequence_length, made.global_batch, made.lanes) == (8192, 16, 8)
    assert ExecutionConfig().backend == "threads"


def test_plain_data_gives_the_config_back() -> None:
    made = config(
        sources=(source(urls=("a.tar", "b.tar"), options={"x": [1, 2]}), source(id="ü")),
        global_batch=((0, 16), (100, 32)),
        video=VideoSampling(mode="uniform", num_frames=4),
        stop=Stop(epochs=2, when="first_exhausted"),
    )
    plain = made.to_dict()
    assert DataConfig.from_dict(plain) == made
    assert DataConfig.from_dict(json.loads(json.dumps(plain))) == made
    assert DataConfig.from_dict(yaml.safe_load(yaml.safe_dump(plain))) == made
    assert pickle.loads(pickle.dumps(made)) == made


BASE = {
    "model": "qwen3_vl",
    "tokenizer": "tok",
    "sources": [{"id": "a", "urls": "a.tar", "format": "text"}],
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sequence_lenght": 1}, "'sequence_length'"),
        ({"video": {"fsp": 2}}, "'video.fps'"),
        ({"packing": {"whatever": 2}}, "packing.whatever"),
        ({"stop": 3}, "Stop's fields"),
        ({"sources": [{"id": "a", "url": "a.tar", "format": "text"}]}, "'sources.0.urls'"),
        ({"sources": [{"id": "a", "format": "text"}]}, "sources.0.urls"),
        ({"sources": ["a.tar"]}, "Source's fields"),
        ({"sources": {"id": "a"}}, "sources"),
        ({"sources": [{"id": 7, "urls": "a.tar", "format": "text"}]}, "sources.0.id"),
        ({"seed": "x"}, "seed"),
        ({"video": {"fps": -1}}, "video.fps=-1"),
        ({"global_batch": 20}, "nearest: 16 or 24"),
        ({"global_batch": [[0, 16], [5, 20]]}, "nearest: 16 or 24"),
    ],
)
def test_wrong_plain_data_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        DataConfig.from_dict({**BASE, **changes})
    assert says in str(error.value)


def test_yaml_gives_both_configs(tmp_path: Path) -> None:
    path = tmp_path / "vlm.yaml"
    path.write_text(yaml.safe_dump({**BASE, "seed": 3, "execution": {"backend": "serial"}}))
    data, execution = load_yaml(path)
    assert (data.seed, execution.backend) == (3, "serial")
    assert DataConfig.from_yaml(path) == data
    path.write_text(yaml.safe_dump(BASE))
    assert load_yaml(path)[1] == ExecutionConfig()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "mapping"),
        (b"- 1", "mapping"),
        (b"a: [", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        (yaml.safe_dump({**BASE, "execution": {"worker": 1}}).encode(), "'execution.workers'"),
        (yaml.safe_dump({**BASE, "execution": [1]}).encode(), "execution"),
        (yaml.safe_dump({**BASE, "execution": {"workers": "x"}}).encode(), "execution.workers"),
    ],
)
def test_a_wrong_yaml_file_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "vlm.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_yaml(path)
    assert says in str(error.value) and "vlm.yaml" in str(error.value)


def test_a_missing_yaml_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: can't be read"):
        load_yaml(tmp_path / "none.yaml")


def test_configs_alone_import_nothing_heavy() -> None:
    code = (
        "import sys, zephon_mm.config, zephon_mm.plan;"
        "print(sorted({'torchvision', 'transformers', 'av', 'pydantic'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_schedules() -> None:
    steps = ((0, 16), (10, 32), (20, 8))
    assert [schedule_at(steps, step) for step in (0, 9, 10, 19, 20, 10**9)] == [
        16,
        16,
        32,
        32,
        8,
        8,
    ]
    assert schedule_at(5, 7) == 5
    assert schedule_steps(5) == ((0, 5),) and schedule_steps(steps) == steps
    made = config(global_batch=steps, sequence_length=[[0, 64], [3, 128]])
    assert made.global_batch_at(12) == 32
    assert [made.sequence_length_at(step) for step in (2, 3)] == [64, 128]


@given(
    st.dictionaries(st.integers(1, 40), st.integers(1, 9), max_size=6),
    st.integers(0, 50),
    st.integers(0, 20),
)
def test_schedule_min_is_the_least_value_in_force(
    later: dict[int, int], first: int, length: int
) -> None:
    steps = ((0, 5), *sorted(later.items()))
    last = first + length
    values = [schedule_at(steps, step) for step in range(first, last + 1)]
    assert schedule_min(steps, first, last) == min(values)


@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_ranks_run_just_the_lanes_that_their_slots_touch(
    lanes: int, rows: int, data: st.DataObject
) -> None:
    batch = lanes * rows
    size = data.draw(st.sampled_from([d for d in range(1, batch + 1) if batch % d == 0]))
    each = batch // size
    runs = 0
    for rank in range(size):
        touched = sorted({slot // rows for slot in range(rank * each, (rank + 1) * each)})
        assert list(lane_range(lanes, rank, size)) == touched
        runs += len(touched)
    assert runs == lanes + size - math.gcd(lanes, size)


@pytest.mark.parametrize(
    ("batch", "size", "near"),
    [(24, 5, "4, 6"), (24, 25, "24"), (24, 7, "6, 8"), (((0, 16), (9, 24)), 16, "8"), (1, 2, "1")],
)
def test_a_rank_count_that_does_not_fit_names_the_nearest(batch: Any, size: int, near: str) -> None:
    with pytest.raises(ConfigError, match=f"nearest that do: {near} "):
        check_dp_size(batch, size, 0)


@pytest.mark.parametrize(("size", "rank"), [(0, 0), (-1, 0), (4, 4), (4, -1), (4, 1.0)])
def test_a_rank_outside_the_group_is_refused(size: int, rank: int) -> None:
    with pytest.raises(ConfigError, match="dp_"):
        check_dp_size(24, size, rank)


def test_rank_counts_that_fit() -> None:
    for size in (1, 2, 3, 4, 6, 8, 12, 24):
        check_dp_size(24, size, size - 1)


def test_a_filter_is_the_same_from_yaml_and_from_python(tmp_path: Path) -> None:
    made = Filter(width=(64, None), fps=(5, 60.5), keys=("a/*",), function="my.module:keep")
    data = config(sources=(source(filter=made),)).to_dict()
    written = {"width": [64, None], "fps": [5, 60.5], "keys": ["a/*"], "function": "my.module:keep"}
    data["sources"][0]["filter"] = written
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(data))
    read = DataConfig.from_yaml(tmp_path / "a.yaml")
    assert read.sources[0].filter == made and made.active and not Filter().active
    assert json.dumps(read.to_dict()) == json.dumps(DataConfig.from_dict(read.to_dict()).to_dict())
    assert read == config(sources=(source(filter=made),))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"width": 64}, "filter.width=64: must be .least, most."),
        ({"width": (1, 2, 3)}, "filter.width"),
        ({"width": (None, None)}, "limits nothing"),
        ({"fps": (30, 5)}, "the least is above the most"),
        ({"aspect": (-1, 2)}, "0 or more"),
        ({"duration": (math.nan, 2)}, "0 or more"),
        ({"frames": (True, 2)}, "0 or more"),
        ({"frames": ("1", 2)}, "0 or more"),
        ({"keys": "a*"}, "must be a list of patterns"),
        ({"not_keys": ("a", "")}, "must be a list of patterns"),
        ({"function": "keep"}, "package.module:function"),
        ({"function": ":keep"}, "package.module:function"),
        ({"function": 1}, "filter.function"),
    ],
)
def test_a_filter_that_makes_no_sense(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Filter(**changes)


def test_a_filter_in_yaml_is_checked_by_name() -> None:
    data = config().to_dict()
    data["sources"][0]["filter"] = {"widht": [1, 2]}
    with pytest.raises(ConfigError, match=r"sources\.0\.filter\.widht.*did you mean.*width"):
        DataConfig.from_dict(data)
    data["sources"][0]["filter"] = {"width": [2, 1]}
    with pytest.raises(ConfigError, match="the least is above the most"):
        DataConfig.from_dict(data)
    for wrong in (64, [1], [1, 2, 3]):
        data["sources"][0]["filter"] = {"width": wrong}
        with pytest.raises(ConfigError, match=r"filter\.width.*must be .least, most."):
            DataConfig.from_dict(data)
