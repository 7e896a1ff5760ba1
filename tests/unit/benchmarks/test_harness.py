from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness, suites, workloads
from benchmarks.compare.protocol import Job, Meter, cpu_seconds, digest, read_job
from benchmarks.environments import CONTESTANTS
from benchmarks.harness import Bench, Entry, read_reply, rounded, summary
from benchmarks.plot import newest, rates, restores
from benchmarks.spreads import paired_ratios, spread


def job(**more: Any) -> Job:
    return Job(**{"work": "text", "kind": "throughput", "data": "", "reply": "", **more})


def test_a_spread_is_of_percentiles() -> None:
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0, 6.0]) == pytest.approx((2.0, 3.5, 5.0))
    assert spread([2.0]) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="at least one"):
        spread([])


def test_ratios_are_of_the_same_round() -> None:
    assert paired_ratios([2.0, None, 9.0, 4.0], [1.0, 1.0, None, 8.0]) == [2.0, 0.5]
    assert paired_ratios([1.0], [0.0]) == []
    with pytest.raises(ValueError, match="same round"):
        paired_ratios([1.0], [])


def test_the_ratio_of_a_summary_is_not_that_of_medians() -> None:
    def runs(values: list[float]) -> list[dict[str, Any]]:
        return [{"values": {"tokens_per_cpu_s": value}} for value in values]

    mine, others = runs([1.0, 20.0, 300.0]), runs([2.0, 10.0, 100.0])
    row = summary(Entry("ours", job()), mine, others, "limits serial")
    assert row["values"]["tokens_per_cpu_s"][1] == 20.0
    assert row["ratios"]["tokens_per_cpu_s"][1] == 2.0  # of 0.5, 2 and 3


def test_failed_runs_are_counted_and_left_out() -> None:
    good: dict[str, Any] = {"values": {"fill": 0.5}}
    killed: dict[str, Any] = {"values": {"fill": 5.0}, "failed": "x"}
    row = summary(Entry("ours", job()), [good, killed], [good, good], "y")
    assert (row["failures"], row["ratios"]["fill"][1]) == (1, 1.0)


BURNS = """
import subprocess, sys, os, json
from benchmarks.compare.protocol import cpu_seconds
burn = "import time\\nwhile time.process_time() < 0.3: pass"
before = cpu_seconds(os.getpid())
subprocess.run([sys.executable, "-c", burn], check=True)
dead = cpu_seconds(os.getpid())
child = subprocess.Popen([sys.executable, "-c", burn + "\\nprint(1, flush=True)\\ninput()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
alive = cpu_seconds(os.getpid())
child.communicate(b"\\n")
print(json.dumps([before, dead, alive]))
"""


def test_cpu_of_children_counts_dead_and_alive() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BURNS], cwd=harness.ROOT, capture_output=True, text=True, check=True
    )
    before, dead, alive = json.loads(done.stdout)
    assert dead - before >= 0.28
    assert alive - dead >= 0.28


def test_cpu_of_a_process_that_is_gone_is_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert cpu_seconds(ended.pid) == 0.0


def test_a_meter_warms_up_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    monkeypatch.setattr("benchmarks.compare.protocol.cpu_seconds", lambda pid: 0.0)
    meter = Meter(job(reply=str(tmp_path / "reply"), warmup_s=3.0, seconds=2.0))
    meter.imported()
    ended = [meter.batch(samples=1, tokens=10, room=20) for _ in range(7)]
    meter.finish(version="1")
    reply = json.loads((tmp_path / "reply").read_text())
    # The first at 2; warm at 5 (the window's begin is 6); at 7 within, at 8 at its end.
    assert ended == [False] * 5 + [True, True]
    assert (reply["import_s"], reply["first_batch_s"]) == (1.0, 1.0)
    assert (reply["steady"]["samples"], reply["steady"]["fill"]) == (3, 0.5)


@pytest.mark.parametrize(("kind", "steps", "taken"), [("rows", 3, 3), ("restore", 9, 1)])
def test_a_meter_counts_steps(tmp_path: Path, kind: Any, steps: int, taken: int) -> None:
    meter = Meter(job(reply=str(tmp_path / "reply"), kind=kind, steps=steps))
    meter.imported()
    batches = range(1, 100)
    assert next(n for n in batches if meter.batch(samples=1, tokens=1, rows=[b"%d" % n])) == taken
    meter.finish(version="1")
    reply = json.loads((tmp_path / "reply").read_text())
    assert reply["rows"] == [digest(b"%d" % n) for n in range(1, taken + 1)]


