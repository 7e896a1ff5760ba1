"""A loader's state: the step it stands at, what run it belongs to, and the bytes of its lanes.

As plain data it is a dict of strings, numbers and lists, safe for JSON, ``torch.save`` and
``weights_only`` loading. The union of all lanes' states is a function of (DataConfig, step) alone,
so states of several ranks merge, and any rank count restores them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import StateError
from .fixed import from_fixed, is_fixed
from .identity import Identity, canonical_json, fingerprint
from .lane import LaneState

FORMAT = "zephon_mm.state"
VERSION = 1


@dataclass(frozen=True, slots=True)
class LoaderState:
    """The lanes of one or more ranks between two steps.

    Attributes:
        step: the next step.
        num_lanes: lanes of the whole run.
        identity: the run's fields, see `identity.identity`.
        lanes: encoded states by lane; some lanes, or all.
        changes: what earlier restores allowed: (field, old, new, step).
    """

    step: int
    num_lanes: int
    identity: Identity
    lanes: Mapping[int, bytes]
    changes: tuple[tuple[str, Any, Any, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The state as plain data with a checksum."""
        config = canonical_json(self.identity)
        data: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "num_lanes": self.num_lanes,
            "fingerprint": hashlib.sha256(config.encode()).hexdigest(),
            "config": json.loads(config),
            "changes": json.loads(canonical_json(self.changes)),
            "lanes": {
                str(lane): binascii.b2a_base64(self.lanes[lane], newline=False).decode()
                for lane in sorted(self.lanes)
            },
        }
        data["checksum"] = _checksum(data)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LoaderState:
        """Read plain data, or the arrays of `fixed.to_fixed`.

        Raises:
            StateError: another format or version, or damage.
        """
        if is_fixed(data):
            return cls(**from_fixed(data))
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise StateError(
                f"not a {FORMAT}: got {type(data).__name__} with the keys "
                f"{sorted(map(str, data))[:8] if isinstance(data, Mapping) else '-'}"
            )
        if data.get("version") != VERSION:
            raise StateError(
                f"a state of version {data.get('version')!r}; this release reads {VERSION}"
            )
        body = {key: value for key, value in data.items() if key != "checksum"}
        try:
            checksum = _checksum(body)
        except (TypeError, ValueError) as error:
            raise StateError(f"the state holds what no state does: {error}") from error
        if data.get("checksum") != checksum:
            raise StateError("the state fails its checksum: it was cut short or changed")
        try:
            return cls(
                step=int(data["step"]),
                num_lanes=int(data["num_lanes"]),
                identity=dict(data["config"]),
                lanes={
                    int(lane): base64.b64decode(text, validate=True)
                    for lane, text in data["lanes"].items()
                },
                changes=tuple((c[0], c[1], c[2], int(c[3])) for c in data["changes"]),
            )
        except (KeyError, TypeError, ValueError, IndexError, binascii.Error) as error:
            raise StateError(f"the state is incomplete: {error!r}") from error

    def adapted(self, names: Sequence[str]) -> LoaderState:
        """The state for a changed config, whose sources are ``names``: added ones start.

        A lane that had ended is asked again, since the change may have given it more.

        Raises:
            StateError: a source that was removed still has documents waiting to be packed.
        """
        old = list(self.identity["sources"])
        lanes = {
            number: self.lane(number).for_sources(old, names).encode() for number in self.lanes
        }
        return replace(self, lanes=lanes)

    def lane(self, lane: int) -> LaneState:
        """One lane, decoded; StateError if this state does not hold it."""
        if lane not in self.lanes:
            raise StateError(
                f"the state holds lanes {_ranges(self.lanes)} of {self.num_lanes}, not lane "
                f"{lane}: merge the states of all ranks with merge_states before restoring"
            )
        state = LaneState.decode(self.lanes[lane])
        if state.lane != lane:
            raise StateError(f"the state of lane {lane} says it is lane {state.lane}")
        return state


def merge_states(states: Sequence[Mapping[str, Any]], *, partial: bool = False) -> dict[str, Any]:
    """Join the states of several ranks of one step into one.

    Args:
        states: what each rank's ``state_dict()`` gave; a lane may come more than once.
        partial: allow that lanes are missing, for merging in several rounds.

    Raises:
        StateError: the states are of different runs or steps, disagree about a lane, or are not
            of all lanes.
    """
    if not states:
        raise StateError("merge_states needs at least one state")
    read = [LoaderState.from_dict(state) for state in states]
    first = read[0]
    lanes: dict[int, bytes] = {}
    for number, state in enumerate(read):
        for name in ("step", "num_lanes", "changes"):
            if getattr(state, name) != getattr(first, name):
                raise StateError(
                    f"states 0 and {number} have different {name}: "
                    f"{getattr(first, name)!r} and {getattr(state, name)!r}"
                )
        if fingerprint(state.identity) != fingerprint(first.identity):
            raise StateError(f"states 0 and {number} belong to different data configs")
        for lane, data in state.lanes.items():
            if lanes.setdefault(lane, data) != data:
                raise StateError(f"two states of lane {lane} at step {first.step} differ")
    if not partial and len(lanes) < first.num_lanes:
        raise StateError(
            f"the states hold lanes {_ranges(lanes)} of {first.num_lanes}: gather those of all "
            "ranks (partial=True merges in several rounds)"
        )
    return LoaderState(first.step, first.num_lanes, first.identity, lanes, first.changes).to_dict()


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(body).encode()).hexdigest()[:32]


def _ranges(lanes: Mapping[int, bytes]) -> str:
    numbers = sorted(lanes)
    if not numbers:
        return "none"
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))
