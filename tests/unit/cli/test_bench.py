"""``zephon-mm bench decode`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tests.unit.media.clips import make_clip
from zephon_mm.cli.bench import Worker, frames_of, parse_levels, sweep_row
from zephon_mm.cli.bench_contestants import (
    CONTESTANTS,
    Contestant,
    Job,
    Reference,
    _need,
    frame_mappings,
    reference,
    signature,
)
from zephon_mm.cli.bench_report import Cell, Clip, summarise, table
from zephon_mm.cli.main import app
from zephon_mm.errors import ConfigError, MissingDependencyError
from zephon_mm.media.info import Orientation
from zephon_mm.media.probe_video import probe_video


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(make_clip(frames=24, options={"bf": "2", "g": "6"}))
    return path


def run(*arguments: object) -> str:
    command = ["bench", "decode", *map(str, arguments)]
    result = CliRunner().invoke(app, command, catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_one_table_one_plot_and_every_time(clip: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.webm"
    other.write_bytes(make_clip(codec="libvpx-vp9", container="webm", frames=12))
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(clip.read_bytes()[:2000])
    plot, record = tmp_path / "plot.png", tmp_path / "all.json"
    options = ["--rounds", 2, "--plot", plot, "--json", record, "--pattern", "uniform:4,random:9"]
    names = ["--decoders", "pyav,pyav+scan,pyav-sequential,decord"]
    out = run(clip, other, bad, tmp_path / "none.mp4", *options, *names)
    assert "2 clips, 2 rounds" in out and out.count("0 of 8") == 3 + out.count("rgb") // 2
    assert "left out: " + str(bad) in out and "none.mp4: No such file" in out
    assert ("not installed: decord: " in out) != ("rgb" in out)
    found = json.loads(record.read_text())
    rows = {(row["decoder"], row["pattern"]): row for row in found["rows"]}
    for name in ("pyav", "pyav+scan", "pyav-sequential"):
        assert rows[name, "uniform:4"]["wrong"] == 0 and rows[name, "random:9"]["wrong"] == 0
        low, middle, high = rows[name, "uniform:4"]["cpu_ms"]
        assert 0 <= low <= middle <= high < 5000
        assert rows[name, "uniform:4"]["peak_bytes"] > 1 << 20
        assert len(found["seconds"][name]["random:9"][str(other)]) == 2
    assert rows["pyav", "uniform:4"]["cpu_ratio"] == [1, 1, 1]
    with Image.open(plot) as picture:
        assert picture.width > 600 and len(picture.getcolors(1 << 20) or []) > 10


def test_a_decoder_that_refuses_a_clip_is_told(tmp_path: Path) -> None:
    paths = [tmp_path / "clip.mp4", tmp_path / "clip.avi"]
    for path in paths:
        path.write_bytes(make_clip(container=path.suffix[1:], frames=6))
    names = "pyav,torchcodec,torchcodec-mapped"
    out = run(*paths[:1], "--rounds", 1, "--pattern", "random:9", "--decoders", names)
    assert out.count("0 of ") == 3 - out.count("not installed")
    options = ["--rounds", 1, "--pattern", "all", "--decoders", "pyav,torchcodec"]
    out = run(*paths, *options)
    if "not installed: torchcodec" not in out:  # CI has it
        assert "1 of 2" in out and f"not decoded: torchcodec, all, {paths[1]}: " in out
        assert "reliable pts" in out


def test_clips_in_flight(clip: Path, tmp_path: Path) -> None:
    record = tmp_path / "all.json"
    options = ["--rounds", 2, "--pattern", "uniform:4", "--decoders", "pyav,pyav-sequential"]
    out = run(clip, *options, "--concurrency", "2,1", "--json", record)
    assert "clips in flight" in out
    for row in json.loads(record.read_text())["in_flight"]:
        rates = row["frames_per_second"]
        assert list(rates) == ["1", "2"] and min(rates.values()) > 0
        assert row["saturated"] == max(rates.values()) == rates[str(row["in_flight"])]
    assert sweep_row("a", "all", {4: [9, 2, 3], 1: [5]}) == {
        "decoder": "a", "pattern": "all", "frames_per_second": {1: 5, 4: 3},
        "saturated": 5, "in_flight": 1,
    }  # fmt: skip
    for text in ("0", "a", "1,,2", ""):
        with pytest.raises(ConfigError, match="such as 1,2,4"):
            parse_levels(text)


def test_wrong_frames_are_counted() -> None:
    data = make_clip(frames=12)
    right, stream = reference(data, probe_video(data))
    assert len(right.md5) == 12 and stream == 0
    planes = [(i, right.md5[i]) for i in range(12)]
    assert right.wrong(planes) == 0
    assert right.wrong([(0, right.md5[1]), (5, right.md5[5]), (5, right.md5[4])]) == 2
    pictures = [(i, right.signatures[i] + 0.6) for i in range(12)]  # another rounding of colours
    assert right.wrong(pictures) == 0
    assert right.wrong([(i, right.signatures[11 - i]) for i in range(12)]) == 12


def test_signatures_are_of_the_picture_as_shown() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (37, 51, 3), np.uint8)
    shown = np.rot90(picture, -1)  # a quarter turn clockwise: transposed, then mirrored across
    assert np.allclose(signature(picture, Orientation(True, True, False)), signature(shown))
    assert signature(np.full((9, 7, 3), 40, np.uint8)).max() == 40


def test_our_index_as_torchcodecs_mappings() -> None:
    info = probe_video(make_clip(options={"bf": "2", "g": "6"}))
    frames = json.loads(frame_mappings(info))["frames"]
    assert frame_mappings(info) is frame_mappings(info)  # made once
    assert [frame["pts"] for frame in frames] == (info.pts + info.start_pts).tolist()
    assert [i for i, frame in enumerate(frames) if frame["key_frame"]] == [0, 6, 12, 18]
    assert {frame["duration"] for frame in frames} == {info.last_duration}


def test_patterns(clip: Path) -> None:
    info = probe_video(clip.read_bytes())
    assert frames_of(clip, info, "all") == tuple(range(24))
    assert frames_of(clip, info, "uniform:3") == (0, 12, 23)
    assert frames_of(clip, info, "fps:4") == (0, 8, 15, 23)
    drawn = frames_of(clip, info, "random:50")
    assert len(drawn) == 50 and drawn == frames_of(clip, info, "random:50")
    assert list(drawn) != sorted(drawn) and set(drawn) <= set(range(24))
    for wrong in ("", "all:3", "uniform", "uniform:0", "uniform:x", "fps:0", "fps:", "best:2"):
        with pytest.raises(ConfigError):
            frames_of(clip, info, wrong)


def test_clear_errors(clip: Path, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        result = CliRunner().invoke(app, ["bench", "decode", *map(str, arguments)])
        assert isinstance(result.exception, ConfigError), result.output
        return str(result.exception)

    assert "choose from pyav" in refused(clip, "--decoders", "pyav,quicktime")
    assert "--pattern 'best'" in refused(clip, "--pattern", "best")
    assert "No such file" in refused(tmp_path / "none.mp4")


def test_missing_libraries_say_what_to_install() -> None:
    with pytest.raises(MissingDependencyError, match="pip install 'a-package'"):
        _need("no_such_module", "a-package")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_its_decoders_are_missing() -> None:
    for name in ("nvdec", "dali-mixed"):
        with pytest.raises(MissingDependencyError, match="device='cuda' needs"):
            CONTESTANTS[name].load()


def test_a_worker_that_dies_is_started_anew(clip: Path) -> None:
    info = probe_video(clip.read_bytes())
    job = Job(str(clip), info, 0, (3, 1), 1, check=True)
    with Worker("pyav") as worker:
        assert worker.missing is None
        right, _ = reference(clip.read_bytes(), info)
        assert dict(worker.ask(job).marks) == {3: right.md5[3], 1: right.md5[1]}
        worker._process.kill()
        worker._process.join()
        assert worker.ask(job).error == "its process died"
        reply = worker.ask(job)
        assert reply.error is None and len(reply.marks) == 2
        outside = Job(str(clip), info, 0, (24,), 1)
        assert "a clip of 24 frames" in str(worker.ask(outside).error)
    assert not worker._process.is_alive()


def test_ratios_are_taken_within_a_round_over_common_clips(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zephon_mm.cli.bench_contestants import Reply

    monkeypatch.setitem(CONTESTANTS, "b", Contestant(lambda: None, "rgb", ""))  # type: ignore[arg-type,return-value]
    right = Reference([], np.zeros((0, 16, 16), np.float32))
    info = probe_video(clip.read_bytes())
    clips = [Clip(clip, info, 0, right, {"all": (0, 1)}) for _ in range(2)]
    first = Cell(rounds=[{0: Reply(1, 1), 1: Reply(8, 8)}, {0: Reply(9, 9), 1: Reply(8, 8)}])
    second = Cell(rounds=[{0: Reply(2, 2)}, {0: Reply(18, 18)}], errors={1: "it refused"})
    cells = {("pyav", "all"): first, ("b", "all"): second}
    row = summarise("b", "all", cells, "pyav", clips)
    assert row is not None and row["cpu_ratio"] == [2, 2, 2] and row["clips"] == 1
    assert row["wall_ms"][1] == 10_000 and row["frames_per_second"][2] < 1
    assert table([row], 2, 2, 1).row_count == 1
