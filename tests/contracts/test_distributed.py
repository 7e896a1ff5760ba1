"""One job of four ranks over gloo: meshes, checkpoints of any form, a leader, and the end.

The ranks (`distributed_job`) write down what they saw; the tests compare it with a serial run here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from zephon_mm import DataConfig, Loader, Source, Stop
from zephon_mm.config import Packing

from . import media
from .distributed_job import SERIAL, WORLD, App, joined, reweighted, rows_of

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> DataConfig:
    """Three lanes and twelve rows: four ranks cut every lane. Texts, pictures and clips, once."""
    folder = tmp_path_factory.mktemp("mixed_job")
    return DataConfig(
        sources=(
            Source(
                id="texts", urls=media.write(folder, "texts", media.texts(60), 2), format="text"
            ),
            Source(
                id="pictures",
                urls=media.write(folder, "pictures", media.captioned(12), 1),
                format="image_text",
                weight=0.15,
            ),
            Source(
                id="clips",
                urls=media.write(folder, "clips", media.clips(2), 1),
                format="video_text",
                weight=0.1,
            ),
        ),
        model="qwen2_5_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=256,
        global_batch=12,
        lanes=3,
        packing=Packing(pool=2),
        stop=Stop(epochs=1),
    )


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory, config: DataConfig) -> dict[str, DataConfig]:
    """The kinds of S01, S03, S04 and S05: fewer samples than ranks, odd ones, unequal sources."""
    folder = tmp_path_factory.mktemp("ends")
    sizes = {"one": {"a": 1}, "odd": {"b": 7}, "unequal": {"c": 50, "d": 1}}
    return {
        name: replace(
            config,
            sources=tuple(
                Source(id=k, urls=media.write(folder, k, media.texts(n), 1), format="text")
                for k, n in sources.items()
            ),
            global_batch=4,
            lanes=2,
        )
        for name, sources in sizes.items()
    }


@pytest.fixture(scope="module")
def serial(config: DataConfig) -> dict[str, dict[str, str]]:
    with Loader(config, SERIAL) as loader:
        return rows_of(loader)


@pytest.fixture(scope="module")
def job(
    tmp_path_factory: pytest.TempPathFactory,
    config: DataConfig,
    endings: dict[str, DataConfig],
    serial: dict[str, dict[str, str]],
) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of the job, and what each rank found."""
    assert len(serial) > 4, "the run is too short for these tests"
    folder = tmp_path_factory.mktemp("job")
    with Loader(config, SERIAL) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        dcp.save({"loader": loader}, checkpoint_id=folder / "one")
    data = {name: c.to_dict() for name, c in {"mixed": config, **endings}.items()}
    (folder / "configs.json").write_text(json.dumps(data))
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "kernels")]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.contracts.distributed_job", str(folder)]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads((folder / f"found{rank}.json").read_text()) for rank in range(WORLD)]
    return folder, found


Job = tuple[Path, list[dict[str, Any]]]
Rows = dict[str, dict[str, str]]


def after(serial: Rows, step: int) -> Rows:
    return {number: rows for number, rows in serial.items() if int(number) >= step}


def test_a_mesh_says_the_rank(job: Job, serial: Rows) -> None:
    found = [rank["checkpoints"] for rank in job[1]]
    assert [f["place"] for f in found] == [[rank, WORLD] for rank in range(WORLD)]
    rows = joined(f["rows"] for f in found)
    assert rows == {step: serial[step] for step in ("0", "1", "2")}
    own, whole = zip(*(f["targets"] for f in found), strict=True)
    assert set(whole) == {sum(own)}
    errors = [job[1][0][name] for name in ("meshes", "twice", "alone")]
    assert [kind for kind, _, _ in errors] == ["ConfigError"] * 3
    assert '"dp"' in errors[0][1] and "both" in errors[1][1] and "share_group" in errors[2][1]


def test_gathered_states_are_whole_and_the_same_everywhere(
    job: Job, config: DataConfig, serial: Rows
) -> None:
    folder, ranks = job
    found = [rank["checkpoints"] for rank in ranks]
    assert all(f["gathered"] == found[0]["gathered"] and f["first"] == 1 for f in found)
    with Loader(config, SERIAL) as loader:
        loader.load_state_dict(found[0]["gathered"])
        assert rows_of(loader) == after(serial, 2)
    with Loader(config, SERIAL, dp_rank=1, dp_size=2) as loader:
        loader.load_state(folder / "state.json")
        assert loader.state_dict()["step"] == 2
    assert not list(folder.glob("*.part"))


def test_one_rank_without_the_state_fails_on_all(job: Job) -> None:
    found = [rank["checkpoints"] for rank in job[1]]
    for error in [f["unknown"] for f in found]:
        assert error[0] == "StateError" and "before step 99" in error[1]
    for error in [f["unwritable"] for f in found]:
        assert error[0] == "StateError" and "can't be written" in error[1]


