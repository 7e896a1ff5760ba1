"""NVDEC by torchcodec: the reference's planes on a GPU, or a refusal.

Packets, runs and checks of pts are those of `torchcodec`, its decoder is made for the GPU: a
frame's planes are views of a surface (NV12, P010, planar 4:4:4).

Whether the card may decode a kind of stream is asked three times, and nothing is guessed. The
driver says whether NVDEC takes its codec, chroma, depth and size: torchcodec itself would decode
what it doesn't on the CPU and convert it to a surface format, which are other planes. The first
clip of each kind (codec, profile, pixel format, size; of AV1 also its sequence header, which says
whether there is film grain) is then tried: its first frames are decoded by the reference as well,
and only if all planes are equal bit by bit the kind is the card's from there on. The same
comparison finds out where the samples lie in 16 bits. And each clip must be marked clean.

Grey and RGB are left to the reference: NVDEC gives other planes of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torchcodec

from ..errors import MediaError
from ..media.info import VideoInfo
from . import pyav_stream as clip
from .base import Bytes, DecodedFrame
from .nvdec_driver import Driver
from .pyav import PyAVDecoder
from .surfaces import SurfaceFrame
from .torchcodec import raw_frames, refusal

_log = logging.getLogger("zephon_mm")

TRIED_FRAMES = 8
"""Frames of a kind's first clip that are compared: enough for pictures predicted both ways."""

Kind = tuple[Any, ...]
Raw = Callable[[Bytes, VideoInfo, Sequence[int], str], Iterator[tuple[int, Any]]]
Ask = Callable[[str, tuple[int, int], int, int, int], str | None]


class NvdecDecoder:
    """Decodes on a GPU; one object serves all threads, and knows the kinds that were tried.

    Args:
        device: of the GPU, as ``cuda:0``.
        ask: of a codec, subsampling, depth, width and height, why the card doesn't decode them;
            None asks the driver.
        raw: gives torchcodec's frames.

    Raises:
        MissingDependencyError: the driver brings no NVDEC.
    """

    name = "nvdec"

    def __init__(self, device: str, *, ask: Ask | None = None, raw: Raw = raw_frames) -> None:
        self.fingerprint = f"NVDEC of {device}, by torchcodec {torchcodec.__version__}"
        self._device = device
        self._ask = Driver(device).refusal if ask is None else ask
        self._raw = raw
        self._lock = threading.Lock()
        self._kinds: dict[Kind, int | str] = {}

    def refusal(self, info: VideoInfo) -> str | None:
        """See `Decoder.refusal`; the driver is asked, nothing is decoded."""
        reason = refusal(info)
        if reason is not None:
            return reason
        depth, subsampling, kind = clip.describe(info.pix_fmt)
        if kind == "rgb" or info.matrix == "rgb" or info.pix_fmt.startswith("gray"):
            return f"NVDEC gives other planes of {info.pix_fmt}"
        return self._ask(info.codec, subsampling, depth, info.stored_width, info.stored_height)

    def surfaces(
        self, data: Bytes, info: VideoInfo, frames: Sequence[int]
    ) -> Iterator[SurfaceFrame]:
        """See `SurfaceDecoder.surfaces`."""
        reason = self.refusal(info)
        if reason is not None:
            raise _refused(reason)
        shift = self._tried(data, info)
        if isinstance(shift, str):
            raise _refused(shift)
        for index, raw in self._raw(data, info, frames, self._device):
            yield _describe(raw, index, info, shift)

    def _tried(self, data: Bytes, info: VideoInfo) -> int | str:
        """The shift of samples of the clip's kind, or why the card doesn't decode that kind."""
        kind = _kind_of(data, info)
        found = self._kinds.get(kind)
        if found is None:
            with self._lock:
                found = self._kinds.get(kind)
                if found is None:
                    found = self._kinds[kind] = self._try(data, info)
                    if isinstance(found, str):
                        _log.warning("decoded on the CPU, clips like %s: %s", kind[:5], found)
        return found

    def _try(self, data: Bytes, info: VideoInfo) -> int | str:
        """Compare; a MediaError of either decoder says nothing of the kind's other clips.

        Decoded on the device's current stream, whose work is waited for.
        """
        first = range(min(TRIED_FRAMES, info.num_frames))
        right = {frame.index: frame for frame in PyAVDecoder().stream(data, info, first)}
        shifts = {0} if info.depth == 8 else {0, 16 - info.depth}
        for index, raw in self._raw(data, info, first, self._device):
            planes = [plane.cpu().numpy() for plane in raw.planes[:3]]
            shifts = {shift for shift in shifts if _equal(planes, right[index], shift)}
            if not shifts:
                return f"frame {index} of the first one is not the reference's ({raw.pixel_format})"
        if len(shifts) > 1:  # nothing is kept: the next clip of the kind may tell
            raise _refused("its first frames don't tell where samples lie in 16 bits")
        return shifts.pop()


def _kind_of(data: Bytes, info: VideoInfo) -> Kind:
    container, stream = clip.open_clip(data)
    with contextlib.closing(container):
        context = stream.codec_context
        header = bytes(context.extradata or b"") if info.codec == "av1" else b""
        profile = str(context.profile)
    size = (info.stored_width, info.stored_height)
    return (info.codec, profile, info.pix_fmt, *size, hashlib.sha256(header).digest())


def _equal(planes: Sequence[np.ndarray[Any, Any]], right: DecodedFrame, shift: int) -> bool:
    return len(planes) == len(right.planes) and all(
        plane.itemsize == want.itemsize and np.array_equal(plane >> shift, want)
        for plane, want in zip(planes, right.planes, strict=True)
    )


def _describe(raw: Any, index: int, info: VideoInfo, shift: int) -> SurfaceFrame:
    from zephon_mm_kernels.surfaces import surface_of

    if (raw.width, raw.height) != (info.stored_width, info.stored_height):
        raise _refused(f"frame {index} is {raw.width}x{raw.height}: its frames change size")
    planes: Sequence[torch.Tensor] = raw.planes[:3]
    if any((plane.element_size() == 1) != (info.depth == 8) for plane in planes):
        raise _refused(f"frame {index} is {raw.pixel_format}, the index says {info.pix_fmt}")
    return SurfaceFrame(
        index=index,
        pts=int(info.pts[index]),
        planes=tuple(surface_of(planes)),
        depth=info.depth,
        shift=shift,
        subsampling=clip.describe(info.pix_fmt)[1],
        matrix=info.matrix,
        full_range=info.full_range,
        orientation=info.orientation,
        owner=raw,
    )


def _refused(reason: str) -> MediaError:
    return MediaError(f"NVDEC doesn't decode this clip: {reason}", stage="decode")
