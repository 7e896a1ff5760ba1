"""A GPU that isn't there: NVDEC's surfaces made of PyAV's planes, and the CPU's kernels on them.

Triton's interpreter takes seconds a clip and one thread at a time, so it runs where one test needs
it; that its kernels are the CPU's on such surfaces is what ``kernels/tests/test_triton.py`` holds.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from zephon_mm_kernels import cpu, normalise
from zephon_mm_kernels.surfaces import Source, check_surfaces

from zephon_mm.decoders.nvdec import NvdecDecoder
from zephon_mm.decoders.pyav import PyAVDecoder
from zephon_mm.device import DeviceStage
from zephon_mm.errors import MediaError
from zephon_mm.media.info import VideoInfo
from zephon_mm.media.probe_video import probe_video


class SurfaceKernels:
    """What `zephon_mm_kernels.triton` does to surfaces, by the CPU's kernels."""

    Source = Source

    def __init__(self) -> None:
        self.launches: list[int] = []

    def write_frames(
        self, surfaces: Any, source: Source, size: Any, patches: torch.Tensor, frames: Any,
        p: int, t: int, m: int,
    ) -> None:  # fmt: skip
        assert len(surfaces) == len(frames) <= 16 * 2
        check_surfaces(surfaces, source, patches.device)
        self.launches.append(len(frames))
        for surface, frame in zip(surfaces, frames, strict=True):
            planes = [plane.numpy() >> source.shift for plane in surface]
            if len(planes) == 2:
                planes = [planes[0], planes[1][:, 0::2], planes[1][:, 1::2]]
            cpu.write_frame(
                planes, source.subsampling, source.depth, source.matrix, source.full_range,
                source.orientation, size, patches.numpy(), frame, p, t, m,
            )  # fmt: skip


@pytest.fixture
def kernels() -> Any:
    return SurfaceKernels()


@pytest.fixture(scope="session")
def interpreted() -> Any:
    """The Triton kernels, decorated for the interpreter: Triton asks when it decorates."""
    pytest.importorskip("triton")
    name = "zephon_mm_kernels._interpreted_for_devices"
    path = Path(normalise.__file__).with_name("triton.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return module


@dataclasses.dataclass
class FakeFrame:
    """What torchcodec's RawFrame on CUDA has, on the CPU."""

    planes: tuple[torch.Tensor, ...]
    width: int
    height: int
    pixel_format: str


def surfaces_of(planes: Sequence[np.ndarray[Any, Any]], depth: int) -> tuple[torch.Tensor, ...]:
    """Y, U and V as views of a padded NV12 or P010 surface; planar where chroma isn't halved."""
    width = planes[0].shape[1]
    shift = 0 if depth == 8 else 16 - depth
    half = planes[1].shape[1] < width
    stored = [planes[0], np.stack(planes[1:], axis=-1).reshape(len(planes[1]), -1)]
    found = []
    for plane in stored if half else planes:
        room = np.full((len(plane), -(-plane.shape[1] // 64) * 64), 7, plane.dtype)
        room[:, : plane.shape[1]] = plane << shift
        found.append(torch.from_numpy(room)[:, : plane.shape[1]])
    if not half:
        return tuple(found)
    return found[0], found[1][:, 0::2], found[1][:, 1::2]


class FakeCard:
    """Counts what it is asked; ``spoil`` may change the planes of a frame, or raise."""

    def __init__(self) -> None:
        self.decodes: list[list[int]] = []
        self.spoil: Callable[[int, list[np.ndarray[Any, Any]]], None] = lambda index, planes: None
        self.answer: str | None = None

    def ask(self, codec: str, sub: tuple[int, int], depth: int, width: int, height: int) -> Any:
        return self.answer

    def raw(
        self, data: Any, info: VideoInfo, frames: Sequence[int], device: str
    ) -> Iterator[tuple[int, Any]]:
        self.decodes.append(list(frames))
        for frame in PyAVDecoder().stream(data, info, frames):
            planes = [np.array(plane) for plane in frame.planes]
            self.spoil(frame.index, planes)
            surface = surfaces_of(planes, frame.depth)
            yield frame.index, FakeFrame(surface, frame.width, frame.height, "nv12")

    def decoder(self) -> NvdecDecoder:
        return NvdecDecoder("cpu", ask=self.ask, raw=self.raw)


@pytest.fixture
def card() -> FakeCard:
    return FakeCard()


@pytest.fixture
def stage(card: FakeCard, kernels: Any) -> DeviceStage:
    return DeviceStage("cpu", card.decoder(), surface_budget=1 << 20, kernels=kernels)


def clean(data: bytes) -> VideoInfo:
    return dataclasses.replace(probe_video(data), clean=True)


def fails(index: int, planes: Any) -> None:
    raise MediaError("the card lost it", stage="decode")
