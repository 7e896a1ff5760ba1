"""A state, and the config that goes on from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import DataConfig
from ..state import Change, LoaderState
from .lane import Lane, arrival_capacity


@dataclass(frozen=True, slots=True)
class Restored:
    """A state to go on from.

    Attributes:
        state: the lanes, adapted to the config if that has changed.
        capacity: tokens of the shortest sequence ahead, if the config has changed that; else None.
    """

    state: LoaderState
    capacity: int | None = None

    @classmethod
    def of(cls, state: LoaderState, config: DataConfig, changes: Sequence[Change]) -> Restored:
        """The state as ``config`` goes on from it, which differs from the state's by ``changes``.

        Raises:
            StateError: a source that was removed still has documents waiting to be packed.
        """
        if not changes:
            return cls(state)
        other_lengths = any(change.field == "sequence_length" for change in changes)
        return cls(
            state.adapted([source.id for source in config.sources]),
            arrival_capacity(config, state.step) if other_lengths else None,
        )

    def put(self, lane: Lane) -> None:
        """Put a lane, at its start, where the state was. Raises as `Lane.restore`, and StateError
        if the state lacks the lane.
        """
        lane.restore(self.state.lane(lane.number), self.capacity)
