"""Probes of real and made clips; what is the same for pictures."""

from __future__ import annotations

import hashlib
import io
import pickle
import tracemalloc
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tests.unit.media.clips import make_clip, manifest, recorded
from zephon_mm.errors import MediaError
from zephon_mm.media.info import ImageInfo, Orientation, VideoInfo, media_kind, write_probe
from zephon_mm.media.probe import probe_member, read_probe
from zephon_mm.media.verify import verify_member

REFUSED = ("sample_audio_only.mp4", "sample_vvc.mp4", "invalid-bitstream.webm")


def probe(data: bytes, name: str = "mp4") -> VideoInfo:
    blob = probe_member(name, data)
    assert blob is not None
    info = read_probe(blob)
    assert isinstance(info, VideoInfo)
    return info


def test_frames_are_counted_from_packets(cases: Path) -> None:
    for row in manifest(cases, "video"):
        data = (cases / "media" / row["file"]).read_bytes()
        info = probe(data, row["file"])
        name = Path(row["file"]).name
        if name in REFUSED:
            assert info.problem and info.num_frames == 0, name
            continue
        assert info.problem is None, name
        if row["damage"] and row["right"]["cli_error_lines"]:
            assert info.num_frames >= row["right"]["frames"], name
            continue
        frames = recorded(cases, row)
        assert info.num_frames == row["right"]["frames"] == len(frames), name
        times = [frame[0] for frame in frames]
        if info.synthetic_pts:
            assert np.all(np.diff(info.pts) > 0), name
        else:
            assert (info.pts + info.start_pts).tolist() == times, name
        assert info.pts[0] == 0


def test_blob_is_small_the_same_each_time_and_reads_back(cases: Path) -> None:
    for row in manifest(cases, "video"):
        data = (cases / "media" / row["file"]).read_bytes()
        blob = probe_member(row["file"], data)
        assert blob is not None and blob == probe_member(row["file"], memoryview(data))
        info = read_probe(blob)
        assert isinstance(info, VideoInfo)
        assert write_probe(info) == blob
        assert write_probe(pickle.loads(pickle.dumps(info))) == blob
        assert len(blob) < 500 + 2 * info.num_frames


def test_arrays_of_any_shape_survive_the_blob() -> None:
    rng = np.random.default_rng(3)
    for count in (0, 1, 2, 7, 300, 5000):
        for array in (
            np.arange(count) * 3003,
            np.cumsum(rng.integers(-(1 << 40), 1 << 40, count)),
            np.arange(count) + np.resize([0, 2, -1, -1], count),
        ):
            values = array.astype(np.int64)
            back = read_probe(write_probe(VideoInfo(pts=values, key_packet=values)))
            assert isinstance(back, VideoInfo)
            assert back.pts.tolist() == values.tolist() == back.key_packet.tolist()


def test_other_version_or_damaged_blob_is_refused() -> None:
    blob = write_probe(ImageInfo(3, 4, "PNG", "RGB", 1))
    assert read_probe(blob) == ImageInfo(3, 4, "PNG", "RGB", 1)
    for bad in (b"", b"\xff" + blob[1:], blob[:1] + b"x" + blob[2:], blob[:9]):
        with pytest.raises(MediaError, match="build the index again"):
            read_probe(bad)


def test_reading_a_probe_loads_no_decoder() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import zephon_mm.media.info, zephon_mm.media.probe, zephon_mm.media.sampling, "
        "zephon_mm.decoders, zephon_mm.media.pixels, zephon_mm.media.verify; "
        "print([m for m in ('av', 'torchvision', 'numba', 'transformers') if m in sys.modules])"
    )
    paths = [p for p in sys.path if p]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_extensions_decide() -> None:
    assert media_kind("jpg") == media_kind("a.b.PNG") == "image"
    assert media_kind("MOV") == media_kind("0.mp4") == "video"
    assert media_kind("json") is media_kind("") is media_kind("mp4.txt") is None
    assert probe_member("txt", b"hello") is None


@pytest.mark.parametrize("data", [b"", b"\0" * 4000, b"not a film", b"\x00\x00\x00\x18ftypisom"])
def test_rubbish_is_a_problem_not_an_error(data: bytes) -> None:
    for field in ("mp4", "webm", "ts", "avi", "jpg", "png", "webp", "tif"):
        blob = probe_member(field, data)
        assert blob is not None
        info = read_probe(blob)
        assert info.problem and blob == probe_member(field, data)
        assert not verify_member(field, data, blob)


