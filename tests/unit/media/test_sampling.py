"""Which frames are chosen: against the installed processor, and at the edges."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_mm import rng
from zephon_mm.config import VideoSampling
from zephon_mm.errors import MediaError
from zephon_mm.media.info import VideoInfo
from zephon_mm.media.probe import probe_member, read_probe
from zephon_mm.media.sampling import sample_frames, sampled_fps


def constant(frames: int, rate: Fraction = Fraction(30)) -> VideoInfo:
    step = 90_000 * rate.denominator // rate.numerator
    return VideoInfo(
        pts=np.arange(frames, dtype=np.int64) * step,
        time_base=(1, 90_000),
        last_duration=step,
        rate=(rate.numerator, rate.denominator),
    )


def variable(pts: list[int], last: int = 33) -> VideoInfo:
    return VideoInfo(pts=np.array(pts, np.int64), time_base=(1, 1000), last_duration=last)


def read(path: Path) -> VideoInfo:
    info = read_probe(probe_member(path.name, path.read_bytes()) or b"")
    assert isinstance(info, VideoInfo)
    return info


def test_rates_and_numbers_follow_the_installed_qwen3_processor() -> None:
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    processor = Qwen3VLVideoProcessor()
    processor.min_frames, processor.max_frames = 4, 96
    for rate in (Fraction(24), Fraction(30), Fraction(30000, 1001), Fraction(25), Fraction(15)):
        for frames in (1, 2, 3, 5, 9, 17, 30, 100, 299, 300, 301, 1800, 7777):
            meta = VideoMetadata(total_num_frames=frames, fps=float(rate))
            info = constant(frames, rate)
            for fps in (0.1, 0.5, 1.0, 2.0, 3.7, 24.0):
                want = processor.sample_frames(meta, fps=fps).tolist()
                got = sample_frames(info, VideoSampling(fps=fps, max_frames=96))
                assert list(got) == want, (rate, frames, fps)
                honest = len(got) / frames * float(rate)
                assert sampled_fps(info, got) == pytest.approx(honest) or len(got) == 1
            for number in (1, 2, 7, 16, 64):
                if number <= frames:
                    want = (
                        processor.sample_frames(meta, num_frames=number, fps=None).tolist()
                        if processor.fps is None
                        else np.linspace(0, frames - 1, number).round().astype(int).tolist()
                    )
                    sampling = VideoSampling(mode="uniform", num_frames=number)
                    assert list(sample_frames(info, sampling)) == want


@given(
    st.lists(st.integers(1, 5000), min_size=0, max_size=60),
    st.sampled_from(["fps", "uniform", "random", "all"]),
    st.integers(1, 40),
    st.floats(0.01, 60),
    st.integers(0, 1 << 100),
    st.booleans(),
)
def test_chosen_frames_exist_rise_and_differ(
    gaps: list[int], mode: str, number: int, fps: float, stream: int, steady: bool
) -> None:
    pts = [0, *np.cumsum(gaps).tolist()]
    info = constant(len(pts)) if steady else variable(pts)
    sampling = VideoSampling(
        mode=mode,
        num_frames=number,
        fps=fps,
        max_frames=32,  # type: ignore[arg-type]
    )
    frames = sample_frames(info, sampling, stream_key=stream)
    assert 1 <= len(frames) <= max(32, number)
    assert all(0 <= a < len(pts) for a in frames)
    assert all(a < b for a, b in itertools.pairwise(frames))
    assert frames == sample_frames(info, sampling, stream_key=stream)
    assert sampled_fps(info, frames) > 0


def test_more_asked_than_there_are(cases: Path) -> None:
    nine = read(cases / "inputs/P01/nine.mp4")
    for number in (16, 32):
        for mode in ("uniform", "random"):
            sampling = VideoSampling(mode=mode, num_frames=number)  # type: ignore[arg-type]
            assert sample_frames(nine, sampling) == tuple(range(9))
    for name, count in (("P02/one.mp4", 1), ("P02/two.mp4", 2)):
        info = read(cases / "inputs" / name)
        for fps in (1.0, 0.1):
            frames = sample_frames(info, VideoSampling(fps=fps, min_frames=1))
            assert len(frames) == 1 and frames[0] < count
            assert sampled_fps(info, frames) > 0
            assert len(sample_frames(info, VideoSampling(fps=fps))) == count
    for name in ("2x2-green.mp4", "four-colors.mp4"):
        assert sample_frames(read(cases / "media/video" / name), VideoSampling(fps=0.1)) == (0,)


def test_windows(cases: Path) -> None:
    clip = read(cases / "inputs/V01/clip.mp4")  # 30 frames in 3 s
    every = VideoSampling(mode="all")
    for window in ((35, 50), (-9, -1), (3.5, None), (2, 1), (float("inf"), None)):
        with pytest.raises(MediaError, match="no frame lies in the window") as caught:
            sample_frames(clip, every, start_seconds=window[0], end_seconds=window[1])
        assert caught.value.kind == "dropped"
    for window, want in {
        (2.5, 50.0): range(25, 30),
        (None, 0.0): range(1),
        (0.1, 0.3): range(1, 4),  # both ends in, though 0.1 and 0.3 are not binary fractions
        (0.11, 0.29): range(2, 3),
        (-5.0, 0.25): range(3),
        (None, float("inf")): range(30),
        (float("-inf"), None): range(30),
    }.items():
        got = sample_frames(clip, every, start_seconds=window[0], end_seconds=window[1])
        assert got == tuple(want), window
    with pytest.raises(MediaError, match="not a number"):
        sample_frames(clip, every, start_seconds=float("nan"))


def test_window_is_sampled_as_a_clip_of_its_own() -> None:
    info = constant(300)
    got = sample_frames(info, VideoSampling(fps=2.0), start_seconds=2.0, end_seconds=4.0)
    assert got[0] == 60 and got[-1] == 120 and len(got) == 4


def test_variable_rate_takes_the_nearest_in_time() -> None:
    info = variable([0, 33, 66, 100, 1000, 2000, 2033])
    uniform = VideoSampling(mode="uniform", num_frames=3)
    assert sample_frames(info, uniform) == (0, 4, 6)
    assert sample_frames(variable([0, 10, 20, 30, 100]), uniform) == (0, 3, 4)
    assert sample_frames(variable([0, 40, 60, 100]), uniform) == (0, 1, 3)  # a tie: the earlier
    jump = variable([0, 33, 66, 90_000, 90_033])
    assert sample_frames(jump, VideoSampling(mode="uniform", num_frames=4)) == (0, 2, 3, 4)
    assert sample_frames(jump, VideoSampling(fps=1.0, min_frames=1, max_frames=3)) == (0, 2, 4)


def test_random_segments_hang_on_the_key_alone() -> None:
    info = constant(100)
    sampling = VideoSampling(mode="random", num_frames=10)
    first = sample_frames(info, sampling, stream_key=rng.key("frames", 1))
    assert all(10 * i <= frame < 10 * (i + 1) for i, frame in enumerate(first))
    keys = {sample_frames(info, sampling, stream_key=rng.key("frames", n)) for n in range(20)}
    assert len(keys) == 20
    assert first == sample_frames(info, sampling, stream_key=rng.key("frames", 1))
    seen = np.zeros(100, int)
    for n in range(400):
        seen[list(sample_frames(info, sampling, stream_key=rng.key("spread", n)))] += 1
    assert seen.min() > 10 and seen.max() < 90  # 40 expected of each


def test_all_is_bounded() -> None:
    assert len(sample_frames(constant(1000), VideoSampling(mode="all", max_frames=64))) == 64


def test_a_clip_with_a_problem_is_quarantined() -> None:
    with pytest.raises(MediaError, match="no video stream") as caught:
        sample_frames(VideoInfo(problem="no video stream in it"), VideoSampling())
    assert caught.value.kind == "quarantined"


def test_no_frame_is_ever_out_of_a_real_clip(cases: Path) -> None:
    for path in sorted((cases / "media/video").iterdir()):
        info = read(path)
        if info.problem:
            continue
        for sampling in (
            VideoSampling(), VideoSampling(mode="uniform", num_frames=8), VideoSampling(mode="all")
        ):  # fmt: skip
            frames = sample_frames(info, sampling)
            assert 0 <= frames[0] <= frames[-1] < info.num_frames
