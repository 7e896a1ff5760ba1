"""Reading tar headers, in one sequential pass over a shard.

Understood: ustar with prefix, star, V7, PAX (``path``, ``size``, ``GNU.sparse.*``, global
headers), GNU long names (``L``, ``K``), old GNU sparse (``S``), base-256 sizes, and archives that
were concatenated (zero blocks in the middle). Every header's checksum is verified. What can't be
understood is an error with its offset, never a silent end as in Python's ``tarfile``.

The pass reads headers and maps only; cost is some 15 µs a member. Formats: POSIX.1-2017 ``pax``;
GNU tar manual, "Tar Internals".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..errors import CorruptShardError
from . import sparse
from .storage import Storage

BLOCK = 512
_ZERO = bytes(BLOCK)
_OCTAL = re.compile(rb"[0-7]*")
_PAX_LENGTH = re.compile(rb"(\d{1,20}) ")
_MAX_NAME_BYTES = 1 << 20
_MAX_PAX_BYTES = 1 << 24
_COMPRESSED = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"\x28\xb5\x2f\xfd", "zstandard", "zstd -d"),
    (b"\xfd7zXZ\x00", "xz", "unxz"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
    (b"\x1f\x9d", "compress", "uncompress"),
    (b"PK\x03\x04", "zip", "unzip"),
)
_EXTENSIONS = {
    "gz": 0, "tgz": 0, "zst": 1, "tzst": 1, "xz": 2, "txz": 2, "bz2": 3, "tbz2": 3, "tbz": 3,
    "lz4": 4, "z": 5, "zip": 6,
}  # fmt: skip

Kind = Literal["file", "directory", "link", "other"]


class CutShardError(CorruptShardError):
    """The file ends before its archive does.

    Attributes:
        name: the member whose data are cut, where its header could be read.
        part: which of the concatenated archives it is in.
    """

    name: str | None = None
    part: int = 0


@dataclass(frozen=True, slots=True)
class TarMember:
    """One entry of a tar.

    Attributes:
        name: bytes that are not UTF-8 come as lone surrogates (``surrogateescape``).
        kind: only ``file`` can be a member of a sample.
        part: how many end-of-archive markers with entries after them lie before it.
        header_offset: where its header begins, extended headers excluded.
        offset: where its stored data begin.
        stored: bytes stored; equals ``length`` unless it is sparse.
        length: bytes of the file, holes included.
        runs: sparse map, or None.
        problem: why it can't be read, or None.
    """

    name: str
    kind: Kind
    part: int
    header_offset: int
    offset: int
    stored: int
    length: int
    runs: sparse.Runs | None = None
    problem: str | None = None


@dataclass(slots=True)
class _Extended:
    """What extended headers say of the next member; where two disagree, the first (as Python)."""

    name: bytes | None = None
    records: dict[str, bytes] = field(default_factory=dict)
    sparse_pairs: list[bytes] = field(default_factory=list)
    at: int | None = None


def iterate_members(storage: Storage, shard: str) -> Iterator[TarMember]:
    """Every entry of the shard, in order.

    Raises:
        CutShardError: the file ends inside a member, or without an end-of-archive marker.
        CorruptShardError: a header is broken, or this is no tar (compressed, say).
    """
    return _Reader(storage, shard).run()


class _Reader:
    def __init__(self, storage: Storage, shard: str) -> None:
        self.storage = storage
        self.shard = shard
        self.size = storage.size()
        self.part = 0
        self.globals: dict[str, bytes] = {}

    def read(self, start: int, length: int) -> bytes:
        return bytes(self.storage.read(start, length))

    def corrupt(self, message: str, offset: int) -> CorruptShardError:
        return CorruptShardError(message, shard=self.shard, offset=offset)

    def cut(self, message: str, name: str | None = None) -> CutShardError:
        error = CutShardError(
            f"{message}; fetch the shard again, or pass `--allow-truncated` "
            "(Source.allow_truncated) to keep its whole members",
            shard=self.shard,
            offset=self.size,
        )
        error.name, error.part = name, self.part
        return error

    def run(self) -> Iterator[TarMember]:
        if self.size == 0:
            raise self.cut("the shard is 0 bytes: not even an empty tar, which has zero blocks")
        position, ended, entries = 0, False, 0
        extended = _Extended()
        while position < self.size:
            block = self.read(position, min(BLOCK, self.size - position))
            if not block.strip(b"\0"):
                if extended.at is not None:
                    raise self.corrupt("an extended header has no member after it", extended.at)
                ended = True
                position += BLOCK
                continue
            if not valid_header(block):
                raise self.bad_header(block, position, ended)
            if ended:
                self.part += entries > 0
                self.globals = {}
                ended = False
            kind = block[156:157]
            size = self.size_of(block, position, extended)
            if kind in b"LKxXg" and kind:
                position = self.read_extended(kind, position, size, extended)
                continue
            member, position = self.read_member(block, position, size, extended)
            entries += 1
            extended = _Extended()
            yield member
        if not ended:
            raise self.cut("the file ends without an end-of-archive marker: it is cut")

    def bad_header(self, block: bytes, position: int, ended: bool) -> CorruptShardError:
        if position == 0:
            extension = self.shard.lower().rpartition(".")[2]
            magic = next((i for i, m in enumerate(_COMPRESSED) if block.startswith(m[0])), None)
            magic = _EXTENSIONS.get(extension) if magic is None else magic
            if magic is not None:
                _, name, command = _COMPRESSED[magic]
                return self.corrupt(
                    f"the shard is compressed ({name}); members can't be read in random order from "
                    f"it. Decompress it (`{command}`): pictures and clips hardly shrink anyway",
                    0,
                )
        if len(block) < BLOCK and not ended:
            return self.cut("the file ends inside a header")
        what = "not a tar file" if position == 0 else "broken header"
        after = " after an end-of-archive marker" if ended else ""
        return self.corrupt(
            f"{what}{after}: the checksum of these 512 bytes doesn't match; fetch or write the "
            "shard again",
            position,
        )

    def size_of(self, block: bytes, position: int, extended: _Extended) -> int:
        """Stored size by header or PAX record."""
        size = parse_number(block[124:136])
        record = (self.globals | extended.records).get("size")
        if record and block[156:157] not in b"LKxXg":
            size = int(record) if record.isdigit() and len(record) <= 20 else None
        if size is None or size < 0:
            raise self.corrupt("broken header: its size is not a number", position)
        return size

    def read_extended(self, kind: bytes, at: int, size: int, extended: _Extended) -> int:
        """Take in an extended header; return where the next header is."""
        if size > (_MAX_NAME_BYTES if kind in b"LK" else _MAX_PAX_BYTES):
            raise self.corrupt(f"an extended header claims {size} bytes", at)
        start = at + BLOCK
        if start + size > self.size:
            raise self.cut("the file ends inside an extended header")
        data = self.read(start, size)
        if kind != b"g":
            extended.at = at
        if kind == b"L":
            extended.name = extended.name or data.split(b"\0", 1)[0]
        elif kind != b"K":
            try:
                records = parse_pax(data)
            except ValueError as error:
                raise self.corrupt(f"broken PAX header: {error}", at) from error
            if kind == b"g":
                self.globals |= dict(records)
            else:
                extended.sparse_pairs += [
                    v for k, v in records if k in ("GNU.sparse.offset", "GNU.sparse.numbytes")
                ]
                extended.records = dict(records) | extended.records
                extended.name = extended.name or extended.records.get("path")
        return start + _padded(size)

    def read_member(
        self, block: bytes, at: int, size: int, extended: _Extended
    ) -> tuple[TarMember, int]:
        """The member whose header is ``block``, and where the next header is."""
        records = {k: v for k, v in (self.globals | extended.records).items() if v}
        kind = block[156:157]
        name = self.name_of(block, extended, records)
        start = at + BLOCK
        if kind in b"\x0007S" and name.endswith("/"):
            kind = b"5"
        if kind in b"123456":
            if size and self.has_no_data(start):
                size = 0
            what: Kind = "directory" if kind == b"5" else "link" if kind in b"12" else "other"
            name = name.rstrip("/") if kind == b"5" else name
            if start + size > self.size:
                raise self.cut(f"the file ends inside {name!r}")
            return TarMember(name, what, self.part, at, start, size, size), start + _padded(size)
        if kind not in b"\x0007S":
            if start + size > self.size:
                raise self.cut(f"the file ends inside {name!r}")
            member = TarMember(name, "other", self.part, at, start, size, size)
            return member, start + _padded(size)
        old_runs: list[tuple[int, int]] | None = None
        if kind == b"S":
            old_runs, start = self.read_old_map(block, start, name)
        if start + size > self.size:
            have = max(0, self.size - start)
            raise self.cut(f"member {name!r} has {size} bytes and the file ends after {have}", name)
        end = start + _padded(size)
        if old_runs is None and not any(key.startswith("GNU.sparse.") for key in records):
            return TarMember(name, "file", self.part, at, start, size, size), end
        return self.sparse_member(block, name, at, start, size, extended, records, old_runs), end

    def has_no_data(self, start: int) -> bool:
        """Whether a link or folder that claims a size is followed by a header all the same."""
        if start >= self.size:
            return True
        block = self.read(start, min(BLOCK, self.size - start))
        return not block.strip(b"\0") or valid_header(block)

    def name_of(self, block: bytes, extended: _Extended, records: dict[str, bytes]) -> str:
        raw = records.get("GNU.sparse.name") or extended.name or records.get("path")
        if raw is None:
            raw = block[:100].split(b"\0", 1)[0]
            magic = block[257:265]
            if magic.startswith(b"ustar") and not magic.startswith(b"ustar  "):
                star = block[508:512] == b"tar\0"
                prefix = block[345 : 476 if star else 500].split(b"\0", 1)[0]
                raw = prefix + b"/" + raw if prefix else raw
        return raw.decode("utf-8", "surrogateescape")

    def read_old_map(
        self, block: bytes, start: int, name: str
    ) -> tuple[list[tuple[int, int]] | None, int]:
        """The runs of an old GNU sparse header and its extensions; None where they're broken."""
        fields = [block[386 + 12 * i : 398 + 12 * i] for i in range(8)]
        more = block[482] != 0
        while more:
            if start + BLOCK > self.size:
                raise self.cut(f"the file ends inside the sparse map of {name!r}", name)
            extension = self.read(start, BLOCK)
            fields += [extension[12 * i : 12 * i + 12] for i in range(42)]
            more = extension[504] != 0
            start += BLOCK
        numbers = [parse_number(raw) for raw in fields]
        known = [number for number in numbers if number is not None]
        return (sparse.pair_up(known) if len(known) == len(numbers) else []), start

    def sparse_member(
        self,
        block: bytes,
        name: str,
        at: int,
        start: int,
        size: int,
        extended: _Extended,
        records: dict[str, bytes],
        runs: list[tuple[int, int]] | None,
    ) -> TarMember:
        length = 0
        try:
            if runs is not None:
                length = parse_number(block[483:495]) or 0
            else:
                length = _decimal(records, "GNU.sparse.realsize", "GNU.sparse.size")
                major = records.get("GNU.sparse.major")
                minor = records.get("GNU.sparse.minor", b"0")
                if "GNU.sparse.map" in records:
                    text = records["GNU.sparse.map"].split(b",")
                    runs = sparse.pair_up([sparse.digits(part) for part in text])
                elif major == b"1" and minor == b"0":
                    runs, used = sparse.read_map_1_0(self.read, start, size)
                    start, size = start + used, size - used
                elif major in (None, b"0"):
                    runs = sparse.pair_up([sparse.digits(text) for text in extended.sparse_pairs])
                else:
                    version = f"{major!r}.{minor!r}".replace("b'", "").replace("'", "")
                    raise sparse.SparseMapError(f"GNU sparse version {version} is not known")
            checked = sparse.check_runs(runs, size, length)
        except sparse.SparseMapError as error:
            problem = f"sparse member {name!r} can't be read: {error}"
            return TarMember(name, "file", self.part, at, start, size, size, None, problem)
        return TarMember(name, "file", self.part, at, start, size, length, checked)


