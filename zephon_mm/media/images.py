"""Pictures: decoded by Pillow, resized by ATen, cut into patches: what the models' Hugging Face
processors do, bit for bit.

The written rule for what is not plain RGB is the processors' own (``convert_to_rgb`` in the
installed transformers), after EXIF orientation is applied: alpha and transparent colours are laid
over white, palettes looked up, CMYK and grey converted, 16-bit grey clipped as Pillow does. Of an
animation the first picture is taken. Arrays are always height, width, channel, also for a side of
one pixel.

Resizing is torchvision's: the ATen call that its ``resize`` makes, made here, since importing
torchvision takes as long again as torch, in every worker process. This is the only module that
resizes pictures.
"""

from __future__ import annotations

import contextlib
import platform
from typing import Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate
from torch.utils.dlpack import from_dlpack

from ..errors import MediaError
from ..patches import Filter, PatchLayout
from .image_file import IMAGE_ERRORS, describe_error, open_image, to_rgb, upright
from .info import ImageInfo


class Decode(Protocol):
    """What `decode_image` is: a file's RGB pixels as shown, or a MediaError."""

    def __call__(
        self, data: bytes | bytearray | memoryview, info: ImageInfo, *, max_pixels: int
    ) -> torch.Tensor: ...


MAX_PIXELS = 178_956_970
"""Pixels that are decoded unless the caller says more: Pillow's own bound."""


def decode_image(
    data: bytes | bytearray | memoryview, info: ImageInfo, *, max_pixels: int = MAX_PIXELS
) -> torch.Tensor:
    """The picture as shown, RGB: uint8 [3, height, width], channels last in memory, in pixels of
    four bytes (Pillow's own) or of three.

    Args:
        data: the file.
        info: its probe.
        max_pixels: a larger picture is refused before room is made for it.

    Raises:
        MediaError: it is too large, the probe holds a problem, the pixels can't be decoded
            (truncated, broken), or they are of another size than the probe says.
    """
    if info.problem is not None:
        raise MediaError(info.problem, stage="decode")
    try:
        with open_image(data, min(max_pixels, info.width * info.height)) as image:
            picture = _pixels(to_rgb(upright(image)))
    except IMAGE_ERRORS as error:
        raise MediaError(
            f"picture can't be decoded: {describe_error(error)}", stage="decode"
        ) from error
    _, height, width = picture.shape
    if (height, width) != (info.height, info.width):
        raise MediaError(
            f"picture decodes to {width}x{height}, its header says {info.width}x{info.height}",
            stage="decode",
        )
    return picture


def _pixels(image: Image.Image) -> torch.Tensor:
    """The pixels of an RGB picture: uint8 [3, height, width], channels last in memory.

    Through Arrow they are Pillow's own memory, of which three bytes a pixel count. Else they are
    copied, twice, and under the GIL: by an older Pillow, and from a picture of several blocks.
    """
    if hasattr(image, "__arrow_c_array__"):
        with contextlib.suppress(ValueError):  # several blocks: it has over 16 MB
            whole: torch.Tensor = from_dlpack(pa.array(image).values)
            width, height = image.size
            return whole.as_strided((3, height, width), (1, 4 * width, 4))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def resize_image(
    picture: torch.Tensor, size: tuple[int, int], filter: Filter = "bicubic"
) -> torch.Tensor:
    """uint8 [3, height, width] to ``size`` by ATen's antialiased filters in uint8.

    Bicubic gives the same bytes on every CPU; the others may differ between kinds of CPU.
    ``plain_bilinear`` goes through float32 everywhere, as the processor that has it does.
    """
    if tuple(picture.shape[1:]) == tuple(size):
        return picture
    plain = filter == "plain_bilinear"
    in_float = plain or (filter == "bilinear" and not _has_bilinear_uint8())
    _, height, width = picture.shape
    of_four = picture.stride() == (1, 4 * width, 4)  # pixels of four bytes
    if of_four and not in_float:  # ATen makes the fourth, too
        batch = picture.as_strided((1, 4, height, width), (4 * height * width, 1, 4 * width, 4))
    else:
        if of_four:
            picture = picture.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        batch = picture.reshape(1, *picture.shape)
        if batch.is_contiguous(memory_format=torch.channels_last):  # the result then is, too
            batch = batch.as_strided(batch.shape, (batch.numel(), *batch.stride()[1:]))
    resized = interpolate(
        batch.float() if in_float else batch,
        size=list(size),
        mode="bilinear" if plain else filter,
        align_corners=False,
        antialias=not plain,
    )[0, :3]
    return resized.round_().clamp_(0, 255).to(torch.uint8) if in_float else resized


def _has_bilinear_uint8() -> bool:
    """Whether torchvision leaves bilinear uint8 to ATen; elsewhere it goes through float32."""
    fast = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return fast or platform.machine() in ("aarch64", "arm64")


def patches_of(
    picture: torch.Tensor, patch: PatchLayout, into: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """uint8 [3, height, width] to patches, uint8 [patches, 3·T·P·P]; ``into`` rows for them."""
    p, t, m = patch.patch_size, patch.temporal_patch_size, patch.merge_size
    _, height, width = picture.shape
    if height % (p * m) or width % (p * m):
        raise ValueError(f"size {height}x{width} must be multiples of {p * m}")
    row = f"V{p}"  # a patch's row of one colour, which is moved as a whole
    planes = np.ascontiguousarray(picture.numpy()).view(row)
    cut = planes.reshape(3, height // p // m, m, p, width // p // m, m)
    ordered = cut.transpose(1, 4, 2, 5, 0, 3)
    rows = height * width // p**2
    out = np.empty((rows, patch.columns), np.uint8) if into is None else into
    out.view(row).reshape(*ordered.shape[:5], t, p)[...] = ordered[:, :, :, :, :, None]
    return out
