"""``zephon-mm index`` as a user runs it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from zephon_mm.cli.index import format_bytes, index
from zephon_mm.errors import CorruptShardError, ShardChangedError
from zephon_mm.shards import load_index

app = typer.Typer()
app.command()(index)


def picture(size: int) -> bytes:
    out = io.BytesIO()
    Image.effect_noise((size, size), 60).save(out, "JPEG")
    return out.getvalue()


def shard(folder: Path, name: str, entries: dict[str, bytes]) -> str:
    path = folder / name
    with tarfile.open(path, "w") as tar:
        for entry, data in entries.items():
            info = tarfile.TarInfo(entry)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(path)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_the_table_tells_what_was_found(tmp_path: Path) -> None:
    shard(tmp_path, "a.tar", {"0.jpg": picture(32), "0.txt": b"x", "._0.jpg": b"m", "R": b""})
    shard(tmp_path, "b.tar", {"1.jpg": picture(40), "1.JPG": picture(40)})
    pattern = str(tmp_path / "{a,b}.tar")
    out = run(pattern)
    for words in ("shards 2", "indexed now 2", "samples 2", "members 4", "skipped 2"):
        assert words in out
    for words in ("hidden 1", "no extension 1", "quarantined 1", "repeated name 1"):
        assert words in out
    assert "indexed now 0" in run(pattern)
    assert "indexed now 2" in run(pattern, "--force")
    assert load_index(str(tmp_path / "a.tar"), probed=True).member(0).probe


def test_verify_marks_each_medium(tmp_path: Path) -> None:
    whole = picture(64)
    entries = {"0.jpg": whole, "1.jpg": whole[: len(whole) // 2], "2.jpg": b"no picture"}
    url = shard(tmp_path, "a.tar", entries | {"2.txt": b"x"})
    out = run(url, "--verify")
    assert "media unreadable 1 media damaged 1" in out
    assert f"damaged: 1.jpg in {url}" in out and f"unreadable: 2.jpg in {url}: " in out
    assert "media damaged 1" in run(url, "--verify")  # also where nothing is indexed anew
    found = load_index(url)
    assert [found.member(p).clean for p in range(4)] == [True, False, False, None]


def test_verify_names_the_first_of_many(tmp_path: Path) -> None:
    url = shard(tmp_path, "a.tar", {f"{i:02}.jpg": b"no picture" for i in range(14)})
    out = run(url, "--verify")
    assert "media unreadable 14" in out and "unreadable: and 4 more" in out and "10.jpg" not in out


def test_verify_decodes_clips(cases: Path, tmp_path: Path) -> None:
    clip = (cases / "media/video/nasa_13013.mp4").read_bytes()
    damaged = bytearray(clip)
    for at in range(len(clip) // 2, len(clip) // 2 + 4000):
        damaged[at] ^= 0x5A
    url = shard(tmp_path, "a.tar", {"0.mp4": clip, "1.mp4": bytes(damaged)})
    run(url, "--verify")
    found = load_index(url)
    assert [found.member(p).clean for p in range(2)] == [True, False]


def test_key_rule_and_cut_shards(tmp_path: Path) -> None:
    url = shard(tmp_path, "a.tar", {"0.left.jpg": picture(32), "0.right.jpg": picture(32)})
    assert "samples 1" in run(url)
    assert "samples 2" in run(url, "--key", "last_dot")
    data = Path(url).read_bytes()
    Path(url).write_bytes(data[:700])
    with pytest.raises(ShardChangedError, match="--force"):
        run(url)
    with pytest.raises(CorruptShardError, match="--allow-truncated"):
        run(url, "--force")
    out = run(url, "--force", "--allow-truncated")
    assert "cut off 1" in out and "samples 1" in out and "quarantined 1 cut 1" in out


def test_sizes_for_people() -> None:
    assert [format_bytes(n) for n in (0, 999, 1500, 2_500_000, 3 * 10**13)] == [
        "0 B", "999 B", "1.5 kB", "2.5 MB", "30.0 TB",
    ]  # fmt: skip
