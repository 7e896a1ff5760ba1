"""Where shards lie: one small protocol, and local files behind a memory map.

`Storage` is all that the rest of the package knows of a disk or a network: a size and ranged
reads. Local paths and ``file://`` URLs are mapped; a read is then a view, no copy. Before each
read the file's size is asked again, so a file that was cut under the map is an error here and
not a bus fault. URLs of stores and web servers are `remote`'s, imported when one comes up.
"""

from __future__ import annotations

import glob
import mmap
import os
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from types import ModuleType
from typing import Protocol, runtime_checkable

from ..errors import ConfigError, MissingDependencyError, ShardChangedError, StorageError
from .access import SCHEME, Access, ObjectStat, is_remote

_SUPPORTED = "local paths and URLs of file://, s3://, gs://, az://, abfs://, http:// and https://"
_CHECKED_AT_ONCE = 1000
OWN_SUFFIX = ".zmm.parquet"
"""How this package's own files beside shards end; a glob never takes them for shards."""


class Storage(Protocol):
    """One open object. Methods may be called from several threads."""

    def size(self) -> int:
        """Size in bytes, now."""
        ...

    def read(self, start: int, length: int) -> memoryview | bytes:
        """Exactly ``length`` bytes from ``start``.

        Raises:
            StorageError: the store can't be read.
            ShardChangedError: the object ends before ``start + length``.
        """
        ...

    def close(self) -> None:
        """Let go of the object. Views that were handed out stay valid."""
        ...


@runtime_checkable
class KeepingStorage(Storage, Protocol):
    """An object of which bytes are kept somewhere nearer."""

    def forget(self, start: int, length: int) -> None:
        """These bytes turned out wrong: keep them no more."""
        ...


class WholeStorage(Storage, Protocol):
    """An object that is read from start to end."""

    @property
    def identity(self) -> str | None:
        """A remote object's ETag, or else when it was last modified."""
        ...


class LocalStorage:
    """A local file behind a read-only memory map."""

    identity: str | None = None

    def __init__(self, path: str, url: str) -> None:
        self._url = url
        try:
            with open(path, "rb") as file:
                self._mapped = os.fstat(file.fileno()).st_size
                self._map = (
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self._mapped else None
                )
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{url}: can't be opened ({getattr(error, 'strerror', None) or error}); check that "
                "the shard exists and may be read"
            ) from error
        self._view = memoryview(self._map) if self._map is not None else memoryview(b"")

    def size(self) -> int:
        """Size in bytes, now; a file that grew or shrank shows it."""
        return self._map.size() if self._map is not None else self._mapped

    def read(self, start: int, length: int) -> memoryview:
        """A view of exactly ``length`` bytes from ``start``."""
        end = start + length
        if start < 0 or length < 0 or end > min(self._mapped, self.size()):
            raise ShardChangedError(
                f"bytes {start} to {end} were asked for and the file has {self.size()}: it was cut "
                "or rewritten; run `zephon-mm index --force` if that is meant",
                shard=self._url,
                offset=max(start, 0),
            )
        return self._view[start:end]

    def close(self) -> None:
        """Drop the map; it is freed once no view is left."""
        self._view = memoryview(b"")
        self._map, self._mapped = None, 0


def local_path(url: str) -> str:
    """The local path of ``url``.

    Raises:
        ConfigError: the URL is of a scheme that is not supported.
    """
    match = SCHEME.match(url)
    if match is None:
        return url
    if match.group(1).lower() != "file":
        raise ConfigError(
            f"{url!r}: storage {match.group(1)!r} is not supported; supported: {_SUPPORTED}"
        )
    parts = urllib.parse.urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{url!r}: a file:// URL has three slashes: file:///path/to/shard.tar")
    return urllib.parse.unquote(url[match.end() :].removeprefix("//").removeprefix("localhost"))


def remote_module() -> ModuleType:
    """`remote`, or MissingDependencyError where its library is not installed."""
    try:
        from . import remote
    except ImportError as error:
        raise MissingDependencyError(
            "shards in object stores and on web servers are read by obstore: install "
            "zephon-mm[remote]"
        ) from error
    return remote


