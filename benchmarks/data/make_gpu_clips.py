"""Make the clips of ``gpu_check.py``, and the digests of their planes as PyAV decodes them.

``python benchmarks/data/make_gpu_clips.py`` writes ``gpu_clips/``. They are carried in the
repository so that a machine with a GPU needs no encoder and no second decoder.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import av
import numpy as np
from av.video.frame import PictureType

FOLDER = Path(__file__).with_name("gpu_clips")
CLIPS = {
    # name: (encoder, pixel format, (height, width), frames, options)
    "h264_8bit.mp4": ("libx264", "yuv420p", (362, 642), 48, {"crf": "28", "bf": "2"}),
    "h264_8bit_720p.mp4": ("libx264", "yuv420p", (720, 1280), 150, {"crf": "32", "g": "50"}),
    "hevc_8bit.mp4": ("libx265", "yuv420p", (362, 642), 48, {"crf": "30"}),
    "hevc_10bit.mp4": ("libx265", "yuv420p10le", (362, 642), 48, {"crf": "30"}),
    "vp9_8bit.webm": ("libvpx-vp9", "yuv420p", (362, 642), 48, {"crf": "36", "b": "0"}),
    "av1_8bit.mp4": ("libsvtav1", "yuv420p", (362, 642), 48, {"crf": "40", "preset": "8"}),
    "av1_10bit.mp4": ("libsvtav1", "yuv420p10le", (362, 642), 48, {"crf": "40", "preset": "8"}),
}


def main() -> None:
    """Write clips and digests."""
    FOLDER.mkdir(exist_ok=True)
    digests = {}
    for name, (codec, pix_fmt, size, frames, options) in CLIPS.items():
        path = FOLDER / name
        encode(path, codec, pix_fmt, size, frames, options)
        found = [digest(frame) for frame in decoded(path)]
        if len(found) != frames:
            raise SystemExit(f"{name}: {len(found)} frames, {frames} expected")
        digests[name] = {
            "codec": codec, "depth": 10 if "10" in pix_fmt else 8, "size": size, "md5": found
        }  # fmt: skip
    (FOLDER / "planes.json").write_text(json.dumps(digests, indent=1) + "\n")


def encode(
    path: Path, codec: str, pix_fmt: str, size: tuple[int, int], frames: int,
    options: dict[str, str],
) -> None:  # fmt: skip
    """A moving pattern of FFmpeg's ``testsrc2``."""
    source = f"testsrc2=size={size[1]}x{size[0]}:rate=25"
    graph = av.filter.Graph()
    made = graph.add("testsrc2", source.split("=", 1)[1])
    end = graph.add("buffersink")
    made.link_to(end)
    graph.configure()
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.height, stream.width, stream.pix_fmt = *size, pix_fmt
        stream.codec_context.thread_count = 1
        for _ in range(frames):
            frame = graph.vpull().reformat(format=pix_fmt)
            frame.pts = None
            frame.pict_type = PictureType.NONE  # the filter marks all as key frames
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def decoded(path: Path) -> list[av.VideoFrame]:
    """All frames, by one thread."""
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return list(container.decode(video=0))


def digest(frame: av.VideoFrame) -> str:
    """MD5 of the visible planes, tightly packed, one after the other; 16 bits little-endian."""
    total = hashlib.md5(usedforsecurity=False)
    for plane, part in zip(frame.planes, frame.format.components, strict=True):
        kind = np.dtype("<u2" if part.bits > 8 else np.uint8)
        rows = np.frombuffer(plane, kind).reshape(plane.height, plane.line_size // kind.itemsize)
        total.update(np.ascontiguousarray(rows[:, : plane.width]).data)
    return total.hexdigest()


if __name__ == "__main__":
    main()
