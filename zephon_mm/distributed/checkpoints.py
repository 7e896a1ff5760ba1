"""Checkpoints of a loader whose ranks each hold some lanes: one file, one dict, or DCP.

``torch.distributed.checkpoint`` (DCP) asks an object for its tensors with ``state_dict()``, as
everybody does, and pickles whatever is no tensor. So that one ``state_dict()`` serves both, it
looks who asks: DCP, also through an object of the user's, gets the tensors of `state.to_fixed`,
everybody else plain data.
"""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..state import LoaderState, merge_states, read_state, to_fixed, write_state
from .exchange import first_rank, gather_bytes, group_of, is_distributed
from .share import Share

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

_DCP = (
    "torch.distributed.checkpoint.state_dict_saver",
    "torch.distributed.checkpoint.state_dict_loader",
)


class Checkpoints(ABC):
    """What `Loader` can do with the states of all its ranks."""

    dp_size: int
    _dp_group: dist.ProcessGroup | None
    _share: Share | None

    @abstractmethod
    def _state(self, step: int | None) -> LoaderState:
        """The state of this rank's lanes before ``step``, or where it stands."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any], allow: Collection[str] = ()) -> None:
        """Go on from a state."""

    def state_dict(self, step: int | None = None, *, tensors: bool | None = None) -> dict[str, Any]:
        """The state of this rank's lanes after the last step that was handed out: a copy.

        Between the micro-batches of a step it is the start of that step. It is plain data, safe for
        JSON and ``torch.load(weights_only=True)``; to ``dcp.save`` and ``dcp.load`` it is tensors
        of fixed size, so that any number of ranks reads what any other number has saved.

        Args:
            step: the boundary before this step instead, one of the last few. A loop that looks
                ahead asks for the step that it has trained.
            tensors: True, False: the form, whoever asks.

        Raises:
            StateError: the boundary is no longer, or not yet, known.
        """
        state = self._state(step)
        if not (_asked_by_dcp() if tensors is None else tensors):
            return state.to_dict()
        fixed = to_fixed(state)
        lanes = {number: torch.from_numpy(array) for number, array in fixed["lanes"].items()}
        return {"run": torch.from_numpy(fixed["run"]), "lanes": lanes}

    def gather_state(
        self, group: dist.ProcessGroup | DeviceMesh | None = None, *, step: int | None = None
    ) -> dict[str, Any]:
        """The state of all lanes, as plain data, on every rank: a collective.

        Args:
            group: ranks that hold all lanes between them; None: the data-parallel ranks of the
                mesh, or all ranks of the job. Without a process group this rank must hold them all.
            step: as for `state_dict`.

        Raises:
            StateError: a rank has no state of that step, or a lane is missing; on every rank.
        """
        if not is_distributed():
            return merge_states([self.state_dict(step, tensors=False)])
        states = gather_bytes(
            lambda: json.dumps(self.state_dict(step, tensors=False)).encode(),
            self._holders(group),
        )
        return merge_states([json.loads(state) for state in states])

    def save_state(
        self,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        group: dist.ProcessGroup | DeviceMesh | None = None,
    ) -> None:
        """Write the state of all lanes to one file, whole or not at all.

        Where several ranks of a process group share the lanes it is a collective, and the first
        rank writes. A loader that holds all lanes writes by itself; so does one of many ranks
        without a process group, but only its own lanes.

        Args:
            path: the file; its folder must be there.
            step: as for `state_dict`.
            group: as for `gather_state`.

        Raises:
            StateError: as `gather_state`, or the file can't be written; on every rank.
        """
        if not (is_distributed() and self._is_shared()):
            write_state(path, self.state_dict(step, tensors=False))
            return
        place = self._holders(group)
        state = self.gather_state(place, step=step)

        def write() -> bytes:
            if first_rank(place):
                write_state(path, state)
            return b""

        gather_bytes(write, place)

    def load_state(self, path: str | os.PathLike[str], allow: Collection[str] = ()) -> None:
        """Go on from a file of `save_state`; on each rank, of any number.

        Raises:
            StateError: as `load_state_dict`, or the file is missing, cut short or changed.
        """
        self.load_state_dict(read_state(path), allow)

    def _is_shared(self) -> bool:
        """Whether other ranks hold lanes that this one does not."""
        return self.dp_size > 1 or self._share is not None

    def _holders(self, group: dist.ProcessGroup | DeviceMesh | None) -> dist.ProcessGroup | None:
        """The ranks that hold all lanes between them: with a leader, more than the mesh's."""
        if group is not None:
            return group_of(group)
        return self._dp_group if self._share is None else None


def _asked_by_dcp() -> bool:
    """Whether ``dcp.save``, ``dcp.async_save`` or ``dcp.load`` is among the callers."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _DCP:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
