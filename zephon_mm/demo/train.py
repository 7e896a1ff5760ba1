"""A training loop of the plainest kind, with checkpoints: what `Loader` looks like in use."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ..batch import Batch
from ..cli.digest import step_digest
from ..loader import Loader
from ..state import read_state, write_state

LEARNING_RATE = 2e-3


@dataclass(frozen=True)
class StepResult:
    """What a step trained on and what came of it; ``loss`` is the mean over its targets."""

    step: int
    digest: str
    loss: float
    batch: Batch


def new_optimizer(model: PreTrainedModel) -> torch.optim.Optimizer:
    """The optimiser of the demo."""
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def train(
    loader: Loader,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    last_step: int,
    on_step: Callable[[StepResult], None] = lambda result: None,
) -> list[StepResult]:
    """Train from where the loader stands to ``last_step``; the loader stands there afterwards."""
    results = []
    for batch in loader:
        loss = model(**batch.model_inputs, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        result = StepResult(
            step=batch.step,
            digest=step_digest([batch], pixels=True),
            loss=float(loss.detach()),
            batch=batch,
        )
        results.append(result)
        on_step(result)
        if batch.step + 1 == last_step:
            break
    return results


def save_checkpoint(
    folder: Path, loader: Loader, model: PreTrainedModel, optimizer: torch.optim.Optimizer
) -> int:
    """Write weights, optimiser and the loader's state; returns the bytes of the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "weights.pt"
    )
    state = loader.state_dict()
    write_state(folder / "loader.json", state)
    return len(json.dumps(state))


def load_checkpoint(
    folder: Path, loader: Loader, model: PreTrainedModel, optimizer: torch.optim.Optimizer
) -> None:
    """Read what `save_checkpoint` wrote."""
    weights = torch.load(folder / "weights.pt", weights_only=True)
    model.load_state_dict(weights["model"])
    optimizer.load_state_dict(weights["optimizer"])
    loader.load_state_dict(read_state(folder / "loader.json"))
