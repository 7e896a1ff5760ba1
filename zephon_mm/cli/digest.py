"""``zephon-mm digest``: what every global batch is, as one line of text a step.

Runs the loaders of all ranks in this process, one after the other within each step, and hashes
their rows in slot order. Two runs with the same lines trained on the same batches, so a plain
``diff`` of two outputs shows whether ranks, workers, backends or resumes changed anything.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from ..config import DataConfig, ExecutionConfig, load_yaml
from ..errors import ConfigError, StateError

if TYPE_CHECKING:
    from ..batch import Batch
    from ..loader import Loader


def digest(
    config: Annotated[Path, typer.Argument(help="YAML of the run.", show_default=False)],
    steps: Annotated[int, typer.Option(min=1, help="Steps to print.")] = 10,
    dp_size: Annotated[int, typer.Option(min=1, help="Data-parallel ranks, run in turn.")] = 1,
    backend: Annotated[
        str | None, typer.Option(help="Instead of the config's: serial, threads, processes, ray.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Instead of its workers.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Instead of its device: cpu, cuda, cuda:N, auto.")
    ] = None,
    pixels: Annotated[
        bool, typer.Option(help="Hash the pixels too, not only the recipes.")
    ] = False,
    resume_at: Annotated[
        list[int] | None,
        typer.Option(help="Stop before this step, restore each rank from its state (repeatable)."),
    ] = None,
    save_state: Annotated[
        Path | None, typer.Option(help="Write the state of all ranks to this file, as JSON.")
    ] = None,
    at: Annotated[
        int | None, typer.Option(help="The step before which --save-state takes it [end].")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Start from a state that --save-state wrote.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="Also write a digest log to this folder, for `zephon-mm verify`."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="A change of the config since --state that is meant (repeatable)."),
    ] = None,
) -> None:
    """Print ``step<TAB>sha256`` of each global batch, and nothing else, on stdout.

    The lines depend on the data config alone, so this shows it:

        zephon-mm digest vlm.yaml --steps 20 > one.txt
        zephon-mm digest vlm.yaml --steps 20 --dp-size 4 --workers 2 --resume-at 7 > two.txt
        diff one.txt two.txt && echo the same batches

    A state goes into another number of ranks:

        zephon-mm digest vlm.yaml --steps 8 --dp-size 2 --save-state s.json
        zephon-mm digest vlm.yaml --steps 8 --dp-size 3 --state s.json
    """
    data, execution = load_yaml(config)
    if backend is not None:
        execution = replace(execution, backend=backend)  # type: ignore[arg-type]
    if workers is not None:
        execution = replace(execution, workers=workers)
    if device is not None:
        execution = replace(execution, device=device)
    # never into the log of the run that the config is of
    execution = replace(execution, digest_log=None if log is None else str(log))
    if save_state is not None and not save_state.absolute().parent.is_dir():
        raise ConfigError(f"--save-state {save_state}: its folder is not there")
    from ..state import read_state, write_state

    saved = None if state is None else read_state(state)
    with Ranks(data, execution, dp_size, saved, allow=allow or ()) as ranks:
        last = ranks.step + steps
        save_at = last if at is None else at
        for name, step in [("--at", save_at), *(("--resume-at", k) for k in resume_at or ())]:
            if not ranks.step <= step <= last:
                raise ConfigError(f"{name} {step} is not one of steps {ranks.step} to {last}")
        for step in track(range(ranks.step, last), "steps"):
            if step == save_at and save_state is not None:
                write_state(save_state, ranks.state())
            if step in (resume_at or ()):
                ranks.restart()
            batches = ranks.next()
            if batches is None:
                break
            sys.stdout.write(f"{step}\t{step_digest(batches, pixels)}\n")
            sys.stdout.flush()
        if save_state is not None and ranks.step <= save_at:
            write_state(save_state, ranks.state())


class Ranks:
    """The loaders of all ranks of a run in one process, stepped together.

    Args:
        data: the run's data config.
        execution: used by every rank.
        dp_size: number of ranks.
        state: the merged state to start from; None starts at step 0.
        allow: see `Loader.load_state_dict`.
    """

    def __init__(
        self,
        data: DataConfig,
        execution: ExecutionConfig,
        dp_size: int,
        state: Mapping[str, Any] | None = None,
        *,
        allow: Sequence[str] = (),
    ) -> None:
        self._allow = allow
        self._data, self._execution, self._dp_size = data, execution, dp_size
        self._loaders: list[Loader] = []
        self._iterators: list[Iterator[Batch]] = []
        self.step = 0 if state is None else int(state["step"])
        self._start([state] * dp_size)

    def next(self) -> list[Batch] | None:
        """The batches of the next step in rank order; None when the run has ended."""
        batches = [next(iterator, None) for iterator in self._iterators]
        found = [batch for batch in batches if batch is not None]
        if not found:
            return None
        steps = [None if batch is None else batch.step for batch in batches]
        if any(step != self.step for step in steps):
            raise StateError(f"the ranks gave steps {steps}, expected {self.step} of each")
        self.step += 1
        return found

    def state(self) -> dict[str, Any]:
        """The state before the next step, of all ranks."""
        from ..state import merge_states

        return merge_states([loader.state_dict() for loader in self._loaders])

    def restart(self) -> None:
        """Tear every rank down and build it anew from its own state."""
        states = [loader.state_dict() for loader in self._loaders]
        self.close()
        self._start(states)

    def close(self) -> None:
        """Stop every rank's loader."""
        self._iterators.clear()
        while self._loaders:
            self._loaders.pop().close()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, states: Sequence[Mapping[str, Any] | None]) -> None:
        from ..loader import Loader

        try:
            for rank, state in enumerate(states):
                loader = Loader(self._data, self._execution, dp_rank=rank, dp_size=self._dp_size)
                self._loaders.append(loader)
                if state is not None:
                    loader.load_state_dict(state, allow=self._allow)
            self._iterators = [iter(loader) for loader in self._loaders]
        except BaseException:
            self.close()
            raise


def step_digest(batches: Sequence[Batch], pixels: bool) -> str:
    """SHA-256 over the digests of a step's rows in slot order, whatever ranks they came in.

    Args:
        batches: one a rank, in rank order.
        pixels: hash the pixels too, not only what the recipes say.
    """
    digest = hashlib.sha256()
    for batch in batches:
        for row in batch.row_digests(pixels=pixels):
            digest.update(row)
    return digest.hexdigest()


def track(steps: Sequence[int], what: str) -> Iterator[int]:
    """Iterate with a progress bar on stderr, shown on terminals only."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(steps, description=what)
