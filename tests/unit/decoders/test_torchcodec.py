"""torchcodec: the reference's planes by any access order, or a refusal; never another frame."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import random
import sys
import threading
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from tests.unit.decoders.test_pyav import KINDS, info_of, orders
from tests.unit.media.clips import all_frames, make_clip, manifest, recorded
from zephon_mm.cli.main import app
from zephon_mm.decoders import load_decoder
from zephon_mm.errors import MediaError, MissingDependencyError
from zephon_mm.media.info import VideoInfo
from zephon_mm.media.probe_video import EXACT_CODECS

try:
    DECODER = load_decoder("torchcodec")
except MissingDependencyError as error:  # CI has it, and fails here if it hasn't
    pytest.skip(str(error), allow_module_level=True)

REFUSED = {"avi", "raw", "mpeg4", "mpeg2", "mjpeg", "interlaced"}


def clean(data: bytes) -> VideoInfo:
    return dataclasses.replace(info_of(data), clean=True)


def check_orders(data: bytes, want: list[str], name: str, which: slice = slice(None)) -> None:
    info = clean(data)
    for order in orders(info.num_frames)[which]:
        decoded = DECODER.decode(data, info, order)
        assert [frame.index for frame in decoded] == order, name
        assert list(decoded.pts) == [int(info.pts[i]) for i in order], name
        found = {frame.index: frame.md5() for frame in dict.fromkeys(decoded.frames)}
        assert all(found[i] == want[i] for i in order), (name, order[:4])


def test_every_real_frame_by_any_order_or_a_refusal(cases: Path) -> None:
    equal, refused = 0, []
    for row in manifest(cases, "video"):
        name = Path(row["file"]).name
        if row["right"]["cli_error_lines"] or not row["right"]["frames"]:
            continue
        data = (cases / "media" / row["file"]).read_bytes()
        info = clean(data)
        if DECODER.refusal(info) is not None:
            assert info.codec not in EXACT_CODECS or info.synthetic_pts, name
            refused.append(name)
            continue
        large = info.num_frames * info.stored_width * info.stored_height > 15_000_000
        want = [frame[3] for frame in recorded(cases, row)]
        try:
            check_orders(data, want, name, slice(1, 2) if large else slice(None))
            equal += 1
        except MediaError as error:
            assert "change size" in error.reason, name
            refused.append(name)
    assert equal >= 40 and len(refused) <= 8


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_made_kind_by_any_order(kind: str) -> None:
    data = make_clip(**KINDS[kind])  # type: ignore[arg-type]
    if kind in REFUSED:
        with pytest.raises(MediaError, match="torchcodec doesn't decode this clip"):
            DECODER.decode(data, clean(data), [0])
    else:
        check_orders(data, all_frames(data), kind)


def test_frames_say_what_the_references_say(cases: Path) -> None:
    for name in ("video_90.mov", "bt709_full_range.mp4", "bt2020_10bit.mp4", "hdr10-av1.mp4"):
        data = (cases / "media/video" / name).read_bytes()
        info = clean(data)
        (ours,) = DECODER.decode(data, info, [2])
        (right,) = load_decoder("pyav").decode(data, info, [2])
        for field in dataclasses.fields(right):
            if field.name != "planes":
                assert getattr(ours, field.name) == getattr(right, field.name), (name, field.name)
        assert [p.dtype for p in ours.planes] == [p.dtype for p in right.planes]


@pytest.mark.parametrize("crop", ["10,0,0,0", "2,4,8,6", "32,2,0,0", "64,0,0,0", "0,6,10,4"])
def test_crops_are_exact_or_refused(crop: str) -> None:
    options = {"x264-params": f"crop-rect={crop}", "g": "8"}
    data = make_clip(size=(96, 160), options=options)
    want = [frame.md5() for frame in load_decoder("pyav").decode(data, info_of(data), range(24))]
    left = int(crop.split(",")[0])
    if left % 64:
        with pytest.raises(MediaError, match="change size"):
            check_orders(data, want, crop)
    else:
        check_orders(data, want, crop)


def test_only_verified_clips_are_taken(cases: Path) -> None:
    data = make_clip()
    info = info_of(data)
    for mark in (None, False):
        reason = DECODER.refusal(dataclasses.replace(info, clean=mark))
        assert reason is not None and "--verify" in reason
        with pytest.raises(MediaError, match="--verify"):
            DECODER.decode(data, dataclasses.replace(info, clean=mark), [0])
    for name in ("V16/damaged_mid.mp4", "V16/cut_60pct.mp4"):
        path = str(cases / "inputs" / name)
        result = CliRunner().invoke(app, ["frames", path, "--decoder", "torchcodec"])
        assert isinstance(result.exception, MediaError) and not result.stdout
        assert path in str(result.exception) and "damaged" in str(result.exception)


def test_bytes_that_are_not_the_verified_clip_are_refused_or_as_indexed() -> None:
    info = clean(make_clip(rate=24))
    late = make_clip(pts=[i + i // 12 for i in range(24)])
    for other in (make_clip(rate=25), late, make_clip(frames=9), b"", make_clip()[:700]):
        with pytest.raises(MediaError):
            DECODER.decode(other, info, [0, 12, 23])
    with pytest.raises(MediaError, match="a clip of 24 frames"):
        DECODER.decode(make_clip(), info, [24])
    with pytest.raises(MediaError, match="a clip of 24 frames"):
        DECODER.decode(make_clip(), info, [-1])


def test_the_command_prints_the_same_lines(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(make_clip(options={"bf": "2", "g": "6"}))
    lines = [
        CliRunner().invoke(app, ["frames", str(path), "--indices", "7,3,7", *options]).stdout
        for options in ([], ["--decoder", "torchcodec"])
    ]
    assert lines[0] == lines[1] and lines[0].count("\n") == 3


def test_many_threads_share_one_decoder_and_nothing_is_kept() -> None:
    data = make_clip(size=(256, 256), frames=48, options={"g": "12", "preset": "ultrafast"})
    info, want = clean(data), all_frames(data)
    wrong: list[int] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(6):
            asked = [draw.randrange(48) for _ in range(5)]
            found = DECODER.decode(memoryview(data), info, asked)
            wrong.extend(f.index for f in found if f.md5() != want[f.index])
            next(iter(DECODER.stream(data, info, [40])))  # left early

    work(0)
    gc.collect()
    process = psutil.Process()
    memory, files = process.memory_info().rss, process.num_fds()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not wrong
    assert process.num_fds() <= files
    assert process.memory_info().rss - memory < 48_000_000


def test_a_frame_outlives_its_decoder() -> None:
    data = make_clip()
    want = all_frames(data)
    kept = [DECODER.decode(data, clean(data), [i]).frames[0] for i in range(24)]
    gc.collect()
    assert [frame.md5() for frame in kept] == want


def test_a_missing_library_names_the_extra_and_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "zephon_mm.decoders.torchcodec")
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    with pytest.raises(MissingDependencyError, match=r"zephon-mm\[torchcodec\].*FFmpeg's shared"):
        load_decoder("torchcodec")
    monkeypatch.undo()
    assert importlib.import_module("zephon_mm.decoders.torchcodec")
