"""Cases V02–V13 as kinds: random access against a sequential decode, whatever made the clip.

Kinds that `test_pyav` holds already (plain GOPs of each codec) are not made again.
"""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable
from typing import Any

import av
import numpy as np
import pytest

from tests.unit.decoders.surgery import remux, tracks, with_edits
from tests.unit.media.clips import all_frames, frame_digest, make_clip
from zephon_mm.decoders import load_decoder
from zephon_mm.media.info import VideoInfo, write_probe
from zephon_mm.media.probe_video import probe_video
from zephon_mm.media.verify import verify_member

DECODER = load_decoder("pyav")
Made = dict[str, Any]
X264, X265 = "threads=1", "log-level=none:pools=none:frame-threads=1"


def h264(params: str, **more: Any) -> Made:
    return {"options": {"preset": "veryfast", "x264-params": f"{X264}:{params}"}, **more}


def hevc(params: str, **more: Any) -> Made:
    options = {"preset": "ultrafast", "x265-params": f"{X265}:{params}"}
    return {"codec": "libx265", "size": (64, 64), "options": options, **more}


def vp9(**options: str) -> Made:
    base = {"deadline": "realtime", "cpu-used": "8", "g": "9"}
    return {"codec": "libvpx-vp9", "container": "webm", "options": {**base, **options}}


LAYERS = "ts_number_layers=3:ts_target_bitrate=100,200,300:ts_rate_decimator=4,2,1:"
LAYERS += "ts_periodicity=4:ts_layer_id=0,2,1,2:ts_layering_mode=3"
STRUCTURES: dict[str, Made] = {
    "fields": h264("interlaced=1:keyint=7:bframes=2", size=(64, 64)),
    "fields, open gop": h264("bff=1:open-gop=1:keyint=6:bframes=3", size=(64, 64)),
    "fields, intra refresh": h264("tff=1:intra-refresh=1:keyint=8:bframes=1", size=(64, 64)),
    "slices and 16 references": h264("slices=3:ref=16:bframes=8:keyint=12:open-gop=1"),
    "stitchable": h264("stitchable=1:aud=1:keyint=5:open-gop=1:bframes=3:b-adapt=0"),
    "10 bit 4:2:2": h264("keyint=5:bframes=2", pix_fmt="yuv422p10le"),
    "full range": h264("keyint=5:bframes=2", pix_fmt="yuvj420p"),
    "CRA and RASL": hevc("open-gop=1:keyint=5:min-keyint=1:bframes=4:b-pyramid=1"),
    "RADL": hevc("open-gop=0:radl=2:keyint=6:bframes=3"),
    "temporal layers": hevc("temporal-layers=3:keyint=8:bframes=3:b-adapt=0"),
    "field pictures": hevc("field=1:keyint=6:bframes=2"),
    "sums of frames": hevc("hash=1:open-gop=1:keyint=5:bframes=3") | {"size": (96, 160)},
    "12 bit": hevc("keyint=5:bframes=2", pix_fmt="yuv420p12le"),
    "grey HEVC": hevc("keyint=5:bframes=2", pix_fmt="gray"),
    "layers in time": vp9(**{"ts-parameters": LAYERS, "error-resilient": "1"}),
    "frame parallel": vp9(**{"frame-parallel": "1", "error-resilient": "1"}),
    "VP9 4:4:4": {**vp9(), "pix_fmt": "yuv444p"},
    "film grain": {
        "codec": "libsvtav1", "size": (64, 96),
        "options": {"preset": "12", "svtav1-params": "film-grain=30:keyint=8:lp=1"},
    },
    "AV1 forward keyframes": {
        "codec": "libsvtav1", "size": (64, 96),
        "options": {"preset": "12", "svtav1-params": "irefresh-type=1:keyint=8:lp=1"},
    },
}  # fmt: skip

