"""The index of one shard: built in one pass over it, kept as a table, read back in blocks.

A table has a row a member; rows of a sample are neighbours and samples are in the order in which
they first come in the shard. A sample of which no member is whole has one row without a field.
`build_index` makes the table, `sidecar` stores it, `ShardIndex` answers from it.

The digest is SHA-256 over the canonical table (keys, fields, names, grouping, offsets, lengths,
checksums, probes, problems) and the shard's size. Where the shard lies and what ``--verify``
found are not in it.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import ShardIndexError
from . import sparse
from .access import Access
from .grouping import GroupedSample, Grouper, KeyRule, ignored_kind
from .inline import decode, find_inline, is_inline
from .storage import Storage, open_whole
from .tar import CutShardError, TarMember, iterate_members

INDEX_VERSION = 3
BLOCK_SAMPLES = 256
MAX_BLOCKS = 512

Data = bytes | memoryview
Probe = Callable[[str, Data], bytes | None]
"""``probe(field, data)``: what the media layer wants kept of a member, or None."""
Verify = Callable[[str, Data, bytes], bool]
"""``verify(field, data, probe)``: whether a member that has a probe decodes without damage."""

UNKNOWN, DAMAGED, CLEAN = -1, 0, 1

SCHEMA = pa.schema(
    [
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("extension", pa.binary()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("checksum", pa.uint32(), nullable=False),
        pa.field("sparse", pa.list_(pa.int64())),
        pa.field("problem", pa.string()),
        pa.field("probe", pa.binary()),
        pa.field("mark", pa.int8(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a sample.

    Attributes:
        field: what follows the key and its dot, in lower case.
        name: as written in the shard; for messages, never a path.
        offset: of its stored bytes in the shard.
        length: its bytes, holes of a sparse member included.
        checksum: CRC-32 of them (`zlib.crc32`).
        probe: what the media probe kept, opaque here.
        sparse: ``(offset, length)`` runs that are stored, or None. Of a medium inside a JSON
            member (`inline`) one run: its base64 text.
        clean: what ``--verify`` found; None where it wasn't asked.
    """

    field: str
    name: str
    offset: int
    length: int
    checksum: int
    probe: bytes | None = None
    sparse: sparse.Runs | None = None
    clean: bool | None = None

    @property
    def stored(self) -> int:
        """Bytes that it takes in the shard."""
        return self.length if self.sparse is None else sum(n for _, n in self.sparse)

    def content(self, stored: Data) -> Data:
        """The member of its stored bytes, not checked. ValueError if they can't be of it."""
        if is_inline(self.field):
            return decode(stored)
        if self.sparse is None:
            return stored
        return sparse.expand(stored, self.sparse, self.length)


@dataclass(frozen=True, slots=True)
class IndexMeta:
    """What is known of a shard as a whole.

    Attributes:
        size_bytes: of the shard.
        num_samples: quarantined ones included.
        num_members: whole members, in samples.
        data_bytes: their lengths added up.
        skipped: what was left out, by kind: ``directory``, ``link``, ``other``, ``hidden``,
            ``meta``, ``unnamed``, ``no extension``.
        quarantined: samples with a problem, by kind of problem.
        truncated: whether the shard is cut, and was indexed all the same.
        probed, verified: whether media were probed, and decoded.
        block_samples: samples that are stored, and read, together.
        digest: 64 hex digits.
        identity: a remote shard's ETag, or else when it was last modified; not in the digest.
    """

    version: int
    key_rule: KeyRule
    size_bytes: int
    num_samples: int
    num_members: int
    data_bytes: int
    skipped: dict[str, int]
    quarantined: dict[str, int]
    truncated: bool
    probed: bool
    verified: bool
    block_samples: int
    digest: str = ""
    identity: str | None = None


@dataclass(frozen=True)
class BuiltIndex:
    """A table of `SCHEMA` and what it says of the shard."""

    table: pa.Table
    meta: IndexMeta


@dataclass(slots=True)
class _Row:
    offset: int
    length: int
    checksum: int
    runs: sparse.Runs | None
    probe: bytes | None
    mark: int


