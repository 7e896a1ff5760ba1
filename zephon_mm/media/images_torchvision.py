"""Pictures decoded by torchvision: the same pixels as by Pillow, or a refusal that says why.

Taken are JPEG (grey or colour) and PNG (8-bit grey or RGB) that ``index --verify`` marked clean and
that need nothing but decoding: not turned, no transparency, no palette, no CMYK, no second picture.
Everything else differs by rule or by library, and stays with Pillow. Both libraries bring a JPEG
decoder of their own, so before the first picture a few made ones (grey, 4:4:4, 4:2:2, 4:2:0,
progressive) are decoded by both, and if they differ in one byte every JPEG is refused.
"""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode

from ..errors import MediaError
from .image_file import IMAGE_ERRORS, open_image, orientation
from .info import ImageInfo

FORMATS = ("JPEG", "PNG")
MODES = ("RGB", "L")


def refusal(data: bytes | bytearray | memoryview, info: ImageInfo, *, clean: bool) -> str | None:
    """Why Pillow has to decode this picture; None: both give the same pixels.

    Args:
        data: the file.
        info: its probe.
        clean: whether ``index --verify`` found it so.
    """
    if info.problem is not None:
        return info.problem
    if not clean:
        return "it is damaged, or not verified (`index --verify`): the libraries may conceal damage"
    if info.format not in FORMATS or info.mode not in MODES or info.num_frames > 1:
        return f"{info.format} {info.mode} of {info.num_frames} pictures: only Pillow's rules apply"
    try:
        with open_image(data, info.width * info.height) as image:
            if orientation(image, data) != 1:
                return "it is turned"
            if info.format == "PNG" and image.info.get("transparency") is not None:
                return "it has a transparent colour"
    except IMAGE_ERRORS as error:
        return str(error)
    if info.format == "PNG" and data[24] != 8:  # IHDR's bit depth
        return f"PNG of {data[24]} bits a sample"
    if info.format == "JPEG" and not jpegs_agree():
        return "this torchvision's JPEG decoder differs from this Pillow's"
    return None


def decode_image(
    data: bytes | bytearray | memoryview, info: ImageInfo, *, max_pixels: int
) -> torch.Tensor:
    """A picture that is not refused, RGB: uint8 [3, height, width], channels last in memory.

    Raises:
        MediaError: it is too large, torchvision can't decode it, or gives another size.
    """
    if info.width * info.height > max_pixels:
        raise MediaError(
            f"picture has {info.width}x{info.height} pixels, more than {max_pixels}", stage="decode"
        )
    try:
        picture = _decode(data)
    except (RuntimeError, ValueError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise MediaError(f"torchvision can't decode the picture: {line}", stage="decode") from error
    if tuple(picture.shape) != (3, info.height, info.width):
        raise MediaError(
            f"torchvision decodes to {tuple(picture.shape)}, the header says "
            f"{info.width}x{info.height}",
            stage="decode",
        )
    return picture.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def _decode(data: bytes | bytearray | memoryview) -> torch.Tensor:
    raw = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    # `torchvision.io.decode_image`'s operator, without its warning a call that torchcodec will
    # have it one day.
    picture: torch.Tensor = torch.ops.image.decode_image(raw, ImageReadMode.RGB.value, False)
    return picture


@lru_cache(maxsize=1)
def jpegs_agree() -> bool:
    """Whether both libraries give the same pixels for every kind of JPEG that is taken."""
    y, x = np.mgrid[0:61, 0:83].astype(np.int64)
    pixels = np.stack([x * 3, (x * y) // 7, 255 - y * 4], axis=2).astype(np.uint8)
    for options in (
        {"subsampling": 0},
        {"subsampling": 1},
        {"subsampling": 2},
        {"subsampling": 2, "progressive": True},
    ):
        for picture in (Image.fromarray(pixels), Image.fromarray(pixels[:, :, 0])):
            file = io.BytesIO()
            picture.save(file, "JPEG", quality=70, **options)
            with Image.open(file) as image:
                expected = np.array(image.convert("RGB"))
            try:
                found = _decode(file.getvalue()).permute(1, 2, 0).numpy()
            except RuntimeError:
                return False
            if not np.array_equal(found, expected):
                return False
    return True