BFRAMES = h264("keyint=6:bframes=3:open-gop=1:b-adapt=0")
CONTAINERS: dict[str, Callable[[bytes], bytes]] = {
    "negative composition offsets": lambda d: remux(d, "mp4", {"movflags": "negative_cts_offsets"}),
    "a fragment a frame": lambda d: remux(d, "mp4", {"movflags": "frag_every_frame+empty_moov"}),
    "dash": lambda d: remux(d, "mp4", {"movflags": "dash+frag_keyframe+empty_moov"}),
    "header late": lambda d: remux(d, "mov", {"movflags": "delay_moov+frag_keyframe"}),
    "no edit list": lambda d: remux(d, "mp4", {"use_editlist": "0"}),
    "live mkv": lambda d: remux(d, "matroska", {"live": "1", "cluster_size_limit": "500"}),
    "late start": lambda d: remux(d, "mp4", shift=7 * 512),
    "negative start": lambda d: remux(d, "matroska", {"avoid_negative_ts": "disabled"}, shift=-999),
    "flv": lambda d: remux(d, "flv"),
    "nut": lambda d: remux(d, "nut"),
    "ts discontinuity": lambda d: remux(d, "mpegts", {"mpegts_flags": "initial_discontinuity"}),
    "ts wraps": lambda d: remux(d, "mpegts", shift=int((2**33 / 90_000 - 1.9) * 12288)),
    "ts twice": lambda d: remux(d, "mpegts") * 2,
    "m2ts": lambda d: remux(d, "mpegts", {"mpegts_m2ts_mode": "1"}),
    "annex b": lambda d: remux(d, "h264"),
    "starts without a keyframe": lambda d: remux(d, "mp4", keep=lambda n, p: n >= 2),
    "edit: into a GOP": lambda d: with_edits(d, [(500, 9 * 512)]),
    "edit: a wait first": lambda d: with_edits(d, [(400, -1), (500, 1024)]),
    "edit: two pieces": lambda d: with_edits(d, [(250, 3 * 512), (250, 12 * 512)]),
    "edit: the end is cut": lambda d: with_edits(d, [(333, 1024)]),
    "two clips": lambda d: tracks(d, make_clip(frames=3, size=(16, 16))),
    "after sound": lambda d: tracks(d, sound=True),
}


