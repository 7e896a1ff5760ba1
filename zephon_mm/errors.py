"""The exception tree.

::

    ZephonError
    ├── ConfigError              a field of a config is wrong, or two disagree
    ├── MissingDependencyError   an optional library is needed and not installed
    ├── ShardIndexError
    │   ├── CorruptShardError    a header is broken or the file is cut
    │   ├── ShardChangedError    bytes differ from what the index recorded
    │   └── SidecarError         an index file is of another version, or unreadable
    ├── StorageError             a disk or network fault that outlived its retries
    │   └── StorageRefusedError  the store says no: trying again can't help
    ├── SampleError              a sample's own bytes make it impossible (quarantined)
    │   └── MediaError           … because of one of its media
    ├── TooManyQuarantinedError  more failures in a row than the config allows
    ├── DocumentTooLongError     over_long="error" met a document that does not fit
    ├── StateError               a state cannot be restored here
    └── DigestLogError           a digest log is not there, damaged, or of another version

Every message says what was found, what was expected and what to do.
"""

from __future__ import annotations


class ZephonError(Exception):
    """Root of every error that this package raises on purpose."""


class ConfigError(ZephonError, ValueError):
    """A config field is wrong. The message names the field, the value and the choices."""


class MissingDependencyError(ZephonError, ImportError):
    """An optional library is needed. The message names the extra to install."""


class ShardIndexError(ZephonError):
    """A shard and its index cannot be used together.

    Args:
        message: what is wrong and what to do.
        shard: the shard's path or URL.
        offset: byte offset in the shard, where it is known.
    """

    def __init__(self, message: str, *, shard: str, offset: int | None = None) -> None:
        at = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{shard}{at}: {message}")
        self.shard = shard
        self.offset = offset
        self.message = message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_shard_error, (type(self), self.message, self.shard, self.offset))


def _rebuild_shard_error(
    kind: type[ShardIndexError], message: str, shard: str, offset: int | None
) -> ShardIndexError:
    return kind(message, shard=shard, offset=offset)


class CorruptShardError(ShardIndexError):
    """A tar header is broken, or the file ends before its last member does."""


class ShardChangedError(ShardIndexError):
    """The bytes read are not those the index recorded."""


class SidecarError(ShardIndexError):
    """An index file is of another version, cut short, or belongs to another shard."""


class StorageError(ZephonError, OSError):
    """A disk or network fault that outlived its retries."""


class StorageRefusedError(StorageError):
    """The store says no (not there, not allowed, not possible): trying again can't help."""


class SampleError(ZephonError):
    """The sample's own bytes make it impossible: it is quarantined, and counted.

    Args:
        reason: one line, without the sample's content.
        stage: the stage that found it: ``index``, ``format``, ``tokenise``, ``probe``, ``layout``.
        kind: the outcome: ``quarantined`` or ``filtered`` (a rule of the config) or ``dropped``.
    """

    def __init__(self, reason: str, *, stage: str, kind: str = "quarantined") -> None:
        super().__init__(reason)
        self.reason = reason
        self.stage = stage
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_sample_error, (type(self), self.reason, self.stage, self.kind))


def _rebuild_sample_error(
    cls: type[SampleError], reason: str, stage: str, kind: str
) -> SampleError:
    return cls(reason, stage=stage, kind=kind)


class MediaError(SampleError):
    """A medium has no readable header, or cannot be decoded as its index says."""


class TooManyQuarantinedError(ZephonError):
    """More samples in a row were quarantined than ``max_consecutive_quarantined`` allows."""


class DocumentTooLongError(ZephonError):
    """``over_long="error"`` and a document does not fit a sequence."""


class WorkerError(ZephonError):
    """A worker process can't be started, or what passes to or from it does not pickle."""


class WorkerDiedError(WorkerError):
    """One item ended every worker process that it was given to: a crash in a library, or memory.

    Args:
        reason: how the processes died and what to do.
        shard: of the sample that the item is about, where it is known.
        key: of that sample.
    """

    def __init__(self, reason: str, *, shard: str = "", key: str = "") -> None:
        super().__init__(f"{shard}, key {key!r}: {reason}" if shard else reason)
        self.reason = reason
        self.shard = shard
        self.key = key

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_died, (self.reason, self.shard, self.key))

    def of_sample(self, shard: str, key: str) -> WorkerDiedError:
        """The same, naming the sample."""
        return WorkerDiedError(self.reason, shard=shard, key=key)


def _rebuild_died(reason: str, shard: str, key: str) -> WorkerDiedError:
    return WorkerDiedError(reason, shard=shard, key=key)


class StateError(ZephonError):
    """A state does not belong to this config, is incomplete, or is damaged."""


class DigestLogError(ZephonError):
    """A run's digest log is not there, is damaged, or was written by another version."""
