"""Clips changed after they were made: muxed anew, cut, their boxes rewritten."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from typing import Any

import av
from av.packet import Packet

Edit = tuple[int, int]


def remux(
    data: bytes,
    container: str,
    options: dict[str, str] | None = None,
    *,
    shift: int = 0,
    keep: Callable[[int, Packet[Any]], bool] = lambda number, packet: True,
) -> bytes:
    """Its video packets in another container, ``shift`` ticks later, those not kept left out."""
    target = io.BytesIO()
    with (
        av.open(io.BytesIO(data), "r") as source,
        av.open(target, "w", format=container, options=options or {}) as out,
    ):
        stream = out.add_stream_from_template(source.streams.video[0])
        number = 0
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                if keep(number, packet):
                    packet.stream = stream
                    packet.pts = None if packet.pts is None else packet.pts + shift
                    packet.dts = None if packet.dts is None else packet.dts + shift
                    out.mux(packet)
                number += 1
    return target.getvalue()


def tracks(*sources: bytes, container: str = "mp4", sound: bool = False) -> bytes:
    """Clips as tracks of one file, in this order; ``sound``: after a track of silence."""
    target = io.BytesIO()
    clips = [av.open(io.BytesIO(data), "r") for data in sources]
    with av.open(target, "w", format=container) as out:
        silence: Any = out.add_stream("aac", rate=16000) if sound else None
        streams = [out.add_stream_from_template(clip.streams.video[0]) for clip in clips]
        if silence is not None:
            frame = av.AudioFrame(format="fltp", layout="stereo", samples=1024)
            for plane in frame.planes:
                plane.update(bytes(plane.buffer_size))
            frame.sample_rate = 16000
            for i in range(20):
                frame.pts = i * 1024
                out.mux(silence.encode(frame))
            out.mux(silence.encode(None))
        for clip, stream in zip(clips, streams, strict=True):
            for packet in clip.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    out.mux(packet)
            clip.close()
    return target.getvalue()


def with_edits(data: bytes, entries: Sequence[Edit]) -> bytes:
    """An MP4 whose header comes last, with this edit list instead of its own.

    Args:
        data: the clip.
        entries: (length in ticks of the movie, 1/1000 s; first tick of the medium, −1: nothing).
    """
    out = bytearray(data)
    assert out.rindex(b"moov") > out.rindex(b"mdat"), "nothing may lie behind the header"
    body = struct.pack(">II", 0, len(entries))
    body += b"".join(struct.pack(">IiI", length, start, 1 << 16) for length, start in entries)
    new = struct.pack(">I4sI4s", 16 + len(body), b"edts", 8 + len(body), b"elst") + body
    at = out.find(b"edts") - 4
    old = struct.unpack(">I", out[at : at + 4])[0] if at >= 0 else 0
    at = at if at >= 0 else out.index(b"mdia") - 4
    out[at : at + old] = new
    for name in (b"moov", b"trak"):
        place = out.index(name) - 4
        size = struct.unpack(">I", out[place : place + 4])[0]
        out[place : place + 4] = struct.pack(">I", size + len(new) - old)
    return bytes(out)


def claim_samples(data: bytes, count: int) -> bytes:
    """An MP4 whose sample table says: so many samples of one byte each."""
    out = bytearray(data)
    for name, words in ((b"stsz", (1, count)), (b"stts", (1, count)), (b"stsc", (1, 1, count, 1))):
        at = out.index(name) + 8
        out[at : at + 4 * len(words)] = struct.pack(f">{len(words)}I", *words)
    return bytes(out)


def claim_fragment(data: bytes, count: int) -> bytes:
    """A fragmented MP4 whose first run says: so many samples, with nothing told of each."""
    out = bytearray(data)
    at = out.index(b"trun") + 4
    out[at : at + 8] = struct.pack(">II", 1, count)
    return bytes(out)
