"""This project's loader as a contestant; no variant.

``--prepare FOLDER WORK`` indexes the shards, as a user does once; a cold start then finds it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare.protocol import Job, Seen, begin
from benchmarks.compare.shards import shards_of

if TYPE_CHECKING:
    from zephon_mm import Batch, DataConfig, ExecutionConfig

FORMATS = {
    "text": "text",
    "image_text": "image_text",
    "video_360p": "video_text",
    "video_720p": "video_text",
    "interleaved": "interleaved",
}
PICTURE_PIXELS = 224 * 224
CLIP_PIXELS = 1_865_000
"""Of 16 frames: makes 448 × 256 of 360p and of 720p, by Qwen3-VL's rule."""


def data_config(job: Job) -> DataConfig:
    """The config of a job; of texts alone a family without pictures and M-RoPE."""
    from zephon_mm import DataConfig, ImageSizing, Source, VideoSampling

    source = Source(id=job.work, urls=tuple(job.shards), format=FORMATS[job.work])
    return DataConfig(
        sources=(source,),
        model="text" if job.work == "text" else "qwen3_vl",
        tokenizer=job.tokenizer,
        sequence_length=job.sequence_length,
        global_batch=job.batch,
        lanes=job.lanes,
        seed=job.seed,
        image=ImageSizing(min_pixels=PICTURE_PIXELS, max_pixels=PICTURE_PIXELS),
        video=VideoSampling(mode="uniform", num_frames=16, max_pixels=CLIP_PIXELS),
    )


def execution_config(job: Job) -> ExecutionConfig:
    """The backend of a job."""
    from zephon_mm import ExecutionConfig

    if job.workers == 0:
        return ExecutionConfig(backend="serial")
    return ExecutionConfig(
        backend="processes" if job.mode == "processes" else "threads", workers=job.workers
    )


def seen(job: Job, batch: Batch) -> Iterator[Seen]:
    """What each row holds; pixels are patches, in the family's order.

    Clips' documents are left out: the family writes the times of the frames between them.
    """
    for row in batch.rows():
        ids = row.input_ids.astype("<i4")
        used = max((document.stop for document in row.documents), default=0)
        media = [patches.tobytes() for patches in row.patches]
        whole = [
            ids[document.start : document.stop].tobytes()
            for document in row.documents
            if document.token_start == 0 and ids[document.stop - 1] == job.end
        ]
        clips = job.work.startswith("video")
        yield Seen(ids[:used].tobytes() + b"".join(media), () if clips else whole, media)


def ended(job: Job, batch: Batch) -> int:
    """The documents that end in the batch."""
    ids = batch.input_ids.numpy()
    return sum(
        bool(ids[row, document.stop - 1] == job.end)
        for row, documents in enumerate(batch.documents)
        for document in documents
    )


def prepare(folder: str, work: str) -> None:
    """Index what has no index yet, or one of another release."""
    shards = shards_of(folder, work)
    command = [sys.executable, "-m", "zephon_mm", "index", *shards]
    if subprocess.run(command, capture_output=True).returncode:
        subprocess.run([*command, "--force"], check=True)


def main() -> None:
    """Do the job of the command line."""
    if sys.argv[1:2] == ["--prepare"]:
        prepare(sys.argv[2], sys.argv[3])
        return
    job, meter = begin()
    import zephon_mm
    from zephon_mm import Loader

    job = meter.imported()
    config, execution = data_config(job), execution_config(job)
    with Loader(config, execution, dp_rank=job.dp_rank, dp_size=job.dp_size) as loader:
        if job.resumes:
            loader.load_state_dict(json.loads(Path(str(job.state)).read_text()))

        def save(path: str) -> None:
            Path(path).write_text(json.dumps(loader.state_dict()))

        for batch in loader:
            done = meter.batch(
                samples=ended(job, batch),
                tokens=batch.num_tokens,
                room=batch.input_ids.numel(),
                look=partial(seen, job, batch),
            )
            meter.save(save)
            if done:
                break
    meter.finish(version=zephon_mm.__version__)


if __name__ == "__main__":
    main()