@dataclass
class _Pass:
    """State of one pass over a shard."""

    url: str
    storage: Storage
    probe: Probe | None
    verify: Verify | None
    grouper: Grouper[_Row]
    skipped: Counter[str] = field(default_factory=Counter)

    def take(self, member: TarMember) -> None:
        kind = member.kind if member.kind != "file" else ignored_kind(member.name)
        if kind is not None:
            self.skipped[kind] += 1
            if kind == "link" and ignored_kind(member.name) is None:
                self.grouper.note_link(member.name, member.part)
            return
        found = self.grouper.sample_of(member.name, member.part)
        if found is None:
            self.skipped["no extension"] += 1
            return
        sample, extension = found
        if member.problem is not None:
            sample.flag("sparse", member.problem)
            return
        data: Data = self.storage.read(member.offset, member.stored)
        if member.runs is not None:
            data = sparse.expand(data, member.runs, member.length)
        row = self._row(extension, data, member.offset, member.length, member.runs)
        self.grouper.add(sample, extension, member.name, row)
        if member.runs is None:
            for each in find_inline(extension, data):
                stored = ((0, each.stop - each.start),)
                at, size = member.offset + each.start, len(each.content)
                row = self._row(each.extension, each.content, at, size, stored)
                sample.members.append((each.extension, row))

    def _row(
        self, extension: str, data: Data, offset: int, length: int, runs: sparse.Runs | None
    ) -> _Row:
        name = extension.lower()
        probe = None if self.probe is None else self.probe(name, data)
        mark = UNKNOWN
        if probe is not None and self.verify is not None:
            mark = CLEAN if self.verify(name, data, probe) else DAMAGED
        return _Row(offset, length, zlib.crc32(data), runs, probe, mark)

    def cut(self, error: CutShardError) -> None:
        """Flag the sample that a cut shard ends in."""
        if error.name is None:
            self.grouper.cut_at_boundary()
        elif ignored_kind(error.name) is None:
            found = self.grouper.sample_of(error.name, error.part)
            if found is not None:
                found[0].flag("cut", f"member {error.name!r} is cut off: the shard ends in it")


