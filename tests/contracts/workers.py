"""What the suites of backends whose workers can die share: runs by digest, a poisoned sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from zephon_mm import DataConfig, ExecutionConfig, Loader, Source, Stop, ZephonError
from zephon_mm.cli.digest import Ranks, step_digest

from . import formats_of_tests, media

SERIAL = ExecutionConfig(backend="serial")


def run(
    config: DataConfig,
    execution: ExecutionConfig,
    dp_size: int = 1,
    state: dict[str, Any] | None = None,
    stop_at: int | None = None,
    before: Mapping[int, Callable[[], None]] | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """Digests of the steps from ``state`` on, and the state at the end; ``before``: what to do
    before a step.
    """
    with Ranks(config, execution, dp_size, state) as ranks:
        found = []
        while stop_at is None or ranks.step < stop_at:
            (before or {}).get(ranks.step, lambda: None)()
            batches = ranks.next()
            if batches is None:
                break
            found.append(step_digest(batches, pixels=True))
        return found, ranks.state()


def poisoned(folder: Path, tokenizer: Path, count: int, place: int) -> DataConfig:
    """``count`` texts in short rows, of which that at ``place`` kills the process that reads it."""
    samples: list[dict[str, object]] = [{"txt": media.sentence(i, 20)} for i in range(count)]
    samples[place]["txt"] = "poison"
    urls = media.write(folder, "texts", iter(samples), 1)
    form = "tests.contracts.formats_of_tests:poison"
    return DataConfig(
        sources=(Source(id="texts", urls=urls, format=form),),
        model="qwen3_vl",
        tokenizer=str(tokenizer),
        sequence_length=64,
        global_batch=1,
        lanes=1,
        stop=Stop(num_steps=1000),
    )


def until_an_error(config: DataConfig, execution: ExecutionConfig) -> tuple[list[str], ZephonError]:
    """Digests of the steps before the error, and the error."""
    found = []
    with Loader(config, execution) as loader:
        with pytest.raises(ZephonError) as caught:
            for batch in loader:
                found.append(step_digest([batch], pixels=True))
    return found, caught.value


def before_the_poison(config: DataConfig) -> list[str]:
    """Digests of the steps of a serial run before that which needs the poisoned sample."""

    def stand_in() -> None:
        raise ZephonError("the poison")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats_of_tests, "die", stand_in)
        found, error = until_an_error(config, SERIAL)
    assert str(error) == "the poison"
    return found
