"""decord: the right frames by any access order or a refusal, the same from every process.

Everything of decord runs in processes of its own (see `rgb_worker`); PyAV gives what is right.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.decoders.rgb_worker import reference, run_apart, wrong_frames
from tests.unit.decoders.test_pyav import KINDS, info_of, orders
from tests.unit.media.clips import make_clip, manifest
from zephon_mm.decoders import decoder_for, load_decoder
from zephon_mm.decoders.cutting import Cutter
from zephon_mm.decoders.frame_size import written_sizes
from zephon_mm.errors import ConfigError, MissingDependencyError

if importlib.util.find_spec("decord") is None:  # CI has it, and fails here if it hasn't
    pytest.skip("decord is not installed", allow_module_level=True)
TURNED = {
    "turned 90": {"rotation": 90},
    "turned 180": {"rotation": 180},
    "mirrored": {"flip": (True, False)},
    "mirrored and turned": {"rotation": 270, "flip": (True, False)},
}
MADE: dict[str, dict[str, Any]] = {
    **{kind: KINDS[kind] for kind in KINDS if kind not in ("pyramid", "4:2:2", "ts")}, **TURNED,
    "mjpeg in mp4": {"codec": "mjpeg", "pix_fmt": "yuvj422p"},
    "rgb": {"codec": "libx264rgb", "pix_fmt": "rgb24"},
    "one frame": {"frames": 1},
    "crop": {"size": (96, 160), "options": {"x264-params": "crop-rect=10,0,0,0", "g": "8"}},
    "fine crop": {"size": (96, 160), "options": {"x264-params": "crop-rect=64,2,0,6", "g": "8"}},
    "narrow": {"size": (42, 42)},
    "webm vfr": {"codec": "libvpx-vp9", "container": "webm", "frames": 12,
                 "pts": [0, 1, 2, 9, 10, 30, 31, 32, 60, 61, 99, 100]},
}  # fmt: skip
REFUSED = {"av1": "codec", "ten bit": "10 bits", "crop": "crop"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    paths = {kind: folder / kind.replace(" ", "_") for kind in MADE}
    for kind, options in MADE.items():
        paths[kind].write_bytes(make_clip(**options))
    return paths


@pytest.fixture(scope="module")
def results(made: dict[str, Path]) -> dict[str, list[dict[str, Any]]]:
    """What each kind gives by each order, all from one process."""
    jobs, kinds = [], []
    for kind, path in made.items():
        for order in orders(info_of(path.read_bytes()).num_frames)[:3:2]:
            jobs.append({"path": str(path), "frames": order})
            kinds.append(kind)
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in made}
    for kind, job, result in zip(kinds, jobs, run_apart("decord", jobs), strict=True):
        found[kind].append(job | result)
    return found


@pytest.mark.parametrize("kind", sorted(MADE))
def test_every_made_kind_by_any_order(
    kind: str, made: dict[str, Path], results: dict[str, list[dict[str, Any]]]
) -> None:
    if kind in REFUSED:
        assert all(REFUSED[kind] in result["error"] for result in results[kind])
        return
    right = reference(made[kind])
    whole = dict(zip(results[kind][0]["index"], results[kind][0]["md5"], strict=True))
    for result in results[kind]:
        assert result["index"] == result["frames"] and result["pts"] == result["right_pts"]
        assert wrong_frames(result, right) == 0
        assert result["md5"] == [whole[i] for i in result["frames"]]


def test_clean_real_clips_are_right_or_refused(cases: Path) -> None:
    jobs, refused, paths = [], [], []
    for row in manifest(cases, "video"):
        right, size = row["right"], (row["width"] or 0) * (row["height"] or 0)
        if right["cli_error_lines"] or not right["frames"] or size * right["frames"] > 12_000_000:
            continue
        path = cases / "media" / row["file"]
        info = info_of(path.read_bytes())
        large = info.num_frames * info.stored_width * info.stored_height > 3_000_000
        for order in orders(info.num_frames)[1:2] if large else orders(info.num_frames)[:3]:
            jobs.append({"path": str(path), "frames": order})
        paths.append(path)
    wrong, decoded, rights = {}, set(), {}
    for job, result in zip(jobs, run_apart("decord", jobs, threads=2), strict=True):
        path = Path(job["path"])
        if "error" in result:
            refused.append(path.name)
            continue
        if path not in rights:
            rights[path] = reference(path)
        decoded.add(path)
        if count := wrong_frames(result, rights[path]):
            wrong[path.name] = count
        assert result["index"] == job["frames"] and result["pts"] == result["right_pts"]
    assert not wrong
    assert len(decoded) >= 16 and len(decoded) + len(set(refused)) == len(paths)


def test_serial_threads_processes_marks_and_orders_are_equal(
    made: dict[str, Path], cases: Path
) -> None:
    damaged = [cases / "inputs/V16" / name for name in ("damaged_mid.mp4", "cut_60pct.mp4")]
    damaged += [cases / "media/video/sample_with_invalid_nalu.mp4"]
    jobs: list[dict[str, Any]] = []
    for path in (*damaged, made["open gop"], made["vp9 alt ref"], made["avi"]):
        count = info_of(path.read_bytes()).num_frames
        for order in ([count - 1, 0, 5], [4]):
            jobs.append({"path": str(path), "frames": order})
    first = run_apart("decord", jobs)
    again = run_apart("decord", [job | {"clean": True} for job in jobs], threads=4)
    other = run_apart("decord", [job | {"clean": False} for job in reversed(jobs)], held=1)
    assert again == first
    for job, one, two in zip(jobs, first, reversed(other), strict=True):
        if Path(job["path"]) not in damaged:  # held frame by frame, damage further on isn't met
            assert one == two
    assert any("error" in result for result in first)
    assert any("md5" in result for result in first)


def test_frames_that_are_not_there_are_refused(made: dict[str, Path]) -> None:
    jobs = [{"path": str(made["bframes"]), "frames": frames} for frames in ([24], [-1], [0, 24])]
    for result in run_apart("decord", [*jobs]):
        assert "a clip of 24 frames" in result["error"]


def test_a_run_gives_as_many_frames_as_it_says() -> None:
    for kind in ("bframes", "vp8", "open gop", "avi", "mjpeg"):
        data = make_clip(**KINDS[kind])  # type: ignore[arg-type]
        info = info_of(data)
        cutter = Cutter(data, info)
        groups = cutter.groups(range(info.num_frames))
        assert [i for group in groups for i in group] == list(range(info.num_frames))
        for group in groups:
            run = next(cutter.runs(group))
            assert [frame for _, frame in run.frames] == group
            mini = info_of(run.data)
            assert mini.num_frames == run.num_frames and mini.orientation.rotation == 0
        cutter.close()
    assert len(groups) == 1  # MJPEG needs no runs
    data = make_clip(options={"bf": "2", "g": "6"})
    cutter = Cutter(data, info_of(data))
    assert [group[0] for group in cutter.groups(range(24))] == [0, 6, 12, 18]
    assert next(cutter.runs([13])).num_frames < 6
    cutter.close()


def test_written_sizes_are_read_from_headers() -> None:
    for kind, codec in (("vp8", "vp8"), ("vp9 alt ref", "vp9"), ("mjpeg", "mjpeg")):
        data = make_clip(**KINDS[kind])  # type: ignore[arg-type]
        cutter = Cutter(data, info_of(data))
        found = [list(written_sizes(codec, packet)) for packet in cutter._packets]
        assert found[0] == [(64, 48)]
        assert {size for sizes in found for size in sizes} == {(64, 48)}
        cutter.close()
    assert list(written_sizes("vp9", b"\x82")) == [] and list(written_sizes("h264", b"abc")) == []


def test_a_clip_that_changes_size_is_refused(cases: Path) -> None:
    names = ("400x300-red-resize-200x150-green.webm", "400x300-red-resize-200x150-green.mp4")
    paths = [cases / "media/video" / name for name in names]
    jobs = [{"path": str(path), "frames": [0, 100]} for path in paths]
    for result in run_apart("decord", jobs):
        assert "change size" in result["error"] or "expected [300, 400, 3]" in result["error"]


def test_a_decoder_of_another_class_is_a_config_error() -> None:
    assert decoder_for("rgb-decord", "auto") == decoder_for("rgb-decord", "decord") == "decord"
    for pixel_class, name in (("rgb-decord", "pyav"), ("planes-v1", "decord")):
        with pytest.raises(ConfigError, match="can't provide"):
            decoder_for(pixel_class, name)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "zephon_mm.decoders.decord", raising=False)
    monkeypatch.setitem(sys.modules, "decord", None)
    with pytest.raises(MissingDependencyError, match=r"zephon-mm\[decord\]"):
        load_decoder("decord")


def test_importing_the_package_imports_no_rgb_library() -> None:
    code = "import zephon_mm, zephon_mm.decoders, zephon_mm.stages.materialise, sys; "
    code += "assert not {'decord', 'nvidia.dali'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