@pytest.mark.parametrize("name", ["four", "async", "dict"])
def test_saved_on_four_ranks_with_dcp_and_loaded_on_one(
    job: Job, config: DataConfig, serial: Rows, name: str
) -> None:
    with Loader(config, SERIAL) as loader:
        dcp.load({"loader": loader}, checkpoint_id=job[0] / name)
        assert rows_of(loader) == after(serial, 2)


def test_through_an_object_of_the_users_and_at_the_end(job: Job, config: DataConfig) -> None:
    with Loader(config, SERIAL) as loader:
        dcp.load({"app": App(loader)}, checkpoint_id=job[0] / "app")
        assert loader.state_dict() == job[1][0]["checkpoints"]["gathered"]
        dcp.load({"loader": loader}, checkpoint_id=job[0] / "end")
        assert loader.state_dict() == job[1][0]["leaders"]["state"]
        assert list(loader) == []


def test_dcp_holds_one_tensor_of_fixed_size_a_lane_and_nothing_else(job: Job) -> None:
    for name in ("four", "one", "async", "dict", "end"):
        entries = dcp.FileSystemReader(job[0] / name).read_metadata().state_dict_metadata
        sizes = {key: (e.properties.dtype, tuple(e.size)) for key, e in entries.items()}
        lanes = {f"loader.lanes.{lane:05d}": (torch.uint8, (8192,)) for lane in range(3)}
        assert sizes == lanes | {"loader.run": (torch.uint8, (256 * 1024,))}


def test_saved_on_one_rank_and_loaded_on_four(job: Job, serial: Rows) -> None:
    found = [rank["checkpoints"]["from_one"] for rank in job[1]]
    assert joined(found) == after(serial, 3)
    assert [len(rows) for rows in found] == [len(serial) - 3] * WORLD


def test_a_leader_loads_for_its_peers(job: Job, serial: Rows) -> None:
    """Saved on four data-parallel ranks, loaded on two of two peers each."""
    found = [rank["leaders"] for rank in job[1]]
    assert found[0]["rows"] == found[1]["rows"] and found[2]["rows"] == found[3]["rows"]
    assert joined(f["rows"] for f in found) == after(serial, 2)
    assert [f["read"] > 0 for f in found] == [True, False, True, False]
    assert all(f["types"] == ["DocumentSpan"] for f in found)
    assert found[0]["inputs"] == found[1]["inputs"]
    for leader, peer in (found[:2], found[2:]):
        assert leader["contents"] == peer["contents"]
    extras = {name for f in found for _, _, names, _ in f["contents"] for name in names}
    assert "second_per_grid_ts" in extras, "a tensor that one family alone has"
    assert {f["stats"] for f in found} == {len(serial)}
    assert all(f["state"] == found[0]["state"] for f in found)


def test_what_a_leader_raises_is_raised_on_its_peers(job: Job) -> None:
    found = [rank["leaders"] for rank in job[1]]
    for f in found:
        kind, message, offset = f["broken"]
        assert kind == "ShardChangedError" and offset == 512 and "other bytes" in message
        assert f["seen"] == [0]
    assert ["met by rank" in f["broken"][1] for f in found] == [False, True, False, True]
    assert [f["apart"][0] for f in found[:2]] == ["StateError"] * 2
    assert all("at step 0" in f["apart"][1] and "at step 2" in f["apart"][1] for f in found[:2])
    assert [f["apart"][0] for f in found[2:]] == ["nothing was raised"] * 2
    for f in found:  # a group of data-parallel ranks instead of peers
        assert f["across"][0] == "ConfigError"
        assert "dp_rank 0 of 2" in f["across"][1] and "dp_rank 1 of 2" in f["across"][1]


def test_ranks_with_their_own_lanes_go_on_in_a_changed_config(
    job: Job, config: DataConfig, serial: Rows
) -> None:
    """They count the steps that are left together, each from the lanes that it was given."""
    with Loader(reweighted(config), SERIAL) as loader:
        loader.load_state(job[0] / "state.json", allow=["weights"])
        length, rows = len(loader), rows_of(loader)
    assert rows != after(serial, 2)
    found = [rank["changed"] for rank in job[1]]
    assert joined(f["rows"] for f in found) == rows
    assert [f["length"] for f in found] == [length] * WORLD


def test_finite_runs_end_together(job: Job, endings: dict[str, DataConfig]) -> None:
    """S01, S03, S04, S05: the same steps on every rank, each sample once, ``len`` is true."""
    for name, config in endings.items():
        found = [rank["ends"][name] for rank in job[1]]
        with Loader(config, SERIAL) as loader:
            steps = len(loader)
        assert [f[:2] for f in found] == [[steps, steps]] * WORLD
        keys = Counter(key for f in found for key in f[2])
        expected = {"one": 1, "odd": 7, "unequal": 51}[name]
        assert len(keys) == expected and set(keys.values()) == {1}
