"""What a card's NVDEC decodes, asked of the driver (``cuvidGetDecoderCaps``)."""

from __future__ import annotations

import ctypes
import threading
from functools import lru_cache

from ..errors import MissingDependencyError

LIBRARY = "libnvcuvid.so.1"
CODECS = {"h264": 4, "hevc": 8, "vp8": 9, "vp9": 10, "av1": 11}
"""cudaVideoCodec of NVIDIA's Video Codec SDK."""

CHROMA = {(1, 1): 1, (1, 0): 2, (0, 0): 3}
"""cudaVideoChromaFormat of a subsampling (across, down)."""


class Caps(ctypes.Structure):
    """CUVIDDECODECAPS: the first three fields are asked, the rest is the answer."""

    _fields_ = (
        ("codec", ctypes.c_int), ("chroma", ctypes.c_int), ("depth_minus_8", ctypes.c_uint),
        ("reserved1", ctypes.c_uint * 3), ("supported", ctypes.c_ubyte),
        ("engines", ctypes.c_ubyte), ("output_formats", ctypes.c_ushort),
        ("max_width", ctypes.c_uint), ("max_height", ctypes.c_uint),
        ("max_macroblocks", ctypes.c_uint), ("min_width", ctypes.c_ushort),
        ("min_height", ctypes.c_ushort), ("histogram", ctypes.c_ubyte * 4),
        ("reserved3", ctypes.c_uint * 10),
    )  # fmt: skip


class Driver:
    """The driver's answers, kept for the life of the process.

    Args:
        device: the CUDA device; its context is made current for each question.

    Raises:
        MissingDependencyError: the driver brings no NVDEC library.
    """

    def __init__(self, device: str) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise MissingDependencyError(
                f"NVDEC can't be used: {LIBRARY} doesn't load ({error}). It comes with NVIDIA's "
                "driver; a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
            ) from error
        self._device = device
        self._lock = threading.Lock()
        self._caps = lru_cache(maxsize=256)(self._ask)

    def refusal(
        self, codec: str, subsampling: tuple[int, int], depth: int, width: int, height: int
    ) -> str | None:
        """Why the card doesn't decode such a stream; None: it does."""
        if codec not in CODECS or subsampling not in CHROMA:
            return f"NVDEC has no {codec} of subsampling {subsampling}"
        with self._lock:
            caps = self._caps(CODECS[codec], CHROMA[subsampling], depth)
        if not caps.supported:
            return f"this card's NVDEC doesn't decode {codec}, {depth} bits, of that chroma"
        macroblocks = -(-width // 16) * -(-height // 16)
        if not (
            caps.min_width <= width <= caps.max_width
            and caps.min_height <= height <= caps.max_height
            and macroblocks <= caps.max_macroblocks
        ):
            return (
                f"{width}x{height} is outside of what this card's NVDEC decodes of {codec}: "
                f"{caps.min_width}x{caps.min_height} to {caps.max_width}x{caps.max_height}, "
                f"{caps.max_macroblocks} macroblocks"
            )
        return None

    def _ask(self, codec: int, chroma: int, depth: int) -> Caps:
        import torch

        torch.zeros(1, device=self._device)  # the question is answered in a current context
        caps = Caps(codec=codec, chroma=chroma, depth_minus_8=depth - 8)
        with torch.cuda.device(self._device):
            status = self._library.cuvidGetDecoderCaps(ctypes.byref(caps))
        if status:
            raise MissingDependencyError(
                f"NVDEC can't be used: cuvidGetDecoderCaps gave CUDA error {status}; look at "
                "nvidia-smi, and at the driver's version"
            )
        return caps
