"""Reading the digest log of a run: all its ranks' files, in any number and order.

Only a few numbers a row are held (40 bytes): its step, slot, a hash of its line, and where the line
is; rows that differ are read again.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DigestLogError
from ..state import Identity
from .rows import RowRecord
from .writing import FORMAT, VERSION

_HELD = {"step": "q", "slot": "q", "hash": "Q", "place": "Q", "head": "q"}
_FILE = 44
"""Bits of a place that count bytes; above them is the file's number."""


@dataclass
class RunLog:
    """The log of one run.

    Attributes:
        path: as it was named.
        files: its ranks' files.
        heads: fields of the run, as of each header that differs from the ones before.
        shards: names by (source, number).
        cut: lines that a kill has left unfinished.
        step, slot, hash, place, head: of every row, int64 or uint64 [rows]; ``head`` is the number
            of the header that it stands under.
    """

    path: Path
    files: list[Path]
    heads: list[Identity] = field(default_factory=list)
    shards: dict[tuple[str, int], str] = field(default_factory=dict)
    cut: int = 0
    step: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    slot: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    hash: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    place: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    head: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        """Rows."""
        return len(self.step)

    def row(self, number: int) -> RowRecord:
        """A row, read from its file."""
        file, offset = divmod(int(self.place[number]), 1 << _FILE)
        with open(self.files[file], "rb") as stream:
            stream.seek(offset)
            return RowRecord.from_json(json.loads(stream.readline()))

    def where(self, number: int) -> str:
        """Where a row stands, for messages: file and line."""
        file, offset = divmod(int(self.place[number]), 1 << _FILE)
        with open(self.files[file], "rb") as stream:
            lines = sum(chunk.count(b"\n") for chunk in _chunks(stream.read, offset))
        return f"{self.files[file]}:{lines + 1}"


def read_log(path: Path, progress: Callable[[int], None] = lambda read: None) -> RunLog:
    """Read a log: a folder that ``digest_log`` named, or one rank's file of it.

    Args:
        path: the folder or file.
        progress: called with the bytes read since the last call.

    Raises:
        DigestLogError: there is no log, it is of another version, or it is damaged.
    """
    log = RunLog(path, log_files(path))
    held = {name: array(code) for name, code in _HELD.items()}
    for number, file in enumerate(log.files):
        try:
            _read_file(log, number, file, held, progress)
        except OSError as error:
            raise DigestLogError(f"{file}: can't be read ({error.strerror})") from error
    for name, code in _HELD.items():
        setattr(log, name, np.frombuffer(held[name], code) if held[name] else getattr(log, name))
    if not len(log):
        raise DigestLogError(
            f"{path}: the log holds no row: the run ended before its first batch, or still makes it"
        )
    return log


def log_files(path: Path) -> list[Path]:
    """The files of a log, see `read_log`; DigestLogError if there are none."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DigestLogError(
            f"{path}: there is no such folder; name the digest_log of a run, or a file of it"
        )
    files = sorted(path.glob("*.jsonl"))
    if not files:
        raise DigestLogError(
            f"{path}: no digest log: expected files such as 0-of-1.jsonl, as "
            "ExecutionConfig(digest_log=FOLDER) writes them"
        )
    return files


def _read_file(
    log: RunLog,
    number: int,
    file: Path,
    held: dict[str, array[int]],
    progress: Callable[[int], None],
) -> None:
    """Read one rank's file.

    A line that is no JSON may only be the last, or stand before a header: a kill has cut it.
    """
    offset = head = 0
    broken: str | None = None
    seen_head = False
    with open(file, "rb") as stream:
        for count, line in enumerate(stream, 1):
            begin, offset = offset, offset + len(line)
            progress(len(line))
            if line == b"\n":
                continue
            data = _parse(line)
            is_head = data is not None and "format" in data
            if broken is not None and not is_head:
                raise DigestLogError(broken)
            if data is None:
                broken = f"{file}:{count}: no line of a digest log; it was changed, or is none"
                continue
            log.cut += broken is not None
            broken = None
            if is_head:
                head, seen_head = _head(log, data, f"{file}:{count}"), True
                continue
            if not seen_head:
                raise DigestLogError(f"{file}:{count}: not a {FORMAT}: it begins without a header")
            try:
                if "shard" in data:
                    source, shard, name = data["shard"]
                    log.shards[str(source), int(shard)] = str(name)
                    continue
                row = RowRecord.from_json(data)
                values = (row.step, row.slot, _hash(line), number << _FILE | begin, head)
                for column, value in zip(held.values(), values, strict=True):
                    column.append(value)
            except (KeyError, TypeError, ValueError) as error:
                raise DigestLogError(
                    f"{file}:{count}: no row of a digest log: {error!r}"
                ) from error
    if broken is not None:
        if not seen_head:
            raise DigestLogError(f"{file}: not a {FORMAT}: {broken}")
        log.cut += 1


def _head(log: RunLog, data: dict[str, Any], where: str) -> int:
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise DigestLogError(
            f"{where}: {data.get('format')!r} of version {data.get('version')!r}; this release "
            f"reads {FORMAT} of version {VERSION}"
        )
    config = data.get("config")
    if not isinstance(config, dict):
        raise DigestLogError(f"{where}: the header has no fields of the run's config")
    if config not in log.heads:
        log.heads.append(config)
    return log.heads.index(config)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _hash(line: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(line.rstrip(b"\n"), digest_size=8).digest(), "little")


def _chunks(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    while size > 0:
        chunk = read(min(size, 1 << 20))
        if not chunk:
            return
        size -= len(chunk)
        yield chunk
