"""Bytes, tensors and errors between the processes of a group: no pickles.

An error of one rank is raised on every rank of the exchange, as the same kind of error.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import errors
from ..errors import ConfigError, SampleError, ShardIndexError, ZephonError

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh


def is_distributed() -> bool:
    """Whether this process has a default process group."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def group_of(place: dist.ProcessGroup | DeviceMesh | None) -> dist.ProcessGroup | None:
    """The process group of a mesh of one dimension; a group as it is."""
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(place, DeviceMesh):
        return place
    if place.ndim != 1:
        raise ConfigError(
            f"a mesh of {place.ndim} dimensions has no one group: pass one dimension of it, as "
            'mesh["tp"], or several as one, as mesh["tp", "cp"]._flatten("peers")'
        )
    return place.get_group()


def device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Where a group's collectives want their tensors."""
    import torch.distributed as dist

    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def first_rank(group: dist.ProcessGroup | None) -> bool:
    """Whether this process is the first of the group; True without one."""
    import torch.distributed as dist

    return not is_distributed() or dist.get_rank(group) == 0


def gather_bytes(make: Callable[[], bytes], group: dist.ProcessGroup | None) -> list[bytes]:
    """What ``make()`` gives on each rank of the group, in its order, on every rank: a collective.

    Raises:
        ZephonError: ``make`` failed on some rank: its error, on every rank; or a rank has left.
    """
    import torch.distributed as dist

    failure: Exception | None = None
    try:
        payload = b"\0" + make()
    except Exception as error:
        failure = error
        payload = b"\1" + encode_error(error, dist.get_rank())
    device = device_of(group)
    mine = to_tensor(payload).to(device)
    size = dist.get_world_size(group)
    with leaving():
        lengths = torch.zeros(size, dtype=torch.int64, device=device)
        own = torch.tensor([len(payload)], dtype=torch.int64, device=device)
        dist.all_gather(list(lengths.chunk(size)), own, group=group)  # all torch 2 have it
        longest = int(lengths.max())
        padded = torch.zeros(longest, dtype=torch.uint8, device=device)
        padded[: len(payload)] = mine
        joined = torch.zeros(size * longest, dtype=torch.uint8, device=device)
        dist.all_gather(list(joined.chunk(size)), padded, group=group)
    if failure is not None:
        raise failure
    rows = joined.cpu().numpy().reshape(size, longest)
    found = [row[:length].tobytes() for row, length in zip(rows, lengths.tolist(), strict=True)]
    for data in found:
        if data[:1] == b"\1":
            raise decode_error(data[1:])
    return [data[1:] for data in found]


def to_tensor(data: bytes) -> torch.Tensor:
    """Bytes as a uint8 tensor, copied."""
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """Collectives inside: torch's error of a broken connection becomes a ZephonError."""
    try:
        yield
    except RuntimeError as error:
        raise ZephonError(
            f"a rank of the group has left, or does not answer: look for its own error ({error})"
        ) from error


def encode_error(error: BaseException, rank: int) -> bytes:
    """An error as JSON: its kind, its words, and the rank that met it."""
    data: dict[str, Any] = {"kind": type(error).__name__, "message": str(error), "rank": rank}
    if isinstance(error, ShardIndexError):
        data |= {"message": error.message, "shard": error.shard, "offset": error.offset}
    elif isinstance(error, SampleError):
        data |= {"message": error.reason, "stage": error.stage, "outcome": error.kind}
    return json.dumps(data).encode()


def decode_error(data: bytes) -> ZephonError:
    """The error again; one that is not of this package becomes a ZephonError that names it."""
    read = json.loads(data)
    message = f"{read['message']} (met by rank {read['rank']})"
    kind = getattr(errors, read["kind"], None)
    if not (isinstance(kind, type) and issubclass(kind, ZephonError)):
        return ZephonError(f"{read['kind']}: {message}")
    if issubclass(kind, ShardIndexError):
        return kind(message, shard=read["shard"], offset=read["offset"])
    if issubclass(kind, SampleError):
        return kind(message, stage=read["stage"], kind=read["outcome"])
    return kind(message)
