"""Checkpoints: what a run is, and where its lanes stand (C8)."""

from .file import read_state, write_state
from .fixed import to_fixed
from .identity import CHANGES, Change, Identity, check_changes, compare, fingerprint, identity
from .lane import LaneState
from .loader import LoaderState, merge_states

__all__ = [
    "CHANGES",
    "Change",
    "Identity",
    "LaneState",
    "LoaderState",
    "check_changes",
    "compare",
    "fingerprint",
    "identity",
    "merge_states",
    "read_state",
    "to_fixed",
    "write_state",
]
