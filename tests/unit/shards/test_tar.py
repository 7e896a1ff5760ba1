"""Headers of every kind: what tarfile writes, and what it won't."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_mm.errors import CorruptShardError
from zephon_mm.shards.storage import open_storage
from zephon_mm.shards.tar import CutShardError, TarMember, iterate_members, parse_number, parse_pax

from .tars import END, header, member, padded, pairs, pax, tar_bytes, write

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def entries(url: str) -> list[TarMember]:
    return list(iterate_members(open_storage(url), url))


def files(folder: Path, data: bytes) -> list[tuple[str, bytes]]:
    """Name and stored bytes of each plain file."""
    found = entries(write(folder, data))
    return [(m.name, data[m.offset : m.offset + m.stored]) for m in found if m.kind == "file"]


@pytest.mark.parametrize("format", FORMATS)
def test_equals_tarfile(tmp_path: Path, format: int) -> None:
    want = [
        ("a.txt", b""),
        ("b/c.d.txt", b"x" * 512),
        ("d" * 90 + "/" + "e" * 90 + ".txt", b"y" * 513),
        ("exactly-" + "n" * 88 + ".txt", b"z"),
    ]
    if format != tarfile.USTAR_FORMAT:
        want.append(("ü" * 200 + "/猫.jpg", os.urandom(3000)))
        want.append(("\udcff\udc80.jpg", b"not UTF-8"))
    assert files(tmp_path, tar_bytes(want, format)) == want


def test_equals_webdataset_writer(tmp_path: Path) -> None:
    import webdataset

    path = tmp_path / "w.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for number in range(5):
            writer.write({"__key__": f"{number:04d}", "txt": f"text {number}", "cls": number})
    names = [m.name for m in entries(str(path))]
    assert names == [f"{n:04d}.{field}" for n in range(5) for field in ("cls", "txt")]


def test_ustar_prefix_and_the_gnu_fields_in_its_place(tmp_path: Path) -> None:
    data = member(b"base.txt", b"1", prefix=b"some/folder")
    data += member(b"gnu.txt", b"2", magic=b"ustar  \0", tail=b"12345670123\x00")
    data += member(b"v7.txt", b"3", magic=bytes(8), tail=b"not a prefix")
    assert [n for n, _ in files(tmp_path, data + END)] == [
        "some/folder/base.txt",
        "gnu.txt",
        "v7.txt",
    ]


def test_base_256_size_and_odd_octal(tmp_path: Path) -> None:
    big = b"\x80" + (5).to_bytes(11, "big")
    data = header(b"a.txt", big) + padded(b"12345")
    data += header(b"b.txt", b"     000005 ") + padded(b"67890")
    data += header(b"c.txt", b"5\0garbage!!!") + padded(b"abcde")
    assert [d for _, d in files(tmp_path, data + END)] == [b"12345", b"67890", b"abcde"]
    assert parse_number(b"\xff" * 12) == -1
    assert parse_number(b"0o17\0\0\0\0\0\0\0\0") is None
    assert parse_number(b"\0" * 12) == 0


@pytest.mark.parametrize("size", [b"\xff" * 12, b"-0000000005\0", b"0000000089a\0"])
def test_a_size_that_is_no_size_is_an_error(tmp_path: Path, size: bytes) -> None:
    data = member(b"a.txt", b"1") + header(b"b.txt", size) + END
    with pytest.raises(CorruptShardError, match=r"at byte 1024: .*size") as caught:
        files(tmp_path, data)
    assert caught.value.offset == 1024


def test_signed_checksum_of_old_tars(tmp_path: Path) -> None:
    assert files(tmp_path, member(b"\xc3\xbc.txt", b"1", signed=True) + END) == [("ü.txt", b"1")]


def test_pax_path_and_size_override_the_header(tmp_path: Path) -> None:
    data = pax([("path", "lang/ü.txt".encode()), ("size", b"700"), ("comment", b"a=b\nc")])
    data += header(b"short", 0) + padded(b"p" * 700) + member(b"next.txt", b"n") + END
    assert files(tmp_path, data) == [("lang/ü.txt", b"p" * 700), ("next.txt", b"n")]


def test_pax_global_header_lasts_until_the_archive_ends(tmp_path: Path) -> None:
    data = pax([("comment", b"git"), ("mtime", b"1")], b"g") + member(b"a.txt", b"1")
    data += pax([("path", b"global.txt")], b"g") + member(b"b.txt", b"2")
    data += pax([("path", b"local.txt")]) + member(b"c.txt", b"3")
    data += pax([("path", b"")]) + member(b"d.txt", b"4") + END + member(b"e.txt", b"5") + END
    names = [name for name, _ in files(tmp_path, data)]
    assert names == ["a.txt", "global.txt", "local.txt", "d.txt", "e.txt"]


@pytest.mark.parametrize(
    "body",
    [b"5 a=b\n", b"999 path=x\n", b"x path=y\n", b"9 pathxyz\n", b"0 =\n", b"9" * 30 + b" a=b\n"],
)
def test_a_broken_pax_record_is_an_error(tmp_path: Path, body: bytes) -> None:
    data = header(b"x", len(body), b"x") + padded(body) + member(b"a.txt", b"1") + END
    with pytest.raises(CorruptShardError, match="at byte 0: broken PAX header"):
        files(tmp_path, data)


def test_pax_records_may_be_padded_with_zeros() -> None:
    assert parse_pax(b"6 a=b\n\0\0") == [("a", b"b")]


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    return header(b"././@LongLink", len(name) + 1, kind, magic=b"ustar  \0") + padded(name + b"\0")


def test_gnu_long_names(tmp_path: Path) -> None:
    long, longer = b"n" * 150 + b".txt", b"m" * 2000 + b".txt"
    data = long_name(long) + member(long[:100], b"1")
    data += long_name(b"target" * 40, b"K") + long_name(longer) + member(b"m" * 100, b"2")
    data += long_name(long) + long_name(longer) + member(b"n" * 100, b"3")  # redundant: the first
    data += long_name(b"short.txt") + member(b"other.txt", b"4") + END
    assert [n.encode() for n, _ in files(tmp_path, data)] == [long, longer, long, b"short.txt"]


def test_an_extended_header_without_a_member_is_an_error(tmp_path: Path) -> None:
    data = member(b"a.txt", b"1") + long_name(b"lost.txt") + END
    with pytest.raises(CorruptShardError, match=r"at byte 1024: .*no member"):
        files(tmp_path, data)


def test_huge_extended_headers_are_refused(tmp_path: Path) -> None:
    for kind in (b"L", b"x"):
        with pytest.raises(CorruptShardError, match="claims"):
            files(tmp_path, header(b"x", 1 << 30, kind) + END)


def test_other_kinds_are_told_apart(tmp_path: Path) -> None:
    data = header(b"dir/", 0, b"5") + header(b"old-dir/", 0, b"\0") + header(b"new-dir/", 0, b"0")
    data += header(b"hard.jpg", 0, b"1") + header(b"soft.jpg", 0, b"2")
    data += header(b"char", 0, b"3") + header(b"block", 0, b"4") + header(b"fifo", 0, b"6")
    data += header(b"label", 0, b"V", magic=b"ustar  \0")
    data += header(b"dump", 5, b"D", magic=b"ustar  \0") + padded(b"12345")
    data += member(b"contiguous.txt", b"7", kind=b"7") + member(b"v7.txt", b"8", kind=b"\0") + END
    found = [(m.name, m.kind) for m in entries(write(tmp_path, data))]
    assert found == [
        ("dir", "directory"),
        ("old-dir", "directory"),
        ("new-dir", "directory"),
        ("hard.jpg", "link"),
        ("soft.jpg", "link"),
        ("char", "other"),
        ("block", "other"),
        ("fifo", "other"),
        ("label", "other"),
        ("dump", "other"),
        ("contiguous.txt", "file"),
        ("v7.txt", "file"),
    ]


def test_a_link_or_folder_that_claims_a_size(tmp_path: Path) -> None:
    """Some writers give hard links their file's size and no data; others give the data too."""
    after = member(b"after.txt", b"1") + END
    for kind in (b"1", b"2", b"5"):
        for body in (b"", padded(b"x" * 600)):
            data = header(b"odd", 600, kind) + body + after
            assert files(tmp_path, data) == [("after.txt", b"1")], (kind, len(body))


