"""Decodes with an RGB decoder, in this process or, as a program, in one of its own.

decord has to have its own: imported before PyAV's VP8 and VP9 encoders it breaks them.

    echo '{"decoder": "decord", "jobs": [{"path": "a.mp4", "frames": [0, 3]}]}' |
        python -m tests.unit.decoders.rgb_worker
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from zephon_mm.cli.bench_contestants import GRID, Reference, signature
from zephon_mm.decoders import cutting, load_decoder
from zephon_mm.decoders import pyav_stream as clip
from zephon_mm.errors import MediaError
from zephon_mm.media.probe_video import probe_video

ROOT = Path(__file__).resolve().parents[3]


def run(decoder: str, job: dict[str, Any]) -> dict[str, Any]:
    """What comes out of one job: md5, signature, index and pts of each frame, or the error.

    A job is ``path`` and ``frames``; and maybe ``clean``, a mark of ``index --verify``.
    """
    data = Path(job["path"]).read_bytes()
    info = dataclasses.replace(probe_video(data), clean=job.get("clean"))
    try:
        found = load_decoder(decoder).decode(memoryview(data), info, job["frames"])
    except MediaError as error:
        return {"error": error.reason}
    marks, digests = {}, {}
    for frame in dict.fromkeys(found.frames):
        assert frame.matrix == "rgb" and frame.depth == 8 and frame.full_range
        green, blue, red = frame.planes
        picture = np.stack((red, green, blue), axis=-1)
        marks[frame.index] = signature(picture, frame.orientation).round(2).tolist()
        digests[frame.index] = frame.md5()
    return {
        "index": [frame.index for frame in found],
        "pts": list(found.pts),
        "right_pts": [int(info.pts[i]) for i in job["frames"]],
        "md5": [digests[frame.index] for frame in found],
        "marks": [marks[frame.index] for frame in found],
    }


def run_all(decoder: str, jobs: Sequence[dict[str, Any]], threads: int = 1) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda job: run(decoder, job), jobs))


def run_apart(
    decoder: str, jobs: Sequence[dict[str, Any]], threads: int = 1, held: int | None = None
) -> list[dict[str, Any]]:
    """`run_all` in a fresh process; ``held`` replaces `cutting.MAX_HELD_BYTES`."""
    asked = {"decoder": decoder, "jobs": list(jobs), "threads": threads, "held": held}
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.decoders.rgb_worker"],
        input=json.dumps(asked), capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def reference(path: Path) -> Reference:
    """What every frame of a clip looks like, by a bare sequential PyAV decode, made small."""
    data = path.read_bytes()
    turn = probe_video(data).orientation
    pictures = []
    container, stream = clip.open_clip(data)
    with container:
        for frame in container.decode(stream):
            if frame.width * frame.height > 20_000:
                frame = frame.reformat(GRID * 2, GRID * 2, "rgb24", interpolation="AREA")
            pictures.append(signature(frame.to_ndarray(format="rgb24"), turn))
    return Reference([], np.stack(pictures))


def wrong_frames(found: dict[str, Any], right: Reference) -> int:
    """How many are of another frame, or far from the one asked for."""
    marks = [
        (i, np.array(mark, np.float32))
        for i, mark in zip(found["index"], found["marks"], strict=True)
    ]
    far = sum(float(np.abs(right.signatures[i] - mark).mean()) > 8 for i, mark in marks)
    return right.wrong(marks) + far


if __name__ == "__main__":
    wanted = json.load(sys.stdin)
    if wanted["held"] is not None:
        cutting.MAX_HELD_BYTES = wanted["held"]
    answer = run_all(wanted["decoder"], wanted["jobs"], wanted["threads"])
    sys.stdout.write(json.dumps(answer))
