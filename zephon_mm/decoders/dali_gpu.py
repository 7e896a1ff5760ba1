"""DALI on a GPU: the class ``rgb-dali-gpu``. RGB by DALI's own conversion, by the card's NVDEC.

Runs of packets are cut out, decoded and checked as for `dali_cpu`, with DALI's decoder on
``mixed``. What a card decodes differs, and DALI says so only by failing: a clip that it can't
decode, like any refusal in an RGB class, is damaged. Pictures are copied out of DALI's memory as
planes G, B, R, and resized by this package's kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from nvidia import dali
from torch.utils.dlpack import from_dlpack

from ..errors import MediaError, MissingDependencyError
from ..media.info import VideoInfo
from .base import Bytes, DecodedFrame, DecodedFrames
from .cutting import Run, decode_runs
from .dali_cpu import decoded
from .nvdec_driver import Driver
from .surfaces import SurfaceFrame

CODECS = frozenset(("av1", "h264", "hevc", "mpeg4", "vp8", "vp9"))
"""What NVDEC may have that DALI passes on to it."""


class DaliGpuDecoder:
    """Decodes with DALI on a GPU; holds no state, so one object serves all threads.

    Args:
        device: of the GPU, as ``cuda:0``.

    Raises:
        MissingDependencyError: torch finds no GPU, or the driver brings no NVDEC library.
    """

    name = "dali-gpu"

    def __init__(self, device: str = "cuda:0") -> None:
        if not torch.cuda.is_available():
            raise MissingDependencyError(
                "decoder 'dali-gpu' needs an NVIDIA GPU, and torch finds none here; pixels of "
                "class rgb-dali-gpu can be had in no other way"
            )
        Driver(device)  # a container without NVDEC's library would make every clip damaged
        self.fingerprint = f"nvidia-dali {dali.__version__}, {device}"
        self._device = torch.device(device)

    def refusal(self, info: VideoInfo) -> str | None:
        """See `Decoder.refusal`."""
        if info.problem is not None:
            return info.problem
        if info.codec not in CODECS:
            return f"its codec is {info.codec}; on a GPU, DALI has {', '.join(sorted(CODECS))}"
        if info.depth > 8:
            return f"its samples have {info.depth} bits, and DALI's colours of these are unchecked"
        return None

    def surfaces(
        self, data: Bytes, info: VideoInfo, frames: Sequence[int]
    ) -> Iterator[SurfaceFrame]:
        """See `SurfaceDecoder.surfaces`."""
        reason = self.refusal(info)
        if reason is not None:
            raise MediaError(f"dali-gpu doesn't decode this clip: {reason}", stage="decode")
        yield from decode_runs(self.name, self._read, data, info, frames, rgb_surface)

    def stream(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> Iterator[DecodedFrame]:
        """See `Decoder.stream`: the frames in the host's memory."""
        for frame in self.surfaces(data, info, frames):
            yield DecodedFrame(
                index=frame.index,
                pts=frame.pts,
                planes=tuple(plane.cpu().numpy() for plane in frame.planes),
                depth=8,
                subsampling=(0, 0),
                matrix="rgb",
                full_range=True,
                orientation=frame.orientation,
            )

    def decode(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> DecodedFrames:
        """See `Decoder.decode`."""
        found = {frame.index: frame for frame in self.stream(data, info, frames)}
        return DecodedFrames(tuple(found[index] for index in frames))

    def _read(self, run: Run) -> list[torch.Tensor]:
        """The wanted pictures of a run, uint8 [H, W, 3], in torch's memory."""
        output = decoded(run, "mixed", self._device.index or 0)
        pictures = from_dlpack(output.at(0))[: len(run.frames)].clone()
        torch.cuda.current_stream(self._device).synchronize()  # DALI's memory goes with `output`
        return list(pictures)


def rgb_surface(picture: torch.Tensor, index: int, info: VideoInfo) -> SurfaceFrame:
    """A frame of a library that gives RGB on a device, see `base.rgb_frame`.

    Args:
        picture: uint8 [stored height, stored width, 3], not turned; the planes are copies.
        index: which shown frame it is.
        info: the clip's probe.

    Raises:
        MediaError: it has another shape.
    """
    size = (info.stored_height, info.stored_width, 3)
    if tuple(picture.shape) != size or picture.dtype != torch.uint8:
        raise MediaError(
            f"frame {index} came as {picture.dtype} {list(picture.shape)}, expected uint8 "
            f"{list(size)}",
            stage="decode",
        )
    green, blue, red = (picture[..., channel].contiguous() for channel in (1, 2, 0))
    return SurfaceFrame(
        index=index,
        pts=int(info.pts[index]),
        planes=(green, blue, red),
        depth=8,
        shift=0,
        subsampling=(0, 0),
        matrix="rgb",
        full_range=True,
        orientation=info.orientation,
    )
