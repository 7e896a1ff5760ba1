"""Cases V01 and Z08 as a kind: what a parent has opened is not shared with forked children."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.unit.media.clips import make_clip
from tests.unit.shards.tars import copied, tar_bytes, write
from zephon_mm.config import Source
from zephon_mm.decoders import load_decoder
from zephon_mm.media.probe_video import probe_video
from zephon_mm.shards import ShardReader, open_source


def digests(reader: ShardReader, samples: Sequence[int]) -> list[str]:
    index = reader.index(0, 0)
    return [
        hashlib.sha256(reader.read(0, 0, position)).hexdigest()
        for sample in samples
        for position in index.members(sample).values()
    ]


def send(end: Any, job: Any, *arguments: Any) -> None:
    end.send(job(*arguments))


def in_children(jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Start a fork for each job; what each gives, and that it ends."""
    context = multiprocessing.get_context("fork")
    started = []
    for job in jobs:
        end, other = context.Pipe(duplex=False)
        process = context.Process(target=send, args=(other, *job))
        process.start()
        other.close()
        started.append((end, process))
    found = []
    for end, process in started:
        assert end.poll(120)
        found.append(end.recv())
        process.join(60)
        assert process.exitcode == 0
    return found


def test_readers_of_a_shard_do_not_move_each_other(cases: Path, tmp_path: Path) -> None:
    url = copied(tmp_path, cases / "inputs/W11/full.tar")
    manifest = open_source(Source(id="s", urls=(url,), format="captions"))
    whole = ShardReader([manifest])
    samples = range(whole.index(0, 0).num_samples)
    want = digests(whole, samples)
    members = len(want) // len(samples)
    assert len(set(want)) == len(want) >= 4
    reader = ShardReader([manifest])
    half = len(samples) // 2
    mine = digests(reader, samples[:half])
    theirs = in_children([(digests, reader, samples[half:][::2]), (digests, reader, samples[::-1])])
    mine += digests(reader, samples[half:])
    assert mine == want
    assert theirs[1] == digests(whole, samples[::-1])
    assert theirs[0] == digests(whole, samples[half:][::2]) and members >= 2


def decode(reader: ShardReader, order: Sequence[int]) -> list[str]:
    data = reader.read(0, 0, 0)
    decoded = load_decoder("pyav").decode(data, probe_video(data), order)
    return [frame.md5() for frame in decoded]


def test_children_decode_while_the_parent_is_in_mid_clip(tmp_path: Path) -> None:
    clip = make_clip(options={"g": "6", "bf": "2"})
    url = write(tmp_path, tar_bytes([("0.mp4", clip), ("0.txt", b"a clip")]), "clips.tar")
    reader = ShardReader([open_source(Source(id="s", urls=(url,), format="captions"))])
    want = decode(reader, range(24))
    assert len(set(want)) == 24
    open_one = load_decoder("pyav").stream(reader.read(0, 0, 0), probe_video(clip), range(24))
    mine = [next(open_one).md5() for _ in range(5)]
    theirs = in_children([(decode, reader, [20, 3]), (decode, reader, [7])])
    mine += [frame.md5() for frame in open_one]
    assert mine == want
    assert theirs == [[want[20], want[3]], [want[7]]]
