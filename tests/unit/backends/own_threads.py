"""The threads that belong to this library."""

from __future__ import annotations

import threading


def our_threads() -> list[str]:
    """Names of those that are alive."""
    return [t.name for t in threading.enumerate() if t.name.startswith("zephon_mm-")]
