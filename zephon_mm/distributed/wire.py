"""A step as JSON and tensors, for a broadcast to peers. What is no tensor is small."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter

from ..batch import Batch
from ..models import ModelFamily
from ..pipeline import Step

Shapes = list[tuple[str, tuple[int, ...]]]
"""Of each tensor its dtype, as ``int64``, and its shape."""


def encode_step(step: Step) -> tuple[bytes, list[torch.Tensor]]:
    """JSON of a step with the shapes of its tensors, and the tensors."""
    tensors: list[torch.Tensor] = []
    batches = [_encode(batch, tensors) for batch in step.batches]
    shapes = [(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors]
    meta = {"number": step.number, "batches": batches, "tensors": shapes}
    return json.dumps(meta, default=_plain).encode(), tensors


def empty_tensors(meta: dict[str, Any], device: torch.device) -> list[torch.Tensor]:
    """Tensors of the shapes of a step, to be filled."""
    return [
        torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        for dtype, shape in meta["tensors"]
    ]


def decode_step(meta: dict[str, Any], tensors: Sequence[torch.Tensor], family: ModelFamily) -> Step:
    """The step again, of the family that peers share; it holds no lanes."""
    rest = iter(tensors)
    batches = []
    for batch in meta["batches"]:
        values = {name: _adapter(name).validate_json(v) for name, v in batch["plain"].items()}
        values |= {name: next(rest) for name in batch["tensors"]}
        extras = {name: next(rest) for name in batch["extras"]}
        batches.append(Batch(**values, extras=extras, family=family))
    return Step(meta["number"], tuple(batches), ())


def _encode(batch: Batch, tensors: list[torch.Tensor]) -> dict[str, Any]:
    names, plain = [], {}
    for entry in fields(batch):
        value = getattr(batch, entry.name)
        if isinstance(value, torch.Tensor):
            names.append(entry.name)
            tensors.append(value)
        elif entry.name not in ("extras", "family"):
            plain[entry.name] = json.dumps(value, default=_plain)
    tensors += batch.extras.values()
    return {"tensors": names, "extras": list(batch.extras), "plain": plain}


def _plain(value: Any) -> Any:
    """Dataclasses as dicts, numpy's numbers as Python's."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.item()


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """Reads a field of `Batch` from JSON."""
    return TypeAdapter(get_type_hints(Batch)[name])
