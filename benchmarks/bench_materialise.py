"""What pixels add to decoding: ``python benchmarks/bench_materialise.py [--out FILE]``.

Sixteen frames, evenly chosen of 300, of made H.264 clips: decoded alone (`Decoder.stream`, frames
let go at once), and materialised (the same, with each frame resized and written into patches). One
thread, CPU time, both in each round; a row gives the middle of both and the ratio's 20th, 50th and
80th percentile over the rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.frame import PictureType

from zephon_mm.decoders import load_decoder
from zephon_mm.media.info import VideoInfo
from zephon_mm.media.pixels import stream_patches
from zephon_mm.media.probe import probe_member, read_probe
from zephon_mm.patches import PatchLayout

FRAMES = 300
CASES = [
    ("720p to 252x448", (720, 1280), (252, 448), 14, 1.10),
    ("720p to 560x1008", (720, 1280), (560, 1008), 14, None),
    ("360p to 352x640", (360, 640), (352, 640), 16, 1.20),
]


def main() -> None:
    """Run all cases and print their rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a file to write the rows to")
    options = parser.parse_args()
    clips = {size: make_clip(size) for size in {case[1] for case in CASES}}
    lines = [json.dumps(row(clips[case[1]], *case, options.rounds)) for case in CASES]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


def row(
    data: bytes, name: str, _: tuple[int, int], size: tuple[int, int], p: int,
    limit: float | None, rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """One case."""
    decoder = load_decoder("pyav")
    info = read_probe(probe_member("mp4", data) or b"")
    if not isinstance(info, VideoInfo) or info.num_frames != FRAMES:
        raise SystemExit("the clip isn't what was made")
    wanted = np.linspace(0, FRAMES - 1, 16).round().astype(int).tolist()
    patch = PatchLayout(p, 2, 2)

    def bare() -> None:
        for _ in decoder.stream(data, info, wanted):
            pass

    def whole() -> None:
        stream_patches(decoder, data, info, wanted, size, patch)

    bare()
    whole()
    times = np.array([[cost(whole), cost(bare)] for _ in range(rounds)])
    ratios = np.percentile(times[:, 0] / times[:, 1], [20, 50, 80])
    return {
        "case": f"materialise ÷ bare decode, {name}",
        "limit": limit,
        "materialise_ms": round(float(np.median(times[:, 0])), 1),
        "decode_ms": round(float(np.median(times[:, 1])), 1),
        **{f"ratio_p{k}": round(float(r), 3) for k, r in zip((20, 50, 80), ratios, strict=True)},
        "rounds": rounds,
        "clip_bytes": len(data),
    }


def cost(function: Callable[[], None]) -> float:
    """Milliseconds of CPU time."""
    start = time.process_time()
    function()
    return (time.process_time() - start) * 1e3


def make_clip(size: tuple[int, int]) -> bytes:
    """Twelve seconds of FFmpeg's moving test pattern with a little noise."""
    graph = av.filter.Graph()
    pattern = graph.add("testsrc2", f"size={size[1]}x{size[0]}:rate=25")
    noise = graph.add("noise", "alls=4:allf=t")
    end = graph.add("buffersink")
    pattern.link_to(noise)
    noise.link_to(end)
    graph.configure()
    file = io.BytesIO()
    with av.open(file, "w", "mp4") as container:
        stream = container.add_stream("libx264", 25, options={"crf": "26", "preset": "veryfast"})
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        for _ in range(FRAMES):
            frame = graph.vpull().reformat(format="yuv420p")
            frame.pts = None
            frame.pict_type = PictureType.NONE  # the filter marks all as key frames
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


if __name__ == "__main__":
    main()
