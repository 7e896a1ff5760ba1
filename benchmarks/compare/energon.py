"""Megatron-Energon 7.4: crude samples, cooked and packed by a task encoder, as its guide advises.

Documents are packed whole out of a buffer, largest first, and media are decoded after packing. Its
packing can't cut, so texts longer than a row lose their end. Workers are processes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import shards
from benchmarks.compare.feeding import Flat, drive
from benchmarks.compare.protocol import begin
from benchmarks.compare.work import Making, pixels

NAME = "energon"
BUFFER = 100
"""Documents that are packed together."""
DATASET = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


def write(tars: list[str], target: str) -> None:
    """Links to the shards, and Energon's index of them."""
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors import BaseWebdatasetFactory

    Path(target).mkdir()
    for tar in tars:
        os.link(tar, f"{target}/{Path(tar).name}")
    names = [Path(tar).name for tar in tars]
    BaseWebdatasetFactory.prepare_dataset(
        EPath(target), names, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )
    Path(target, ".nv-meta", "dataset.yaml").write_text(DATASET, encoding="utf-8")


def select(lengths: list[int], room: int) -> list[list[int]]:
    """First fit, largest first: the documents of each row."""
    rows: list[tuple[int, list[int]]] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        for at, (free, row) in enumerate(rows):
            if lengths[number] <= free:
                rows[at] = (free - lengths[number], [*row, number])
                break
        else:
            rows.append((room - lengths[number], [number]))
    return [row for _, row in rows]


def main() -> None:
    """Do the job of the command line."""
    if shards.prepare(NAME, write):
        return
    job, meter = begin()
    from dataclasses import dataclass

    import torch
    from megatron import energon

    version = "7.4.1"
    if job.workers and job.mode == "threads":
        meter.skip("its workers are processes", version=version)

    @dataclass
    class Made(energon.Sample):  # type: ignore[misc]
        """A document, and then a row."""

        tokens: Any
        lengths: list[int]
        media: list[list[Any]]

    @energon.stateless
    def cook(sample: dict[str, Any]) -> Any:
        members = {k: v for k, v in sample.items() if not k.startswith("__")}
        made = making.document(job.work, members)
        tokens = made.tokens[: job.sequence_length]
        return Made(
            **energon.basic_sample_keys(sample),
            tokens=tokens,
            lengths=[len(tokens)],
            media=[[data.tobytes() for data in made.media]],
        )

    class Encoder(energon.TaskEncoder):  # type: ignore[misc]
        """Packs, decodes, batches."""

        decoder = None
        cookers = (energon.Cooker(cook),)

        @energon.stateless
        def encode_sample(self, sample: Any) -> Any:
            return sample

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            lengths = [len(sample.tokens) for sample in samples]
            return [[samples[n] for n in row] for row in select(lengths, job.sequence_length)]

        @energon.stateless
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return Made.derive_from(
                samples[0],
                tokens=torch.from_numpy(np.concatenate([s.tokens for s in samples])),
                lengths=[length for s in samples for length in s.lengths],
                media=[
                    [torch.tensor(pixels(data)) for data in media]
                    for s in samples
                    for media in s.media
                ],
            )

        @energon.stateless
        def batch(self, samples: list[Any]) -> Any:
            return [Flat(sample.tokens, sample.lengths, sample.media) for sample in samples]

    torch.set_num_threads(1)
    job = meter.imported()
    making = Making(job.tokenizer, decode=False)
    config = energon.WorkerConfig(
        rank=job.dp_rank, world_size=job.dp_size, num_workers=job.workers, seed_offset=job.seed
    )
    data = energon.get_train_dataset(
        str(shards.prepared(job.data, NAME) / job.work),
        worker_config=config,
        batch_size=job.batch // job.dp_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        packing_buffer_size=BUFFER,
        task_encoder=Encoder(),
    )
    loader = energon.get_savable_loader(data)
    if job.resumes:
        loader.restore_state_rank(torch.load(str(job.state), weights_only=False))
    drive(job, meter, loader, lambda path: torch.save(loader.save_state_rank(), path))
    meter.finish(version=version, prepared_s=shards.seconds(job, NAME))


if __name__ == "__main__":
    main()
