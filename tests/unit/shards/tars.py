"""Makes tars for the tests: with tarfile, and header by header for what tarfile won't write."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

from zephon_mm.shards.index import BuiltIndex, build_index
from zephon_mm.shards.sidecar import ShardIndex, load_index, write_sidecar

END = bytes(1024)
Entry = tuple[str, bytes]


def pairs(count: int, *, first: int = 0, salt: str = "") -> list[Entry]:
    """Members of ``count`` whole samples, each a jpg and a json."""
    found: list[Entry] = []
    for number in range(first, first + count):
        found.append((f"{number:06d}.jpg", f"picture {number} {salt}".encode() * 50))
        found.append((f"{number:06d}.json", f'{{"n": {number}, "salt": "{salt}"}}'.encode()))
    return found


def tar_bytes(entries: Iterable[Entry], format: int = tarfile.USTAR_FORMAT) -> bytes:
    """A finished archive, as `tarfile` writes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, errors="surrogateescape") as tar:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def header(
    name: bytes,
    size: int | bytes = 0,
    kind: bytes = b"0",
    *,
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    tail: bytes = b"",
    signed: bool = False,
) -> bytes:
    """One raw header block with a right checksum; ``tail`` lies at byte 345 in place of prefix."""
    field = size if isinstance(size, bytes) else f"{size:011o}\0".encode()
    block = bytearray(512)
    block[0:100] = name[:100].ljust(100, b"\0")
    block[100:124] = b"0000644\x000000000\x000000000\0"
    block[124:136] = field
    block[136:148] = b"00000000000\0"
    block[156:157] = kind
    block[257:265] = magic
    rest = (prefix or tail)[:167]
    block[345 : 345 + len(rest)] = rest
    block[148:156] = b" " * 8
    total = sum(byte - 256 if signed and byte > 127 else byte for byte in block)
    block[148:156] = f"{total:06o}\0 ".encode()
    return bytes(block)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def member(name: bytes, data: bytes, **options: bytes | bool) -> bytes:
    """Header and data of a plain file."""
    return header(name, len(data), **options) + padded(data)  # type: ignore[arg-type]


def pax(records: Iterable[tuple[str, bytes]], kind: bytes = b"x") -> bytes:
    """A PAX extended header."""
    body = b""
    for key, value in records:
        rest = b" " + key.encode() + b"=" + value + b"\n"
        length = len(rest)
        while len(str(length)) + len(rest) != length:
            length = len(str(length)) + len(rest)
        body += str(length).encode() + rest
    return header(b"PaxHeaders/x", len(body), kind) + padded(body)


def write(folder: Path, data: bytes, name: str = "shard.tar") -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def copied(folder: Path, case: Path) -> str:
    """A copy of a case in a folder that can be written."""
    path = folder / case.name
    shutil.copyfile(case, path)
    return str(path)


def indexed(url: str, **options: object) -> ShardIndex:
    """Build, store and load a shard's index."""
    built: BuiltIndex = build_index(url, **options)  # type: ignore[arg-type]
    write_sidecar(built, url)
    return load_index(url, key_rule=built.meta.key_rule, allow_truncated=built.meta.truncated)


def layout(index: ShardIndex) -> list[tuple[str, list[str]]]:
    """``(key, fields)`` of each sample."""
    return [(index.key(s), list(index.members(s))) for s in range(index.num_samples)]


def problems(index: ShardIndex) -> dict[str, str]:
    """Problem by key, of the samples that have one."""
    found = ((index.key(s), index.problem(s)) for s in range(index.num_samples))
    return {key: problem for key, problem in found if problem is not None}


def contents(index: ShardIndex) -> list[dict[str, bytes]]:
    """Bytes of each sample by field, cut from the file by offset and length (no sparse ones)."""
    data = Path(index.shard).read_bytes()
    found = []
    for sample in range(index.num_samples):
        members = {f: index.member(p) for f, p in index.members(sample).items()}
        found.append({f: data[m.offset : m.offset + m.length] for f, m in members.items()})
    return found
