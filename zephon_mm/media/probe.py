"""Probes: what the index keeps of a member's media, read from headers and packets (C5).

A medium that can't be used gives a probe that says why, never an exception: measuring quarantines
the sample with that reason.
"""

from __future__ import annotations

import contextlib

from .animation_times import read_delays
from .image_file import IMAGE_ERRORS, describe_error, open_image, shown_size
from .info import ImageInfo, Orientation, VideoInfo, media_kind, read_probe, write_probe

__all__ = ["ImageInfo", "Orientation", "VideoInfo", "probe_image", "probe_member", "read_probe"]

_MOST_PIXELS_TO_SEEK = 178_956_970
"""Larger pictures' frames are not counted: Pillow would make room for one (this is its bound)."""


def probe_member(field: str, data: bytes | bytearray | memoryview) -> bytes | None:
    """The probe of a member, or None if its field's extension is of no picture or clip.

    Args:
        field: the member's field; what follows its last dot decides, in any case.
        data: the member's bytes.
    """
    kind = media_kind(field)
    if kind == "image":
        return write_probe(probe_image(data))
    if kind == "video":
        from .probe_video import probe_video

        return write_probe(probe_video(data))
    return None


def probe_image(data: bytes | bytearray | memoryview) -> ImageInfo:
    """A picture's header; no pixel is decoded, so a huge declared size costs nothing.

    Whether the size is too large is a matter of the config (``image.max_source_pixels``).
    """
    try:
        with open_image(data) as image:
            width, height = shown_size(image, data)
            frames = 1
            if width * height <= _MOST_PIXELS_TO_SEEK:
                with contextlib.suppress(*IMAGE_ERRORS):  # a broken later picture: it isn't used
                    frames = int(getattr(image, "n_frames", 1))
            name = image.format or ""
            delays, ticks = read_delays(name, data)
            return ImageInfo(width, height, name, image.mode, frames, None, delays, ticks)
    except IMAGE_ERRORS as error:
        return ImageInfo(problem=f"no readable picture header: {describe_error(error)}")