def test_concatenated_archives_go_on_after_zero_blocks(tmp_path: Path) -> None:
    one, two = tar_bytes(pairs(2)), tar_bytes(pairs(2, salt="b"))
    for gap in (b"", bytes(512), bytes(100 * 512)):
        found = entries(write(tmp_path, one + gap + two))
        assert [m.part for m in found] == [0, 0, 0, 0, 1, 1, 1, 1]
    leading = entries(write(tmp_path, bytes(1024) + one))
    assert [m.part for m in leading] == [0] * 4


def test_garbage_after_the_end_marker_is_an_error(tmp_path: Path) -> None:
    data = tar_bytes(pairs(1))
    with pytest.raises(CorruptShardError, match=f"at byte {len(data)}: .*after an end-of-archive"):
        entries(write(tmp_path, data + b"garbage" * 100))
    with pytest.raises(CorruptShardError, match="after an end-of-archive"):
        entries(write(tmp_path, data + b"short garbage"))
    assert len(entries(write(tmp_path, data + bytes(100)))) == 2


def test_every_cut_is_an_error_that_names_the_shard_and_the_end(tmp_path: Path) -> None:
    """Cut at every byte: whatever is left, no member is short and the end is never silent."""
    whole = pax([("path", b"first.txt")]) + member(b"x", b"a" * 700)
    whole += long_name(b"l" * 120 + b".txt") + member(b"l" * 100, b"b" * 512)
    whole += member(b"c.txt", b"")
    total = len(whole)
    want = files(tmp_path, whole + END)
    for cut in range(0, total + 1, 31):
        url = write(tmp_path, whole[:cut])
        got = []
        with pytest.raises(CutShardError) as caught:
            for found in iterate_members(open_storage(url), url):
                got.append((found.name, whole[found.offset : found.offset + found.stored]))
        assert caught.value.offset == cut
        assert "shard.tar" in str(caught.value)
        assert got == want[: len(got)]
    for cut in range(total + 1, total + 1024, 101):
        assert len(entries(write(tmp_path, (whole + END)[:cut]))) == 3


