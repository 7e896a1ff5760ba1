"""Patches of clips from a device's surfaces equal the CPU's, byte for byte, or are refused."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.unit.device.conftest import FakeCard, clean, fails
from tests.unit.media.clips import make_clip
from zephon_mm.decoders.pyav import PyAVDecoder
from zephon_mm.device import DeviceStage
from zephon_mm.device.clips import clip_bytes
from zephon_mm.errors import MediaError, MissingDependencyError
from zephon_mm.media.pixels import stream_patches
from zephon_mm.patches import PatchLayout

QWEN = PatchLayout(14, 2, 2)
X265 = {"codec": "libx265", "pix_fmt": "yuv420p10le", "frames": 10}
X265 |= {"options": {"x265-params": "log-level=none:keyint=6:bframes=3"}}
KINDS: dict[str, dict[str, Any]] = {
    "8 bits": {"frames": 10, "options": {"bf": "3", "g": "8"}},
    "10 bits": X265,
    "odd size": {"codec": "libvpx-vp9", "container": "webm", "size": (35, 53), "frames": 6},
    "4:4:4": {"pix_fmt": "yuv444p", "size": (37, 51), "frames": 6},
    "turned": {"rotation": 90, "frames": 6},
    "full range": {"pix_fmt": "yuvj420p", "frames": 6},
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_patches_are_the_cpus(kind: str, stage: DeviceStage) -> None:
    data = make_clip(**KINDS[kind])
    info = clean(data)
    frames, size = [4, 1, 1, 5, 0], (56, 28)
    want = stream_patches(PyAVDecoder(), data, info, frames, size, QWEN)
    assert np.array_equal(stage.clip(data, info, frames, size, QWEN).numpy(), want)


def test_by_tritons_interpreter(card: FakeCard, interpreted: Any) -> None:
    data = make_clip(**X265 | {"size": (16, 24), "frames": 3})
    info, layout = clean(data), PatchLayout(14, 2, 1)
    stage = DeviceStage("cpu", card.decoder(), surface_budget=1 << 20, kernels=interpreted)
    want = stream_patches(PyAVDecoder(), data, info, [2, 0, 0], (14, 28), layout)
    assert np.array_equal(stage.clip(data, info, [2, 0, 0], (14, 28), layout).numpy(), want)


def test_more_frames_than_a_launch_takes_and_whole_tiles(stage: DeviceStage, kernels: Any) -> None:
    data = make_clip(frames=20, size=(16, 16))
    info, tiles = clean(data), PatchLayout(28, 1, 1)
    frames = list(range(20))
    want = stream_patches(PyAVDecoder(), data, info, frames, (28, 28), tiles)
    assert np.array_equal(stage.clip(data, info, frames, (28, 28), tiles).numpy(), want)
    assert kernels.launches == [16, 4]


def test_a_kind_is_tried_once_and_by_no_other(stage: DeviceStage, card: FakeCard) -> None:
    first, other = make_clip(frames=10), make_clip(frames=10, seed=5)
    large = make_clip(frames=10, size=(64, 64))
    for data in (first, other, large, other, large):
        stage.clip(data, clean(data), [9], (28, 28), QWEN)
    tried = list(range(8))
    assert card.decodes == [tried, [9], [9], tried, [9], [9], [9]]


def test_a_card_with_other_planes_is_not_trusted(
    stage: DeviceStage, card: FakeCard, caplog: pytest.LogCaptureFixture
) -> None:
    def one_sample_off(index: int, planes: list[np.ndarray[Any, Any]]) -> None:
        planes[2][3, 4] ^= index == 6

    card.spoil = one_sample_off
    data = make_clip(frames=10)
    with caplog.at_level(logging.WARNING, "zephon_mm"):
        for _ in range(3):
            with pytest.raises(MediaError, match="frame 6 of the first one is not the reference"):
                stage.clip(data, clean(data), [0], (28, 28), QWEN)
    assert len(card.decodes) == 1 and len(caplog.records) == 1
    assert "decoded on the CPU" in caplog.text


def test_one_clips_failure_says_nothing_of_its_kind(stage: DeviceStage, card: FakeCard) -> None:
    data = make_clip(frames=4)
    kept, card.spoil = card.spoil, fails
    with pytest.raises(MediaError, match="the card lost it"):
        stage.clip(data, clean(data), [0], (28, 28), QWEN)
    card.spoil = kept
    assert len(stage.clip(data, clean(data), [0], (28, 28), QWEN)) == 4


@pytest.mark.parametrize("answer", [None, "this card has no h264"])
def test_what_is_not_asked_of_the_card(answer: str | None, card: FakeCard) -> None:
    decoder, info = card.decoder(), clean(make_clip(frames=2))
    card.answer = answer
    assert decoder.refusal(info) == answer
    wrong = {
        "not verified": {"clean": None},
        "it is damaged": {"clean": False},
        "no reliable pts": {"synthetic_pts": True},
        "mpeg4": {"codec": "mpeg4"},
        "other planes of gray": {"pix_fmt": "gray"},
        "other planes of gbrp": {"pix_fmt": "gbrp", "matrix": "rgb"},
        "broken": {"problem": "broken"},
    }
    for says, change in wrong.items():
        reason = decoder.refusal(dataclasses.replace(info, **change))
        assert reason is not None and says in reason
    with pytest.raises(MediaError, match="NVDEC doesn't decode this clip: it is damaged"):
        list(decoder.surfaces(b"", dataclasses.replace(info, clean=False), [0]))
    assert not card.decodes


def test_surfaces_stay_in_their_budget(card: FakeCard, kernels: Any) -> None:
    data = make_clip(frames=6)
    info, inside, most = clean(data), 0, 0
    lock = threading.Lock()
    one = clip_bytes(info, 4)
    assert one == 48 * 64 * 3 // 2 * (24 + 4)
    stage = DeviceStage("cpu", card.decoder(), surface_budget=2 * one, kernels=kernels)
    stage.clip(data, info, range(4), (28, 28), QWEN)  # the first of a kind is tried alone
    whole = card.raw
    entered, two = itertools.count(), threading.Barrier(2)

    def counted(*asked: Any) -> Any:
        nonlocal inside, most
        with lock:
            inside, most = inside + 1, max(most, inside + 1)
            first = next(entered) < 2
        if first:  # there is room for two at a time
            two.wait(60)
        yield from whole(*asked)
        with lock:
            inside -= 1

    stage.decoder._raw = counted  # type: ignore[union-attr]
    with ThreadPoolExecutor(4) as pool:
        made = list(
            pool.map(lambda _: stage.clip(data, info, range(4), (28, 28), QWEN).numpy(), range(8))
        )
    assert all(np.array_equal(made[0], other) for other in made[1:])
    assert most == 2 and stage.surfaces.peak_bytes == 2 * one and not stage.surfaces.held_bytes
    alone = DeviceStage("cpu", card.decoder(), surface_budget=1, kernels=kernels)
    assert len(alone.clip(data, info, [0, 1], (28, 28), QWEN)) == 4


def test_a_stage_stays_in_its_process(stage: DeviceStage) -> None:
    with pytest.raises(TypeError, match="can't leave its process"):
        pickle.dumps(stage)


def test_rgb_of_dali_takes_the_same_kernels(stage: DeviceStage, kernels: Any) -> None:
    import torch

    pytest.importorskip("nvidia.dali")
    from zephon_mm.decoders.dali_cpu import DaliCpuDecoder, decoded
    from zephon_mm.decoders.dali_gpu import DaliGpuDecoder, rgb_surface

    data = make_clip(codec="libvpx-vp9", container="webm", size=(37, 53), frames=5)
    info, frames = clean(data), [3, 0, 4]
    want = stream_patches(DaliCpuDecoder(), data, info, frames, (28, 56), QWEN)
    if not torch.cuda.is_available():
        with pytest.raises(MissingDependencyError, match="needs an NVIDIA GPU"):
            DaliGpuDecoder()
    decoder = object.__new__(DaliGpuDecoder)
    decoder._read = (
        lambda run: [  # type: ignore[method-assign]
            torch.from_numpy(np.array(picture))
            for picture in np.array(decoded(run, "cpu", None).at(0))[: len(run.frames)]
        ]
    )
    with_dali = DeviceStage("cpu", decoder, surface_budget=1 << 20, kernels=kernels)
    assert np.array_equal(with_dali.clip(data, info, frames, (28, 56), QWEN).numpy(), want)
    with pytest.raises(MediaError, match="expected uint8"):
        rgb_surface(torch.zeros((37, 52, 3), dtype=torch.uint8), 0, info)
    assert "mjpeg" in str(decoder.refusal(dataclasses.replace(info, codec="mjpeg")))