def check(data: bytes, least: int = 2) -> VideoInfo:
    """Every frame equals the sequential decode's, in several orders; nothing is refused."""
    info = probe_video(data)
    want = all_frames(data)
    assert info.problem is None and info.num_frames == len(want) >= least
    count = len(want)
    draw = random.Random(count)
    orders = [list(range(count)), [count - 1, 0, count // 2]]
    orders += [np.linspace(0, count - 1, 7).round().astype(int).tolist()]
    orders += [[draw.randrange(count)] for _ in range(6)]
    orders += [[draw.randrange(count) for _ in range(3)] for _ in range(4)]
    for order in orders:
        decoded = DECODER.decode(data, info, order)
        assert [frame.index for frame in decoded] == order
        assert list(decoded.pts) == [int(info.pts[i]) for i in order]
        assert [frame_digest(frame) for frame in decoded] == [want[i] for i in order], order
    assert verify_member("mp4", data, write_probe(info))
    return info


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_structures(structure: str) -> None:
    made = STRUCTURES[structure]
    data = make_clip(**made)
    info = check(data)
    if info.codec == "h264" and not structure.startswith("10"):
        check(remux(data, "mpegts"))
    if structure == "sums of frames":
        check(remux(data, "hevc"))


@pytest.fixture(scope="module")
def bframes() -> bytes:
    return make_clip(**BFRAMES)


@pytest.mark.parametrize("kind", sorted(CONTAINERS))
def test_containers(kind: str, bframes: bytes) -> None:
    check(CONTAINERS[kind](bframes))


def test_times_that_jump_far_are_kept(bframes: bytes) -> None:
    """V02: half the clip an hour later, in ticks of a millisecond and of 1/90000 s."""
    pts = [i if i < 12 else i + 3600 * 24 for i in range(24)]
    for container in ("matroska", "mp4"):
        info = check(make_clip(container=container, pts=pts, options=BFRAMES["options"]))
        assert info.rate is None and not info.synthetic_pts
        assert float(info.pts[12] * info.time_base[0] / info.time_base[1]) > 3600


def test_repeated_times_are_not_trusted(bframes: bytes) -> None:
    """Two packets with one pts (a clip muxed twice over itself): output order is taken."""
    data = remux(bframes, "mpegts")
    info = check(data + data)
    assert info.synthetic_pts and info.num_frames == 48


@pytest.mark.parametrize("container", ["mpegts", "h264"])
def test_a_size_that_changes_on_the_way(container: str) -> None:
    """Streams one after the other, of another size, in any order of asking."""
    made: Made = {"container": container, "frames": 9, "options": {"bf": "2", "g": "4"}}
    small = make_clip(size=(32, 48), **made)
    data = small + make_clip(seed=1, **made) + small
    info = probe_video(data)
    want = all_frames(data)
    assert info.num_frames == len(want) == 27
    for order in ([0, 9, 18, 26], [26, 12, 3], [13], list(range(27))):
        decoded = DECODER.decode(data, info, order)
        assert [frame_digest(frame) for frame in decoded] == [want[i] for i in order]
        assert [frame.width for frame in decoded] == [64 if 9 <= i < 18 else 48 for i in order]


def test_only_sound_or_nothing_is_a_problem_that_says_so(bframes: bytes) -> None:
    for container in ("mp4", "matroska", "mpegts"):
        info = probe_video(tracks(container=container, sound=True))
        assert info.problem == "no video stream in it" and info.num_frames == 0
    assert probe_video(remux(bframes, "mp4", keep=lambda n, p: False)).problem


def test_a_frame_alone_and_a_clip_without_length(bframes: bytes) -> None:
    for codec, container in (("libx264", "mp4"), ("libvpx-vp9", "webm"), ("libx264", "h264")):
        info = check(make_clip(codec=codec, container=container, frames=1), least=1)
        assert info.num_frames == 1 and info.last_duration >= 0
    data = with_edits(bframes, [(0, 1024)])  # a length of nothing: to the end
    assert probe_video(data).num_frames == len(all_frames(data))


def test_of_layers_of_size_the_finest_is_the_frame() -> None:
    """A VP9 superframe with two shown pictures, as WebRTC records spatial layers: players show one.

    FFmpeg gives both, so its sequential decode has twice the frames.
    """
    options = {"g": "1", "deadline": "realtime", "cpu-used": "8", "lag-in-frames": "0"}
    made: Made = {"codec": "libvpx-vp9", "container": "ivf", "frames": 6, "options": options}
    coarse, fine = make_clip(size=(32, 48), **made), make_clip(size=(64, 96), **made)
    joined = bytearray(fine[:32])
    for number, (low, high) in enumerate(zip(packets_of(coarse), packets_of(fine), strict=True)):
        marker = bytes((0xC0 | 3 << 3 | 1,))  # two frames, sizes in four bytes
        tail = marker + struct.pack("<II", len(low), len(high)) + marker
        joined += struct.pack("<IQ", len(low + high + tail), number) + low + high + tail
    data, want = bytes(joined), all_frames(fine)
    info = probe_video(data)
    assert (info.num_frames, info.width, info.height) == (6, 96, 64)
    assert len(all_frames(data)) == 12
    for order in ([0, 1, 2, 3, 4, 5], [4], [5, 0]):
        decoded = DECODER.decode(data, info, order)
        assert [frame_digest(frame) for frame in decoded] == [want[i] for i in order]


def packets_of(data: bytes) -> list[bytes]:
    with av.open(io.BytesIO(data), "r") as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]
