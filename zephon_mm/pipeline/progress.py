"""A progress bar for work that a user waits for, shown only where somebody looks."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_SECONDS = 1.0
"""Work that is done sooner shows nothing."""


class Bar:
    """Counts to ``total`` on stderr, if that is a terminal and the work takes over a second."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._begin = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None

    def advance(self, total: int | None = None) -> None:
        """One more is done; ``total`` where it was not known before."""
        self._done += 1
        self._total = total or self._total
        if self._shown is None and self._is_due():
            self._show()
        if self._shown is not None:
            progress, task = self._shown
            progress.update(task, completed=self._done, total=self._total)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()

    def _is_due(self) -> bool:
        return sys.stderr.isatty() and time.monotonic() - self._begin > PATIENCE_SECONDS

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        progress = Progress(console=Console(stderr=True), transient=True)
        self._shown = (progress, progress.add_task(self._what, total=self._total))
        progress.start()
