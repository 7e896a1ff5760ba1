"""Where index files lie: beside their shards, or in the cache folder; and how they get there.

Files are written under another name and renamed, so readers see a whole file or none. The index of
a remote shard is read from the cache folder; it is fetched into it from beside the shard, or made
there and put beside the shard where the store takes it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from ..errors import StorageError, StorageRefusedError
from .access import Access, default_cache_dir, is_remote
from .grouping import KeyRule
from .storage import local_path, remote_module

_log = logging.getLogger(__name__)


def sidecar_suffix(key_rule: KeyRule) -> str:
    """What follows a shard's name in its sidecar's."""
    return ".zmm.parquet" if key_rule == "first_dot" else f".{key_rule}.zmm.parquet"


def sidecar_paths(url: str, key_rule: KeyRule, cache_dir: str | None) -> tuple[str, ...]:
    """Where a shard's sidecar may lie: beside it, and in the cache folder; a remote one's there."""
    suffix = sidecar_suffix(key_rule)
    if is_remote(url):
        return (cache_path(url, "remote" + suffix, cache_dir),)
    path = local_path(url)
    name = os.path.basename(path) + suffix
    return path + suffix, cache_path(os.path.abspath(path), name, cache_dir)


def cache_path(identity: str, name: str, cache_dir: str | None) -> str:
    """A file in the cache folder, named by a hash of what it stands for."""
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:20]
    return os.path.join(cache_dir or default_cache_dir(), "index", f"{digest}-{name[-100:]}")


def write_atomic(path: str, write: Callable[[str], None]) -> None:
    """Make ``path`` by renaming: ``write`` gets the name of a temporary file beside it."""
    folder = os.path.dirname(path) or "."
    temporary = os.path.join(folder, f".zmm-{secrets.token_hex(8)}.tmp")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_first_possible(paths: tuple[str, ...], write: Callable[[str], None]) -> str:
    """Write to the first path whose folder takes it; the last path's folder is made.

    A folder without any write bit is left alone, also by root, whom the system would let write.

    Raises:
        StorageError: none can be written.
    """
    last = OSError("no folder to write to")
    for path in paths:
        try:
            folder = os.path.dirname(path) or "."
            if path is paths[-1]:
                os.makedirs(folder, exist_ok=True)
            if not os.stat(folder).st_mode & 0o222:
                raise PermissionError(13, "the folder is read-only")
            write_atomic(path, write)
            return path
        except OSError as error:
            last = error
    raise StorageError(
        f"{paths[-1]}: the index can't be written ({last.strerror or last}); pass a cache folder "
        "that can be (ExecutionConfig.cache_dir, `--cache-dir`)"
    ) from last


def fetch_beside(url: str, path: str, access: Access, newer_than: float | None = None) -> bool:
    """Copy a Parquet file that lies in a store to ``path``; False where there is none (newer).

    The copy has the object's time.
    """
    found = remote_module().fetch(url, access, newer_than)
    if found is None or not found[0].startswith(b"PAR1"):  # some servers answer with a page
        return False
    data, modified = found

    def write(temporary: str) -> None:
        Path(temporary).write_bytes(data)
        os.utime(temporary, (modified, modified))

    write_first_possible((path,), write)
    return True


def put_beside(url: str, path: str, access: Access) -> None:
    """Put a file beside remote shards, if `Access.share_indices` and the store takes it."""
    if not access.share_indices:
        return
    try:
        remote_module().put(url, path, access)
    except StorageRefusedError as error:
        _log.info("the index stays in the cache folder (%s): %s", path, error)
    except StorageError as error:
        _log.warning("the index stays in the cache folder (%s): %s", path, error)
