"""Contestants of ``zephon-mm bench decode`` that decode on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..decoders import load_surface_decoder
from ..device.choice import find_device
from ..errors import ConfigError, MissingDependencyError
from ..media.info import VideoInfo

Decode = Callable[[bytes, VideoInfo, Sequence[int], bool], Iterator[tuple[int, Any]]]


def on_gpu(name: str) -> Decode:
    """A decoder's frames of a clip: None each, since they stay on the GPU, or what they are.

    The last comes when the GPU is done.

    Raises:
        MissingDependencyError: there is no GPU, or the decoder's library is not there.
    """
    try:
        device = find_device("cuda")
    except ConfigError as error:
        raise MissingDependencyError(str(error)) from error
    decoder = load_surface_decoder(name, device)

    def run(
        data: bytes, info: VideoInfo, frames: Sequence[int], check: bool
    ) -> Iterator[tuple[int, Any]]:
        import torch

        for frame in decoder.surfaces(data, info, frames):
            if not check:
                yield frame.index, None
                continue
            planes = [plane.cpu().numpy() >> frame.shift for plane in frame.planes]
            if frame.matrix == "rgb":
                green, blue, red = planes
                picture = cast(NDArray[np.uint8], np.stack((red, green, blue), axis=-1))
                turn = frame.orientation
                picture = picture.swapaxes(0, 1) if turn.transpose else picture
                step = -1 if turn.mirror_y else 1
                yield frame.index, picture[::step, :: -1 if turn.mirror_x else 1]
            elif len(planes) == 2:
                yield frame.index, (planes[0], planes[1][:, 0::2], planes[1][:, 1::2])
            else:
                yield frame.index, tuple(planes)
        torch.cuda.synchronize(device)

    return run
