from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.digests.logs import row, write
from zephon_mm.cli.verify import lines
from zephon_mm.digests import DigestLog, compare_logs, read_log
from zephon_mm.errors import ConfigError, DigestLogError


def rows(steps: range, slots: range = range(4)) -> list:  # type: ignore[type-arg]
    return [row(step, slot, seed=10 * step + slot + 1) for step in steps for slot in slots]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """Steps 0 to 4 of four slots, by one rank."""
    write(tmp_path / "whole", rows(range(5)))
    return tmp_path / "whole"


def test_a_log_is_read_as_written(whole: Path) -> None:
    log = read_log(whole)
    assert len(log) == 20 and log.heads == [{"seed": 1}] and log.cut == 0
    assert log.shards == {("clips", 1): "clips-1.tar", ("texts", 0): "texts-0.tar"}
    assert [log.row(i) for i in range(20)] == rows(range(5))
    assert log.where(0) == f"{whole}/0-of-1.jsonl:4"
    alone = read_log(whole / "0-of-1.jsonl")
    assert compare_logs(log, alone).equal


def test_ranks_write_a_file_each(whole: Path, tmp_path: Path) -> None:
    write(tmp_path / "two", rows(range(5), range(2)), 0, 2)
    write(tmp_path / "two", rows(range(3), range(2, 4)), 1, 2)
    write(tmp_path / "two", rows(range(2, 5), range(2, 4)), 0, 4)  # went on as another rank
    found = compare_logs(read_log(whole), read_log(tmp_path / "two"))
    assert found.equal and found.common == 20 and not any(map(any, found.lacks.values()))


@pytest.mark.parametrize("cut", [1, 2, 30, 500])
def test_a_kill_cuts_the_last_line(whole: Path, cut: int) -> None:
    file = whole / "0-of-1.jsonl"
    data = file.read_bytes()
    file.write_bytes(data[:-cut])
    log = read_log(whole)
    assert log.cut == (cut > 1) and 18 <= len(log) <= 20 - log.cut
    write(whole, rows(range(3, 6)))  # the run goes on from step 3
    again = read_log(whole)
    assert again.cut == log.cut and set(again.step.tolist()) == set(range(6))
    assert compare_logs(log, again).equal


def test_repeated_steps_must_agree(whole: Path, tmp_path: Path) -> None:
    write(whole, rows(range(2, 5)))
    other = tmp_path / "other"
    write(other, rows(range(5)))
    assert compare_logs(read_log(whole), read_log(other)).equal
    write(whole, [row(3, 2, seed=99)])
    found = compare_logs(read_log(other), read_log(whole))
    assert not found.equal and list(found.repeats) == ["b"]
    clash = found.repeats["b"]
    assert (clash.step, clash.slot) == (3, 2)
    assert {d.cause for d in clash.differences} == {"token", "labels", "pixels"}


def test_a_config_that_changed_on_the_way_is_named(whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other, rows(range(3)))
    write(other, rows(range(3, 5)), identity={"seed": 1, "sources.a.weight": 0.5})
    found = compare_logs(read_log(whole), read_log(other))
    assert not found.equal and found.config_step == 3 and found.first is None
    assert [(c.what, c.a, c.b) for c in found.config] == [("sources.a.weight", None, 0.5)]
    assert compare_logs(read_log(whole), read_log(other), ignore_config=True).equal


def test_what_only_one_run_has(whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other, rows(range(2, 4)))
    write(other, rows(range(4, 5), range(1)))  # a rank was a step ahead when the run was killed
    write(other, rows(range(5, 8), range(1)))
    found = compare_logs(read_log(whole), read_log(other))
    assert found.equal and found.common == 9
    assert found.lacks["b"].steps == ((0, 1),)
    assert (found.lacks["b"].rows, found.lacks["b"].first) == (3, (4, 1))
    assert found.lacks["a"].steps == ((5, 7),) and found.lacks["a"].rows == 0


def test_what_is_not_printed_is_counted(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    short = [row(step, 0) for step in (0, 1)]
    write(one, [*short, *(row(step, 0) for step in range(10, 60, 2))])
    write(other, short, identity={f"field{i:03}": i for i in range(130)})
    logs = read_log(one), read_log(other)
    text = list(lines(*logs, compare_logs(*logs)))
    assert any(line.endswith("44, 46, 48 and 5 more (--json has all)") for line in text), text
    assert "  and 11 more (--json has all)" in text  # 130 fields and the seed, 120 shown


def test_a_step_that_a_run_left_out(whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other, [r for r in rows(range(5)) if (r.step, r.slot) not in ((2, 1), (2, 3))])
    for a, b in ((whole, other), (other, whole)):
        found = compare_logs(read_log(a), read_log(b))
        assert not found.equal and found.differing == 0
        assert found.first is not None and (found.first.step, found.first.slot) == (2, 1)
        assert found.slots == (1, 3) and found.first.differences[0].cause == "row"


def test_what_is_no_log_is_refused(whole: Path, tmp_path: Path) -> None:
    file = whole / "0-of-1.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    head = json.loads(lines[0])
    bad = {
        "damaged": "".join([*lines[:7], lines[7][:50] + "\n", *lines[8:]]),
        "changed": "".join([*lines[:7], lines[7].replace("[", "{", 1), *lines[8:]]),
        "headless": "".join(lines[1:]),
        "future": json.dumps(head | {"version": 2}) + "\n" + "".join(lines[1:]),
        "foreign": '{"outcome": "filtered"}\n',
        "list": "[1]\n[2]\n",
        "text": "hello\n",
        "short row": "".join(lines[:4]) + '{"step":9,"slot":0}\n',
        "empty": "",
        "only a header": lines[0],
    }
    for name, text in bad.items():
        file.write_text(text)
        with pytest.raises(DigestLogError) as raised:
            read_log(whole)
        assert str(whole) in str(raised.value), name
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DigestLogError, match=r"no such folder|no digest log"):
            read_log(path)


def test_a_log_that_is_dropped_is_closed(tmp_path: Path) -> None:
    log = DigestLog(str(tmp_path), {}, 0, 1)
    log._ready[0] = rows(range(1)), {}
    log.write(0)
    file = log._file
    assert file is not None and not file.closed
    del log
    assert file.closed


def test_a_folder_that_can_not_be_made_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="digest_log="):
        DigestLog(str(tmp_path / "file" / "log"), {}, 0, 1)
    DigestLog(None, {}, 0, 1).write(3)
