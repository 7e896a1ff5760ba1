"""Decoded frames to uint8 patches (class planes-v1), and the table that normalises them.

The arithmetic is `zephon_mm_kernels`'s: resized in whole numbers, converted, turned, cut into
patches. The last frame is repeated up to a multiple of the temporal patch. Normalisation comes
last, on the training device, by a table of 256 entries a channel.
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
) -> NDArray[np.uint8]:
    """`video_patches` of ``frames``, each frame let go once its patches are written.

    Memory is that of the patches and a few frames. Raises MediaError as the decoder does.
    """
    slots: dict[int, list[int]] = {}
    for position, index in enumerate(frames):
        slots.setdefault(index, []).append(position)
    places = (
        (position, frame)
        for frame in decoder.stream(data, info, frames)
        for position in slots[frame.index]
    )
    return _write_all(places, len(frames), size, patch)


def _write_all(
    places: Iterable[tuple[int, DecodedFrame]],
    count: int,
    size: tuple[int, int],
    patch: PatchLayout,
) -> NDArray[np.uint8]:
    try:
        from zephon_mm_kernels import cpu
    except ImportError as error:
        raise MissingDependencyError(str(error)) from error
    if count < 1:
        raise ValueError("no frames: a clip needs at least one")
    p, t, m = patch.patch_size, patch.temporal_patch_size, patch.merge_size
    rows = -(-count // t) * (size[0] // p) * (size[1] // p)
    out = np.empty((rows, patch.columns), np.uint8)
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
    cpu.repeat_last(out, count, p, t)
    return out


def normalisation_table(
    mean: Sequence[float], std: Sequence[float], rescale: float = 1 / 255
) -> NDArray[np.float32]:
    """What each byte of each channel becomes: float32 [3, 256].

    The installed processors fold rescaling into mean and deviation, in float32:
    ``m = mean · (1/rescale)``, ``s = std · (1/rescale)``, then ``(v − m) / s``. The order of these
    roundings matters: the unfused order differs in 661 of CLIP's 768 entries.
    """
    back = np.float32(1.0 / rescale)
    m = np.asarray(mean, np.float32) * back
    s = np.asarray(std, np.float32) * back
    codes = np.arange(256, dtype=np.float32)
    table: NDArray[np.float32] = (codes[None, :] - m[:, None]) / s[:, None]
    return table


def normalise(patches: NDArray[np.uint8], table: NDArray[np.float32]) -> NDArray[np.float32]:
    """Apply a table: uint8 [patches, 3·T·P·P] to float32 of the same shape (channel outermost)."""
    cut = patches.reshape(len(patches), 3, -1)
    out = np.empty(cut.shape, np.float32)
    for channel in range(3):
        np.take(table[channel], cut[:, channel], out=out[:, channel])
    return out.reshape(patches.shape)
