"""The frames of an APNG as shown, composed after the PNG specification (third edition).

Pillow decodes each piece as a PNG of its own. Its own composing is not used: what a frame looks
like depends there on which others were looked at ("previous" after "over"), and what is cleared is
black in a picture without transparency.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image

from .image_file import open_image

_SHARED = (b"PLTE", b"tRNS")
_CLEARED, _PREVIOUS, _OVER = 1, 2, 1
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(slots=True)
class _Piece:
    """A frame's control chunk and its pixels, compressed."""

    width: int
    height: int
    left: int
    top: int
    disposal: int
    blend: int
    pixels: bytearray

    @property
    def box(self) -> tuple[int, int, int, int]:
        return self.left, self.top, self.left + self.width, self.top + self.height


def composed(data: memoryview, width: int, height: int) -> Iterator[Image.Image]:
    """Each frame in turn, RGBA; the caller changes none.

    Args:
        data: the file.
        width: of the canvas.
        height: of the canvas.

    Raises:
        ValueError or another of Pillow's `IMAGE_ERRORS`: the file is cut or broken there.
    """
    canvas = Image.new("RGBA", (width, height))
    for header, piece in _pieces(data):
        left, top, right, bottom = piece.box
        if not (left < right <= width and top < bottom <= height):
            raise ValueError(f"a frame in {piece.box} leaves its canvas")
        before = canvas
        canvas = before.copy()
        part = _decoded(header, piece)
        if piece.blend == _OVER:
            part = Image.alpha_composite(canvas.crop(piece.box), part)
        canvas.paste(part, piece.box)
        yield canvas
        if piece.disposal == _PREVIOUS:
            canvas = before
        elif piece.disposal == _CLEARED:
            canvas = canvas.copy()
            canvas.paste((0, 0, 0, 0), piece.box)


def _decoded(header: list[tuple[bytes, bytes]], piece: _Piece) -> Image.Image:
    size = struct.pack(">II", piece.width, piece.height)
    parts = [(kind, size + body[8:] if kind == b"IHDR" else body) for kind, body in header]
    chunks = [*parts, (b"IDAT", bytes(piece.pixels)), (b"IEND", b"")]
    file = _SIGNATURE + b"".join(_chunk(kind, body) for kind, body in chunks)
    with open_image(file, piece.width * piece.height) as image:
        image.load()
        clear = "A" in image.getbands() or image.info.get("transparency") is not None
        return image.convert("RGBA") if clear else image.convert("RGB").convert("RGBA")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _pieces(data: memoryview) -> Iterator[tuple[list[tuple[bytes, bytes]], _Piece]]:
    """What all frames share, and each of them once its last chunk was read."""
    header: list[tuple[bytes, bytes]] = []
    piece: _Piece | None = None
    number = 0
    for kind, body in _chunks(data):
        if kind == b"IHDR" or (kind in _SHARED and piece is None):
            header.append((kind, body))
        elif kind in (b"fcTL", b"fdAT"):
            if int.from_bytes(body[:4], "big") != number:
                raise ValueError(f"{kind.decode()} out of order")
            number += 1
        if kind == b"fcTL":
            if piece is not None:
                yield header, piece
            width, height, left, top, disposal, blend = struct.unpack(">4xIIII4xBB", body[:26])
            piece = _Piece(width, height, left, top, disposal, blend, bytearray())
        elif piece is not None and kind in (b"IDAT", b"fdAT"):
            piece.pixels += body[4 if kind == b"fdAT" else 0 :]
    if piece is not None:
        yield header, piece


def _chunks(data: memoryview) -> Iterator[tuple[bytes, bytes]]:
    """Chunks up to IEND or the file's end. Raises ValueError for one that is cut or changed."""
    at = len(_SIGNATURE)
    while at + 8 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), bytes(data[at + 4 : at + 8])
        end = at + 12 + length
        if end > len(data):
            raise ValueError("the file is cut")
        body = bytes(data[at + 8 : end - 4])
        if zlib.crc32(kind + body) != int.from_bytes(data[end - 4 : end], "big"):
            raise ValueError(f"a chunk {kind!r} with a wrong checksum")
        if kind == b"IEND":
            return
        yield kind, body
        at = end
