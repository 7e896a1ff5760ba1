"""Importing this loads what the first clip would, compiled kernels included.

For a process that forks others that decode: they then share it. See `Materialiser.modules_of`.
"""

from __future__ import annotations

from zephon_mm_kernels import cpu

from ..decoders import pyav  # noqa: F401
from . import pixels  # noqa: F401

cpu.load()
