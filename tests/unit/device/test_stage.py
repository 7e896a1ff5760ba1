"""What a GPU takes and what is said where it isn't there; the order of work on its stream."""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from zephon_mm.config import ExecutionConfig
from zephon_mm.decoders import load_surface_decoder, nvdec_driver, surface_decoder_for
from zephon_mm.decoders.nvdec_driver import Driver
from zephon_mm.device import DeviceStage, open_device
from zephon_mm.errors import ConfigError, MissingDependencyError
from zephon_mm.models.normalise import by_table, normalise
from zephon_mm.pipeline import Step, on_device

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def test_the_cpu_takes_nothing() -> None:
    assert open_device(ExecutionConfig(), "planes-v1") is None
    with pytest.raises(ConfigError, match="device='cuda'"):
        open_device(ExecutionConfig(), "rgb-dali-gpu")
    assert surface_decoder_for("planes-v1") == "nvdec"
    assert surface_decoder_for("rgb-dali-gpu") == "dali-gpu"
    assert surface_decoder_for("rgb-decord") is None


@NO_GPU
@pytest.mark.parametrize("built", [None, "13.0"])
def test_no_gpu_is_named(
    built: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built)
    says = "a build without it" if built is None else "needs an NVIDIA GPU.*nvidia-smi"
    for name, pixel_class in (
        ("cuda", "planes-v1"),
        ("cuda:1", "planes-v1"),
        ("auto", "rgb-dali-gpu"),
    ):
        with pytest.raises(ConfigError, match=says):
            open_device(ExecutionConfig(device=name), pixel_class)
    with caplog.at_level(logging.INFO, "zephon_mm"):
        assert open_device(ExecutionConfig(device="auto"), "planes-v1") is None
    assert len(caplog.records) == 1 and "device='auto': pixels are made on the CPU" in caplog.text


@NO_GPU
def test_parts_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    with pytest.raises(ConfigError, match="there are 2 here, numbered from cuda:0 to cuda:1"):
        open_device(ExecutionConfig(device="cuda:2"), "planes-v1")
    with pytest.raises(MissingDependencyError, match=r"libnvcuvid.*NVIDIA_DRIVER_CAPABILITIES"):
        open_device(ExecutionConfig(device="cuda"), "planes-v1")
    assert open_device(ExecutionConfig(device="auto"), "planes-v1") is None


class FakeLibrary:
    """``libnvcuvid``: H.264 of 8 bits and 4:2:0, up to 4096x4096; asked for AV1 it fails."""

    def __init__(self) -> None:
        self.asked = 0

    def cuvidGetDecoderCaps(self, place: Any) -> int:
        self.asked += 1
        caps = place._obj
        caps.supported = (caps.codec, caps.chroma, caps.depth_minus_8) == (4, 1, 0)
        caps.min_width = caps.min_height = 48
        caps.max_width = caps.max_height = 4096
        caps.max_macroblocks = 8192
        return 100 if caps.codec == 11 else 0


def test_the_driver_is_asked_once_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    library, zeros = FakeLibrary(), torch.zeros
    monkeypatch.setattr(nvdec_driver.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: zeros(*shape))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    driver = Driver("cuda:0")
    assert driver.refusal("h264", (1, 1), 8, 1920, 1080) is None
    assert "4096x4096" in str(driver.refusal("h264", (1, 1), 8, 32, 64))
    assert "8192 macroblocks" in str(driver.refusal("h264", (1, 1), 8, 4096, 4096))
    assert library.asked == 1
    assert "doesn't decode h264, 10 bits" in str(driver.refusal("h264", (1, 1), 10, 64, 64))
    assert "doesn't decode hevc" in str(driver.refusal("hevc", (1, 0), 8, 64, 64))
    assert "no mpeg4" in str(driver.refusal("mpeg4", (1, 1), 8, 64, 64))
    assert "no h264 of subsampling (2, 0)" in str(driver.refusal("h264", (2, 0), 8, 64, 64))
    with pytest.raises(MissingDependencyError, match="CUDA error 100"):
        driver.refusal("av1", (1, 1), 8, 64, 64)
    assert ctypes.sizeof(nvdec_driver.Caps) == 88


@NO_GPU
def test_nvdec_without_a_driver() -> None:
    with pytest.raises(MissingDependencyError, match="libnvcuvid"):
        load_surface_decoder("nvdec", "cuda:0")


@pytest.mark.parametrize("patches", [torch.arange(6 * 768).to(torch.uint8).view(6, 768)])
def test_normalising_by_table_is_the_cpus(patches: torch.Tensor, interpreted: Any) -> None:
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    want = normalise(patches, mean, std)
    assert torch.equal(by_table(patches, mean, std, interpreted), want)


class FakeCuda:
    """Streams and events that write down what happens."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.current = "trainer's"
        patch.setattr(torch.cuda, "Stream", lambda device: f"side of {device}")
        patch.setattr(torch.cuda, "stream", self.stream)
        patch.setattr(torch.cuda, "Event", lambda: self)
        patch.setattr(torch.cuda, "current_stream", lambda device: self)

    @contextlib.contextmanager
    def stream(self, name: str) -> Iterator[None]:
        before, self.current = self.current, name
        yield
        self.current = before

    def record(self, name: str) -> None:
        self.log.append(f"event on {name}")

    def wait_event(self, event: Any) -> None:
        self.log.append(f"{self.current} stream waits")


class FakeBatch:
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (torch.zeros(1), torch.zeros(2))


def test_steps_are_made_on_the_side_stream_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    stage = DeviceStage("cuda:0", None, surface_budget=1)
    kept: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, s: kept.append(self))

    def made() -> Iterator[Step]:
        try:
            for number in range(2):
                cuda.log.append(f"step {number} on {cuda.current}")
                yield Step(number, (FakeBatch(),), ())  # type: ignore[arg-type]
        finally:
            cuda.log.append("closed")

    steps = on_device(made(), stage)
    for step in steps:
        assert cuda.current == "trainer's" and step.arrival is not None
        step.arrival.receive()
    assert cuda.log == [
        "step 0 on side of cuda:0", "event on side of cuda:0", "trainer's stream waits",
        "step 1 on side of cuda:0", "event on side of cuda:0", "trainer's stream waits", "closed",
    ]  # fmt: skip
    assert len(kept) == 4
    cuda.log.clear()
    begun = on_device(made(), stage)
    next(begun)
    begun.close()  # type: ignore[attr-defined]
    assert cuda.log[-1] == "closed" and cuda.current == "trainer's"
    plain = on_device(made(), None)
    assert next(plain).arrival is None
