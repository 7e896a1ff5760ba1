from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare.protocol import Job
from benchmarks.harness import Bench, Entry, Row
from benchmarks.plot import newest, rates, restores
from benchmarks.sitting import Sitting, read
from benchmarks.suites import Round

JOB = Job(work="text", kind="throughput", data="", reply="")
FACTS = {"quick": False, "vocabulary": "trained"}


class Fake:
    """Stands in for the processes: answers by label, and notes what was run."""

    def __init__(self, **answers: list[Row]) -> None:
        self.answers = {name: iter(replies) for name, replies in answers.items()}
        self.ran: list[str] = []
        self.clock = 0.0

    def __call__(self, entry: Entry, python: Path) -> Row:
        self.ran.append(entry.name)
        self.clock += 20
        steady = {"samples": 1, "tokens": 8, "wall_s": 1.0, "cpu_s": 2.0, "fill": None}
        usual = {"steady": steady, "version": "1", "wall_s": 3.0}
        return dict(next(self.answers.get(entry.name, iter(())), usual))


def bench(folder: Path, fake: Fake) -> Bench:
    return Bench(folder, folder / "rows.jsonl", FACTS, runner=fake)


def rounds(number: int) -> list[Round]:
    entries = (Entry("limits:tar", JOB), Entry("limits:ffmpeg", JOB))  # they prepare nothing
    return [Round("throughput", "text", n, entries, "limits:tar serial") for n in range(number)]


def test_odd_rounds_run_backwards(tmp_path: Path) -> None:
    fake = Fake()
    Sitting(bench(tmp_path, fake), rounds(2)).run()
    assert fake.ran == ["limits:tar", "limits:ffmpeg", "limits:ffmpeg", "limits:tar"]


def test_a_failure_costs_its_round_alone_and_two_in_a_row_the_rest(tmp_path: Path) -> None:
    bad = {"failed": "broke"}
    fake = Fake(**{"limits:ffmpeg": [bad]})
    _, one = Sitting(bench(tmp_path / "a", fake), rounds(3)).run()
    assert one["failures"] == ["broke"] and one["ratios"]["tokens_per_s"] == (1.0, 1.0, 1.0)
    fake = Fake(**{"limits:ffmpeg": [bad, bad]})
    _, one = Sitting(bench(tmp_path / "b", fake), rounds(3)).run()
    assert fake.ran.count("limits:ffmpeg") == 2
    assert one["failed"] == "not run: it failed 2 times one after another"


def test_what_a_contestant_cannot_do_is_asked_once_and_is_a_row(tmp_path: Path) -> None:
    fake = Fake(**{"limits:ffmpeg": [{"skipped": "no clips", "version": "6"}]})
    _, one = Sitting(bench(tmp_path, fake), rounds(3)).run()
    assert (fake.ran.count("limits:ffmpeg"), one["skipped"]) == (1, "no clips")
    kept = read(tmp_path / "rows.jsonl")
    assert [row["row"] for row in kept].count("run") == 6
    assert all(row["commit"] and row["machine"]["cores"] and row["vocabulary"] for row in kept)


def test_a_sitting_goes_on_where_one_broke_off(tmp_path: Path) -> None:
    fake = Fake()
    Sitting(bench(tmp_path, fake), rounds(1)).run()
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"row": "run", "uni')  # cut off while it wrote
        file.write("\n")
    again = Sitting(bench(tmp_path, fake), rounds(2))
    assert ([unit.number for unit in again.done], [unit.number for unit in again.left]) == (
        [0],
        [1],
    )
    rows = again.run()
    assert len(fake.ran) == 4 and rows[0]["rounds"] == 2 and not again.left
    fresh = Sitting(bench(tmp_path, fake), rounds(2), fresh=True)
    assert len(fresh.left) == 2


@pytest.mark.parametrize("key", ["commit", "vocabulary", "quick"])
def test_rows_of_other_commits_and_data_are_none_of_ours(tmp_path: Path, key: str) -> None:
    Sitting(bench(tmp_path, Fake()), rounds(1)).run()
    path = tmp_path / "rows.jsonl"
    changed = [json.dumps({**row, key: "other"}) for row in read(path)]
    path.write_text("".join(line + "\n" for line in changed))
    assert len(Sitting(bench(tmp_path, Fake()), rounds(1)).left) == 1


def test_a_budget_begins_nothing_that_would_end_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, told = Fake(), []
    monkeypatch.setattr("time.monotonic", lambda: fake.clock)
    sitting = Sitting(bench(tmp_path, fake), rounds(3), budget_s=50.0)
    assert sitting.seconds == 3 * 2 * (5 + 1.5 * 10)  # nothing is known yet
    sitting.run(told.append)
    assert (len(sitting.done), len(sitting.left), sum(told)) == (1, 2, 40.0)
    later = Sitting(bench(tmp_path, fake), rounds(3))
    assert later.seconds == 2 * 6  # as long as the last ones took


def test_a_unit_that_broke_off_counts_for_nothing(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Breaks:
        name: str = "breaks"

        def seconds(self, known: Mapping[str, float]) -> float:
            return 1.0

        def do(self, bench: Bench, done: Callable[[float], None]) -> None:
            bench.run(Entry("limits:tar", JOB), suite="x", group="x", round=0, unit=self.name)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Sitting(bench(tmp_path, Fake()), [Breaks()]).run()
    assert len(Sitting(bench(tmp_path, Fake()), [Breaks()]).left) == 1


def line(work: str = "text", ratio: float = 1.0, **more: Any) -> str:
    ratios = dict.fromkeys(("tokens_per_cpu_s", "samples_per_cpu_s"), [ratio] * 3)
    row = {"row": "summary", "suite": "throughput", "work": work, "workers": 0,
           "contestant": "ours", "against": "limits serial", "ratios": ratios}  # fmt: skip
    return json.dumps(row | more)


def test_pictures_take_the_newest_summaries_of_each_work(tmp_path: Path) -> None:
    restored: dict[str, Any] = {"suite": "restore", "at_step": 10}
    restored["values"] = {"first_batch_s": [1, 2, 3]}
    other = restored | {"values": {"first_batch_s": [4, 5, 6]}}
    beside = {"limits serial": {"samples_per_cpu_s": [1.5] * 3}}  # the limit of all in a plot
    lines = [
        line(ratio=0.1),
        line(ratio=0.9),
        line(ratio=0.5, workers=2),
        line(ratio=0.3, quick=True),
        line(ratio=0.7, vocabulary="qwen"),
        line("image_text", ratio=0.8),
        line("interleaved", ratio=1.2, against="limits:aten serial", ratios_to=beside),
        line("interleaved", ratio=0.6, contestant="zephon"),
        json.dumps({"row": "run"}),
        line(**restored),
        line("image_text", **other),
    ]
    (tmp_path / "rows").write_text("\n".join(lines))
    rows = newest(tmp_path / "rows")
    assert rates(rows) == {
        "text": {"ours": [0.9] * 3},
        "text, qwen's vocabulary": {"ours": [0.7] * 3},
        "pictures": {"ours": [0.8] * 3},
        "interleaved": {"ours": [1.5] * 3, "zephon": [0.6] * 3},
    }
    assert restores(rows) == {
        "text": {"ours": [(10, 1, 2, 3)]},
        "pictures": {"ours": [(10, 4, 5, 6)]},
    }
    (tmp_path / "none").write_text("")
    with pytest.raises(ValueError, match="no summary"):
        newest(tmp_path / "none")
