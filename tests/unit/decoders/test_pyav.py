"""The reference decoder: every frame by any order, and one verdict on damage."""

from __future__ import annotations

import gc
import io
import random
import threading
from pathlib import Path

import av
import numpy as np
import psutil
import pytest

from tests.unit.decoders.test_vp9 import LAYERS
from tests.unit.media.clips import (
    NOT_EXACT,
    all_frames,
    frame_digest,
    make_clip,
    manifest,
    recorded,
)
from zephon_mm.decoders import load_decoder
from zephon_mm.decoders.base import DecodedFrames
from zephon_mm.decoders.pyav import plan_runs
from zephon_mm.errors import ConfigError, MediaError
from zephon_mm.media.info import VideoInfo, write_probe
from zephon_mm.media.probe import probe_member, read_probe
from zephon_mm.media.verify import verify_member

DECODER = load_decoder("pyav")
KINDS = {
    "odd": {"size": (37, 51), "pix_fmt": "yuv444p"},
    "odd crop": {"codec": "libvpx-vp9", "container": "webm", "size": (35, 53)},
    "bframes": {"options": {"bf": "3", "g": "8"}},
    "pyramid": {"options": {"bf": "3", "g": "12", "x264-params": "b-pyramid=normal:ref=4"}},
    "open gop": {"options": {"x264-params": "open-gop=1:bframes=2:keyint=6:min-keyint=6"}},
    "intra refresh": {"options": {"g": "8", "x264-params": "intra-refresh=1:keyint=8:bframes=0"}},
    "ten bit": {"codec": "libx265", "pix_fmt": "yuv420p10le",
                "options": {"x265-params": "log-level=none:keyint=6:bframes=3"}},
    "hevc open gop": {"codec": "libx265",
                      "options": {"x265-params": "log-level=none:open-gop=1:keyint=6:bframes=3"}},
    "vp8": {"codec": "libvpx", "container": "webm",
            "options": {"auto-alt-ref": "1", "lag-in-frames": "10", "g": "9"}},
    "vp9 alt ref": {"codec": "libvpx-vp9", "container": "webm",
                    "options": {"auto-alt-ref": "1", "lag-in-frames": "16", "g": "10"}},
    "vp9 layers": {"codec": "libvpx-vp9", "container": "webm", "options": LAYERS},
    "av1": {"codec": "libsvtav1", "size": (64, 96), "options": {"preset": "12", "g": "8"}},
    "ts": {"container": "mpegts", "options": {"bf": "2", "g": "6"}},
    "avi": {"container": "avi", "options": {"bf": "2", "g": "6"}},
    "raw": {"container": "h264", "options": {"bf": "2", "g": "6"}},
    "mpeg4": {"codec": "mpeg4", "options": {"bf": "2", "g": "6"}},
    "mpeg2": {"codec": "mpeg2video", "container": "mpegts", "options": {"bf": "2", "g": "6"}},
    "mjpeg": {"codec": "mjpeg", "container": "avi", "pix_fmt": "yuvj420p"},
    "interlaced": {"options": {"g": "6", "flags": "+ildct+ilme"}},
    "vfr": {"pts": [0, 1, 2, 9, 10, 30, 31, 32, 60, 61, 99, 100], "frames": 12},
    "4:2:2": {"pix_fmt": "yuv422p", "options": {"bf": "2", "g": "6"}},
    "grey": {"pix_fmt": "gray", "options": {"g": "6"}},
}  # fmt: skip


def info_of(data: bytes) -> VideoInfo:
    blob = probe_member("mp4", data)
    assert blob is not None
    info = read_probe(blob)
    assert isinstance(info, VideoInfo) and info.problem is None
    return info


def orders(count: int) -> list[list[int]]:
    spread = np.linspace(0, count - 1, 16).round().astype(int).tolist()
    draw = random.Random(count)
    return [
        [*range(count), *reversed(range(count))],
        spread,
        [draw.randrange(count) for _ in range(50)],
        [count - 1],
    ]


