"""The bare work on samples that lie in memory, on one core: what a loader is measured by.

Without a variant the limit of the work: the tokenizer alone over texts, ``encode_batch_fast`` in
one thread; Pillow's decoding and resizing and the tokenizer; this project's planned decoding of 16
frames, their pixels and the tokenizer. Nothing is shuffled, packed or collated. Samples come in the
order in which our plan draws them, all of an epoch. Variants:

- ``aten``: of pictures; resized by ATen and cut into patches, as we do, rather than by Pillow;
- ``whole``: of clips; decoded as the peers' loaders do (`work.clip`): every frame up to the last
  wanted one, the wanted ones resized by FFmpeg;
- ``tar``: reading all members with Python's ``tarfile``, nothing done to them;
- ``ffmpeg``: ``ffmpeg -f null`` over each clip, every frame decoded, none converted.

With workers, as many processes do the same at once, each by itself: what the machine's cores give
together, since two of them are seldom twice as fast as one.

A job of kind ``rows`` gives the digests of all samples, made both ways: the reference of the check
of what a contestant delivers.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import multiprocessing
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from benchmarks.compare.protocol import Job, Meter, Seen, begin
from benchmarks.compare.shards import samples

if TYPE_CHECKING:
    from zephon_mm.pipeline import Run

Made = Iterator[tuple[int, int]]
"""Samples and tokens of one step after another, without end."""
TEXTS = 64


def stored(job: Job) -> list[list[dict[str, bytes]]]:
    """All samples of each of the job's shards, read."""
    return [list(samples(shard)) for shard in job.shards]


def drawn(job: Job) -> list[dict[str, bytes]]:
    """All samples in the order of our plan: one of each lane in turn, for an epoch."""
    run, shards = opened(job), stored(job)
    lanes = [
        itertools.takewhile(lambda ref: ref.epoch == 0, run.plan.draws(run.plan.cursor(lane)))
        for lane in range(job.lanes)
    ]
    turns = itertools.zip_longest(*lanes)
    return [shards[ref.shard][ref.sample] for turn in turns for ref in turn if ref is not None]


def opened(job: Job) -> Run:
    """Our run of the job."""
    from benchmarks.compare.ours import data_config
    from zephon_mm import ExecutionConfig
    from zephon_mm.pipeline import open_run

    return open_run(data_config(job), ExecutionConfig(backend="serial"))


def bare_texts(job: Job) -> Made:
    """``encode_batch_fast``, 64 texts a call, ids taken as lists."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(job.tokenizer) / "tokenizer.json"))
    texts = [json.loads(sample["json"])["text"] for sample in drawn(job)]
    blocks = [texts[at : at + TEXTS] for at in range(0, len(texts), TEXTS)]
    for block in itertools.cycle(blocks):
        encoded = tokenizer.encode_batch_fast(block, add_special_tokens=False)
        yield len(block), sum(len(one.ids) + 1 for one in encoded)


def bare_making(job: Job) -> Made:
    """Decode, resize and encode, one sample after another."""
    from benchmarks.compare.work import Making

    making = Making(job.tokenizer)
    for sample in itertools.cycle(drawn(job)):
        yield 1, len(making.document(job.work, sample).tokens)


def aten_patches(job: Job) -> Callable[[bytes], np.ndarray]:
    """Makes of a JPEG the patches that our loader makes of it."""
    import torch

    from benchmarks.compare.work import PICTURE
    from zephon_mm.media.images import patches_of, resize_image

    torch.set_num_threads(1)
    layout = opened(job).family.patches

    def make(data: bytes) -> np.ndarray:
        with Image.open(io.BytesIO(data)) as image:
            shown = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
        return patches_of(resize_image(shown, (PICTURE, PICTURE)), layout)

    return make


def bare_aten(job: Job) -> Made:
    """As `bare_making`, but pictures are resized by ATen and cut into patches."""
    from benchmarks.compare.work import Making

    making, make = Making(job.tokenizer, decode=False), aten_patches(job)
    for sample in itertools.cycle(drawn(job)):
        document = making.document(job.work, sample)
        for picture in document.media:
            make(picture.tobytes())
        yield 1, len(document.tokens)


def planned_clips(job: Job) -> Iterator[tuple[bytes, Callable[[], np.ndarray], int]]:
    """Of each clip its caption, what decodes it into patches, and the tokens of its document.

    The index is known beforehand, so that only the frames that are wanted, and what they need, are
    decoded.
    """
    from zephon_mm.decoders import REFERENCE, load_decoder
    from zephon_mm.media.info import VideoInfo
    from zephon_mm.media.pixels import stream_patches
    from zephon_mm.media.probe import read_probe
    from zephon_mm.sample import MeasuredDocument

    run = opened(dataclasses.replace(job, lanes=1, batch=1))
    decoder, captions = load_decoder(REFERENCE), stored(job)
    count = sum(map(len, captions))
    for document in run.measure([run.plan.ref(0, 0, at) for at in range(count)]):
        assert isinstance(document, MeasuredDocument)
        (span,), ref = document.media, document.ref
        probe = run.reader.member(ref.source, ref.shard, span.member).probe
        assert probe is not None
        info = read_probe(probe)
        assert isinstance(info, VideoInfo)
        data = bytes(run.reader.read(ref.source, ref.shard, span.member))
        patches = run.family.patches
        make = partial(stream_patches, decoder, data, info, span.frames, span.size, patches)
        yield captions[ref.shard][ref.sample]["txt"], make, len(document.tokens)


def bare_clips(job: Job) -> Made:
    """Planned decoding of the frames and their patches, and the tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(job.tokenizer) / "tokenizer.json"))
    for caption, make, tokens in itertools.cycle(list(planned_clips(job))):
        tokenizer.encode(caption.decode(), add_special_tokens=False)
        make()
        yield 1, tokens


