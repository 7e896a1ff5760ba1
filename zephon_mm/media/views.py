"""The views of a picture as patches: cropped, resized, padded, in the order that a family says.

What a family shows of a picture (`zephon_mm.patches.View`) follows from its size alone, so a
document is laid out before its pictures are decoded. A picture is decoded once for all its views.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..patches import Crop, PatchLayout, Resize, Step, View
from .images import Decode, decode_image, patches_of, resize_image
from .info import ImageInfo


def view_patches(
    data: bytes | bytearray | memoryview,
    info: ImageInfo,
    views: Sequence[View],
    patch: PatchLayout,
    decode: Decode | None = None,
    into: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Patches of all views in turn: uint8 [patches, 3·T·P·P], each frame repeated over T.

    Normalised, they equal the processor's ``pixel_values`` bit for bit. The size of
    the picture was judged when it was measured (``image.max_source_pixels``), and is not bounded
    here.

    Args:
        data: the file.
        info: its probe.
        views: at least one.
        patch: the model's layout.
        decode: what decodes it, `decode_image` or its equal of another library.
        into: rows for the patches of a picture of one view; None: they get rows of their own.

    Raises:
        MediaError: as `decode_image`.
    """
    picture = (decode or decode_image)(data, info, max_pixels=info.width * info.height)
    if len(views) > 1:
        return np.concatenate([patches_of(shown, patch) for shown in rendered(picture, views)])
    return patches_of(apply(picture, views[0].steps), patch, into)


def rendered(picture: torch.Tensor, views: Sequence[View]) -> Iterator[torch.Tensor]:
    """Each view of a picture in turn; a first step that the one before had, too, is done once."""
    done: tuple[Sequence[Step], torch.Tensor] = ((), picture)
    for view in views:
        first = view.steps[:1]
        if first != done[0]:
            done = first, apply(picture, first)
        yield apply(done[1], view.steps[1:])


def apply(picture: torch.Tensor, steps: Sequence[Step]) -> torch.Tensor:
    """uint8 [3, height, width] after the steps in order."""
    for step in steps:
        if isinstance(step, Resize):
            picture = resize_image(picture, (step.height, step.width), step.filter)
        elif isinstance(step, Crop):
            bottom, right = step.top + step.height, step.left + step.width
            picture = picture[:, step.top : bottom, step.left : right]
        else:
            colour = torch.tensor(step.colour, dtype=torch.uint8)[:, None, None]
            canvas = colour.repeat(1, step.height, step.width)
            _, height, width = picture.shape
            canvas[:, step.top : step.top + height, step.left : step.left + width] = picture
            picture = canvas
    return picture
