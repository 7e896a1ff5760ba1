"""Formats by import path, as a user writes them, for worker processes to run."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

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


class Looks:
    """What a worker process has: whether the tokenizer is loaded there, and which big modules."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def modules_of(self, modules: tuple[str, ...]) -> tuple[str, ...]:
        return modules

    def __call__(self, modules: tuple[str, ...]) -> tuple[bool, set[str]]:
        big = {"torch", "transformers", "numba", "av", "PIL", "tokenizers"}
        return "_backend" in vars(self.tokenizer), big & set(sys.modules)
