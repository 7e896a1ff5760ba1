"""C1, C8, C9 under kills: random configs, backends, ranks, states, and SIGKILL at random moments.

A few rounds of ``benchmarks/chaos.py``, which does hundreds, and with worker processes in most.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The modules of the benchmark, and a process that forks trainers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        plan, rounds = (importlib.import_module(f"chaos_{name}") for name in ("plan", "round"))
        with rounds.Zygote(tmp_path_factory.mktemp("chaos")) as zygote:
            yield SimpleNamespace(plan=plan, rounds=rounds, zygote=zygote)


@settings(
    max_examples=3,
    derandomize=bool(os.environ.get("CI")),
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # a round takes seconds: too slow to be made smaller
)
@given(random=st.randoms(use_true_random=False))
def test_whatever_is_killed_the_steps_are_the_serial_ones(chaos: Any, random: Random) -> None:
    plan = chaos.plan.draw(random, chaos.zygote.folder, {"serial": 1, "threads": 2})
    note(repr(plan))
    chaos.rounds.run_round(chaos.zygote, plan, chaos.rounds.Tally())


def chain(chaos: Any, *kills: Any) -> Any:
    """A round of texts and clips whose trainers suffer one kill each; the last one lives."""
    plan = chaos.plan.draw(Random(5), chaos.zygote.folder)
    folder = chaos.zygote.folder
    kept = [("texts", "text"), ("clips", "video_text")]
    first = plan.config.sources[0]
    sources = tuple(
        replace(first, id=name, urls=(str(folder / f"{name}-0.tar"),), format=kind)
        for name, kind in kept
    )
    stop = replace(plan.config.stop, epochs=1, num_steps=None, when="all_exhausted", count="exact")
    config = replace(
        plan.config, sources=sources, stop=stop, sequence_length=256, global_batch=4, lanes=2
    )
    threads = {"backend": "threads", "workers": 2}
    processes = {"backend": "processes", "workers": 1}
    segments = []
    for number, kill in enumerate(kills):
        form = ("file", "dcp")[number % 2]
        if kill.victim == "worker":
            segments.append(chaos.plan.Segment(processes, 1, 1, form, 0, (kill,)))
        else:
            segments.append(chaos.plan.Segment(threads, 1 + number % 2, 1, form, 0, (kill,)))
    segments.append(chaos.plan.Segment({"backend": "serial"}, 4, 1, "file", 0, ()))
    return chaos.plan.Round(config, tuple(segments), digest_log=True)


def test_kills_inside_of_a_checkpoint_and_of_a_restore(chaos: Any) -> None:
    kill = chaos.plan.Kill
    plan = chain(
        chaos,
        kill("trainer", "save", 2, "call", 0.7),
        kill("trainer", "save", 2, "call", 0.7),
        kill("trainer", "restore", 1, "call", 0.7),
        kill("worker", "refill", 1, "clock", 0.5),
    )
    tally = chaos.rounds.Tally()
    chaos.rounds.run_round(chaos.zygote, plan, tally)
    assert tally.kills == {
        "trainer in save by a call": 2,
        "trainer in restore by a call": 1,
        "worker in refill by the clock": 1,
    }
    assert tally.restores["of a file"] and tally.restores["of DCP"]


def test_a_state_that_is_not_the_last_one_is_noticed(
    chaos: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge itself: a trainer that starts anew where it should go on fails the round."""
    monkeypatch.setattr(chaos.rounds, "last_saved", lambda folder: (1, None))
    plan = chain(chaos, chaos.plan.Kill("trainer", "save", 3, "call", 0.5))
    with pytest.raises(chaos.rounds.ChaosError, match="step 0 came where 1 was due"):
        chaos.rounds.run_round(chaos.zygote, plan, chaos.rounds.Tally())
