"""Stores of obstore: from a URL and options to something that can be asked.

Fork: obstore's threads are not in a forked child and a request there would wait for ever, so it is
refused. Start workers by spawn.
"""

from __future__ import annotations

import functools
import os
import re
import urllib.parse
from datetime import timedelta
from typing import Any

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from ..errors import ConfigError, StorageRefusedError
from .access import Access

_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
_OWNERS = {"aws_": "s3", "google_": "gs", "azure_": "az"}
_STORES = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_QUERY = re.compile(r"\?\S+")


def check_url(url: str) -> tuple[str, str]:
    """A URL's store (``s3://bucket``) and the path in it. ConfigError: it can't be used."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    web = scheme.lower() in ("http", "https")
    if not host:
        raise ConfigError(f"{url!r} names no store; expected {scheme}://STORE/path/shard.tar")
    if web and ("?" in path or "#" in path):
        raise ConfigError(
            f"{hide_query(url)!r} has a query; signed URLs expire and are different shards "
            "each time: use s3://, gs:// or az:// with credentials, or a plain URL"
        )
    if "@" in host and scheme.lower() not in ("abfs", "abfss"):
        raise ConfigError(
            f"{scheme}://…@{host.rpartition('@')[2]}/{path}: a URL is part of the data's identity; "
            "put credentials in the environment or in ExecutionConfig.storage_options"
        )
    return f"{scheme}://{host}", urllib.parse.unquote(path) if web else path


def locate(url: str, access: Access) -> tuple[Any, str]:
    """The store of a URL, and the object's path in it."""
    check_process(url)
    root, path = check_url(url)
    try:
        return _make_store(root, access.options, access.timeout_seconds), path.strip("/")
    except (exceptions.BaseError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{url}: storage_options don't fit ({short(error)}); obstore's documentation lists "
            "the options of each store"
        ) from error


def check_process(url: str) -> None:
    """StorageRefusedError in a process that was forked from one that had used obstore."""
    if _home() != os.getpid():
        raise StorageRefusedError(
            f"{url}: this process was forked from one that had read remote shards, and the threads "
            "that read are not in it; start workers with spawn or forkserver instead of fork"
        )


@functools.cache
def _home() -> int:
    """The process that first used obstore, whose threads it has."""
    return os.getpid()


@functools.lru_cache(maxsize=256)
def _make_store(root: str, options: tuple[tuple[str, str], ...], timeout: float) -> Any:
    """A store and its connections; the same for all its shards."""
    scheme = root.partition(":")[0].lower()
    kind = {"s3": "s3", "s3a": "s3", "gs": "gs", "http": "http", "https": "http"}.get(scheme, "az")
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=min(10.0, timeout)),
        "read_timeout": timedelta(seconds=timeout),
        "timeout": timedelta(seconds=10 * timeout),
    }
    config: dict[str, Any] = {}
    for name, value in options:
        name = name.lower()
        owner = next((_OWNERS[p] for p in _OWNERS if name.startswith(p)), kind)
        if name in _CLIENT_OPTIONS:
            client[name] = value
        elif owner == kind and kind != "http":
            config[name] = value
            if "endpoint" in name and value.lower().startswith("http://"):
                client.setdefault("allow_http", True)
    retry: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=10 * timeout)}
    if kind == "http":
        client.setdefault("allow_http", scheme == "http")
        return HTTPStore(root, client_options=client, retry_config=retry)
    return _STORES[kind].from_url(root, config=config, client_options=client, retry_config=retry)


def hide_query(text: str) -> str:
    """Text without what follows a question mark: it may be a signature."""
    return _QUERY.sub("?…", text)


def short(error: BaseException) -> str:
    """The first line of an error, without what may be a signature."""
    return hide_query(str(error).partition("\n")[0])[:400]
