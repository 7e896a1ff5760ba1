"""Shards in S3, GCS, Azure and on web servers, through obstore (extra ``remote``).

A read is one ranged request. What a store says of an object (its size, and its ETag or else the
time of its last change) comes with every answer and must be what the index recorded, so an object
that was replaced is never mixed with its former self. Obstore's own retries are off: one policy,
`Access.retry`, covers requests, bodies cut half-way and time-outs alike.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import obstore
from obstore import exceptions

from ..errors import ConfigError, ShardChangedError, StorageError, StorageRefusedError
from .access import Access, ObjectStat
from .block_cache import CachedStorage, open_cache
from .stores import check_process, check_url, locate, short

__all__ = [
    "ForwardStorage",
    "RemoteStorage",
    "check_url",
    "expand",
    "fetch",
    "open_remote",
    "put",
    "stat",
]

READ_AHEAD_BYTES = 8 << 20
_WILD = re.compile(r"[*?\[]")


class _NotNewerError(Exception):
    """The object was not modified since."""


class RemoteStorage:
    """One object of a store, read by ranges. Thread-safe.

    Args:
        url: of the object.
        access: how it is reached.
        expected: what the index says of it; without an identity the first answer's holds.
    """

    def __init__(self, url: str, access: Access, expected: ObjectStat | None = None) -> None:
        self._url = url
        self._store, self._path = locate(url, access)
        self._lock = threading.Lock()
        self._expected = expected

    def size(self) -> int:
        """Size in bytes, now."""
        return self.stat().size

    def stat(self) -> ObjectStat:
        """What the store says of the object, now. Raises as `read`."""
        with _faults(self._url):
            found = _stat_of(obstore.head(self._store, self._path))
        self._check(found)
        return found

    def read(self, start: int, length: int) -> memoryview | bytes:
        """Exactly ``length`` bytes from ``start``, in one request.

        Raises:
            StorageError: the store can't be read.
            StorageRefusedError: the object is not there, or the server knows no ranges.
            ShardChangedError: the object is another one, or ends before.
        """
        if length == 0:
            return b""
        expected = self._expected
        if start < 0 or length < 0 or (expected is not None and start + length > expected.size):
            raise self._cut(start, length)
        try:
            with _faults(self._url):
                result = obstore.get(
                    self._store, self._path, options={"range": (start, start + length)}
                )
                self._check(_stat_of(result.meta))
                data = memoryview(result.bytes())
        except StorageRefusedError:
            raise
        except StorageError:
            self._look_again()
            raise
        if len(data) != length:
            raise self._cut(start, length)
        return data

    def close(self) -> None:
        """Nothing to let go of: connections belong to the store, which shards share."""

    @property
    def expected(self) -> ObjectStat | None:
        """What every answer must say of the object."""
        return self._expected

    def _look_again(self) -> None:
        """After a failed read: if the object is another one now, that is what is told."""
        if self._expected is not None:
            try:
                self.stat()
            except StorageError:
                return

    def _check(self, found: ObjectStat) -> None:
        with self._lock:
            if self._expected is None or (
                self._expected.identity is None and self._expected.size == found.size
            ):
                self._expected = found
            if self._expected == found:
                return
            expected = self._expected
        raise ShardChangedError(
            f"the store has {_describe(found)} and it was {_describe(expected)} when it was "
            "indexed or opened; if the change is meant, run `zephon-mm index --force`",
            shard=self._url,
        )

    def _cut(self, start: int, length: int) -> ShardChangedError:
        size = "" if self._expected is None else f" and the object has {self._expected.size}"
        return ShardChangedError(
            f"bytes {start} to {start + length} were asked for{size}: it was cut or rewritten; run "
            "`zephon-mm index --force` if that is meant",
            shard=self._url,
            offset=max(start, 0),
        )


class ForwardStorage:
    """A remote object that is read from start to end, once: what indexing does.

    Holds one window of the object; bytes are asked for ahead, 8 MiB at a time (or a
    member that is larger), and none twice unless a read goes back behind the last one. Not for
    several threads.
    """

    def __init__(self, url: str, access: Access) -> None:
        self._url = url
        self._inner = RemoteStorage(url, access)
        self._retry = access.retry
        self._size: int | None = None
        self._start = 0
        self._window = memoryview(b"")

    def size(self) -> int:
        """Size in bytes, when it was first asked for."""
        if self._size is None:
            self._size = self._retry.run(self._url, self._inner.size)
        return self._size

    @property
    def identity(self) -> str | None:
        """Of the object that was read."""
        return None if self._inner.expected is None else self._inner.expected.identity

    def read(self, start: int, length: int) -> memoryview:
        """See `RemoteStorage.read`; retried."""
        stop, end = start + length, self._start + len(self._window)
        if start < self._start or start > end:  # not where the window ends: a new one
            self._start, self._window, end = start, memoryview(b""), start
        if stop > end:
            until = max(stop, min(self.size(), end + READ_AHEAD_BYTES))
            fresh = self._retry.run(self._url, lambda: self._inner.read(end, until - end))
            kept = self._window[start - self._start :]
            self._window = memoryview(b"".join((kept, fresh)) if len(kept) else fresh)
            self._start = start
        at = start - self._start
        return self._window[at : at + length]

    def close(self) -> None:
        """Drop the window; views of it stay valid."""
        self._window = memoryview(b"")


def open_remote(
    url: str, access: Access, expected: ObjectStat | None
) -> RemoteStorage | CachedStorage:
    """An object for reading at random, through the cache of this host where there is one."""
    inner = RemoteStorage(url, access, expected)
    if not access.cache_bytes:
        return inner
    return CachedStorage(inner, url, open_cache(access.cache_dir, access.cache_bytes))


def stat(url: str, access: Access) -> ObjectStat:
    """What the store says of an object; retried. Raises as `RemoteStorage.read`."""
    storage = RemoteStorage(url, access)
    return access.retry.run(url, storage.stat)


def expand(pattern: str, access: Access) -> list[str]:
    """Objects whose URL matches, sorted.

    ``*`` and ``?`` stand for anything but a slash, ``**`` also for slashes, ``[…]`` for one of
    some characters. All that begins as the pattern does up to its first wildcard's folder is
    listed.

    Raises:
        ConfigError: it is a URL of a web server, which can't be listed.
        StorageError: the store can't be listed.
    """
    if not _WILD.search(pattern):
        return [pattern]
    if pattern.lower().startswith("http"):
        raise ConfigError(
            f"urls: {pattern!r}: a web server's files can't be listed; name the shards with "
            "braces, as in shard-{000000..000099}.tar"
        )
    wild = _WILD.search(pattern)
    folder = pattern[: pattern.rindex("/", 0, wild.start() if wild else None) + 1]
    store, prefix = locate(folder, access)
    root = folder.removesuffix(prefix + "/") if prefix else folder

    def work() -> list[str]:
        with _faults(folder):
            pages = obstore.list(store, prefix or None)
            return [str(found["path"]) for page in pages for found in page]

    regex = re.compile(_translate(pattern))
    found = (root + path for path in access.retry.run(folder, work))
    return sorted(url for url in found if regex.fullmatch(url))


def fetch(url: str, access: Access, newer_than: float | None = None) -> tuple[bytes, float] | None:
    """A small object and when it was last modified (seconds since 1970); None: not there.

    Or not modified after ``newer_than``, where that is given.
    A store that doesn't say what is not there (403 to those who may not list) counts as not
    having it.
    """
    store, path = locate(url, access)
    options: dict[str, Any] = {}
    if newer_than is not None:
        options["if_modified_since"] = datetime.fromtimestamp(newer_than, UTC)

    def work() -> tuple[bytes, float] | None:
        try:
            with _faults(url):
                result = obstore.get(store, path, options=options)
                modified = float(result.meta["last_modified"].timestamp())
                if newer_than is not None and modified <= newer_than:
                    return None
                return bytes(result.bytes()), modified
        except (StorageRefusedError, _NotNewerError):
            return None

    return access.retry.run(url, work)


def put(url: str, path: str, access: Access) -> None:
    """Store a local file as an object, whole or not at all; retried.

    Raises:
        StorageError: the store can't be written.
        StorageRefusedError: it takes no such file.
    """
    if url.lower().startswith("http"):
        raise StorageRefusedError(f"{url}: a web server takes no files")
    store, name = locate(url, access)
    with open(path, "rb") as file:
        data = file.read()

    def work() -> None:
        with _faults(url):
            obstore.put(store, name, data)

    access.retry.run(url, work, done="written")


def _stat_of(meta: Any) -> ObjectStat:
    tag = meta["e_tag"]
    identity = tag.removeprefix("W/") if tag else f"modified {meta['last_modified'].isoformat()}"
    return ObjectStat(int(meta["size"]), identity)


def _describe(found: ObjectStat) -> str:
    return f"{found.size} bytes, {found.identity or 'unknown'}"


@contextmanager
def _faults(url: str) -> Iterator[None]:
    """Turn what obstore raises into this package's errors."""
    check_process(url)
    try:
        yield
    except (StorageError, ShardChangedError):
        raise
    except exceptions.NotModifiedError as error:
        raise _NotNewerError(url) from error
    except FileNotFoundError as error:
        raise StorageRefusedError(f"{url}: it is not there; check the URL") from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise StorageRefusedError(
            f"{url}: the store does not allow it ({short(error)}); check the credentials in the "
            "environment or in ExecutionConfig.storage_options"
        ) from error
    except exceptions.NotSupportedError as error:
        raise StorageRefusedError(
            f"{url}: the server can't do what is needed ({short(error)}); shards are read in "
            "parts, by HTTP range requests"
        ) from error
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise StorageError(f"{url}: {short(error)}") from error


def _translate(pattern: str) -> str:
    """A glob as a regular expression."""
    out = []
    for part in re.findall(r"\*\*/?|\*|\?|\[!?[^\]]+\]|.", pattern, re.DOTALL):
        if part == "**/":
            out.append("(?:.*/)?")
        elif part in ("**", "*", "?"):
            out.append({"**": ".*", "*": "[^/]*", "?": "[^/]"}[part])
        elif len(part) > 1:
            body = part[1:-1].replace("\\", r"\\")
            out.append(f"[^{body[1:]}]" if body.startswith("!") else f"[{body}]")
        else:
            out.append(re.escape(part))
    return "".join(out)
