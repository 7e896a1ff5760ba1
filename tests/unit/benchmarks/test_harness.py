from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.compare.protocol import Job, Meter, Seen, begin, cpu_seconds, digest, read_job
from benchmarks.environments import CONTESTANTS
from benchmarks.harness import output, read_reply
from benchmarks.spreads import paired_ratios, spread
from benchmarks.summaries import rounded, summaries


def job(**more: Any) -> Job:
    return Job(**{"work": "text", "kind": "throughput", "data": "", "reply": "", **more})


def run_row(name: str, number: int, work: Any = "text", **values: Any) -> dict[str, Any]:
    given = dataclasses.asdict(job(work=work))
    failed = {"failed": values.pop("failed")} if "failed" in values else {}
    return {
        "row": "run", "contestant": name, "label": f"{name} serial", "round": number,
        "suite": "throughput", "group": f"{work}, 0 workers", "against": "limits serial",
        "job": given, "facts": {}, "values": values, **failed,
    }  # fmt: skip


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
    mine, others = [1.0, 20.0, 300.0], [2.0, 10.0, 100.0]
    runs = [run_row("ours", n, rate=value) for n, value in enumerate(mine)]
    runs += [run_row("limits", n, rate=value) for n, value in enumerate(others)]
    row = summaries(runs)[0]
    assert (row["contestant"], row["against"]) == ("ours", "limits serial")
    assert row["values"]["rate"][1] == 20.0
    assert row["ratios"]["rate"][1] == 2.0  # of 0.5, 2 and 3
    assert (row["sequence_length"], row["lanes"]) == (4096, 8)


def test_failed_rounds_are_counted_and_left_out() -> None:
    runs = [
        run_row("ours", 0, rate=5.0, failed="killed"),
        run_row("ours", 1, rate=1.0),
        run_row("limits", 0, rate=9.0),
        run_row("limits", 1, rate=4.0),
    ]
    row = summaries(runs)[0]
    assert (row["failures"], row["rounds"]) == (["killed"], 2)
    assert row["values"]["rate"][1] == 1.0 and row["ratios"]["rate"][1] == 0.25
    none = summaries([runs[0]])[0]
    assert none["failed"] == "killed" and "values" not in none


def test_rates_are_compared_with_every_limit_of_the_round() -> None:
    runs = [
        run_row("ours", 0, samples_per_s=6.0, fill=1.0),
        run_row("limits", 0, samples_per_s=3.0),
        run_row("limits:aten", 0, samples_per_s=4.0, fill=1.0),
    ]
    ours, limit, _ = summaries(runs)
    assert ours["ratios"] == {"samples_per_s": (2.0, 2.0, 2.0)}
    assert ours["ratios_to"] == {"limits:aten serial": {"samples_per_s": (1.5, 1.5, 1.5)}}
    assert limit["ratios_to"]["limits:aten serial"]["samples_per_s"][1] == 0.75


def test_works_and_backends_are_summed_up_apart() -> None:
    runs = [run_row("ours", 0, rate=1.0), run_row("ours", 0, work="image_text", rate=2.0)]
    assert [row["work"] for row in summaries(runs)] == ["text", "image_text"]


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
    monkeypatch.setattr("benchmarks.compare.protocol.process_start", lambda: float(next(now)))
    meter = Meter(job(reply=str(tmp_path / "reply"), warmup_s=3.0, seconds=2.0))
    assert meter.imported().warmup_s == 3.0
    ended, watched = [], []
    for _ in range(7):
        ended.append(meter.batch(samples=1, tokens=10, room=20))
        watched.append(not (tmp_path / "reply.window").exists())
    meter.finish(version="1")
    reply = json.loads((tmp_path / "reply").read_text())
    # The first at 2; warm at 5 (the window's begin is 6); at 7 within, at 8 at its end.
    assert ended == [False] * 5 + [True, True]
    assert watched == [True] * 3 + [False] * 2 + [True] * 2  # from outside, but in the window
    assert (reply["import_s"], reply["first_batch_s"]) == (1.0, 1.0)
    assert (reply["steady"]["samples"], reply["steady"]["fill"]) == (3, 0.5)