def check_orders(
    data: bytes, info: VideoInfo, want: list[str], name: str, which: slice = slice(None)
) -> None:
    for order in orders(info.num_frames)[which]:
        decoded = DECODER.decode(data, info, order)
        assert [frame.index for frame in decoded] == order, name
        assert list(decoded.pts) == [int(info.pts[i]) for i in order], name
        found = {f.index: frame_digest(f) for f in dict.fromkeys(decoded.frames)}
        assert all(found[i] == want[i] for i in order), (name, order[:4])


def test_every_real_frame_by_any_order(cases: Path) -> None:
    checked = 0
    for row in manifest(cases, "video"):
        name = Path(row["file"]).name
        if row["right"]["cli_error_lines"] or not row["right"]["frames"]:
            continue
        data = (cases / "media" / row["file"]).read_bytes()
        info = info_of(data)
        frames = recorded(cases, row)
        if name in NOT_EXACT:
            want = all_frames(data)
        else:
            want = [frame[3] for frame in frames]
        assert info.num_frames == len(want) == len(frames), name
        large = info.num_frames * info.stored_width * info.stored_height > 15_000_000
        huge = info.num_frames * info.stored_width * info.stored_height > 100_000_000
        which = slice(1, 2) if huge else slice(0, 2) if large else slice(None)
        check_orders(data, info, want, name, which)
        checked += 1
    assert checked >= 48


def test_every_frame_of_the_reported_clips(cases: Path) -> None:
    names = "V01/clip.mp4 V02/pts_jump.mkv V05/hevc_flat161.mp4 V08/h264_bf2_nopts.avi "
    names += "V09/gaps.avi P01/nine.mp4 P02/one.mp4 P02/two.mp4"
    for name in names.split():
        data = (cases / "inputs" / name).read_bytes()
        check_orders(data, info_of(data), all_frames(data), name)


def test_flat_frames_have_their_own_number_as_brightness(cases: Path) -> None:
    data = (cases / "inputs/V05/hevc_flat161.mp4").read_bytes()
    info = info_of(data)
    draw = random.Random(5)
    for order in ([159, 35], *([draw.randrange(161) for _ in range(3)] for _ in range(15))):
        for frame in DECODER.decode(data, info, order):
            assert abs(float(frame.planes[0].mean()) - frame.index) <= 1.5


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_made_kind_by_any_order(kind: str) -> None:
    options = dict(KINDS[kind])
    data = make_clip(**options)  # type: ignore[arg-type]
    info = info_of(data)
    want = all_frames(data)
    assert info.num_frames == len(want)
    assert len(set(want)) == len(want), "frames must differ for the test to mean something"
    check_orders(data, info, want, kind)
    assert verify_member("mp4", data, write_probe(info))


def test_few_packets_are_planned() -> None:
    data = make_clip(frames=60, options={"g": "6", "bf": "2"})
    info = info_of(data)
    runs = plan_runs(info, [30])
    assert len(runs) == 1 and runs[0].last - runs[0].first < 8
    assert len(plan_runs(info, [0, 58])) == 2
    whole = plan_runs(info, list(range(60)))
    assert [(run.first, run.last) for run in whole] == [(0, 59)]
    assert plan_runs(info, [30], back_off=1)[0].first < runs[0].first
    assert plan_runs(info, [30], back_off=1 << 40)[0].first == 0


def test_open_gop_starts_at_the_keyframe_shown_before(cases: Path) -> None:
    data = make_clip(**KINDS["open gop"])  # type: ignore[arg-type]
    info = info_of(data)
    leaders = [
        i for i in range(info.num_frames)
        if info.frame_packet[i] > info.key_packet[1] and i < info.key_frame[1]
    ]  # fmt: skip
    assert leaders, "the clip must have an open GOP"
    assert plan_runs(info, leaders[:1])[0].first == 0


@pytest.mark.parametrize("bad", [[-1], [24], [0, 1 << 40]])
def test_a_frame_that_is_not_there_is_an_error(bad: list[int]) -> None:
    data = make_clip()
    with pytest.raises(MediaError, match="a clip of 24 frames"):
        DECODER.decode(data, info_of(data), bad)


