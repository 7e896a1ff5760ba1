"""``ExecutionConfig.digest_log``: a folder with a file a rank, a line for each row trained on.

Lines are JSON objects of three kinds: a *header* each time a loader begins to write, with the
run's fields; a shard's *name*, once, before the first row that uses it; and *rows* (`RowRecord`).
Rows are hashed where batches are made, ahead of the trainer, and written when the last batch of
their step is handed out, all rows of a step by one write. Whatever a kill leaves is a cut last
line, which the next start ends; a step that is trained on again after a resume is written again.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from ..batch import Batch
from ..errors import ConfigError, StorageError
from ..state import Identity, fingerprint
from .rows import RowRecord, record

FORMAT = "zephon_mm.digests"
VERSION = 1


class _Step(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def batches(self) -> tuple[Batch, ...]: ...


S = TypeVar("S", bound=_Step)


class DigestLog:
    """Writes one rank's file; without a folder it does nothing.

    Args:
        folder: made if it isn't there; None: no log.
        identity: the run's fields.
        dp_rank, dp_size: of the rank, they name its file. A run that goes on appends to it.

    Raises:
        ConfigError: the folder can't be made or written.
    """

    def __init__(self, folder: str | None, identity: Identity, dp_rank: int, dp_size: int) -> None:
        self._path = None if folder is None else Path(folder) / f"{dp_rank}-of-{dp_size}.jsonl"
        self._head: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": fingerprint(identity),
            "dp_rank": dp_rank,
            "dp_size": dp_size,
            "config": identity,
        }
        self._file: IO[bytes] | None = None
        self._named: set[tuple[str, int]] = set()
        self._ready: dict[int, tuple[list[RowRecord], dict[tuple[str, int], str]]] = {}
        if self._path is not None:
            self._open()  # a wrong path is told of now, not after the first step
            self.close()

    def restart(self, changes: Sequence[tuple[str, Any, Any, int]] = ()) -> None:
        """Begin with a new header: the run goes on from a state, with these changes in its past."""
        self._head["changes"] = [list(change) for change in changes]
        self.close()

    def hashed(self, steps: Iterator[S]) -> Iterator[S]:
        """The same steps, hashed as they pass; `write` is then due for each."""
        if self._path is None:
            return steps
        self._ready.clear()
        return self._hashed(steps)

    def _hashed(self, steps: Iterator[S]) -> Iterator[S]:
        try:
            while (step := next(steps, None)) is not None:
                self._hash(step)
                passed = [step]
                del step  # not held here while the next one is made
                yield passed.pop()
        finally:
            if isinstance(steps, Generator):
                steps.close()

    def _hash(self, step: _Step) -> None:
        rows = [record(step.number, row) for batch in step.batches for row in batch.rows()]
        shards = {
            (document.source, int(document.ref.shard)): document.shard
            for batch in step.batches
            for documents in batch.documents
            for document in documents
        }
        self._ready[step.number] = rows, shards

    def write(self, step: int) -> None:
        """Write the rows of a step, which is being handed out.

        Steps that another process made and broadcast are in that process's log.

        Raises:
            StorageError: the file can't be written, as when the disk is full.
        """
        if step not in self._ready:
            return
        rows, shards = self._ready.pop(step)
        lines = []
        if self._file is None:
            self._open()
            lines.append(json.dumps(self._head | {"step": step}, separators=(",", ":")))
        new = {place: name for place, name in shards.items() if place not in self._named}
        lines += [json.dumps({"shard": [*place, name]}) for place, name in sorted(new.items())]
        lines += [row.to_json() for row in rows]
        self._append(("\n".join(lines) + "\n").encode("ascii"))
        self._named |= new.keys()

    def close(self) -> None:
        """Close the file; a later step opens it again, with a header."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._named.clear()

    def _open(self) -> None:
        assert self._path is not None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "a+b", buffering=0)
            weakref.finalize(self, self._file.close)  # a loader may be dropped without close()
            if self._file.tell() and (self._file.seek(-1, 2), self._file.read(1))[1] != b"\n":
                self._file.write(b"\n")  # a kill has cut the last line
        except OSError as error:
            self.close()
            raise ConfigError(
                f"digest_log={str(self._path.parent)!r} can't be written ({error.strerror}); name "
                "a folder (it is made if it isn't there)"
            ) from error

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self.close()  # the next write ends the cut line and begins with a header
            raise StorageError(
                f"digest_log: {self._path} can't be written ({error.strerror}); free some room, or "
                "go on from the last checkpoint without digest_log"
            ) from error