def test_what_was_decoded_before_the_window_is_no_work_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    monkeypatch.setattr("benchmarks.compare.protocol.cpu_seconds", lambda pid: float(next(now)))
    meter = Meter(job(reply=str(tmp_path / "reply"), warmup_s=1.0, seconds=20.0))
    meter.imported()
    done = 90  # ahead of what is delivered
    meter.decoded = lambda: done
    ended = False
    while not ended:
        done += 4
        ended = meter.batch(samples=8, tokens=80, media=8)
    meter.finish(version="1")
    reply = json.loads((tmp_path / "reply").read_text())
    steady = reply["steady"]
    assert steady["samples"] > 8 and steady["decoded"] == steady["media"] / 2
    found = harness.values("peer", reply)
    assert found["decoded_share"] == 0.5
    assert found["samples_per_cpu_s"] == steady["samples"] / steady["cpu_s"] / 2
    steady["decoded"] = None
    assert harness.values("peer", reply)["samples_per_s"] == steady["samples"] / steady["wall_s"]


@pytest.mark.parametrize(("kind", "steps", "taken"), [("rows", 3, 3), ("restore", 9, 1)])
def test_a_meter_counts_steps(tmp_path: Path, kind: Any, steps: int, taken: int) -> None:
    meter = Meter(job(reply=str(tmp_path / "reply"), kind=kind, steps=steps))
    meter.imported()

    def batch(number: int) -> bool:
        row = Seen(b"%d" % number, [b"a"], [b"b"])
        return meter.batch(samples=1, tokens=1, look=lambda: [row])

    assert next(n for n in range(1, 100) if batch(n)) == taken
    meter.finish(version="1")
    reply = json.loads((tmp_path / "reply").read_text())
    assert reply["rows"] == [digest(b"%d" % n) for n in range(1, taken + 1)]
    assert reply["documents"] == [digest(b"a")] * taken
    assert reply["media"] == [digest(b"b")] * taken


def test_rows_are_looked_at_once_the_time_is_taken(tmp_path: Path) -> None:
    meter = Meter(job(reply=str(tmp_path / "reply"), warmup_s=0.0, seconds=0.0))
    meter.imported()
    looks = []

    def look() -> list[Seen]:
        time.sleep(0.2)
        looks.append(1)
        return []

    while not meter.batch(samples=1, tokens=1, look=look):
        pass
    meter.finish(version="1")
    assert len(looks) == 1  # of the first batch alone
    assert json.loads((tmp_path / "reply").read_text())["first_batch_s"] < 0.2


def test_the_clock_of_the_first_batch_begins_where_the_data_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text-000.tar").touch()
    (tmp_path / "job").write_text(json.dumps({**dataclasses.asdict(job()), "data": str(tmp_path)}))
    monkeypatch.setattr("sys.argv", ["contestant", str(tmp_path / "job")])
    early, meter = begin()
    assert (early.data, early.shards) == ("", [])
    with pytest.raises(RuntimeError, match="imported"):
        meter.batch(samples=1, tokens=1)
    assert meter.imported().shards == [str(tmp_path / "text-000.tar")]


def test_states_are_saved_of_the_steps_that_were_asked(tmp_path: Path) -> None:
    wanted = job(
        reply=str(tmp_path / "reply"), kind="save", saves=(2, 3), state=str(tmp_path / "state")
    )
    meter = Meter(wanted)
    meter.imported()
    with pytest.raises(RuntimeError, match=r"steps \[2, 3\]"):
        meter.finish(version="1")
    for number in (1, 2, 3):
        assert meter.batch(samples=1, tokens=1) == (number == 3)
        meter.save(lambda path, number=number: Path(path).write_bytes(bytes(number)))
    meter.finish(version="1")
    states = json.loads((tmp_path / "reply").read_text())["states"]
    assert {step: one["state_bytes"] for step, one in states.items()} == {"2": 2, "3": 3}
    assert sorted(p.name for p in tmp_path.glob("state*")) == ["state-2", "state-3"]


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    given = job(workers=2, mode="processes", lanes=3, saves=(1, 2))
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


def test_what_is_delivered_is_compared_with_what_the_data_give() -> None:
    known = {"documents": frozenset("ab"), "media": frozenset("x")}
    good = {"documents": ["a", "b", "a"], "media": ["x"], "rows": ["?"]}
    assert output(good, known) == {"output": {"documents": [3, 3], "media": [1, 1]}}
    wrong = output({"documents": ["a", "c"], "media": []}, known)
    assert wrong["failed"] == "other output than expected: 1 of 2 documents"
    assert output({"rows": []}, known) == {}
