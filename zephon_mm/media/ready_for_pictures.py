"""Importing this loads what the first picture would, Pillow's file formats included.

For a process that forks others that decode: they then share it. See `Materialiser.modules_of`.
"""

from __future__ import annotations

from PIL import Image

from . import views  # noqa: F401

Image.init()
