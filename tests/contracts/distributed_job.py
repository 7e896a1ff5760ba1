"""What the four ranks of `test_distributed` do; each writes down what it saw.

The ranks are forked from one process that has only imported. To see a rank's own output, run this
file with the folder that holds ``configs.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import zephon_mm.pipeline.run
from zephon_mm import Batch, DataConfig, ExecutionConfig, Loader, ZephonError
from zephon_mm.errors import ShardChangedError

WORLD = 4
SERIAL = ExecutionConfig(backend="serial")


def rows_of(batches: Iterable[Batch]) -> dict[str, dict[str, str]]:
    """Digests of rows with their pixels, by step and slot."""
    found: dict[str, dict[str, str]] = {}
    for batch in batches:
        digests = batch.row_digests(pixels=True)
        row = found.setdefault(str(batch.step), {})
        row |= {str(s): d.hex() for s, d in zip(batch.slots, digests, strict=True)}
    return found


def joined(parts: Iterable[dict[str, dict[str, str]]]) -> dict[str, dict[str, str]]:
    """The rows of several ranks; a row that two of them have must be the same."""
    whole: dict[str, dict[str, str]] = {}
    for part in parts:
        for step, rows in part.items():
            for slot, digest in rows.items():
                assert whole.setdefault(step, {}).setdefault(slot, digest) == digest
    return whole


def contents(batch: Batch) -> list[Any]:
    """What a batch holds besides its rows: numbers, names, and a digest of every tensor."""
    digests = [
        hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
        for tensor in batch.tensors()
    ]
    return [batch.max_length, batch.num_target_tokens, sorted(batch.extras), digests]


class Allowing:
    """A loader whose config has changed, as DCP restores it."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state, allow=["weights"])


