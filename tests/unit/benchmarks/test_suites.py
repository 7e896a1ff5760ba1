"""The suites with ours and the limits, in this process, on a few texts: no environment is made."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from benchmarks import suites, workloads
from benchmarks.__main__ import epoch_steps, suites_of_all
from benchmarks.compare.protocol import Job
from benchmarks.environments import CONTESTANTS
from benchmarks.harness import Bench, Entry, Row, read_reply, run_once
from benchmarks.sitting import Sitting, read

ONE_AT_A_TIME = threading.Lock()


def in_process(entry: Entry, python: Path) -> Row:
    """A run without a process of its own; where workers would be processes, they are threads."""
    script, _, variant = entry.name.partition(":")
    with ONE_AT_A_TIME, tempfile.TemporaryDirectory() as name:
        path, reply = Path(name) / "job.json", Path(name) / "reply.json"
        job = dataclasses.replace(entry.job, reply=str(reply), variant=variant)
        if job.workers:
            job = dataclasses.replace(job, mode="threads")
        if job.kind == "save" and job.state is None:
            job = dataclasses.replace(job, state=str(Path(name) / "state"))
        path.write_text(json.dumps(dataclasses.asdict(job)))
        with mock.patch.object(sys, "argv", [script, str(path)]):
            try:
                importlib.import_module(f"benchmarks.compare.{script}").main()
            except SystemExit as ended:
                assert ended.code == 0
        return read_reply(reply, 0, "") | {"wall_s": 1.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    size = workloads.Size(text=60, shards=2)
    workloads.make(folder, ["text"], size, corpus=Path(__file__).read_text() * 4)
    return folder


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(Bench, "_prepare", lambda *given: None)  # indexed when it is opened
    return Bench(tmp_path, tmp_path / "rows.jsonl", {"quick": True}, runner=in_process)


@pytest.fixture(scope="module")
def text(data: Path) -> Job:
    job = suites.base_job("text", data, workloads.end_token(data), quick=True)
    return dataclasses.replace(job, sequence_length=2049, warmup_s=0.0, seconds=0.05)


def test_ours_beside_its_limit(bench: Bench, text: Job) -> None:
    units = suites.throughput(text, ["ours", "limits", "limits:aten", "limits:tar"], 0, 2)
    rows = Sitting(bench, units).run()
    ours, tar = (next(r for r in rows if r["contestant"] == n) for n in ("ours", "limits:tar"))
    assert ours["against"] == "limits serial" and ours["ratios"]["tokens_per_cpu_s"][1] > 0
    assert 0.5 < ours["values"]["fill"][1] <= 1
    assert (ours["sequence_length"], ours["lanes"], ours["rounds"]) == (2049, 2, 2)
    assert ours["values"]["start_s"][1] > ours["values"]["first_batch_s"][1]
    assert "samples_per_s" in tar["values"] and "first_batch_s" not in tar["values"]
    assert [r["skipped"] for r in rows if r["contestant"] == "limits:aten"] == ["no pictures"]
    good = [row["output"]["documents"] for row in read(bench.results) if "output" in row]
    assert len(good) == 2 and all(known == seen > 0 for known, seen in good)


def test_ours_stands_against_the_limit_that_resizes_as_it_does(text: Job) -> None:
    pictures = dataclasses.replace(text, work="image_text")
    names = ["ours", "grain", "limits", "limits:aten", "limits:tar"]
    for workers, limits in ((0, 3), (2, 4)):
        (unit,) = suites.throughput(pictures, names, workers, 1)
        against = {entry.name: entry.against or unit.against for entry in unit.entries}
        assert (against["ours"], against["grain"]) == ("limits:aten serial", "limits serial")
        assert sum(entry.name.startswith("limits") for entry in unit.entries) == limits
    (unit,) = suites.throughput(text, names, 2, 1)
    assert [entry.label for entry in unit.entries] == [
        "ours serial", "ours threads2", "ours processes2", "grain threads2", "grain processes2",
        "limits serial", "limits processes2",
    ]  # fmt: skip


def test_a_limit_in_two_processes_is_measured_over_both(text: Job) -> None:
    job = dataclasses.replace(text, mode="processes", workers=2, seconds=0.5)
    reply = run_once(Entry("limits", job), Path(sys.executable))
    steady = reply["steady"]
    assert steady["samples"] > 0 and steady["tokens"] > steady["samples"]
    assert reply["memory"][0] >= reply["memory"][1] > 0  # resident, proportional
    assert reply["peak_pss_bytes"] >= reply["memory"][1]


def test_the_limit_reads_each_text_once_in_the_order_of_our_plan(data: Path, text: Job) -> None:
    from benchmarks.compare.limits import drawn, stored
    from benchmarks.compare.ours import data_config
    from zephon_mm import ExecutionConfig, Loader

    texts = [sample["json"] for sample in drawn(text)]
    everything = [sample["json"] for shard in stored(text) for sample in shard]
    assert Counter(texts) == Counter(everything) and texts != everything
    one = dataclasses.replace(text, lanes=1, batch=1)
    with Loader(data_config(one), ExecutionConfig(backend="serial")) as loader:
        first = next(iter(loader)).documents[0][0]
    shards = stored(one)
    assert drawn(one)[first.ref.position] == shards[first.ref.shard][first.ref.sample]


def test_states_of_several_steps_come_of_one_run(bench: Bench, text: Job) -> None:
    steps = epoch_steps(Path(text.data), "4,90%", text)
    units = suites.restores(text, ["ours", "limits"], steps, 2)
    assert [unit.contestant for unit in units] == ["ours", "ours"]
    rows = Sitting(bench, units).run()
    restored = [row for row in rows if "at_step" in row]
    assert [(row["at_step"], row["share"]) for row in restored] == list(steps.items())
    for row in restored:
        assert row["against"] == "ours serial cold" and row["rounds"] == 2
        assert row["ratios"]["first_batch_s"][1] > 0 and 100 < row["state_bytes"] < 65536
    order = [row["label"] for row in read(bench.results) if row["row"] == "run"]
    assert order[1] == "ours serial cold" == order[-1]


def test_lanes_stand_beside_one(bench: Bench, text: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "LANES", ((4, 1), (4, 4)))
    monkeypatch.setattr(suites, "STATES", {2: 2})
    short = dataclasses.replace(text, sequence_length=129)
    rows = Sitting(bench, suites.lanes(short, 1)).run()
    assert [(row["label"], row["lanes"], row.get("ranks")) for row in rows] == [
        ("ours serial one lane", 1, None),
        ("ours serial 4 lanes", 4, 1),
        ("ours serial one lane", 1, None),
        ("ours serial 4 lanes", 4, 4),
        ("ours serial state of 2 lanes", 2, None),
    ]
    assert "first_batch_s" in rows[1]["ratios"] and "tokens_per_cpu_s" in rows[3]["ratios"]
    assert rows[4]["values"]["state_bytes"][1] > 100
    assert len({tuple(map(row.get, ("group", "label"))) for row in rows}) == len(rows)


def test_our_rows_stay_equal_in_every_case(bench: Bench, text: Job) -> None:
    rows = Sitting(bench, suites.matrices(text, ["ours", "limits"], 4)).run()
    assert {row["case"]: row["verdict"] for row in rows} == dict.fromkeys(
        ("again", "2 threads", "1 process", "2 processes", "2 ranks", "resume",
         "resume with 2 processes", "resume on 2 ranks"), "equal"
    )  # fmt: skip


def test_rows_of_ranks_are_those_of_each_step() -> None:
    plain = ["a", "b", "c", "d"]
    assert suites.same([plain], plain, 2)
    assert not suites.same([["b", "a", "c", "d"]], plain, 2)
    assert suites.same([["b", "d"], ["a", "c"]], plain, 2)
    assert not suites.same([["a", "b"], ["c", "d"]], plain, 2)  # of other steps
    assert not suites.same([["a"], ["b"]], plain, 2)


def test_everything_is_everything_once_and_begins_with_a_round_of_each_work(data: Path) -> None:
    units = suites_of_all(data, list(CONTESTANTS), 2, False)
    names = [unit.name for unit in units]
    assert len(set(names)) == len(names)
    assert names[:5] == [f"throughput, {work}, 0 workers, round 0" for work in workloads.WORKS]
    for what in ("packing", "plan", "backends --repeat 2", "lanes, text, 1024 lanes on 1024 ranks"):
        assert any(name.startswith(what) for name in names)
    for number, workers in ((1, 0), (1, 1), (1, 2)):
        wanted = f"{workers} workers, round {number}"
        assert sum(name.startswith("throughput") and name.endswith(wanted) for name in names) == 5
    peers = [name for name in CONTESTANTS if not name.startswith("limits")]
    for suite in ("restore, text", "determinism, text", "determinism, image_text"):
        for peer in peers:
            assert any(name.startswith(f"{suite}, {peer},") for name in names)
    assert all(unit.seconds({}) > 0 for unit in units)


def test_a_run_that_hangs_is_ended_and_says_so(
    data: Path, text: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.harness.TIMEOUT_S", 0.0)
    endless = dataclasses.replace(text, warmup_s=0.0, seconds=0.2)
    row = run_once(Entry("limits:tar", dataclasses.replace(endless, warmup_steps=10**9)),
                   Path(sys.executable))  # fmt: skip
    assert row["failed"] == "hangs: not done after 0.2 s, and ended"