def test_a_cut_member_is_named(tmp_path: Path) -> None:
    data = tar_bytes(pairs(2))[: 512 + 100]
    with pytest.raises(CutShardError, match=r"'000000.jpg' has 500 bytes .* after 100"):
        entries(write(tmp_path, data))


@pytest.mark.parametrize("byte", [0, 100, 130, 148, 156, 300, 511])
def test_one_flipped_bit_in_a_header_is_an_error(tmp_path: Path, byte: int) -> None:
    data = bytearray(tar_bytes(pairs(3)))
    second = 512 + 512
    data[second + byte] ^= 0x04
    with pytest.raises(CorruptShardError) as caught:
        entries(write(tmp_path, bytes(data)))
    assert caught.value.offset == second
    assert not isinstance(caught.value, CutShardError)


@pytest.mark.parametrize(
    ("mode", "name", "word"),
    [("w:gz", "s.tar", "gzip"), ("w:bz2", "s.tar.bz2", "bzip2"), ("w:xz", "s.tar", "xz")],
)
def test_compressed_shards_say_so(tmp_path: Path, mode: str, name: str, word: str) -> None:
    path = tmp_path / name
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        info = tarfile.TarInfo("a.txt")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(CorruptShardError, match=rf"compressed \({word}\).*Decompress"):
        entries(str(path))


def test_zstandard_by_magic_and_by_extension(tmp_path: Path) -> None:
    for name, data in (("s.tar", b"\x28\xb5\x2f\xfd" + bytes(700)), ("s.tar.zst", b"?" * 700)):
        with pytest.raises(CorruptShardError, match=r"compressed \(zstandard\)"):
            entries(write(tmp_path, data, name))


def test_something_else_is_no_tar(tmp_path: Path) -> None:
    for data in (b"PAR1" * 300, b"\xff\xd8\xff" + os.urandom(2000)):
        with pytest.raises(CorruptShardError, match="at byte 0: not a tar file"):
            entries(write(tmp_path, data))


def test_names_are_only_names(tmp_path: Path) -> None:
    want = [("/etc/passwd.txt", b"1"), ("../../up.txt", b"2"), ("a\nb.txt", b"3"), ("", b"4")]
    data = b"".join(member(name.encode(), content) for name, content in want) + END
    assert files(tmp_path, data) == want


@given(seed=st.integers(0, 2**32), flips=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_damage_gives_members_or_our_error(seed: int, flips: int) -> None:
    """Whatever is flipped: no other exception, no member outside the file, an end."""
    choose = random.Random(seed)
    data = bytearray(pax([("path", b"p.txt")]) + tar_bytes(pairs(3), tarfile.GNU_FORMAT))
    for _ in range(flips):
        data[choose.randrange(len(data))] = choose.randrange(256)
    for item in _guarded(bytes(data[: choose.randrange(1, len(data))])):
        assert 0 <= item.offset and item.offset + item.stored <= len(data)


class _Memory:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def read(self, start: int, length: int) -> bytes:
        assert 0 <= start and start + length <= len(self._data)
        return self._data[start : start + length]

    def close(self) -> None:
        return


def _guarded(data: bytes) -> list[TarMember]:
    found = []
    try:
        for item in iterate_members(_Memory(data), "memory"):
            found.append(item)
    except CorruptShardError:
        pass
    return found
