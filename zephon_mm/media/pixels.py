"""Decoded frames to uint8 patches (class planes-v1).

The arithmetic is `zephon_mm_kernels`'s: resized in whole numbers, converted, turned, cut into
patches. The last frame is repeated up to a multiple of the temporal patch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..decoders.base import Bytes, DecodedFrame, DecodedFrames, Decoder
from ..errors import MissingDependencyError
from ..patches import PatchLayout
from .info import VideoInfo


def video_patches(
    decoded: DecodedFrames, size: tuple[int, int], patch: PatchLayout
) -> NDArray[np.uint8]:
    """Patches of decoded frames, in their order: uint8 [patches, 3·T·P·P].

    Args:
        decoded: at least one frame; frames may differ in size, each is resized on its own.
        size: (height, width) as shown, multiples of ``patch_size · merge_size``.
        patch: the model's layout.

    Raises:
        ValueError: no frame, or a size that is not a multiple.
        MissingDependencyError: numba is not installed.
    """
    places = ((position, frame) for position, frame in enumerate(decoded))
    return _write_all(places, len(decoded), size, patch)


def stream_patches(
    decoder: Decoder,
    data: Bytes,
    info: VideoInfo,
    frames: Sequence[int],
    size: tuple[int, int],
    patch: PatchLayout,
    into: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """`video_patches` of ``frames``, each frame let go once its patches are written.

    Memory is that of the patches and a few frames. ``into``: rows for the patches; None: they get
    rows of their own. Raises MediaError as the decoder does.
    """
    slots: dict[int, list[int]] = {}
    for position, index in enumerate(frames):
        slots.setdefault(index, []).append(position)
    places = (
        (position, frame)
        for frame in decoder.stream(data, info, frames)
        for position in slots[frame.index]
    )
    return _write_all(places, len(frames), size, patch, into)


def _write_all(
    places: Iterable[tuple[int, DecodedFrame]],
    count: int,
    size: tuple[int, int],
    patch: PatchLayout,
    into: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    try:
        from zephon_mm_kernels import cpu
        from zephon_mm_kernels.layout import repeat_last
    except ImportError as error:
        raise MissingDependencyError(str(error)) from error
    if count < 1:
        raise ValueError("no frames: a clip needs at least one")
    p, t, m = patch.patch_size, patch.temporal_patch_size, patch.merge_size
    rows = -(-count // t) * (size[0] // p) * (size[1] // p)
    out = np.empty((rows, patch.columns), np.uint8) if into is None else into
    for position, frame in places:
        turn = frame.orientation
        cpu.write_frame(
            frame.planes,
            frame.subsampling,
            frame.depth,
            frame.matrix,
            frame.full_range,
            (turn.transpose, turn.mirror_x, turn.mirror_y),
            size,
            out,
            position,
            p,
            t,
            m,
        )
    repeat_last(out, count, p, t)
    return out
