"""A loader's state in a file: one line of JSON, whole or not there at all.

The state carries its own checksum, so a file that was cut short or changed is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import StateError
from .loader import LoaderState


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a state over ``path``, in one step: whoever reads it sees the old one or the new one.

    Written to a file beside it, synced to the disk, renamed; the folder is synced too.

    Raises:
        StateError: it is not a state, or the file can't be written.
    """
    text = _text(LoaderState.from_dict(state).to_dict())
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        folder = os.open(target.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise StateError(f"{target}: can't be written: {error.strerror or error}") from error


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a state that `write_state` wrote, or any JSON of a ``state_dict()``.

    Raises:
        StateError: the file can't be read, or holds no state, or one that was cut short or changed.
    """
    try:
        text = Path(path).read_bytes().decode()
        state = json.loads(text)
    except OSError as error:
        raise StateError(f"{path}: can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{path}: not the JSON of a state; it was cut short, changed, or is another file "
            f"({error})"
        ) from error
    try:
        LoaderState.from_dict(state)
    except StateError as error:
        raise StateError(f"{path}: {error}") from error
    # JSON may say the same in other bytes (1e-5, 1E-5): of our own length, that is a changed file
    canonical = _text(state)
    if len(text) == len(canonical) and text != canonical:
        raise StateError(f"{path}: the state was changed on disk")
    result: dict[str, Any] = state
    return result


def _text(state: Mapping[str, Any]) -> str:
    return json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
