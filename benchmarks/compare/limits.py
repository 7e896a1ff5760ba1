"""The bare work on samples that lie in memory, on one core: what a loader is measured by.

Without a variant the limit of the work: the tokenizer alone over texts, ``batch_fast`` in one
thread; Pillow's decoding and resizing and the tokenizer; this project's planned decoding of 16
frames, their pixels and the tokenizer. Nothing is shuffled, packed or collated. Variants:

- ``tar``: reading all members with Python's ``tarfile``, nothing done to them;
- ``ffmpeg``: ``ffmpeg -f null`` over each clip, every frame decoded, none converted.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.compare.protocol import Job, Meter, begin

Made = Iterator[tuple[int, int]]
"""Samples and tokens of one step after another, without end."""
TEXTS = 64


def members(job: Job) -> list[dict[str, bytes]]:
    """All samples of the job's shards, read."""
    samples: dict[str, dict[str, bytes]] = {}
    for shard in job.shards:
        with tarfile.open(shard) as tar:
            for member in tar:
                file = tar.extractfile(member)
                if file is not None:
                    key, _, field = member.name.partition(".")
                    samples.setdefault(key, {})[field] = file.read()
    return list(samples.values())


def bare_texts(job: Job) -> Made:
    """``encode_batch_fast``, 64 texts a call, ids taken as lists."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(job.tokenizer) / "tokenizer.json"))
    texts = [json.loads(sample["json"])["text"] for sample in members(job)]
    blocks = [texts[at : at + TEXTS] for at in range(0, len(texts), TEXTS)]
    for block in itertools.cycle(blocks):
        encoded = tokenizer.encode_batch_fast(block, add_special_tokens=False)
        yield len(block), sum(len(one.ids) + 1 for one in encoded)


def bare_making(job: Job) -> Made:
    """Decode, resize and encode, one sample after another."""
    from benchmarks.compare.work import Making

    making = Making(job.tokenizer)
    for sample in itertools.cycle(members(job)):
        yield 1, len(making.document(job.work, sample).tokens)


def bare_clips(job: Job) -> Made:
    """Planned decoding of the frames and their patches, with the index known beforehand."""
    from benchmarks.compare.ours import data_config
    from zephon_mm import ExecutionConfig
    from zephon_mm.decoders import REFERENCE, load_decoder
    from zephon_mm.media.pixels import stream_patches
    from zephon_mm.media.probe import read_probe
    from zephon_mm.pipeline import open_run

    alone = dataclasses.replace(job, lanes=1, batch=1)
    run = open_run(data_config(alone), ExecutionConfig(backend="serial"))
    decoder = load_decoder(REFERENCE)
    captions = [sample["txt"].decode() for sample in members(job)]
    clips = []
    for document in run.measure([run.plan.ref(0, 0, at) for at in range(len(captions))]):
        (span,), ref = document.media, document.ref
        probe = run.reader.member(ref.source, ref.shard, span.member).probe
        data = run.reader.read(ref.source, ref.shard, span.member)
        clips.append((data, read_probe(probe), span, len(document.tokens)))
    for (data, info, span, tokens), caption in itertools.cycle(zip(clips, captions, strict=True)):
        run.tokenizer.encode(caption, special=False)
        stream_patches(decoder, data, info, span.frames, span.size, run.family.patches)
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
        for number, sample in enumerate(members(job)):
            paths.append(Path(folder) / f"{number}.mp4")
            paths[-1].write_bytes(sample["mp4"])
        command = ["ffmpeg", "-v", "error", "-threads", "1", "-i"]
        for path in itertools.cycle(paths):
            subprocess.run([*command, str(path), "-an", "-f", "null", "-"], check=True)
            yield 1, 0


def limit(job: Job, meter: Meter) -> Callable[[Job], Made]:
    """The limit of the job's work and variant."""
    if job.kind != "throughput" or job.workers:
        meter.skip("a limit has a rate in one thread, and nothing else")
    if job.variant == "tar":
        return raw_tar
    if job.variant == "ffmpeg":
        if not job.work.startswith("video"):
            meter.skip("no clips")
        if shutil.which("ffmpeg") is None:
            meter.skip("ffmpeg is not installed")
        return ffmpeg_null
    if job.variant:
        raise SystemExit(f"limits:{job.variant}: the variants are tar and ffmpeg")
    if job.work == "text":
        return bare_texts
    return bare_clips if job.work.startswith("video") else bare_making


def main() -> None:
    """Do the job of the command line."""
    if sys.argv[1:2] == ["--prepare"]:  # the limit of clips reads our index
        from benchmarks.compare.ours import prepare

        prepare(sys.argv[2])
        return
    job, meter = begin()
    steps = limit(job, meter)(job)
    first = next(steps)  # reads the samples into memory: no part of the limit
    meter.imported()
    for samples, tokens in itertools.chain([first], steps):
        if meter.batch(samples=samples, tokens=tokens):
            break
    meter.finish(version=platform.python_version())


if __name__ == "__main__":
    main()
