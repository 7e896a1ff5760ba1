"""The work on one sample, as a training script would write it: what peers and limits share.

Peers bring shards, order, workers, packing and state; what they do to a sample is done here, once,
with the libraries their users take: tokenizers, Pillow, PyAV. All documents end with ``END``.

These libraries are imported here, at once, so that nobody's first batch pays for an import.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image
from tokenizers import Tokenizer

PICTURE = 224
"""Side of a picture, in pixels."""
CLIP = (448, 256)
"""Width and height of a clip's frames."""
FRAMES = 16
PATCH = 32
"""Side of the square of pixels that a token stands for; two frames of a clip share a token."""
PICTURE_TOKENS = (PICTURE // PATCH) ** 2
CLIP_TOKENS = FRAMES // 2 * (CLIP[0] // PATCH) * (CLIP[1] // PATCH)
START, STOP, PICTURE_PAD, CLIP_PAD, END = (
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|endoftext|>",
)


@dataclass(frozen=True)
class Document:
    """A sample made: token ids, int32 [length], and the pixels of its media, uint8 [..., 3]."""

    tokens: np.ndarray
    media: tuple[np.ndarray, ...] = ()


class Making:
    """Makes documents of the members of a sample: ``{"json": bytes, "jpg": bytes …}``."""

    def __init__(self, tokenizer: str, *, decode: bool = True) -> None:
        """With ``decode`` false media stay as they are: their bytes, as uint8; see `pixels`."""
        self._decode = decode
        self._tokenizer = Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json"))
        ids = {name: self._tokenizer.token_to_id(name) for name in (START, STOP, END)}
        pads = [self._tokenizer.token_to_id(name) for name in (PICTURE_PAD, CLIP_PAD)]
        self._end = [ids[END]]
        self._picture = [ids[START], *[pads[0]] * PICTURE_TOKENS, ids[STOP]]
        self._clip = [ids[START], *[pads[1]] * CLIP_TOKENS, ids[STOP]]

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def document(self, work: str, members: dict[str, bytes]) -> Document:
        """The document of a sample of ``work``."""
        make: dict[str, Callable[[dict[str, bytes]], Document]] = {
            "text": self.text,
            "image_text": self.image_text,
            "video_360p": self.video_text,
            "video_720p": self.video_text,
            "interleaved": self.interleaved,
        }
        return make[work](members)

    def text(self, members: dict[str, bytes]) -> Document:
        """``json``: an object with ``text``."""
        return self._made(self.encode(json.loads(members["json"])["text"]))

    def image_text(self, members: dict[str, bytes]) -> Document:
        """``jpg`` and ``txt``: the picture, then its caption."""
        caption = self.encode(members["txt"].decode())
        return self._made([*self._picture, *caption], self._media(members["jpg"]))

    def video_text(self, members: dict[str, bytes]) -> Document:
        """``mp4`` and ``txt``: the clip, then its caption."""
        caption = self.encode(members["txt"].decode())
        return self._made([*self._clip, *caption], self._media(members["mp4"]))

    def interleaved(self, members: dict[str, bytes]) -> Document:
        """``json``: a list of ``{"text": …}`` and ``{"image": "NAME.jpg"}``; ``NAME.jpg`` …."""
        ids: list[int] = []
        media = []
        for part in json.loads(members["json"]):
            if "text" in part:
                ids += self.encode(part["text"])
            else:
                ids += self._picture
                media.append(self._media(members[part["image"]]))
        return self._made(ids, *media)

    def _media(self, data: bytes) -> np.ndarray:
        return pixels(data) if self._decode else np.frombuffer(data, np.uint8)

    def _made(self, ids: list[int], *media: np.ndarray) -> Document:
        return Document(np.asarray(ids + self._end, np.int32), media)


_decoded = 0


def decoded() -> int:
    """Pictures and clips that this process has decoded."""
    return _decoded


def pixels(data: bytes) -> np.ndarray:
    """Those of a picture or a clip."""
    global _decoded
    _decoded += 1
    return picture(data) if data[:2] == b"\xff\xd8" else clip(data)


def picture(data: bytes) -> np.ndarray:
    """A picture, uint8 [224, 224, 3], bicubic."""
    with Image.open(io.BytesIO(data)) as image:
        size = (PICTURE, PICTURE)
        return np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC))


def clip(data: bytes) -> np.ndarray:
    """16 frames spread evenly over a clip, uint8 [16, 256, 448, 3]; decoded from its first one."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        total = stream.frames
        wanted = {round(i * (total - 1) / (FRAMES - 1)) for i in range(FRAMES)}
        frames: list[Any] = []
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                frames.append(frame.to_ndarray(width=CLIP[0], height=CLIP[1], format="rgb24"))
                if len(frames) == len(wanted):
                    break
    return np.stack(frames)


@dataclass(frozen=True)
class Row:
    """A packed row: documents, or for texts parts of such, one after another."""

    tokens: np.ndarray
    documents: Sequence[Document]


class Packer:
    """Packs documents greedily, in the order they come; its state is what waits in it.

    Texts are joined and cut, so that rows are full; others are never cut: a document that doesn't
    fit begins the next row.
    """

    def __init__(self, length: int, *, cut: bool) -> None:
        self._length = length
        self._cut = cut
        self.waiting: list[Document] = []

    def add(self, document: Document) -> Iterator[Row]:
        """The rows that are complete now."""
        size = sum(len(d.tokens) for d in self.waiting)
        if not self._cut and size + len(document.tokens) > self._length and self.waiting:
            yield self._row(self.waiting)
            self.waiting = []
        self.waiting.append(document)
        if not self._cut:
            return
        size += len(document.tokens)
        if size < self._length:
            return
        tokens = np.concatenate([d.tokens for d in self.waiting])
        whole = self.waiting[:-1]
        for begin in range(0, size - self._length + 1, self._length):
            yield Row(tokens[begin : begin + self._length], whole)
            whole = []
        self.waiting = (
            [Document(tokens[size - size % self._length :])] if size % self._length else []
        )

    @staticmethod
    def _row(documents: list[Document]) -> Row:
        return Row(np.concatenate([d.tokens for d in documents]), documents)
