"""What samples of the wrong kind become: empty texts, short clips, media without a layout."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from zephon_mm.config import ImageSizing, VideoSampling

from .conftest import (
    Opener,
    clip,
    document,
    jpeg,
    refs,
    rejected,
    write_shard,
)


def test_k06_kinds(tmp_path: Path, measurer: Opener) -> None:
    texts: list[Any] = ["ok", "", " \n\t", None]
    samples: dict[str, dict[str, Any]] = {
        f"{at}": {"jpg": jpeg(), "json": {"text": text}} for at, text in enumerate(texts)
    }
    samples["4"] = {"jpg": jpeg(), "json": {"id": 4}}
    samples["5"] = {"jpg": jpeg(), "json": b"\xff\xfe{"}
    samples["6"] = {"jpg": jpeg(), "txt": b"caf\xe9"}
    samples["7"] = {"jpg": jpeg(), "json": b'{"text": "\\udc00"}'}
    samples["8"] = {"jpg": jpeg()}
    results = measurer(write_shard(tmp_path / "a.tar", samples))(refs(9))
    document(results[0])
    outcomes = [rejected(result).outcome for result in results[1:]]
    assert outcomes == ["filtered"] * 4 + ["quarantined"] * 4
    assert "'8.jpg'" in rejected(results[8]).reason
    assert [rejected(result).key for result in results[1:]] == [str(at) for at in range(1, 9)]


def test_k06_case(cases: Path, tmp_path: Path, measurer: Opener) -> None:
    url = shutil.copy(cases / "inputs/K06/empty_text.tar", tmp_path)
    results = measurer(str(url))(refs(7))
    assert [getattr(result, "outcome", "delivered") for result in results] == [
        "delivered",
        "filtered",
        "filtered",
        "filtered",
        "filtered",
        "quarantined",
        "delivered",
    ]
    for result in (results[0], results[6]):
        assert document(result).loss[1:].any()


def test_w01_w04_w05_cases(cases: Path, tmp_path: Path, measurer: Opener) -> None:
    for name in ("W01/dup.tar", "W04/dots.tar", "W05/upper.tar"):
        shutil.copy(cases / "inputs" / name, tmp_path)
    made = measurer(str(tmp_path / "dup.tar"))
    results = made(refs(made.reader.index(0, 0).num_samples))
    twice = [result for result in results if getattr(result, "stage", "") == "index"]
    assert [rejected(result).key for result in twice] == ["000001"]
    assert len(results) > 1
    for result in results:
        if result is not twice[0]:
            document(result)
    for result in measurer(str(tmp_path / "dots.tar"))(refs(3)):
        assert rejected(result).outcome == "quarantined" and ".jpg'" in rejected(result).reason
    last = measurer(str(tmp_path / "dots.tar"), key="last_dot")(refs(2))
    assert [document(result).key for result in last] == ["v1.0/22.05", "./a b 2.0 (x)"]
    for result in measurer(str(tmp_path / "upper.tar"))(refs(3)):
        assert len(document(result).media) == 1


@pytest.mark.parametrize("model", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize(
    "sampling",
    [
        VideoSampling(mode="uniform", num_frames=16),
        VideoSampling(mode="uniform", num_frames=32),
        VideoSampling(mode="fps", fps=1.0),
        VideoSampling(mode="fps", fps=0.1, min_frames=1),
        VideoSampling(mode="random", num_frames=16),
        VideoSampling(mode="all"),
    ],
    ids=str,
)
def test_short_clips(tmp_path: Path, measurer: Opener, model: str, sampling: VideoSampling) -> None:
    lengths = [1, 2, 3, 9, 30]
    samples = {f"{n:02}": {"mp4": clip(n), "txt": "x y"} for n in lengths}
    url = write_shard(tmp_path / "a.tar", samples)
    made = measurer(url, "video_text", model=model, video=sampling)
    pad = made._tokenizer.token_id("<|video_pad|>")
    for frames, result in zip(lengths, made(refs(len(lengths))), strict=True):
        found = document(result)
        (span,) = found.media
        assert 1 <= len(span.frames) <= frames and len(set(span.frames)) == len(span.frames)
        assert 0 <= min(span.frames) and max(span.frames) < frames
        assert all(0 <= second < frames / 10 for second in span.pts_seconds)
        assert span.grid[0] == -(-len(span.frames) // 2)
        tokens = found.tokens[span.start : span.stop]
        assert np.count_nonzero(tokens == pad) == span.num_patches // 4 > 0
        assert span.fps > 0
        if sampling.mode in ("uniform", "random"):
            assert len(span.frames) == min(frames, sampling.num_frames)


def test_p01_p02_cases(cases: Path, tmp_path: Path, measurer: Opener) -> None:
    files = [cases / "inputs/P01/nine.mp4", *sorted((cases / "inputs/P02").glob("*.mp4"))]
    samples = {file.stem: {"mp4": file.read_bytes(), "txt": "a clip"} for file in files}
    samples["ordinary"] = {"mp4": clip(40), "txt": "a clip"}
    url = write_shard(tmp_path / "a.tar", samples)
    for wanted in (16, 32):
        made = measurer(url, "video_text", video=VideoSampling(mode="uniform", num_frames=wanted))
        counts = [len(document(r).media[0].frames) for r in made(refs(4))]
        assert counts[0] == 9 and counts[3] == wanted
    for fps in (1.0, 0.1):
        made = measurer(url, "video_text", video=VideoSampling(mode="fps", fps=fps, min_frames=1))
        for result in made(refs(4)):
            (span,) = document(result).media
            assert len(span.frames) >= 1 and span.num_patches > 0


def test_clip_windows(tmp_path: Path, measurer: Opener) -> None:
    data = clip(30)
    clips = [[0.5, 1.5], [2.9, 9.0], [7.0, 8.0]]
    samples = {
        f"{at}": {"mp4": data, "json": {"caption": "x y", "clips": [window]}}
        for at, window in enumerate(clips)
    }
    url = write_shard(tmp_path / "a.tar", samples)
    sampling = VideoSampling(mode="all")
    made = measurer(url, "video_text", video=sampling, options={"clip_window": True})
    results = made(refs(3))
    assert document(results[0]).media[0].frames == tuple(range(5, 16))
    assert document(results[1]).media[0].frames == (29,)
    past = rejected(results[2])
    assert past.outcome in ("dropped", "quarantined") and "'2.mp4'" in past.reason
    whole = measurer(url, "video_text", video=sampling)(refs(1))
    assert document(whole[0]).media[0].frames == tuple(range(30))


def test_media_that_cannot_be_laid_out(tmp_path: Path, measurer: Opener) -> None:
    wide = io.BytesIO()
    Image.new("RGB", (3000, 10)).save(wide, "PNG")
    samples = {
        "cut": {"jpg": jpeg()[:30], "txt": "x y"},
        "wide": {"png": wide.getvalue(), "txt": "x y"},
        "large": {"jpg": jpeg(200, 100), "txt": "x y"},
        "good": {"jpg": jpeg(100, 100), "txt": "x y"},
    }
    url = write_shard(tmp_path / "a.tar", samples)
    results = measurer(url, image=ImageSizing(max_source_pixels=15_000))(refs(4))
    assert (rejected(results[0]).outcome, rejected(results[0]).stage) == ("quarantined", "probe")
    assert "'cut.jpg'" in rejected(results[0]).reason
    assert (rejected(results[1]).outcome, rejected(results[1]).stage) == ("dropped", "layout")
    assert (rejected(results[2]).outcome, rejected(results[2]).stage) == ("dropped", "layout")
    assert "max_source_pixels=15000" in rejected(results[2]).reason
    document(results[3])
    samples = {"0": {"mp4": clip()[:100], "txt": "x y"}, "1": {"mp4": b"", "txt": "x y"}}
    url = write_shard(tmp_path / "b.tar", samples)
    for result in measurer(url, "video_text")(refs(2)):
        assert (rejected(result).outcome, rejected(result).stage) == ("quarantined", "probe")