class App:
    """A user's own object around the loader, as the tutorial of DCP writes it."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        return {"loader": self.loader.state_dict(), "weights": torch.ones(3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["loader"])


def reweighted(config: DataConfig) -> DataConfig:
    """The same data with pictures drawn first."""
    texts, pictures, clips = config.sources
    return replace(config, sources=(texts, replace(pictures, weight=20.0), clips))


def failure(work: Callable[[], object]) -> list[Any]:
    """Kind and words of the error that ``work`` raises."""
    try:
        work()
    except ZephonError as error:
        return [type(error).__name__, str(error), getattr(error, "offset", None)]
    return ["nothing was raised", "", None]


def checkpoints(config: DataConfig, folder: Path, mesh: Any) -> dict[str, Any]:
    """Four data-parallel ranks from the start: two steps, every kind of checkpoint, a third."""
    rank = dist.get_rank()
    with Loader(config, ExecutionConfig(workers=1), mesh=mesh["world"]) as loader:
        iterator = iter(loader)
        rows = rows_of(next(iterator) for _ in range(2))
        loader.save_state(folder / "state.json")
        dcp.save({"loader": loader}, checkpoint_id=folder / "four")
        dcp.save({"app": App(loader)}, checkpoint_id=folder / "app")
        own = {"loader": loader.state_dict(tensors=True)}
        dcp.save(own, checkpoint_id=folder / "dict")
        saving = dcp.async_save({"loader": loader}, checkpoint_id=folder / "async")
        third = next(iterator)
        rows |= rows_of([third])
        saving.result()
        found = {
            "rows": rows,
            "place": [loader.dp_rank, loader.dp_size],
            "gathered": loader.gather_state(step=2),
            "first": loader.gather_state(mesh["world"], step=1)["step"],
            "targets": [third.num_target_tokens, loader.reduce_target_tokens(third)],
            "unknown": failure(lambda: loader.gather_state(step=99 if rank == 1 else 2)),
            "unwritable": failure(lambda: loader.save_state(folder / "none" / "state.json")),
        }
    with Loader(config, SERIAL, mesh=mesh["world"]) as loader:  # saved on one rank
        dcp.load({"loader": loader}, checkpoint_id=folder / "one")
        found["from_one"] = rows_of(loader)
    return found


def leaders(config: DataConfig, folder: Path, grid: Any) -> dict[str, Any]:
    """Two data-parallel ranks of two peers each, one of which loads."""
    rank = dist.get_rank()
    peers = {"mesh": grid["dp"], "share": "leader", "share_group": grid["tp"]}
    with Loader(config, replace(SERIAL, micro_batch=4), **peers) as loader:
        dcp.load({"loader": loader}, checkpoint_id=folder / "four")
        batches = list(loader)
        found = {
            "rows": rows_of(batches),
            "contents": [contents(batch) for batch in batches],
            "read": loader.read_counts.members,
            "types": sorted({type(d).__name__ for b in batches for r in b.documents for d in r}),
            "inputs": sorted(batches[0].model_inputs),
            "stats": loader.stats()["step"],
            "state": loader.gather_state(),
        }
        dcp.save({"loader": loader}, checkpoint_id=folder / "end")
    with Loader(config, SERIAL, **peers) as loader:
        if rank == 1:  # a peer that was restored while its leader was not
            loader.load_state(folder / "state.json")
        found["apart"] = failure(lambda: next(iter(loader)))
    with Loader(config, SERIAL, **peers | {"share_group": grid["dp"]}) as loader:
        found["across"] = failure(lambda: next(iter(loader)))
    true_collate = zephon_mm.pipeline.run.collate

    def broken(*args: Any, step: int, **kwargs: Any) -> Batch:
        if step == 1:
            raise ShardChangedError("other bytes", shard="a.tar", offset=512)
        return true_collate(*args, step=step, **kwargs)

    zephon_mm.pipeline.run.collate = broken
    with Loader(config, SERIAL, **peers) as loader:
        seen: list[int] = []
        found["broken"] = failure(lambda: seen.extend(batch.step for batch in loader))
        found["seen"] = seen
    zephon_mm.pipeline.run.collate = true_collate
    return found


def changed(config: DataConfig, folder: Path, grid: Any) -> dict[str, Any]:
    """Two data-parallel ranks of three lanes, in a config whose weights have changed since."""
    config = reweighted(config)
    with Loader(config, SERIAL, mesh=grid["dp"]) as loader:
        dcp.load({"loader": Allowing(loader)}, checkpoint_id=folder / "four")
        dcp.save({"loader": loader}, checkpoint_id=folder / "changed")
    with Loader(config, SERIAL, mesh=grid["dp"]) as loader:  # it has its own lanes alone
        dcp.load({"loader": loader}, checkpoint_id=folder / "changed")
        return {"rows": rows_of(loader), "length": len(loader)}


def ends(configs: dict[str, DataConfig], mesh: Any) -> dict[str, Any]:
    """Finite runs: how long each is said to be, how long it is, and what came."""
    found = {}
    for name, config in configs.items():
        execution = ExecutionConfig(workers=1 + dist.get_rank() % 2)
        with Loader(config, execution, mesh=mesh["world"]) as loader:
            length = len(loader)
            batches = list(loader)
        keys = [d.key for b in batches for row in b.documents for d in row if not d.token_start]
        found[name] = [length, len(batches), keys]
    return found


def work(rank: int, folder: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=WORLD)
    given = json.loads((folder / "configs.json").read_text())
    configs = {name: DataConfig.from_dict(data) for name, data in given.items()}
    mixed = configs.pop("mixed")
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("world",))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    found = {
        "checkpoints": checkpoints(mixed, folder, mesh),
        "leaders": leaders(mixed, folder, grid),
        "changed": changed(mixed, folder, grid),
        "ends": ends(configs, mesh),
        "meshes": failure(lambda: Loader(mixed, SERIAL, mesh=grid)),
        "twice": failure(lambda: Loader(mixed, SERIAL, mesh=grid["dp"], dp_size=2)),
        "alone": failure(lambda: Loader(mixed, SERIAL, mesh=grid["dp"], share="leader")),
    }
    (folder / f"found{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> int:
    children = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            try:
                work(rank, folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
