"""Cases Z07, V02 and V09 as a kind: what a clip claims is neither allocated nor waited for.

Memory is bounded by the address space that a child may take, work by what it may spend on the CPU.
"""

from __future__ import annotations

import io
import multiprocessing
import resource
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest

from tests.unit.decoders.surgery import claim_fragment, claim_samples, remux, with_edits
from tests.unit.media.clips import make_clip
from zephon_mm.decoders import load_decoder, pyav
from zephon_mm.decoders import pyav_stream as clip
from zephon_mm.errors import MediaError
from zephon_mm.media import probe_video as probing
from zephon_mm.media.info import VideoInfo, read_probe, write_probe
from zephon_mm.media.limits import MAX_FRAME_PIXELS
from zephon_mm.media.mp4_claims import check_claims
from zephon_mm.media.probe_video import probe_video

ROOM = 300_000_000


@pytest.fixture(scope="module")
def plain() -> bytes:
    return make_clip(frames=6, size=(16, 16), options={"bf": "0"})


def confined(data: bytes) -> VideoInfo:
    """The probe, made by a child that may take `ROOM` more memory and 20 s of CPU."""
    context = multiprocessing.get_context("fork")
    end, other = context.Pipe(duplex=False)

    def child() -> None:
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        other.send_bytes(write_probe(probe_video(data)))

    process = context.Process(target=child)
    process.start()
    other.close()
    assert end.poll(120), "neither an answer nor an end"
    try:
        info = read_probe(end.recv_bytes())
    except EOFError:
        pytest.fail("killed for memory or CPU time")
    finally:
        process.join(10)
    assert isinstance(info, VideoInfo)
    return info


@pytest.mark.parametrize("count", [10**4, 1 << 23, 1 << 24, (1 << 32) - 1])
def test_samples_that_a_table_claims(plain: bytes, count: int) -> None:
    bombs = [claim_samples(plain, count)]
    bombs.append(
        claim_fragment(remux(plain, "mp4", {"movflags": "frag_keyframe+empty_moov"}), count)
    )
    for bomb in bombs:
        if count < 1 << 23:
            assert confined(bomb).num_frames < 10  # a lie that costs nothing is not looked at
        elif count > 1 << 23:
            assert f"claims {count} packets" in str(confined(bomb).problem)


def test_edits_that_show_all_again(plain: bytes) -> None:
    many = make_clip(frames=300, size=(16, 16), options={"bf": "0", "preset": "ultrafast"})
    assert "claims" in str(confined(with_edits(many, [(60_000, 0)] * 40_000)).problem)
    info = confined(with_edits(plain, [(250, 0)] * 3))
    assert info.problem is None and info.num_frames == 18


def test_claims_of_honest_and_of_odd_files_pass(plain: bytes) -> None:
    for data in (plain, plain[:700], b"", b"\0" * 64, b"\0\0\0\1moov" * 9, b"\0\0\0\x08moov" * 9):
        check_claims(memoryview(data))
    nested = b"".join((1 << 20).to_bytes(4, "big") + b"moof" for _ in range(100_000))
    check_claims(memoryview(nested))


def test_uncompressed_sound_may_have_many_samples(plain: bytes) -> None:
    """Three minutes at 48 kHz are more samples than a film of ten hours has frames."""
    file = io.BytesIO()
    with av.open(file, "w", format="mov") as out:
        sound: Any = out.add_stream("pcm_s16le", rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, 48_000 * 180), np.int16), format="s16", layout="mono"
        )
        frame.sample_rate = 48_000
        out.mux(sound.encode(frame))
        out.mux(sound.encode(None))
    assert len(file.getvalue()) > 2 * 48_000 * 180 > 1 << 23
    check_claims(memoryview(file.getvalue()))
    liar = bytearray(claim_samples(plain, 9_000_000) + bytes(10_000_000))
    at = liar.index(b"hdlr") + 12
    liar[at : at + 4] = b"soun"  # compressed: FFmpeg would take each by itself
    with pytest.raises(MediaError, match="claims 9000000 packets"):
        check_claims(memoryview(liar))


def test_a_frame_too_large_is_not_made_room_for() -> None:
    """16384 x 8192 in a few bytes: a VP8 keyframe that says so, in an IVF of one packet."""
    data = bytearray(make_clip(codec="libvpx", container="ivf", frames=1))
    at = 32 + 12 + 6  # file header, frame header, frame tag and start code
    data[at : at + 4] = (16383).to_bytes(2, "little") + (8192).to_bytes(2, "little")
    assert 16383 * 8192 > MAX_FRAME_PIXELS
    info = confined(bytes(data))
    assert info.problem == "no frame of its vp8 stream can be decoded"


def test_work_is_counted_not_timed(plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    info = probe_video(plain)
    decoder = load_decoder("pyav")
    monkeypatch.setattr(pyav, "MAX_PACKETS", 5)
    with pytest.raises(MediaError, match=r"it takes 6 packets of 256 pixels .* limits are 5 pack"):
        decoder.decode(plain, info, [5])
    assert len(decoder.decode(plain, info, [0, 3])) == 2
    monkeypatch.setattr(probing, "MAX_PACKETS", 5)
    assert "more than 5 packets" in str(probe_video(plain).problem)


def test_pixels_are_counted_as_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clip that starts small and goes on large is judged by the large frames."""
    made: dict[str, Any] = {"container": "h264", "frames": 4, "options": {"bf": "0"}}
    data = make_clip(size=(16, 16), **made) + make_clip(size=(64, 64), **made)
    info = probe_video(data)
    assert info.num_frames == 8 and info.stored_width == 16
    monkeypatch.setattr(pyav, "MAX_PIXELS", 8 * 16 * 16 + 1)
    assert len(load_decoder("pyav").decode(data, info, [3])) == 1
    with pytest.raises(MediaError, match="packets of 4096 pixels"):
        load_decoder("pyav").decode(data, info, range(8))


def test_bytes_are_not_copied_and_not_read_for_ever(plain: bytes) -> None:
    reader = clip._Reader(memoryview(plain))
    assert reader.read(4) == plain[:4] and reader.seek(0, 2) == len(plain) == reader.tell()
    assert reader.read(9) == b"" and reader.seek(-2, 1) == len(plain) - 2
    assert reader.read(9) == plain[-2:]
    with pytest.raises(OSError, match="before the first"):
        reader.seek(-1)

    def wear_out(step: Callable[[], object]) -> None:
        for _ in range((64 * len(big) + (1 << 30)) // len(big) + 2):
            step()

    big = bytes(1 << 24)
    reader = clip._Reader(big)
    with pytest.raises(OSError, match="over and over"):
        wear_out(lambda: (reader.seek(0), reader.read(len(big))))


def test_tiny_packets_by_the_thousand(plain: bytes) -> None:
    """Packets that hold nothing decodable are indexed at a few hundred bytes each."""
    head = make_clip(codec="libvpx", container="ivf", frames=1)
    tiny = b"".join(
        (1).to_bytes(4, "little") + (i + 1).to_bytes(8, "little") + b"\x11" for i in range(10_000)
    )
    info = confined(head + tiny)
    assert info.num_packets == 10_001 and info.rate == (24, 1)
    with pytest.raises(MediaError):
        load_decoder("pyav").decode(head + tiny, info, [9_000])
    assert Fraction(info.num_frames, 24) == info.duration
