"""Case V16 as a kind (C6): one verdict on a damaged clip, whatever was asked before and by whom."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.decoders.surgery import remux
from tests.unit.media.clips import make_clip
from zephon_mm.decoders import load_decoder
from zephon_mm.errors import MediaError
from zephon_mm.media.info import write_probe
from zephon_mm.media.probe_video import probe_video

Clips = dict[str, bytes]
X265 = "log-level=none:keyint=8:bframes=2:pools=none:frame-threads=1"
# x265 writes wrong sums for pictures of one coding tree unit across or down (64 pixels).
SOURCES: dict[str, dict[str, Any]] = {
    "h264": {"options": {"g": "8", "bf": "2", "threads": "1"}},
    "cavlc": {"options": {"g": "8", "threads": "1", "x264-params": "cabac=0:slices=2"}},
    "hevc": {"codec": "libx265", "size": (64, 64), "options": {"x265-params": X265}},
    "sums": {"codec": "libx265", "size": (96, 160), "options": {"x265-params": f"{X265}:hash=1"}},
    "vp8": {"codec": "libvpx", "container": "webm", "options": {"g": "8"}},
    "vp9": {"codec": "libvpx-vp9", "container": "webm", "options": {"g": "8", "cpu-used": "8"}},
    "av1": {"codec": "libsvtav1", "size": (64, 96),
            "options": {"preset": "12", "svtav1-params": "lp=1:keyint=8"}},
    "ts": {"container": "mpegts", "options": {"g": "8", "bf": "2", "threads": "1"}},
    "mpeg4": {"codec": "mpeg4", "container": "avi", "options": {"g": "8", "bf": "1"}},
}  # fmt: skip
HURTS = ("flip", "flips", "cut", "zeros", "rubbish", "header", "gone")


def hurt(data: bytes, kind: str, draw: random.Random) -> bytes:
    out = bytearray(data)
    at = draw.randrange(len(data) // 8, len(data))
    if kind == "flip":
        out[at] ^= 1 << draw.randrange(8)
    elif kind in ("flips", "header"):
        for _ in range(6):
            out[draw.randrange(len(data) if kind == "flips" else 1200)] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del out[at:]
    elif kind == "gone":
        del out[at : at + draw.choice([1, 188, 700])]
    else:
        size = min(draw.choice([16, 400]), len(data) - at)
        out[at : at + size] = bytes(size) if kind == "zeros" else draw.randbytes(size)
    return bytes(out)


def frames_or_reason(data: bytes, order: list[int]) -> str:
    try:
        decoded = load_decoder("pyav").decode(data, probe_video(data), order)
    except MediaError as error:
        return error.reason
    return hashlib.md5("".join(frame.md5() for frame in decoded).encode()).hexdigest()


def verdict(data: bytes, shuffle: int = 0) -> list[str]:
    """The probe, and what comes of several askings; made in an order that ``shuffle`` draws."""
    info = probe_video(data)
    count = info.num_frames
    askings = [list(range(count)), [count - 1], [0], list(range(0, count, 3)), [count // 2]]
    places = list(range(len(askings))) if count else []
    random.Random(shuffle).shuffle(places)
    found = {place: frames_or_reason(data, askings[place]) for place in places}
    return [hashlib.md5(write_probe(info)).hexdigest(), *(found[p] for p in sorted(found))]


@pytest.fixture(scope="module")
def sources() -> Clips:
    return {name: make_clip(**made) for name, made in SOURCES.items()}


@pytest.fixture(scope="module")
def broken(sources: Clips, cases: Path) -> Clips:
    """63 damaged clips of all codecs and kinds of damage, and those of the cases."""
    draw = random.Random(16)
    found = {
        f"{name}, {kind}": hurt(data, kind, draw)
        for name, data in sources.items()
        for kind in HURTS
    }
    for name in ("damaged_mid.mp4", "cut_60pct.mp4"):
        found[name] = (cases / "inputs/V16" / name).read_bytes()
    return found


@pytest.fixture(scope="module")
def told(broken: Clips) -> dict[str, list[str]]:
    return {name: verdict(data) for name, data in broken.items()}


def differing(told: dict[str, list[str]], found: dict[str, list[str]]) -> Iterator[str]:
    return (name for name in told if told[name] != found[name])


def test_some_of_all_is_told(told: dict[str, list[str]]) -> None:
    """The rest of this file would mean little if nothing were noticed, or everything refused."""
    damaged = sum(any(" " in asked for asked in row[1:]) for row in told.values())
    whole = sum(any(" " not in asked for asked in row[1:]) for row in told.values())
    assert len(told) == 65 and damaged >= 20 and whole >= 20


def test_the_same_after_other_askings_and_in_threads(
    broken: Clips, told: dict[str, list[str]]
) -> None:
    with ThreadPoolExecutor(6) as pool:
        found = dict(
            zip(broken, pool.map(lambda data: verdict(data, 1), broken.values()), strict=True)
        )
    assert not list(differing(told, found))


def test_the_same_in_a_fresh_process_with_other_threads(
    broken: Clips, told: dict[str, list[str]], tmp_path: Path
) -> None:
    names = list(broken)[::2]
    for i, name in enumerate(names):
        (tmp_path / str(i)).write_bytes(broken[name])
    code = (
        "import json, sys, torch\n"
        "from pathlib import Path\n"
        "from tests.unit.decoders.test_kinds_damage import verdict\n"
        "torch.set_num_threads(5)\n"
        "files = [Path(sys.argv[1]) / str(i) for i in range(int(sys.argv[2]))]\n"
        "found = [verdict(file.read_bytes(), 7) for file in reversed(files)]\n"
        "print(json.dumps(found[::-1]))\n"
    )
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}", str(tmp_path),
         str(len(names))],
        capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "7"},
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == [told[name] for name in names]


def test_twenty_times_the_same_in_bounded_memory(broken: Clips, told: dict[str, list[str]]) -> None:
    few = [name for name in broken if name.endswith(("rubbish", ".mp4"))]
    before = psutil.Process().memory_info().rss
    for name in few:
        count = probe_video(broken[name]).num_frames
        if count:
            found = {frames_or_reason(broken[name], [count // 2]) for _ in range(20)}
            assert found == {told[name][5]}
    assert psutil.Process().memory_info().rss - before < 64_000_000


def test_sums_that_an_hevc_stream_carries_are_compared(sources: Clips) -> None:
    """With them no damaged frame is delivered; without, FFmpeg notices few."""
    data = sources["sums"]
    info = probe_video(data)
    decoder = load_decoder("pyav")
    want = [frame.md5() for frame in decoder.decode(data, info, range(info.num_frames))]
    draw, noticed = random.Random(3), 0
    for _ in range(30):
        bad = hurt(data[: len(data) * 3 // 4], "flip", draw) + data[len(data) * 3 // 4 :]
        for index in (0, info.num_frames // 2, info.num_frames - 1):
            try:
                frames = decoder.decode(bad, info, [index])
            except MediaError:
                noticed += 1
            else:
                assert frames.frames[0].md5() == want[index]
    assert noticed > 10


def test_a_packet_that_is_gone_is_not_made_up(sources: Clips) -> None:
    """Whole packets left out: those that are there are the clip, and nothing stands in for one."""
    for name, container in (("h264", "mp4"), ("sums", "mp4"), ("vp8", "webm"), ("vp9", "webm")):
        whole = frames_of(sources[name])
        for lost in (0, 5, 8):
            bad = remux(sources[name], container, keep=lambda n, p: n != lost)  # noqa: B023
            info = probe_video(bad)
            assert info.num_packets == len(whole) - 1, name
            assert verdict(bad) == verdict(bad, 1)
            if name == "sums":  # what comes out has the sum that the encoder wrote
                assert {m for m in frames_of(bad) if m is not None} <= set(whole)


def frames_of(data: bytes) -> list[str | None]:
    """Digests of a clip's frames, each asked for alone; None: damaged."""
    info = probe_video(data)
    told = (frames_or_reason(data, [index]) for index in range(info.num_frames))
    return [None if " " in found else found for found in told]