def build_index(
    url: str,
    *,
    key_rule: KeyRule = "first_dot",
    allow_truncated: bool = False,
    probe: Probe | None = None,
    verify: Verify | None = None,
    access: Access | None = None,
) -> BuiltIndex:
    """Read a shard once, from start to end, and make its index.

    Args:
        url: the shard.
        key_rule: which dot of a base name ends the key.
        allow_truncated: index a cut shard too: its whole members are kept and the sample that it
            ends in is quarantined.
        probe: called with each member's field and bytes.
        verify: called with each member that has a probe.
        access: how a remote shard is reached; each of its bytes is asked for once, and only 8 MiB
            of them, or the largest member, are in memory.

    Raises:
        CorruptShardError: a header is broken, the file is no tar, or it is cut.
        ShardChangedError: a remote shard was replaced meanwhile.
        StorageError: the shard can't be read.
    """
    storage = open_whole(url, access)
    try:
        state = _Pass(url, storage, probe, verify, Grouper(key_rule))
        truncated = False
        try:
            for member in iterate_members(storage, url):
                state.take(member)
        except CutShardError as error:
            if not allow_truncated:
                raise
            truncated = True
            state.cut(error)
        size = storage.size()
    finally:
        storage.close()
    samples = state.grouper.finish()
    table = _make_table(samples)
    whole = [row for sample in samples for name, row in sample.members if not is_inline(name)]
    meta = IndexMeta(
        version=INDEX_VERSION,
        key_rule=key_rule,
        size_bytes=size,
        num_samples=len(samples),
        num_members=len(whole),
        data_bytes=sum(row.length for row in whole),
        skipped=dict(sorted(state.skipped.items())),
        quarantined=dict(sorted(Counter(s.problem[0] for s in samples if s.problem).items())),
        truncated=truncated,
        probed=probe is not None,
        verified=verify is not None,
        block_samples=max(BLOCK_SAMPLES, -(-len(samples) // MAX_BLOCKS)),
        identity=storage.identity,
    )
    return BuiltIndex(table, replace(meta, digest=digest_table(table, meta).hex()))


def _make_table(samples: Sequence[GroupedSample[_Row]]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for number, sample in enumerate(samples):
        key = encode_name(sample.key)
        problem = sample.problem[1] if sample.problem else None
        rows: list[tuple[str | None, _Row]] = list(sample.members)
        for extension, row in rows or [(None, _Row(0, 0, 0, None, None, UNKNOWN))]:
            values = (
                number,
                key,
                None if extension is None else encode_name(extension),
                row.offset,
                row.length,
                row.checksum,
                None if row.runs is None else [n for run in row.runs for n in run],
                problem and encode_name(problem).decode("utf-8", "backslashreplace"),
                row.probe,
                row.mark,
            )
            for name, value in zip(SCHEMA.names, values, strict=True):
                columns[name].append(value)
            problem = None
    return pa.table(columns, schema=SCHEMA)


def digest_table(table: pa.Table, meta: IndexMeta) -> bytes:
    """SHA-256 of the canonical table, 32 bytes; the column ``mark`` is not in it."""
    head = ["zephon-mm index", meta.version, meta.key_rule, meta.size_bytes, meta.truncated]
    state = hashlib.sha256(json.dumps(head).encode())
    for name in SCHEMA.names:
        if name == "mark":
            continue
        column = table.column(name).combine_chunks()
        kind = SCHEMA.field(name).type
        if pa.types.is_integer(kind):
            values = column.to_numpy(zero_copy_only=False)
            state.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
            continue
        items = column.to_pylist()
        if pa.types.is_list(kind):
            items = [None if v is None else np.asarray(v, "<i8").tobytes() for v in items]
        elif pa.types.is_string(kind):
            items = [None if v is None else v.encode() for v in items]
        lengths = np.array([-1 if v is None else len(v) for v in items], "<i8")
        state.update(lengths.tobytes())
        state.update(b"".join(v for v in items if v is not None))
    return state.digest()


def encode_name(name: str) -> bytes:
    """A name's own bytes, those that are not UTF-8 too."""
    return name.encode("utf-8", "surrogateescape")


def decode_name(raw: bytes) -> str:
    """The inverse of `encode_name`."""
    return raw.decode("utf-8", "surrogateescape")


class Block:
    """Some hundred neighbouring samples of an index, in memory.

    Args:
        table: their rows.
        first_sample: number of the first one in the shard.
        first_row: position of its first member in the index.
    """

    def __init__(self, table: pa.Table, first_sample: int, first_row: int) -> None:
        self.first_sample = first_sample
        self.first_row = first_row
        columns = {name: table.column(name).combine_chunks() for name in SCHEMA.names}
        samples = columns["sample"].to_numpy()
        changes = np.flatnonzero(np.diff(samples)) + 1
        self._starts: list[int] = [0, *changes.tolist(), len(samples)]
        keys, problems = columns["key"].to_pylist(), columns["problem"].to_pylist()
        self._keys = [decode_name(keys[row]) for row in self._starts[:-1]]
        self._problems: list[str | None] = [problems[row] for row in self._starts[:-1]]
        known: dict[bytes | None, str | None] = {None: None}
        self._extensions: list[str | None] = [
            known[raw] if raw in known else known.setdefault(raw, decode_name(raw))
            for raw in columns["extension"].to_pylist()
        ]
        numbers = [
            columns[name].to_numpy().tolist() for name in ("offset", "length", "checksum", "mark")
        ]
        self._numbers: list[tuple[int, int, int, int]] = list(zip(*numbers, strict=True))
        # a column of nulls, as of texts, isn't looked into
        self._probes, self._sparse = (
            None if column.null_count == len(column) else column
            for column in (columns["probe"], columns["sparse"])
        )
        self.nbytes: int = table.nbytes + 200 * len(samples) + 100 * len(self._keys)

    def key(self, sample: int) -> str:
        return self._keys[sample - self.first_sample]

    def problem(self, sample: int) -> str | None:
        return self._problems[sample - self.first_sample]

    def members(self, sample: int) -> dict[str, int]:
        at = sample - self.first_sample
        found: dict[str, int] = {}
        for row in range(self._starts[at], self._starts[at + 1]):
            extension = self._extensions[row]
            if extension is not None:
                found.setdefault(extension.lower(), self.first_row + row)
        return found

    def member(self, position: int, shard: str) -> Member:
        row = position - self.first_row
        extension = self._extensions[row]
        if extension is None:
            raise ShardIndexError(f"position {position} holds no member", shard=shard)
        key = self._keys[bisect.bisect_right(self._starts, row) - 1]
        flat = None if self._sparse is None else self._sparse[row].as_py()
        offset, length, checksum, mark = self._numbers[row]
        return Member(  # arguments by place: by name they cost twice as much
            extension.lower(),
            f"{key}.{extension}",
            offset,
            length,
            checksum,
            None if self._probes is None else self._probes[row].as_py(),
            None if flat is None else tuple(sparse.pair_up(flat)),
            None if mark == UNKNOWN else mark == CLEAN,
        )
