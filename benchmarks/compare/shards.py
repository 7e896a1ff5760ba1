"""Reading shards for those that have no reader of WebDataset's, and turning them into others.

A contestant whose peer wants a format of its own is run once as ``… --prepare FOLDER WORK``, before
all measured times; how long that took is a field of each of its replies.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.compare.protocol import Job


def shards_of(folder: str | Path, work: str) -> list[str]:
    """Paths of a work's shards, in order."""
    return sorted(map(str, Path(folder).glob(f"{work}-*.tar")))


def samples(shard: str, skip: int = 0) -> Iterator[dict[str, bytes]]:
    """The samples of a shard: neighbouring members of one name, up to its first dot.

    Args:
        shard: Path of the tar file.
        skip: So many are passed over unread.
    """
    sample: dict[str, bytes] = {}
    key, number = None, -1
    with tarfile.open(shard, "r:") as tar:
        for member in tar:
            name, _, field = member.name.rpartition("/")[2].partition(".")
            if name != key:
                if sample:
                    yield sample
                key, number, sample = name, number + 1, {}
            file = tar.extractfile(member) if number >= skip else None
            if file is not None:
                sample[field] = file.read()
    if sample:
        yield sample


def prepared(folder: str | Path, name: str) -> Path:
    """Where the data of contestant ``name`` lie: a folder a work."""
    return Path(folder) / name


def seconds(job: Job, name: str) -> float:
    """How long the conversion of the job's work took."""
    report = prepared(job.data, name) / "seconds.json"
    taken: dict[str, float] = json.loads(report.read_text(encoding="utf-8"))
    return taken[job.work]


def prepare(name: str, write: Callable[[list[str], str], None]) -> bool:
    """True if the command line asked for the conversion, which is then done.

    Args:
        name: Of the contestant.
        write: Makes of a work's shards a folder in the peer's format, which isn't there yet.
    """
    if sys.argv[1:2] != ["--prepare"]:
        return False
    target = prepared(sys.argv[2], name)
    target.mkdir(exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed
        _convert(target, sys.argv[2], sys.argv[3], write)
    return True


def _convert(target: Path, folder: str, work: str, write: Callable[[list[str], str], None]) -> None:
    """Convert a work, if it wasn't yet, and note how long it took."""
    report = target / "seconds.json"
    taken = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
    if work in taken:
        return
    shutil.rmtree(target / work, ignore_errors=True)  # of a conversion that broke off
    begin = time.monotonic()
    write(shards_of(folder, work), str(target / work))
    taken[work] = round(time.monotonic() - begin, 3)
    part = report.with_suffix(".part")
    part.write_text(json.dumps(taken), encoding="utf-8")
    part.rename(report)


def same_fields(tar: str) -> list[str] | None:
    """The fields of each sample of a shard, None if they differ from sample to sample."""
    first, *others = samples(tar)
    return list(first) if all(other.keys() == first.keys() for other in others) else None


def write_parquet(tars: list[str], target: str, row_group: int = 64) -> None:
    """A Parquet file a shard, a column of bytes a field; not compressed, as media are already."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [list(samples(tar)) for tar in tars]
    columns = sorted({field for shard in rows for row in shard for field in row})
    Path(target).mkdir()
    for number, shard in enumerate(rows):
        table = pa.table({c: pa.array([r.get(c) for r in shard], pa.binary()) for c in columns})
        file = f"{target}/{number:05d}.parquet"
        pq.write_table(table, file, row_group_size=row_group, compression="none")