def open_storage(
    url: str, access: Access | None = None, expected: ObjectStat | None = None
) -> Storage:
    """Open a shard for ranged reads.

    Args:
        url: of the shard.
        access: how remote shards are reached.
        expected: what a remote shard must be, as its index says.

    Raises:
        ConfigError: the scheme is not supported.
        StorageError: the shard can't be opened. A remote one is found out at the first read.
    """
    if not is_remote(url):
        return LocalStorage(local_path(url), url)
    found: Storage = remote_module().open_remote(url, access or Access(), expected)
    return found


def open_whole(url: str, access: Access | None = None) -> WholeStorage:
    """Open a shard for one pass over it, in order, its reads retried. Raises as `open_storage`."""
    if not is_remote(url):
        return LocalStorage(local_path(url), url)
    found: WholeStorage = remote_module().ForwardStorage(url, access or Access())
    return found


def stat(url: str, access: Access | None = None) -> ObjectStat:
    """Size of a shard, and a remote one's identity, without opening it.

    Raises:
        StorageError: it isn't there or can't be asked.
    """
    if is_remote(url):
        seen: ObjectStat = remote_module().stat(url, access or Access())
        return seen
    try:
        return ObjectStat(os.stat(local_path(url)).st_size)
    except OSError as error:
        raise StorageError(
            f"{url}: can't be read ({error.strerror}); check that the shard exists"
        ) from error


def expand_urls(urls: str | Sequence[str], access: Access | None = None) -> list[str]:
    """Expand braces as WebDataset does, and ``*``, ``?``, ``[…]`` (sorted).

    A list of over 1,000 literal paths is not looked up on the disk here, and a remote shard never:
    starting a run of 10⁵ shards must not cost 10⁵ stats. A missing shard is then found when it is
    first touched.

    Raises:
        ConfigError: nothing matches, a path is a folder or isn't there, a scheme is not
            supported, or a shard is named twice.
    """
    from braceexpand import braceexpand

    patterns = [urls] if isinstance(urls, str) else list(urls)
    found: list[str] = []
    for pattern in patterns:
        try:
            names = list(braceexpand(pattern)) if "{" in pattern else [pattern]
        except ValueError as error:
            raise ConfigError(f"urls: {pattern!r} has braces that do not match") from error
        if names:
            _check_url(names[0])
        if any(char in pattern for char in "*?["):
            names = [match for name in names for match in _expand_glob(name, access)]
        found.extend(names)
    if not found:
        raise ConfigError("urls is empty: name at least one shard")
    if len(set(found)) < len(found):
        twice = next(url for url, count in Counter(found).items() if count > 1)
        raise ConfigError(
            f"urls: {twice!r} is named twice; its samples would be counted twice. Use weights or "
            "epochs to show a shard more often"
        )
    if len(found) <= _CHECKED_AT_ONCE:
        for url in found:
            _check_file(url)
    return found


def _check_url(url: str) -> None:
    if is_remote(url):
        remote_module().check_url(url)
    else:
        local_path(url)


def _expand_glob(name: str, access: Access | None) -> list[str]:
    if is_remote(name):
        found = remote_module().expand(name, access or Access())
    elif os.path.exists(path := local_path(name)):
        return [name]
    else:
        found = sorted(glob.glob(path, recursive=True))
    matches = [match for match in found if not match.endswith(OWN_SUFFIX)]
    if not matches:
        raise ConfigError(f"urls: nothing matches {name!r}; check the path")
    return matches


def _check_file(url: str) -> None:
    if is_remote(url):
        if url.endswith("/"):
            raise ConfigError(f"urls: {url!r} is a folder; name its shards, as {url + '*.tar'!r}")
        return
    path = local_path(url)
    if os.path.isdir(path):
        raise ConfigError(
            f"urls: {url!r} is a folder; name its shards, as {os.path.join(url, '*.tar')!r}"
        )
    if not os.path.exists(path):
        raise ConfigError(f"urls: {url!r} is not there; check the path")
    if not os.path.isfile(path):
        raise ConfigError(f"urls: {url!r} is not a regular file, and shards are read at random")
