"""Opening picture files with Pillow, bounded and without its process-wide switches.

``Image.open`` checks the declared size against ``Image.MAX_IMAGE_PIXELS``, a global that others
may change, and warns below it. Here the format plugins are asked in Pillow's own order, from a
fixed list (no PostScript, no metafiles: they run other programs), and the bound is an argument.
"""

from __future__ import annotations

import io
import struct
import threading
import zlib

from PIL import ExifTags, Image, UnidentifiedImageError

FORMATS = (
    "BMP", "DIB", "GIF", "JPEG", "PPM", "PNG", "AVIF", "WEBP", "TIFF", "JPEG2000", "MPO", "TGA",
)  # fmt: skip

IMAGE_ERRORS = (
    OSError, ValueError, SyntaxError, IndexError, TypeError, KeyError, EOFError, AttributeError,
    ArithmeticError, RuntimeError, Warning, NotImplementedError, MemoryError,
    struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
"""What Pillow's plugins raise on damaged files."""

_NOT_THIS_FORMAT = (SyntaxError, IndexError, TypeError, struct.error)  # as Image.open has it
_ready = threading.Lock()
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_image(data: bytes | bytearray | memoryview, max_pixels: int | None = None) -> Image.Image:
    """Open the first picture of a file, lazily: header read, pixels not. The caller closes it.

    Raises:
        ValueError: more than ``max_pixels`` pixels declared, if that is given.
        One of IMAGE_ERRORS: not a picture of a known format.
    """
    if not len(data):
        raise UnidentifiedImageError("0 bytes")
    with _ready:
        Image.init()
    file = io.BytesIO(data)
    prefix = file.read(16)
    for name in FORMATS:
        if name not in Image.OPEN:
            continue
        factory, accept = Image.OPEN[name]
        verdict = accept(prefix) if accept else True
        if not verdict or isinstance(verdict, str):
            continue
        try:
            file.seek(0)
            image: Image.Image = factory(file, "")
        except _NOT_THIS_FORMAT:
            continue
        width, height = image.size
        if max_pixels is not None and width * height > max_pixels:
            image.close()
            raise ValueError(f"it declares {width}x{height} pixels, more than {max_pixels}")
        if width < 1 or height < 1:
            image.close()
            raise ValueError(f"it declares {width}x{height} pixels")
        return image
    raise UnidentifiedImageError(f"{len(data)} bytes of no known picture format")


def shown_size(image: Image.Image, data: bytes | bytearray | memoryview) -> tuple[int, int]:
    """(width, height) after EXIF orientation, from the header only."""
    width, height = image.size
    if image.format == "TIFF":  # Pillow turns these itself, and says so in the size
        return width, height
    turned = orientation(image, data) in (5, 6, 7, 8)
    return (height, width) if turned else (width, height)


def orientation(image: Image.Image, data: bytes | bytearray | memoryview | None = None) -> int:
    """The EXIF orientation, 1 … 8; 1 where there is none, or none that can be read.

    ``data``, the file's bytes, spares a PNG from being decoded for it.
    """
    try:
        exif = image.getexif() if data is None else _exif(image, data)
        value = exif.get(ExifTags.Base.Orientation, 1)
    except IMAGE_ERRORS:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def upright(image: Image.Image) -> Image.Image:
    """The picture as its EXIF orientation says it is shown, as ``ImageOps.exif_transpose`` does."""
    image.load()
    return turned(image, orientation(image))


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """The picture as an EXIF orientation says it is shown."""
    method = _TURNS.get(orientation)
    return image if method is None else image.transpose(method)


def to_rgb(image: Image.Image) -> Image.Image:
    """As transformers' ``convert_to_rgb``: whatever is transparent is laid over white."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image if image.mode == "RGB" else image.convert("RGB")


def describe_error(error: BaseException) -> str:
    """One line without the object addresses that Pillow's messages may hold."""
    if isinstance(error, UnidentifiedImageError) and "<" in str(error):
        return "not a known picture format"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _exif(image: Image.Image, data: bytes | bytearray | memoryview) -> Image.Exif:
    if image.format != "PNG":
        return image.getexif()
    small = _png_without_pixels(memoryview(data))
    with Image.OPEN["PNG"][0](io.BytesIO(small), "") as header:
        return Image.Image.getexif(header)  # PngImageFile's own would decode the pixels


def _png_without_pixels(data: memoryview) -> bytes:
    """The same PNG with its pixels taken out, so that metadata after them is in its header.

    It ends where Pillow stops reading: at IEND, or at an animation's second frame.
    """
    out = [bytes(data[:8])]
    pixels = False
    at = 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind = bytes(data[at + 4 : at + 8])
        if kind == b"IEND" or (kind == b"fcTL" and pixels) or at + 12 + length > len(data):
            break
        if kind == b"IDAT":
            pixels = True
        elif kind != b"fdAT":
            out.append(bytes(data[at : at + 12 + length]))
        at += 12 + length
    for kind in (b"IDAT", b"IEND"):
        out.append(bytes(4) + kind + zlib.crc32(kind).to_bytes(4, "big"))
    return b"".join(out)