def test_cut_at_every_length_is_a_problem_or_a_clip() -> None:
    for container in ("mp4", "matroska", "mpegts", "avi"):
        data = make_clip(container=container, codec="mpeg4" if container == "avi" else "libx264")
        for size in range(0, len(data), max(1, len(data) // 23)):
            info = probe(data[:size])
            assert bool(info.problem) == (info.num_frames == 0)


def test_a_playlist_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(make_clip())
    text = f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{tmp_path}/clip.mp4\n#EXT-X-ENDLIST\n"
    assert probe(text.encode(), "ts").problem
    assert probe(f"ffconcat version 1.0\nfile {tmp_path}/clip.mp4\n".encode()).problem


def test_packets_out_of_order_in_avi_are_put_in_output_order(cases: Path) -> None:
    data = (cases / "inputs/V08/h264_bf2_nopts.avi").read_bytes()
    info = probe(data, "avi")
    assert info.synthetic_pts and info.num_frames == 60
    assert info.frame_packet.tolist() != list(range(60))  # B-frames: packets are in another order
    assert sorted(info.frame_packet.tolist()) == list(range(60))


def test_empty_avi_slots_are_gaps_not_frames(cases: Path) -> None:
    info = probe((cases / "inputs/V09/gaps.avi").read_bytes(), "avi")
    assert info.num_frames == 80 and info.rate is None
    assert int(info.pts[-1]) == 89 and 9 in np.diff(info.pts)  # slots 40 … 47 are empty
    assert not set(range(40, 48)) & set(info.pts.tolist())


def test_raw_streams_have_output_order_and_a_grid() -> None:
    for codec, container in (("libx264", "h264"), ("libx265", "hevc")):
        options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
        data = make_clip(codec=codec, container=container, options=options)
        info = probe(data, container)
        assert info.synthetic_pts and info.num_frames == 24, codec
        assert len(set(np.diff(info.pts).tolist())) == 1


def test_headers_cannot_make_memory_grow(cases: Path) -> None:
    for name in ("no_duration.webm", "sample_fragmented.mp4"):
        data = (cases / "media/video" / name).read_bytes()
        probe(data)
        tracemalloc.start()
        info = probe(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert info.num_frames in (74, 30) and float(info.duration) < 10
        assert peak < 2_000_000 + 2 * len(data)


def test_rates() -> None:
    assert probe(make_clip(rate=30)).rate == (30, 1)
    assert probe(make_clip(rate=30, container="matroska")).rate == (30, 1)  # 1 ms ticks
    film = [0, 33, 66, 100, 250, 300, 900, 933]
    base = Fraction(1, 1000)
    info = probe(make_clip(frames=8, pts=film, time_base=base, container="matroska"))
    assert info.rate is None and info.pts.tolist() == film
    assert info.frames_per_second == pytest.approx(8 / float(info.duration))


def test_discarded_packets_and_hidden_keyframes(cases: Path) -> None:
    path = cases / "media/video/discard_first_keyframe.mp4"
    info = probe(path.read_bytes())
    assert (info.num_packets, info.num_frames) == (30, 25)
    assert info.key_packet[0] == 0 and info.frame_packet.min() > 0 and info.start_pts == 0


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("flip", [(False, False), (True, False), (False, True)])
def test_all_orientations_are_told_apart(degrees: int, flip: tuple[bool, bool]) -> None:
    data = make_clip(size=(32, 64), frames=3, rotation=degrees, flip=flip)
    info = probe(data)
    turned = degrees in (90, 270)
    assert (info.height, info.width) == ((64, 32) if turned else (32, 64))
    assert (info.stored_height, info.stored_width) == (32, 64)
    assert info.orientation.transpose == turned
    mirrors = info.orientation.mirror_x ^ info.orientation.mirror_y ^ turned
    assert mirrors == (flip[0] ^ flip[1])


def test_orientation_shows_frames_as_ffmpeg_does(cases: Path) -> None:
    """FFmpeg's command line turns by default; the cases hold its digests."""
    import gzip
    import json

    from zephon_mm.decoders import load_decoder

    checked = 0
    for row in manifest(cases, "video"):
        if row["rotation"] is None or "reflected" in row["classes"]:
            continue
        with gzip.open(cases / "media" / row["right"]["framemd5"]) as file:
            told = json.load(file)["default_command"]["frames"]
        data = (cases / "media" / row["file"]).read_bytes()
        info = probe(data)
        if len(told) != info.num_frames or info.depth > 8 or info.stored_width % 2:
            continue
        frame = load_decoder("pyav").decode(data, info, [0]).frames[0]
        found = hashlib.md5()
        for plane in frame.planes:
            picture = plane.T if info.orientation.transpose else plane
            picture = picture[:, ::-1] if info.orientation.mirror_x else picture
            picture = picture[::-1] if info.orientation.mirror_y else picture
            found.update(np.ascontiguousarray(picture).tobytes())
        assert found.hexdigest() == told[0][3], row["file"]
        checked += 1
    assert checked >= 4


def test_reflection_is_not_lost(cases: Path) -> None:
    data = (cases / "media/video/sample_rotate_and_reflect.mp4").read_bytes()
    assert probe(data).orientation == Orientation(transpose=True)
    for name in ("rot90", "rot270"):
        info = probe((cases / f"inputs/V13/{name}.mp4").read_bytes())
        assert (info.width, info.height) == (180, 320)


def test_colour_and_depth_come_from_the_first_frame(cases: Path) -> None:
    want = {
        "bt709_full_range.mp4": ("709", True, 8),
        "bt601_full_range.mp4": ("601", True, 8),
        "bt601_limited_range.mp4": ("601", False, 8),
        "bt2020_10bit.mp4": ("2020", False, 10),
        "four-colors.mp4": ("rgb", True, 8),
        "testsrc2.mp4": ("601", False, 8),  # untagged
    }
    for name, expected in want.items():
        info = probe((cases / "media/video" / name).read_bytes())
        assert (info.matrix, info.full_range, info.depth) == expected, name
    info = probe((cases / "media/video/four-colors.mp4").read_bytes())
    assert (info.width, info.height) == (320, 240)  # its header says 1920x1080


def test_cover_art_is_not_the_clip(cases: Path) -> None:
    file = io.BytesIO()
    art = io.BytesIO()
    Image.new("RGB", (320, 320)).save(art, "PNG")
    source = make_clip(frames=5)
    with av.open(file, "w", format="mp4") as out, av.open(io.BytesIO(source)) as clip:
        picture = out.add_stream("png", rate=1)
        picture.width = picture.height = 320
        picture.pix_fmt = "rgb24"
        picture.disposition = av.stream.Disposition.attached_pic
        video = out.add_stream_from_template(clip.streams.video[0])
        still = av.Packet(art.getvalue())
        still.stream, still.pts, still.dts = picture, 0, 0
        out.mux(still)
        for packet in clip.demux(clip.streams.video[0]):
            if packet.size:
                packet.stream = video
                out.mux(packet)
    info = probe(file.getvalue())
    assert (info.codec, info.width, info.num_frames) == ("h264", 64, 5)


def test_broken_bytes_never_raise_and_have_one_probe_and_one_verdict() -> None:
    import random

    draw = random.Random(7)
    sources = [("mp4", make_clip(frames=6)), ("mkv", make_clip(frames=6, container="matroska"))]
    sources += [("avi", make_clip(frames=6, container="avi", codec="mpeg4"))]
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        file, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(pixels).save(file, kind, exif=exif)
        sources.append((kind.lower(), file.getvalue()))
    for _ in range(400):
        field, whole = draw.choice(sources)
        data = bytearray(whole)
        for _ in range(draw.choice([1, 2, 15])):
            data[draw.randrange(min(len(data), draw.choice([64, 500, 1 << 30])))] ^= (
                1 << draw.randrange(8)
            )
        if draw.random() < 0.2:
            del data[draw.randrange(len(data)) :]
        blob = probe_member(field, bytes(data))
        assert blob is not None and blob == probe_member(field, bytes(data))
        verdict = verify_member(field, bytes(data), blob)
        assert verdict == verify_member(field, bytes(data), blob)


def test_times_too_far_apart_for_whole_numbers_are_not_believed() -> None:
    from zephon_mm.media.probe_video import constant_rate

    far = np.array([0, 1 << 40, 1 << 61], np.int64)
    assert constant_rate(far, Fraction(1, 10**9), [Fraction(30_000, 1001)]) is None
    assert constant_rate(np.arange(300) * 1001, Fraction(1, 30_000), []) == Fraction(30_000, 1001)
    ticks = (np.arange(300) * 1000 / 60).round().astype(np.int64)
    assert constant_rate(ticks, Fraction(1, 1000), [Fraction(25), Fraction(60)]) == 60
    missing = np.array([0, 1, 2, 4, 5], np.int64)  # one slot of a coarse grid is empty
    assert constant_rate(missing, Fraction(1, 30), [Fraction(30)]) is None