def test_a_save_without_its_file_is_an_error(tmp_path: Path) -> None:
    meter = Meter(job(reply=str(tmp_path / "reply"), kind="save", state=str(tmp_path / "state")))
    with pytest.raises(RuntimeError, match="leaves its state"):
        meter.finish(version="1")
    assert not (tmp_path / "reply").exists()


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    given = job(workers=2, mode="processes", lanes=3)
    (tmp_path / "job").write_text(json.dumps(dataclasses.asdict(given)))
    assert read_job(str(tmp_path / "job")) == given


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        (None, 0, "no reply; it printed: b | c | d"),
        ("{", 0, "the reply is no JSON"),
        ("[1]", 0, "the reply is a list, expected an object"),
        ('{"steps": 1}', 3, "exit status 3: b | c | d"),
        ('{"steps": 1}', -11, "ended by signal 11: b | c | d"),
    ],
)
def test_a_bad_reply_says_why(tmp_path: Path, text: str | None, status: int, why: str) -> None:
    if text is not None:
        (tmp_path / "reply").write_text(text)
    assert read_reply(tmp_path / "reply", status, "a\nb\nc\nd\n")["failed"].startswith(why)


def test_what_is_skipped_or_fails_is_a_row(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tmp_path / "rows.jsonl")
    skips = Entry("limits:ffmpeg", dataclasses.replace(job(), data=str(tmp_path)))
    fails = Entry("limits:tar", dataclasses.replace(job(), data=str(tmp_path)))  # no shards
    rows = bench.rounds([skips, fails], 3, "ours serial")
    assert rows[0]["skipped"] == "no clips"
    assert "exit status 1" in rows[1]["failed"]
    kept = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["row"] for row in kept] == ["run", "run", "summary", "summary"]  # not again
    assert all(row["commit"] and row["machine"]["cores"] for row in kept)


def test_rows_of_ranks_are_those_of_each_step() -> None:
    plain = ["a", "b", "c", "d"]
    assert suites.same([plain], plain, 2)
    assert not suites.same([["b", "a", "c", "d"]], plain, 2)
    assert suites.same([["b", "d"], ["a", "c"]], plain, 2)
    assert not suites.same([["a", "b"], ["c", "d"]], plain, 2)  # of other steps
    assert not suites.same([["a"], ["b"]], plain, 2)


def test_pictures_take_the_newest_summaries(tmp_path: Path) -> None:
    def line(ratio: float, **more: Any) -> str:
        row = {"row": "summary", "suite": "throughput", "work": "text", "workers": 0,
               "contestant": "ours", "against": "limits serial",
               "ratios": {"tokens_per_cpu_s": [ratio] * 3}}  # fmt: skip
        return json.dumps(row | more)

    restored = {"suite": "restore", "at_step": 10, "values": {"first_batch_s": [1, 2, 3]}}
    lines = [line(0.1), line(0.9), line(0.5, workers=2), json.dumps({"row": "run"})]
    (tmp_path / "rows").write_text("\n".join([*lines, line(0, **restored)]))
    rows = newest(tmp_path / "rows")
    assert rates(rows) == {"text": {"ours": [0.9] * 3}}
    assert restores(rows) == {"ours": [(10, 1, 2, 3)]}
    (tmp_path / "none").write_text("")
    with pytest.raises(ValueError, match="no summary"):
        newest(tmp_path / "none")


def test_rounding_keeps_five_digits_at_any_depth() -> None:
    assert rounded({"a": [123456.7, (0.00012345678,)], "b": 7, "c": None}) == {
        "a": [123460.0, [0.00012346]],
        "b": 7,
        "c": None,
    }


def test_every_contestant_has_a_script_and_pins() -> None:
    folder = harness.ROOT / "benchmarks" / "compare"
    for name, contestant in CONTESTANTS.items():
        assert (folder / f"{name.partition(':')[0]}.py").is_file()
        assert all("==" in requirement for requirement in contestant.requirements)


def test_ours_beside_the_limit_on_a_little_text(tmp_path: Path) -> None:
    size = workloads.Size(text=40, shards=2)
    workloads.make(tmp_path, ["text"], size, corpus=Path(__file__).read_text())
    quick = dataclasses.replace(
        suites.base_job("text", tmp_path, quick=True),
        sequence_length=513,
        warmup_s=0.0,
        seconds=0.1,
    )
    bench = Bench(tmp_path, None)
    limits, ours = suites.throughput(bench, quick, ["limits", "ours"], [0], 1)
    assert limits["values"].keys() == {
        f"{what}_per_{per}" for what in ("samples", "tokens") for per in ("s", "cpu_s")
    }
    assert ours["against"] == "limits serial" and ours["ratios"]["tokens_per_cpu_s"][1] > 0
    assert 0.5 < ours["values"]["fill"][1] <= 1
    assert ours["values"]["peak_rss_bytes"][1] > 50 << 20
