"""What went wrong with which sample, each said once."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import IO

from ..config import DataConfig
from ..errors import ConfigError
from ..sample import MeasuredDocument, Rejected, SampleRef
from .lane import LaneSnapshot

_log = logging.getLogger("zephon_mm")

KEPT = 1000
"""Entries kept in memory."""

MOST_SEEN = 1_000_000
"""Samples remembered so as not to be told of twice; beyond it, memory counts more."""

FRUITLESS = 20
"""Samples of a source without a document, after which a warning says so."""


class Report:
    """Collects rejected samples and damaged media; logs each (sample, stage) once a process.

    Args:
        config: for the sources' ids.
        path: a file that gets one JSON line an entry; None: only the log.
    """

    def __init__(self, config: DataConfig, path: str | None = None) -> None:
        self._ids = [source.id for source in config.sources]
        self._path = path
        self._file = self._open()
        self._seen: set[tuple[int, int, int, str]] = set()
        self._lock = threading.Lock()
        self._entries: deque[dict[str, str | int]] = deque(maxlen=KEPT)
        self._unseen = {i for i, source in enumerate(config.sources) if source.weight}
        self._reasons: dict[str, Counter[str]] = {name: Counter() for name in self._ids}
        self.damaged: Counter[str] = Counter()
        self.last_rejected: deque[Rejected] = deque(maxlen=5)

    def reject(self, rejected: Rejected) -> None:
        """A sample that gave no document, or a piece that trains nothing."""
        self.last_rejected.append(rejected)
        with self._lock:
            reasons = self._reasons[self._ids[rejected.ref.source]]
            reason = f"{rejected.outcome} at stage {rejected.stage}: {rejected.reason}"
            if reason in reasons or len(reasons) < KEPT:
                reasons[reason] += 1
        self._add(
            rejected.ref,
            rejected.shard,
            rejected.key,
            rejected.outcome,
            rejected.stage,
            rejected.reason,
        )

    def damage(self, document: MeasuredDocument, reason: str) -> None:
        """A delivered document with a medium that can't be decoded: its labels are −100 (C6)."""
        self.damaged[self._ids[document.ref.source]] += 1
        self._add(document.ref, document.shard, document.key, "damaged", "decode", reason)

    def watch(self, lanes: Sequence[LaneSnapshot]) -> None:
        """Warn once of each source that has given nothing but rejected samples so far."""
        for number in list(self._unseen):
            counts = [lane.sequencer.counts[number] for lane in lanes]
            rejected = sum(sum(c[1:4]) for c in counts)
            if any(c[0] or c[4] for c in counts):
                self._unseen.discard(number)
            elif rejected >= FRUITLESS:
                self._unseen.discard(number)
                with self._lock:  # the feed's thread goes on reporting
                    reasons = self._reasons[self._ids[number]].most_common(1)
                _log.warning(
                    "source %r has given no document in its first %d samples; most often: %s",
                    self._ids[number],
                    rejected,
                    reasons[0][0] if reasons else "see reject_log",
                )

    def entries(self) -> list[dict[str, str | int]]:
        """The last `KEPT` entries, oldest first. Any thread may ask while others report."""
        with self._lock:
            return list(self._entries)

    def close(self) -> None:
        """Close the file; a later entry opens it again."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _open(self) -> IO[str] | None:
        if self._path is None:
            return None
        try:
            return open(self._path, "a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ConfigError(
                f"reject_log={self._path!r} can't be written ({error.strerror}); name a file in a "
                "folder that is there"
            ) from error

    def _add(
        self, ref: SampleRef, shard: str, key: str, outcome: str, stage: str, reason: str
    ) -> None:
        with self._lock:
            place = (ref.source, ref.shard, ref.sample, stage)
            if place in self._seen:
                return
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen.add(place)
            entry: dict[str, str | int] = {
                "outcome": outcome,
                "source": self._ids[ref.source],
                "shard": shard,
                "key": key,
                "epoch": ref.epoch,
                "stage": stage,
                "reason": reason,
            }
            self._entries.append(entry)
            self._file = self._file or self._open()
            if self._file is not None:
                self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
                self._file.flush()
        level = logging.INFO if outcome == "filtered" else logging.WARNING
        _log.log(
            level,
            "%s: source %s, shard %s, key %r, epoch %d, stage %s: %s",
            outcome,
            entry["source"],
            shard,
            key,
            ref.epoch,
            stage,
            reason,
        )