def raw_tar(job: Job) -> Made:
    """Read every member of every shard."""
    for shard in itertools.cycle(job.shards):
        with tarfile.open(shard) as tar:
            for member in tar:
                file = tar.extractfile(member)
                if file is not None:
                    file.read()
                yield int(member.name.endswith((".json", ".txt"))), 0


def ffmpeg_null(job: Job) -> Made:
    """One process of one thread a clip."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, sample in enumerate(drawn(job)):
            paths.append(Path(folder) / f"{number}.mp4")
            paths[-1].write_bytes(sample["mp4"])
        command = ["ffmpeg", "-v", "error", "-threads", "1", "-i"]
        for path in itertools.cycle(paths):
            subprocess.run([*command, str(path), "-an", "-f", "null", "-"], check=True)
            yield 1, 0


def references(job: Job) -> Iterator[Seen]:
    """Of every sample the tokens and pixels of `work.Making`, and the patches of our own steps."""
    from benchmarks.compare.work import Making

    making, clips = Making(job.tokenizer), job.work.startswith("video")
    patches = None if clips or job.work == "text" else aten_patches(job)
    for sample in itertools.chain.from_iterable(stored(job)):
        made = making.document(job.work, sample)
        media = [pixels.tobytes() for pixels in made.media]
        if patches is not None:
            media += [patches(data).tobytes() for name, data in sample.items() if "jpg" in name]
        yield Seen(b"", [made.tokens.astype("<i4").tobytes()], media)
    if clips:
        for _, make, _ in planned_clips(job):
            yield Seen(b"", media=[make().tobytes()])


def limit(job: Job, meter: Meter) -> Callable[[Job], Made]:
    """The limit of the job's work and variant."""
    if job.kind != "throughput" or job.mode == "threads":
        meter.skip("a limit has a rate in one thread or in processes, and nothing else")
    clips = job.work.startswith("video")
    if job.variant == "tar":
        return raw_tar
    if job.variant == "ffmpeg":
        if not clips:
            meter.skip("no clips")
        if shutil.which("ffmpeg") is None:
            meter.skip("ffmpeg is not installed")
        return ffmpeg_null
    if job.variant == "aten":
        if clips or job.work == "text":
            meter.skip("no pictures")
        return bare_aten
    if job.variant == "whole":
        if not clips:
            meter.skip("no clips")
        return bare_making
    if job.variant:
        raise SystemExit(f"limits:{job.variant}: the variants are aten, whole, tar and ffmpeg")
    if job.work == "text":
        return bare_texts
    return bare_clips if clips else bare_making


def at_once(making: Callable[[Job], Made], job: Job) -> Made:
    """The same in each of the job's workers, forked; what they have made, as they say so.

    Raises:
        RuntimeError: one has ended, as it never does by itself; why is on stderr.
    """
    forking = multiprocessing.get_context("fork")
    told, ready = forking.SimpleQueue(), forking.Barrier(job.workers)

    def work() -> None:
        try:
            steps = making(job)
            next(steps)
            ready.wait()
            for made in steps:
                told.put(made)
        finally:
            told.put(None)

    for _ in range(job.workers):
        forking.Process(target=work, daemon=True).start()  # ended when this process ends
    while (made := told.get()) is not None:
        yield made
    raise RuntimeError("a process of the limit has ended")


def main() -> None:
    """Do the job of the command line."""
    _, meter = begin()
    from zephon_mm.backends.worker import keep_freed_memory

    keep_freed_memory()  # else a picture's memory is faulted in for each, a third of the time
    job = meter.imported()
    if job.kind == "rows":
        for seen in references(job):
            meter.batch(samples=1, tokens=0, look=partial(tuple, [seen]))
    else:
        making = limit(job, meter)
        for samples_made, tokens in at_once(making, job) if job.workers else making(job):
            if meter.batch(samples=samples_made, tokens=tokens):
                break
    meter.finish(version=platform.python_version())


if __name__ == "__main__":
    main()
