"""Probes: what the index keeps of a member's media, read from headers and packets (C5).

A medium that can't be used gives a probe that says why, never an exception: measuring quarantines
the sample with that reason.
"""

from __future__ import annotations

from .image_file import IMAGE_ERRORS, describe_error, open_image, shown_size
from .info import ImageInfo, Orientation, VideoInfo, media_kind, read_probe, write_probe

__all__ = ["ImageInfo", "Orientation", "VideoInfo", "probe_image", "probe_member", "read_probe"]

MAX_SOURCE_PIXELS = 178_956_970
"""Declared pixels of a picture above which it is refused: Pillow's own bound."""


def probe_member(
    field: str, data: bytes | bytearray | memoryview, *, max_pixels: int = MAX_SOURCE_PIXELS
) -> bytes | None:
    """The probe of a member, or None if its field's extension is of no picture or clip.

    Args:
        field: the member's field; what follows its last dot decides, in any case.
        data: the member's bytes.
        max_pixels: declared pixels of a picture above which it is refused.
    """
    kind = media_kind(field)
    if kind == "image":
        return write_probe(probe_image(data, max_pixels=max_pixels))
    if kind == "video":
        from .probe_video import probe_video

        return write_probe(probe_video(data))
    return None


def probe_image(
    data: bytes | bytearray | memoryview, *, max_pixels: int = MAX_SOURCE_PIXELS
) -> ImageInfo:
    """A picture's header; no pixel is decoded, so a huge declared size costs nothing."""
    try:
        with open_image(data, max_pixels) as image:
            width, height = shown_size(image, data)
            try:
                frames = int(getattr(image, "n_frames", 1))
            except IMAGE_ERRORS:  # a broken later picture; only the first is used
                frames = 1
            return ImageInfo(width, height, image.format or "", image.mode, frames)
    except IMAGE_ERRORS as error:
        return ImageInfo(problem=f"no readable picture header: {describe_error(error)}")
