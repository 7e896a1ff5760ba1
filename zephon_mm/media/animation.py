"""Animated pictures as clips (``image.animated: video``): GIF, WebP, APNG, AVIF sequences.

Pillow decodes them, whatever the run's decoder is. Each frame is as it is shown: laid over those
before it as the file says, then over white; and the same whichever others are asked for. A frame
that reaches out of the first one's canvas is cut off there. A picture that goes before an APNG's
animation is no frame of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, __version__

from ..decoders.base import Bytes, DecodedFrame, DecodedFrames, rgb_frame
from ..errors import MediaError
from .apng import composed
from .image_file import IMAGE_ERRORS, describe_error, open_image, orientation, to_rgb, turned
from .info import VideoInfo


class AnimationDecoder:
    """Pillow as a decoder of the clips of `clip_of`; stateless. Frames come out as shown."""

    name = "pillow"
    fingerprint = f"Pillow {__version__}"

    def refusal(self, info: VideoInfo) -> str | None:
        return info.problem

    def stream(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> Iterator[DecodedFrame]:
        """The frames asked for, each once, in order.

        Raises:
            MediaError: a frame, or one that it is laid over, can't be decoded.
        """
        wanted = sorted(set(frames))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < info.num_frames:
            raise MediaError(
                f"frame {wanted[-1]} of an animation of {info.num_frames}", stage="decode"
            )
        left = iter(wanted)
        at = next(left, None)
        try:
            with open_image(data, info.width * info.height) as image:
                turn = orientation(image, data)
                for frame in _frames(image, data, wanted):
                    assert at is not None
                    yield rgb_frame(_shown(frame, turn, info), at, info)
                    at = next(left, None)
            if at is not None:
                raise EOFError("the file ends before it")
        except IMAGE_ERRORS as error:
            raise MediaError(
                f"frame {at} of the animation can't be decoded: {describe_error(error)}",
                stage="decode",
            ) from error

    def decode(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> DecodedFrames:
        found = {frame.index: frame for frame in self.stream(data, info, frames)}
        return DecodedFrames(tuple(found[index] for index in frames))


def _frames(image: Image.Image, data: Bytes, wanted: Sequence[int]) -> Iterator[Image.Image]:
    """The frames of rising indices ``wanted``, each until the next is asked for."""
    if image.format == "PNG":
        numbers = set(wanted)
        found = enumerate(composed(memoryview(data), *image.size))
        shown = (frame for number, frame in found if number in numbers)
        yield from itertools.islice(shown, len(numbers))
        return
    for at in wanted:
        image.seek(at)
        image.load()
        yield image


def _shown(image: Image.Image, turn: int, info: VideoInfo) -> NDArray[np.uint8]:
    picture = to_rgb(turned(image, turn))
    if picture.size != (info.width, info.height):
        picture = picture.crop((0, 0, info.width, info.height))
    return np.array(picture)
