"""A clip's patches, made on a device from the frames that leave its decoder.

The arithmetic is `zephon_mm_kernels.triton`'s, equal to the CPU's bit for bit. Everything is queued
on the current stream, so the memory of frames that were let go is used again only after the
kernels that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from zephon_mm_kernels.layout import repeat_last

from ..decoders.base import Bytes
from ..decoders.surfaces import SurfaceDecoder, SurfaceFrame
from ..media.info import VideoInfo
from ..patches import PatchLayout

AT_ONCE = 16
"""Frames a launch. Fewer leave a GPU idle, more are more memory."""

DECODER_SURFACES = 24
"""Frames that NVDEC and its parser hold themselves: 16 references and some on their way out."""


def clip_bytes(info: VideoInfo, num_frames: int) -> int:
    """Bytes on the device while a clip is decoded: its frames, and what the decoder holds.

    Three samples a pixel at the most (4:4:4), of 2 bytes above 8 bits.
    """
    across, down = (1, 1) if "420" in info.pix_fmt else (0, 0)
    samples = info.stored_width * info.stored_height * (1 + 2 / (1 << (across + down)))
    frame = int(samples) * (1 if info.depth == 8 else 2)
    return frame * (DECODER_SURFACES + min(AT_ONCE, num_frames))


def clip_patches(
    decoder: SurfaceDecoder,
    kernels: ModuleType,
    device: str,
    data: Bytes,
    info: VideoInfo,
    frames: Sequence[int],
    size: tuple[int, int],
    patch: PatchLayout,
) -> torch.Tensor:
    """Patches of a clip: uint8 [patches, 3·T·P·P] on the device, as `media.pixels.stream_patches`.

    Args:
        decoder: gives the frames.
        kernels: `zephon_mm_kernels.triton`.
        device: where they lie.
        data: the clip's bytes.
        info: its probe.
        frames: indices of shown frames, at least one, any order, repeats allowed.
        size: (height, width) as shown, multiples of ``patch_size · merge_size``.
        patch: the model's layout.

    Raises:
        MediaError: as the decoder does.
    """
    if not frames:
        raise ValueError("no frames: a clip needs at least one")
    places: dict[int, list[int]] = {}
    for position, index in enumerate(frames):
        places.setdefault(index, []).append(position)
    p, t = patch.patch_size, patch.temporal_patch_size
    rows = -(-len(frames) // t) * (size[0] // p) * (size[1] // p)
    out = torch.empty((rows, patch.columns), dtype=torch.uint8, device=device)
    held: list[SurfaceFrame] = []

    def write() -> None:
        positions = [place for frame in held for place in places[frame.index]]
        surfaces = [frame.planes for frame in held for _ in places[frame.index]]
        source = kernels.Source(*_look(held[0]))
        kernels.write_frames(surfaces, source, size, out, positions, p, t, patch.merge_size)
        held.clear()

    for frame in decoder.surfaces(data, info, frames):
        if held and (len(held) == AT_ONCE or _alike(held[0]) != _alike(frame)):
            write()
        held.append(frame)
    write()
    repeat_last(out, len(frames), p, t)
    return out


def _look(frame: SurfaceFrame) -> tuple[Any, ...]:
    """`Source`'s fields."""
    turn = frame.orientation
    return (
        frame.subsampling,
        frame.depth,
        frame.shift,
        frame.matrix,
        frame.full_range,
        (turn.transpose, turn.mirror_x, turn.mirror_y),
    )


def _alike(frame: SurfaceFrame) -> tuple[Any, ...]:
    """Frames of which this is equal may be written by one launch."""
    shapes = tuple((tuple(plane.shape), plane.stride()) for plane in frame.planes)
    return (*_look(frame), shapes)
