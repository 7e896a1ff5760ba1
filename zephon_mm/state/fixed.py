"""A loader's state as arrays of fixed size, for checkpoints that load in place.

``torch.distributed.checkpoint`` asks for tensors of the sizes that were saved, before it reads
them. So the sizes here depend on nothing: ``run``, `RUN_BYTES` that are the same on all ranks, and
under ``lanes`` `LANE_BYTES` of each lane. Ranks that run the same lane give the same bytes, and a
rank asks for the lanes that it runs.

Layout, little-endian. Run: magic, length, mark, then the step, the run's fields and the changes as
zlib of canonical JSON. Lane: length, mark, then the lane's bytes (zlib of them, if they would not
fit). Zeros follow. The mark is the first 16 bytes of the SHA-256 of the run's JSON: it ties lanes
to their run and step.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StateError
from .identity import canonical_json

if TYPE_CHECKING:
    from .loader import LoaderState

RUN_BYTES = 256 * 1024
LANE_BYTES = 8 * 1024
VERSION = 1

_RUN = struct.Struct("<4sI16s")
_LANE = struct.Struct("<I16s")
_MAGIC = b"zmmR"
_MOST = 64 << 20  # bytes that a run's JSON may unpack to

Bytes = NDArray[np.uint8]


def is_fixed(state: object) -> bool:
    """Whether a state is of this form."""
    return isinstance(state, Mapping) and "run" in state and "format" not in state


def to_fixed(state: LoaderState) -> dict[str, Any]:
    """``{"run": uint8 [RUN_BYTES], "lanes": {number: uint8 [LANE_BYTES]}}`` of a state.

    Raises:
        StateError: the run's fields or a lane need more than their bytes.
    """
    text = canonical_json(
        {
            "version": VERSION,
            "step": state.step,
            "num_lanes": state.num_lanes,
            "config": state.identity,
            "changes": state.changes,
        }
    ).encode()
    mark = _mark(text)
    packed = zlib.compress(text)
    run = _padded(_RUN.pack(_MAGIC, len(packed), mark) + packed, RUN_BYTES, "the run's fields")
    lanes = {}
    for number in sorted(state.lanes):
        data = state.lanes[number]
        if len(data) > LANE_BYTES - _LANE.size:
            data = zlib.compress(data)
        lanes[f"{number:05d}"] = _padded(
            _LANE.pack(len(data), mark) + data, LANE_BYTES, f"the state of lane {number}"
        )
    return {"run": run, "lanes": lanes}


def from_fixed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the `LoaderState` in such arrays, or in tensors of the same.

    Raises:
        StateError: an array is of another size or version, damaged, or of another run or step.
    """
    raw = _raw(data["run"], RUN_BYTES, "run")
    magic, length, mark = _RUN.unpack_from(raw)
    if magic != _MAGIC:
        raise StateError("the run's part of the state is empty, or not a state of zephon_mm")
    text = _unpacked(_payload(raw, _RUN.size, length, "run"), "run")
    if _mark(text) != mark:
        raise StateError("the run's part of the state fails its checksum: it was changed")
    try:
        run = json.loads(text)
        if run["version"] != VERSION:
            raise StateError(f"a state of version {run['version']!r}; this release reads {VERSION}")
        return {
            "step": int(run["step"]),
            "num_lanes": int(run["num_lanes"]),
            "identity": dict(run["config"]),
            "changes": tuple((c[0], c[1], c[2], int(c[3])) for c in run["changes"]),
            "lanes": {
                int(number): _lane(array, number, mark)
                for number, array in dict(data.get("lanes") or {}).items()
            },
        }
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StateError(f"the state is incomplete: {error!r}") from error


def _lane(array: Any, number: str, run_mark: bytes) -> bytes:
    name = f"lane {number}"
    raw = _raw(array, LANE_BYTES, name)
    length, mark = _LANE.unpack_from(raw)
    if mark != run_mark:
        raise StateError(
            f"the state of {name} is empty, changed, or of another run or step than the rest"
        )
    data = _payload(raw, _LANE.size, length, name)
    return _unpacked(data, name) if data[:1] == b"\x78" else data  # zlib's first byte


def _raw(array: Any, size: int, name: str) -> bytes:
    if hasattr(array, "detach"):  # a tensor, wherever it is
        array = array.detach().cpu()
    found = np.asarray(array)
    if found.dtype != np.uint8 or found.shape != (size,):
        raise StateError(
            f"the state of {name} is {found.dtype} {list(found.shape)}, expected uint8 [{size}]"
        )
    return found.tobytes()


def _payload(raw: bytes, start: int, length: int, name: str) -> bytes:
    if length > len(raw) - start or any(raw[start + length :]):
        raise StateError(f"the state of {name} fails its checksum: it was cut short or changed")
    return raw[start : start + length]


def _unpacked(data: bytes, name: str) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, _MOST)
    except zlib.error as error:
        raise StateError(f"the state of {name} was cut short or changed ({error})") from error
    if not unpacker.eof or unpacker.unused_data:
        raise StateError(f"the state of {name} was cut short or changed")
    return text


def _mark(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()[:16]


def _padded(data: bytes, size: int, what: str) -> Bytes:
    if len(data) > size:
        raise StateError(
            f"{what} needs {len(data):,} bytes, and the form of fixed size has {size:,}: save "
            "loader.gather_state() instead, which has no limit"
        )
    array = np.zeros(size, np.uint8)
    array[: len(data)] = np.frombuffer(data, np.uint8)
    return array
