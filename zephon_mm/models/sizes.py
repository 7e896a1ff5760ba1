"""Smart resize: the sizes that the processors of transformers 5.24 give, to the last pixel.

A size is a multiple of ``factor`` (patch × merge), in a budget of pixels, near the aspect ratio.
Sources: ``models/qwen2_vl/image_processing_qwen2_vl.py`` (pictures of both families, and each frame
of a Qwen2.5-VL clip) and ``models/qwen3_vl/video_processing_qwen3_vl.py`` (a budget over the whole
clip) of transformers.
"""

from __future__ import annotations

import math

from ..errors import MediaError

MAX_RATIO = 200


def image_size(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """(height, width) of a picture, or of each frame of a clip, after resizing.

    Raises MediaError (kind ``dropped``) for an aspect ratio over 200.
    """
    _check_ratio(height, width)
    high = round(height / factor) * factor
    wide = round(width / factor) * factor
    if high * wide > max_pixels:
        beta = math.sqrt((height * width) / max_pixels)
        high = max(factor, math.floor(height / beta / factor) * factor)
        wide = max(factor, math.floor(width / beta / factor) * factor)
    elif high * wide < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        high = math.ceil(height * beta / factor) * factor
        wide = math.ceil(width * beta / factor) * factor
    return high, wide


def clip_size(
    num_frames: int,
    height: int,
    width: int,
    *,
    factor: int,
    temporal_factor: int,
    min_pixels: int,
    max_pixels: int,
) -> tuple[int, int]:
    """(height, width) of each frame where the budget counts frames × height × width.

    The processor refuses a clip shorter than a temporal patch; here it is laid out as one that is
    as long, since its last frame is repeated to fill the patch.

    Raises MediaError (kind ``dropped``) for an aspect ratio over 200.
    """
    num_frames = max(num_frames, temporal_factor)
    source = f"{width}×{height}"
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check_ratio(height, width, source)
    high = round(height / factor) * factor
    wide = round(width / factor) * factor
    shown = round(num_frames / temporal_factor) * temporal_factor
    if shown * high * wide > max_pixels:
        beta = math.sqrt((num_frames * height * width) / max_pixels)
        high = max(factor, math.floor(height / beta / factor) * factor)
        wide = max(factor, math.floor(width / beta / factor) * factor)
    elif shown * high * wide < min_pixels:
        beta = math.sqrt(min_pixels / (num_frames * height * width))
        high = math.ceil(height * beta / factor) * factor
        wide = math.ceil(width * beta / factor) * factor
    return high, wide


def within(size: tuple[int, int], factor: int, max_pixels: int) -> tuple[int, int]:
    """``size`` with its long side cut so that the area is inside ``max_pixels``.

    The processors' rule leaves a narrow picture over a small budget, since its short side can't go
    under ``factor``. One block of ``factor``² pixels is the least there is.
    """
    high, wide = size
    if high * wide <= max_pixels:
        return size
    if high >= wide:
        return max(factor, max_pixels // wide // factor * factor), wide
    return high, max(factor, max_pixels // high // factor * factor)


def _check_ratio(height: int, width: int, source: str = "") -> None:
    if height < 1 or width < 1:
        raise MediaError(
            f"a size of {width}×{height} pixels holds no picture", stage="layout", kind="dropped"
        )
    if max(height, width) / min(height, width) > MAX_RATIO:
        raise MediaError(
            f"{source or f'{width}×{height}'} pixels: an aspect ratio over {MAX_RATIO}",
            stage="layout",
            kind="dropped",
        )
