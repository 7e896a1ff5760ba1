"""``zephon-mm frames`` as a user runs it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.unit.media.clips import NOT_EXACT, all_frames, make_clip, manifest, recorded
from zephon_mm.cli.main import app
from zephon_mm.errors import ConfigError, MediaError, StorageError, ZephonError


def rows(*arguments: object) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["frames", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def refused(kind: type[ZephonError], *arguments: object) -> tuple[str, list[str]]:
    result = CliRunner().invoke(app, ["frames", *map(str, arguments)])
    assert type(result.exception) is kind
    return str(result.exception), result.stdout.splitlines()


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(make_clip(frames=24, options={"bf": "2", "g": "6"}))
    return path


def test_every_recorded_frame_and_time(cases: Path) -> None:
    checked = 0
    for row in manifest(cases, "video"):
        name = Path(row["file"]).name
        right = row["right"]
        small = row["bytes"] < 150_000 and (right["frames"] or 0) <= 200
        if right["cli_error_lines"] or not right["frames"] or name in NOT_EXACT or not small:
            continue
        found = rows(cases / "media" / row["file"], "--all")
        want = recorded(cases, row)
        assert [line["md5"] for line in found] == [frame[3] for frame in want], name
        assert [line["index"] for line in found] == list(range(len(want)))
        times = [frame[0] - want[0][0] for frame in want]
        assert [line["pts"] - found[0]["pts"] for line in found] == times, name
        assert found[0]["pts_seconds"] == 0, name
        checked += 1
    assert checked >= 20


def test_pts_are_the_files_own_and_seconds_count_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "late.mkv"
    path.write_bytes(make_clip(container="matroska", frames=4, pts=[48, 49, 51, 52]))
    found = rows(path)
    assert [line["pts"] for line in found] == [2000, 2042, 2125, 2167]
    assert [line["pts_seconds"] for line in found] == [0, 0.042, 0.125, 0.167]


def test_order_and_repeats_are_kept(clip: Path) -> None:
    want = all_frames(clip.read_bytes())
    asked = [5, 23, 0, 5, 5, 22]
    found = rows(clip, "--indices", ",".join(map(str, asked)))
    assert [(line["index"], line["md5"]) for line in found] == [(i, want[i]) for i in asked]
    assert found[0]["size"] == [64, 48] and found[0]["pix_fmt"] == "yuv420p"


def test_which_frames(clip: Path) -> None:
    def numbers(*options: object) -> list[int]:
        return [line["index"] for line in rows(clip, "--no-hash", *options)]

    assert numbers() == numbers("--all") == list(range(24))
    assert numbers("--uniform", 3) == [0, 12, 23]
    assert numbers("--uniform", 99) == list(range(24))
    assert numbers("--fps", 4) == [0, 8, 15, 23]
    assert "md5" not in rows(clip, "--no-hash")[0]


@pytest.mark.parametrize(
    ("codec", "pix_fmt"),
    [("libx264", "yuv444p"), ("ffv1", "gray"), ("libx265", "yuv420p10le"), ("ffv1", "gbrp10le")],
)
def test_formats_are_named_as_stored(tmp_path: Path, codec: str, pix_fmt: str) -> None:
    path = tmp_path / "clip.mkv"
    options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    size = (37, 51) if pix_fmt in ("yuv444p", "gbrp10le") else (38, 50)
    data = make_clip(
        codec=codec, container="matroska", pix_fmt=pix_fmt, frames=3, size=size, options=options
    )
    path.write_bytes(data)
    found = rows(path)
    assert [line["md5"] for line in found] == all_frames(data)
    assert {(line["pix_fmt"], *line["size"]) for line in found} == {(pix_fmt, size[1], size[0])}


def test_png_writes_frames_upright_and_a_sheet(tmp_path: Path) -> None:
    path, out = tmp_path / "turned.mp4", tmp_path / "new" / "folder"
    path.write_bytes(make_clip(rotation=90, frames=9))
    found = rows(path, "--png", out, "--indices", "7,2,7")
    names = [str(out / f"frame_{index:06d}.png") for index in (7, 2, 7)]
    assert [line["png"] for line in found] == names
    assert [line["size"] for line in found] == [[64, 48]] * 3
    with Image.open(names[0]) as picture:
        assert picture.size == (48, 64)
        turned = np.asarray(picture)
    with Image.open(out / "contact_sheet.png") as sheet:
        assert sheet.width > 2 * 160 and len(sheet.getcolors(1 << 20) or []) > 200
    path.write_bytes(make_clip(frames=9))
    rows(path, "--png", out, "--indices", "7")
    with Image.open(names[0]) as picture:
        assert np.abs(np.rot90(np.asarray(picture)).astype(int) - turned).mean() < 2


def test_a_sheet_of_many_frames_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(make_clip(frames=150, size=(32, 32), options={"preset": "ultrafast"}))
    assert len(rows(path, "--png", tmp_path, "--no-hash")) == 150
    assert len(list(tmp_path.glob("frame_*.png"))) == 150
    with Image.open(tmp_path / "contact_sheet.png") as sheet:
        assert sheet.width < 1100 and sheet.height < 1900


def test_a_shard_of_pictures_is_no_clip(tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.jpg")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "a.jpg", "a.jpg")
    said, printed = refused(MediaError, tmp_path / "a.tar")
    assert "a shard, not a clip" in said and not printed


def test_clear_errors(clip: Path, tmp_path: Path, cases: Path) -> None:
    for options in (["--all", "--fps", "2"], ["--indices", "1", "--uniform", "2"]):
        assert "not several" in refused(ConfigError, clip, *options)[0]
    for text in ("24", "0,-1", "5,1000000000000000000000"):
        assert "it has 24, numbered 0 to 23" in refused(ConfigError, clip, "--indices", text)[0]
    for text in ("", "a", "1-3", "1,,2"):
        assert "such as 0,5,7" in refused(ConfigError, clip, "--indices", text)[0]
    for number in ("0", "-1", "nan", "inf"):
        assert "above 0" in refused(ConfigError, clip, "--fps", number)[0]
    assert "choose one of" in refused(ConfigError, clip, "--decoder", "quicktime")[0]
    assert "No such file" in refused(StorageError, tmp_path / "none.mp4")[0]
    assert "directory" in refused(StorageError, tmp_path)[0]
    assert "exists" in refused(StorageError, clip, "--png", clip)[0]
    sound = cases / "media/video/sample_audio_only.mp4"
    assert "no video stream" in refused(MediaError, sound)[0]
    clip.write_bytes(b"no clip at all" * 20)
    assert "no readable video container" in refused(MediaError, clip)[0]


def test_damage_is_told_and_the_rest_can_be_had(cases: Path) -> None:
    path = cases / "inputs/V16/cut_60pct.mp4"
    want = all_frames((cases / "inputs/V16/clean.mp4").read_bytes())
    reason, lines = refused(MediaError, path)
    assert str(path) in reason and f"{len(lines)} of the " in reason and "--indices" in reason
    assert 0 < len(lines) < 50
    first = rows(path, "--indices", "0,9")
    assert [line["md5"] for line in first] == [want[0], want[9]]
