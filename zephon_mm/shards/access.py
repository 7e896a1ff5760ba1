"""How shards that are not local files are reached, and how often a failed read is tried again.

`Access` is plain data, so it travels to worker processes; it is never part of a fingerprint. Which
library does the reaching is `remote`'s affair, imported when a remote URL first comes up.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from ..errors import ShardChangedError, StorageError, StorageRefusedError

T = TypeVar("T")

SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")
REMOTE_SCHEMES = frozenset(
    {"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https"}
)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often what failed is tried again, and after which pauses.

    Args:
        retries: tries after the first.
        first_pause_seconds: before the second try; remote ones vary it by up to a half, so that
            many ranks don't come back at once.
        factor: by which each pause is longer than the one before.
        longest_pause_seconds: no pause is longer.
        spread: whether pauses vary.
    """

    retries: int = 3
    first_pause_seconds: float = 0.05
    factor: float = 2.0
    longest_pause_seconds: float = 1.0
    spread: bool = False

    def run(
        self,
        url: str,
        work: Callable[[], T],
        on_retry: Callable[[], None] = lambda: None,
        done: str = "read",
    ) -> T:
        """``work()``, tried again after faults of disk or network; ``done``: what it does to it.

        Raises:
            StorageError: the last try failed too.
            StorageRefusedError: trying again can't help.
            ShardChangedError: also the second time that the bytes were others.
        """
        pause = self.first_pause_seconds
        changed = 0
        for attempt in range(self.retries + 1):
            try:
                return work()
            except StorageRefusedError:
                raise
            except ShardChangedError:
                changed += 1
                if changed > 1 or attempt == self.retries:
                    raise
            except OSError as error:
                if attempt == self.retries:
                    if isinstance(error, StorageError) and not attempt:
                        raise
                    what = getattr(error, "strerror", None) or error
                    raise StorageError(
                        f"{url}: can't be {done} after {attempt + 1} tries ({what}); check the "
                        "disk or network"
                    ) from error
            on_retry()
            time.sleep(pause * (0.5 + secrets.randbelow(1001) / 1000) if self.spread else pause)
            pause = min(self.factor * pause, self.longest_pause_seconds)
        raise StorageError(f"{url}: not tried; read_retries={self.retries} is below 0")


REMOTE_RETRY = Retry(first_pause_seconds=0.5, factor=4.0, longest_pause_seconds=60.0, spread=True)
"""Three retries: some 10 seconds of pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How remote shards are reached.

    Args:
        options: ``(name, value)`` of the store, as obstore names them; credentials that are not
            here come from the environment.
        timeout_seconds: for which a request may give nothing; a whole request may take ten times
            that.
        retry: of a read that failed.
        cache_dir: where bytes of shards are kept; None: the user's cache folder.
        cache_bytes: of shards kept there by all processes of a host together; 0: none.
        share_indices: put new indices beside remote shards (`zephon-mm index` does).
    """

    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_seconds: float = 30.0
    retry: Retry = REMOTE_RETRY
    cache_dir: str | None = None
    cache_bytes: int = 0
    share_indices: bool = False


def default_cache_dir() -> str:
    """``$XDG_CACHE_HOME/zephon_mm``, or ``~/.cache/zephon_mm``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "zephon_mm")


@lru_cache(maxsize=1 << 16)
def is_remote(url: str) -> bool:
    """Whether a URL is of a store or a web server."""
    match = SCHEME.match(url)
    return match is not None and match.group(1).lower() in REMOTE_SCHEMES


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What a store says of an object.

    Attributes:
        size: in bytes.
        identity: its ETag, or else when it was last modified; None: not known, or a local file.
    """

    size: int
    identity: str | None = None
