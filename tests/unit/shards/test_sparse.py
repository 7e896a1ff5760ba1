"""Sparse members of every dialect; maps that make no sense are refused by name."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from zephon_mm.config import Source
from zephon_mm.shards import ShardReader, open_source
from zephon_mm.shards.sparse import MAX_EXPANDED_BYTES, SparseMapError, check_runs, expand

from .tars import END, header, indexed, member, padded, pax, problems, write

OK = member(b"ok.txt", b"fine")


def gnu_1_0(runs: str, data: bytes, realsize: int = 4000, version: bytes = b"1") -> bytes:
    stored = padded(runs.encode()) + data
    records = [
        ("GNU.sparse.major", version),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"s.bin"),
        ("GNU.sparse.realsize", str(realsize).encode()),
    ]
    return pax(records) + member(b"GNUSparseFile.1/s.bin", stored)


def old_gnu(runs: list[tuple[int, int]], data: bytes, realsize: int) -> bytes:
    """Type S: four runs in the header, 21 in each extension block."""
    entry = [f"{o:011o}\0{n:011o}\0".encode() for o, n in runs]
    first, rest = entry[:4], entry[4:]
    tail = bytes(41) + b"".join(first).ljust(96, b"\0")
    tail += (b"\1" if rest else b"\0") + f"{realsize:011o}\0".encode()
    out = header(b"s.bin", len(data), b"S", magic=b"ustar  \0", tail=tail)
    while rest:
        block, rest = rest[:21], rest[21:]
        out += b"".join(block).ljust(504, b"\0") + (b"\1" if rest else b"\0") + bytes(7)
    return out + padded(data)


def test_runs_are_checked() -> None:
    assert check_runs([(0, 2), (5, 3), (10, 0)], 5, 10) == ((0, 2), (5, 3))
    assert expand(b"abcde", ((0, 2), (5, 3)), 10) == b"ab\0\0\0cde\0\0"
    for runs, stored, size in (
        ([(0, 5), (4, 2)], 7, 10),
        ([(5, 1), (0, 1)], 2, 10),
        ([(0, 11)], 11, 10),
        ([(0, 4)], 5, 10),
        ([(-1, 2)], 2, 10),
        ([(0, 1)], 1, MAX_EXPANDED_BYTES + 1),
    ):
        with pytest.raises(SparseMapError):
            check_runs(runs, stored, size)


def test_old_gnu_with_extension_blocks(tmp_path: Path) -> None:
    runs = [(1000 * i, 10) for i in range(60)] + [(70000, 0)]
    data = b"".join(bytes([i]) * 10 for i in range(60))
    url = write(tmp_path, old_gnu(runs, data, 70000) + OK + END)
    reader = ShardReader([open_source(Source(id="s", urls=url, format="text"))])
    got = bytes(reader.read(0, 0, reader.index(0, 0).members(0)["bin"]))
    want = bytearray(70000)
    for i in range(60):
        want[1000 * i : 1000 * i + 10] = bytes([i]) * 10
    assert got == bytes(want)
    assert not problems(reader.index(0, 0))


def test_a_whole_hole_and_no_hole(tmp_path: Path) -> None:
    data = gnu_1_0("1\n4000\n0\n", b"") + OK + END
    url = write(tmp_path, data)
    reader = ShardReader([open_source(Source(id="s", urls=url, format="text"))])
    assert bytes(reader.read(0, 0, reader.index(0, 0).members(0)["bin"])) == bytes(4000)
    url = write(tmp_path, gnu_1_0("1\n0\n4000\n", b"q" * 4000) + END, "full.tar")
    reader = ShardReader([open_source(Source(id="s", urls=url, format="text"))])
    assert bytes(reader.read(0, 0, reader.index(0, 0).members(0)["bin"])) == b"q" * 4000


def test_a_long_map_of_version_1_0(tmp_path: Path) -> None:
    runs = [(100 * i, 1) for i in range(300)]
    text = f"{len(runs)}\n" + "".join(f"{o}\n{n}\n" for o, n in runs)
    url = write(tmp_path, gnu_1_0(text, b"x" * 300, 30000) + OK + END)
    index = indexed(url)
    member_ = index.member(index.members(0)["bin"])
    assert (member_.length, member_.stored, member_.sparse) == (30000, 300, tuple(runs))


@pytest.mark.parametrize(
    "bad",
    [
        gnu_1_0("2\n0\n10\n5\n10\n", b"x" * 20),
        gnu_1_0("1\nten\n10\n", b"x" * 10),
        gnu_1_0("1\n0\n10\n", b"x" * 11),
        gnu_1_0("99999999\n0\n10\n", b"x" * 10),
        gnu_1_0("1\n0\n10\n", b"x" * 10, realsize=1 << 62),
        gnu_1_0("1\n0\n10\n", b"x" * 10, version=b"2"),
        gnu_1_0("9" * 400 + "\n", b"x" * 10),
        pax([("GNU.sparse.map", b"0,1,2"), ("GNU.sparse.size", b"9"), ("path", b"s.bin")])
        + member(b"s.bin", b"x"),
        pax([("GNU.sparse.numblocks", b"1"), ("path", b"s.bin")]) + member(b"s.bin", b"x"),
        old_gnu([(0, 5), (3, 5)], b"x" * 10, 100),
    ],
    ids=range(10),
)
def test_a_map_without_sense_is_refused_by_name(tmp_path: Path, bad: bytes) -> None:
    index = indexed(write(tmp_path, bad + OK + END))
    assert list(problems(index)) == ["s"]
    assert "sparse member 's.bin' can't be read" in problems(index)["s"]
    assert list(index.members(1)) == ["txt"]
    assert index.meta.quarantined == {"sparse": 1}


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize("how", ["--format=gnu", "0.0", "0.1", "1.0"])
def test_gnu_tar_writes_what_we_read(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with open(folder / "0.bin", "wb") as file:
        for spot in range(9):
            file.seek(spot * 300_000)
            file.write(bytes([65 + spot]) * 5000)
        file.truncate(3_000_001)
    (folder / "0.json").write_bytes(b"{}")
    options = [how] if how.startswith("--") else ["--format=posix", f"--sparse-version={how}"]
    url = str(tmp_path / "s.tar")
    command = ["tar", "-S", *options, "-cf", url, "-C", str(folder), "0.bin", "0.json"]
    subprocess.run(command, check=True, capture_output=True)
    reader = ShardReader([open_source(Source(id="s", urls=url, format="text"))])
    index = reader.index(0, 0)
    assert Path(url).stat().st_size < 1_000_000
    assert bytes(reader.read(0, 0, index.members(0)["bin"])) == (folder / "0.bin").read_bytes()
    assert bytes(reader.read(0, 0, index.members(0)["json"])) == b"{}"
