"""DALI on the CPU: the right frames of VP8, VP9 and MJPEG by any access order, or a refusal."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from tests.unit.decoders.rgb_worker import reference, run, run_all, run_apart, wrong_frames
from tests.unit.decoders.test_pyav import KINDS, info_of, orders
from tests.unit.media.clips import make_clip, manifest
from zephon_mm.cli.main import app
from zephon_mm.decoders import cutting, decoder_for, load_decoder
from zephon_mm.errors import ConfigError, MediaError, MissingDependencyError

pytest.importorskip("nvidia.dali")  # CI has it, and fails here if it hasn't

MADE: dict[str, dict[str, Any]] = {
    "vp8": KINDS["vp8"],
    "vp9": KINDS["vp9 alt ref"],
    "mjpeg in avi": KINDS["mjpeg"],
    "mjpeg in mp4": {"codec": "mjpeg", "pix_fmt": "yuvj422p"},
    "odd": {"codec": "libvpx-vp9", "container": "webm", "size": (37, 53)},
    "vfr": {"codec": "libvpx-vp9", "container": "webm", "frames": 12,
            "pts": [0, 1, 2, 9, 10, 30, 31, 32, 60, 61, 99, 100]},
    "turned": {"codec": "libvpx-vp9", "container": "mp4", "rotation": 90},
    "one frame": {"codec": "libvpx", "container": "webm", "frames": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    paths = {kind: folder / kind.replace(" ", "_") for kind in MADE}
    for kind, options in MADE.items():
        paths[kind].write_bytes(make_clip(**options))
    return paths


def check(path: Path, which: slice = slice(None)) -> None:
    right, digests = reference(path), {}
    for order in orders(info_of(path.read_bytes()).num_frames)[which]:
        found = run("dali-cpu", {"path": str(path), "frames": order})
        assert found["index"] == order and found["pts"] == found["right_pts"]
        assert wrong_frames(found, right) == 0, path.name
        for index, digest in zip(found["index"], found["md5"], strict=True):
            assert digests.setdefault(index, digest) == digest


@pytest.mark.parametrize("kind", sorted(MADE))
def test_every_made_kind_by_any_order(kind: str, made: dict[str, Path]) -> None:
    check(made[kind])


def test_clean_real_clips_are_right_or_refused(cases: Path) -> None:
    decoded = []
    for row in manifest(cases, "video"):
        if row["right"]["cli_error_lines"] or not row["right"]["frames"]:
            continue
        path = cases / "media" / row["file"]
        info = info_of(path.read_bytes())
        if info.codec not in ("vp8", "vp9", "mjpeg"):
            with pytest.raises(MediaError, match=f"its codec is {info.codec}"):
                load_decoder("dali-cpu").decode(path.read_bytes(), info, [0])
        elif "resize" in path.name:
            with pytest.raises(MediaError, match="change size"):
                load_decoder("dali-cpu").decode(path.read_bytes(), info, [0])
        else:
            large = info.num_frames * info.stored_width * info.stored_height > 5_000_000
            check(path, slice(1, 2) if large else slice(None))
            decoded.append(path.name)
    assert len(decoded) >= 3


def test_serial_threads_processes_and_marks_are_equal(
    made: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made["vp9"].read_bytes()
    damaged = made["vp9"].with_name("damaged")
    middle = len(whole) // 2
    damaged.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    jobs: list[dict[str, Any]] = []
    for path in (made["vp8"], made["vp9"], made["mjpeg in avi"], damaged):
        count = info_of(path.read_bytes()).num_frames
        jobs += [{"path": str(path), "frames": order} for order in orders(count)[1:2]]
        jobs += [{"path": str(path), "frames": [5, 2, 5]}]
    first = run_all("dali-cpu", jobs)
    assert run_all("dali-cpu", [job | {"clean": True} for job in jobs] * 2, threads=4) == first * 2
    assert run_apart("dali-cpu", [job | {"clean": False} for job in jobs], threads=2) == first
    assert any("md5" in result for result in first)
    undamaged = [n for n, job in enumerate(jobs) if job["path"] != str(damaged)]
    monkeypatch.setattr(cutting, "MAX_HELD_BYTES", 1)
    one_by_one = run_all("dali-cpu", jobs)
    assert all(one_by_one[n] == first[n] for n in undamaged)


def test_cut_clips_are_refused_and_the_next_is_not(made: dict[str, Path]) -> None:
    data = made["mjpeg in mp4"].read_bytes()
    info = info_of(data)
    decoder = load_decoder("dali-cpu")
    for bad in (b"", data[:200], bytes(len(data)), make_clip(frames=9), make_clip(**KINDS["vp8"])):  # type: ignore[arg-type]
        with pytest.raises(MediaError, match="dali-cpu doesn't decode this clip"):
            decoder.decode(bad, info, [0, 12])
    for frames in ([24], [-1]):
        with pytest.raises(MediaError, match="a clip of 24 frames"):
            decoder.decode(data, info, frames)
    assert len(decoder.decode(data, info, [])) == 0
    assert [frame.index for frame in decoder.decode(data, info, [23, 0])] == [23, 0]


def test_nothing_is_kept(made: dict[str, Path]) -> None:
    data = made["vp9"].read_bytes()
    info, decoder = info_of(data), load_decoder("dali-cpu")

    def work() -> None:
        for at in range(20):
            decoder.decode(data, info, [at, 3])
            next(iter(decoder.stream(data, info, [at])))  # left early

    work()
    gc.collect()
    process = psutil.Process()
    memory, files, threads = process.memory_info().rss, process.num_fds(), process.num_threads()
    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    gc.collect()
    assert process.num_fds() <= files and process.num_threads() <= threads
    assert process.memory_info().rss - memory < 64_000_000


def test_the_command_gives_its_frames(made: dict[str, Path]) -> None:
    asked = ["frames", str(made["vp8"]), "--indices", "7,3,7", "--decoder", "dali-cpu"]
    lines = CliRunner().invoke(app, asked).stdout.splitlines()
    assert len(lines) == 3 and lines[0] == lines[2] != lines[1]
    assert '"pix_fmt": "gbrp"' in lines[0]


def test_a_decoder_of_another_class_is_a_config_error() -> None:
    assert decoder_for("rgb-dali-cpu", "auto") == "dali-cpu"
    for pixel_class, name in (("rgb-dali-cpu", "decord"), ("planes-v1", "dali-cpu")):
        with pytest.raises(ConfigError, match="can't provide"):
            decoder_for(pixel_class, name)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "zephon_mm.decoders.dali_cpu", raising=False)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.setitem(sys.modules, "nvidia", None)
    with pytest.raises(MissingDependencyError, match=r"zephon-mm\[dali\]"):
        load_decoder("dali-cpu")


def test_what_this_machine_lacks_is_no_damage(
    made: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nvidia import dali

    data = made["vp8"].read_bytes()
    decoder = load_decoder("dali-cpu")

    def fails(words: str) -> None:
        def run(pipeline: Any, *_: Any, **__: Any) -> Any:
            raise RuntimeError(f"Error in thread 0:\n{words}")

        monkeypatch.setattr(dali.Pipeline, "run", run)

    fails("CUDA allocation failed")
    with pytest.raises(RuntimeError, match="allocation failed"):
        decoder.decode(data, info_of(data), [0])
    fails("a packet could not be decoded")
    with pytest.raises(MediaError, match="Error in thread"):
        decoder.decode(data, info_of(data), [0])
