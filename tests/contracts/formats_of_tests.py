"""Formats by import path, as a user writes them, for worker processes to run."""

from __future__ import annotations

import os
import signal

from zephon_mm.formats import FormatOptions, Sample
from zephon_mm.sample import Document, TextPart


def poison(sample: Sample, options: FormatOptions) -> Document:
    """The text; a sample whose text says so kills the process, as a crash in a library does."""
    text = sample.text("txt")
    if "poison" in text:
        die()
    return Document((TextPart(text),))


def die() -> None:
    """What a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)