def valid_header(block: bytes) -> bool:
    """Whether 512 bytes are a tar header, by their checksum (unsigned or, as old tars, signed)."""
    if len(block) < BLOCK:
        return False
    expected = parse_number(block[148:156])
    rest = block[:148] + block[156:]
    total = 256 + sum(rest)
    if expected == total:
        return True
    return expected == total - 256 * sum(byte >= 128 for byte in rest)


def parse_number(raw: bytes) -> int | None:
    """A number field: octal text, or base 256 where the top bit is set; None where it's neither."""
    if raw[0] & 0x80:
        value = int.from_bytes(raw[1:], "big")
        if raw[0] == 0xFF:
            return value - (1 << 8 * (len(raw) - 1))
        return value + ((raw[0] & 0x7F) << 8 * (len(raw) - 1))
    text = raw.strip(b" \0").split(b"\0", 1)[0].strip(b" ")
    return int(text or b"0", 8) if _OCTAL.fullmatch(text) else None


def parse_pax(data: bytes) -> list[tuple[str, bytes]]:
    """Records (a length, a key, ``=``, a value) of a PAX header; ValueError where one is broken."""
    records: list[tuple[str, bytes]] = []
    position = 0
    while position < len(data) and data[position]:
        match = _PAX_LENGTH.match(data, position)
        length = int(match.group(1)) if match else 0
        record = data[position : position + length]
        if match is None or len(record) != length or not record.endswith(b"\n"):
            raise ValueError(f"record at {position} of {len(data)} has a wrong length")
        key, equals, value = record[match.end() - position : -1].partition(b"=")
        if not equals or not key:
            raise ValueError(f"record at {position} has no key")
        records.append((key.decode("utf-8", "surrogateescape"), value))
        position += length
    return records


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _decimal(records: dict[str, bytes], *names: str) -> int:
    for name in names:
        if name in records:
            return sparse.digits(records[name])
    raise sparse.SparseMapError(f"it has no {names[0]}")