def verdict(data: bytes, info: VideoInfo, frames: list[int]) -> str | list[str]:
    try:
        return [frame_digest(frame) for frame in DECODER.decode(data, info, frames)]
    except MediaError as error:
        return error.reason


def test_damage_has_one_verdict(cases: Path) -> None:
    paths = [cases / "inputs/V16" / name for name in ("damaged_mid.mp4", "cut_60pct.mp4")]
    paths += [
        cases / "media/video" / name
        for name in ("sample_with_invalid_nalu.mp4", "decord_corrupted.mp4")
    ]
    for path in paths:
        data = path.read_bytes()
        info = info_of(data)
        every = list(range(info.num_frames))
        assert isinstance(verdict(data, info, every), str), path.name
        assert not verify_member("mp4", data, write_probe(info))
        for order in (every, every[::3], every[-1:], every[:5]):
            first = verdict(data, info, order)
            found = [first]
            threads = [
                threading.Thread(target=lambda: found.append(verdict(data, info, order)))  # noqa: B023
                for _ in range(2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [first] * 3, path.name
    clean = (cases / "inputs/V16/clean.mp4").read_bytes()
    assert verify_member("mp4", clean, probe_member("mp4", clean))


def test_frames_delivered_from_a_damaged_clip_are_the_true_ones(cases: Path) -> None:
    clean = (cases / "inputs/V16/clean.mp4").read_bytes()
    want = all_frames(clean)
    for name in ("damaged_mid.mp4", "cut_60pct.mp4"):
        data = (cases / "inputs/V16" / name).read_bytes()
        info = info_of(data)
        told = [verdict(data, info, [i]) for i in range(info.num_frames)]
        delivered = {i: found[0] for i, found in enumerate(told) if isinstance(found, list)}
        assert 0 < len(delivered) < 50
        assert all(digest == want[i] for i, digest in delivered.items()), name


def test_flipped_bits_are_clean_or_damaged_the_same_each_time() -> None:
    data = make_clip(size=(96, 128), options={"g": "8", "bf": "2"})
    info = info_of(data)
    want = all_frames(data)
    draw = random.Random(1)
    damaged = 0
    for _ in range(25):
        broken = bytearray(data)
        broken[draw.randrange(len(data) // 4, len(data) * 3 // 4)] ^= 1 << draw.randrange(8)
        told = verdict(bytes(broken), info, list(range(24)))
        assert told == verdict(bytes(broken), info, list(range(24)))
        damaged += told != want
    assert damaged > 5


def test_bytes_that_are_not_the_indexed_clip_are_damage() -> None:
    info = info_of(make_clip(rate=24))
    late = make_clip(pts=[i + i // 12 for i in range(24)])
    for other in (make_clip(rate=25), late, make_clip(frames=9), b"", make_clip()[:700]):
        with pytest.raises(MediaError):
            DECODER.decode(other, info, [0, 12, 23])


def test_size_changes_in_mid_stream_are_kept(cases: Path) -> None:
    for name in ("400x300-red-resize-200x150-green.mp4", "400x300-red-resize-200x150-green.webm"):
        data = (cases / "media/video" / name).read_bytes()
        info = info_of(data)
        decoded = DECODER.decode(data, info, [0, info.num_frames - 1])
        assert [frame.planes[0].shape for frame in decoded] == [(300, 400), (150, 200)]


def test_stream_holds_few_frames_and_leaks_nothing() -> None:
    data = make_clip(size=(256, 256), frames=48, options={"g": "12", "preset": "ultrafast"})
    info = info_of(data)

    def once() -> None:
        for frame in DECODER.stream(data, info, range(48)):
            assert frame.height == 256

    once()
    gc.collect()
    before = psutil.Process().memory_info().rss
    for _ in range(15):
        once()
        next(iter(DECODER.stream(data, info, [40])))  # left early
    gc.collect()
    assert psutil.Process().memory_info().rss - before < 24_000_000


def test_accepts_any_bytes_and_repeats() -> None:
    data = make_clip()
    info = info_of(data)
    for kind in (bytes, bytearray, memoryview):
        decoded = DECODER.decode(kind(data), info, [5, 5, 3])
        assert isinstance(decoded, DecodedFrames) and len(decoded) == 3
        assert decoded.frames[0] is decoded.frames[1]


def test_a_problem_in_the_probe_is_told() -> None:
    with pytest.raises(MediaError, match="no video stream"):
        DECODER.decode(b"", VideoInfo(problem="no video stream in it"), [0])


def test_unknown_decoder() -> None:
    with pytest.raises(ConfigError, match=r"choose one of .*pyav"):
        load_decoder("quicktime")


def hide(data: bytes, numbers: tuple[int, ...]) -> bytes:
    """A VP8 clip with the show bit of some packets cleared, as alternate references have it."""
    out = bytearray(data)
    with av.open(io.BytesIO(data)) as container:
        packets = [p for p in container.demux(video=0) if p.size]
        for number in numbers:
            coded = bytes(packets[number])
            at = data.index(coded)
            assert coded[0] & 0x10 and data.count(coded) == 1
            out[at] &= 0xEF
    return bytes(out)


def test_packets_that_are_never_shown_are_no_frames() -> None:
    data = hide(make_clip(codec="libvpx", container="webm", options={"g": "8"}), (3, 9, 17))
    info = info_of(data)
    want = all_frames(data)
    assert (info.num_packets, info.num_frames, len(want)) == (24, 21, 21)
    assert not info.synthetic_pts
    check_orders(data, info, want, "hidden")


@pytest.mark.parametrize(
    ("first", "shown"),
    [
        (0b10000110, True), (0b10000100, False), (0b10001000, True),  # shown, hidden, shown again
        (0b10110001, True), (0b10110000, False), (0b10110100, True),  # profile 3: a bit later
    ],
)  # fmt: skip
def test_vp9_headers_say_what_is_shown(first: int, shown: bool) -> None:
    from zephon_mm.media.probe_video import is_shown

    assert is_shown("vp9", memoryview(bytes((first, 1, 2, 3)))) == shown
    assert is_shown("vp9", memoryview(bytes((0b10000100, 9, 0xC0, 1, 0xC0))))  # a superframe
    assert is_shown("h264", memoryview(b"\0"))


def test_early_leaving_never_hangs_with_torch_loaded(cases: Path) -> None:
    """V14: three frames and away, fifty times, here and in a thread."""
    import torch

    assert torch.__version__
    data = (cases / "inputs/V01/clip.mp4").read_bytes()
    info = info_of(data)

    def visit() -> None:
        for _ in range(50):
            frames = DECODER.stream(data, info, range(30))
            for _ in range(3):
                next(frames)
            frames.close()  # type: ignore[attr-defined]

    visit()
    thread = threading.Thread(target=visit)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_forked_children_decode_what_the_parent_probed(cases: Path) -> None:
    """V01: nothing made before the fork is used after it."""
    import multiprocessing

    data = (cases / "inputs/V01/clip.mp4").read_bytes()
    info = info_of(data)
    want = verdict(data, info, [0, 15, 29])
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        jobs = [pool.apply_async(verdict, (data, info, [0, 15, 29])) for _ in range(20)]
        assert all(job.get(timeout=60) == want for job in jobs)


def test_memory_is_that_of_a_few_frames(cases: Path) -> None:
    """Z07: what headers claim is never allocated."""
    for name in ("no_duration.webm", "sample_fragmented.mp4"):
        data = (cases / "media/video" / name).read_bytes()
        before = psutil.Process().memory_info().rss
        info = info_of(data)
        spread = np.linspace(0, info.num_frames - 1, 4).astype(int).tolist()
        assert len(DECODER.decode(data, info, spread)) == 4
        assert psutil.Process().memory_info().rss - before < 120_000_000
