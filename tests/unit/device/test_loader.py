"""Whole runs with a device: the CPU's batches, and who decoded what. No GPU: a fake card."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.media import clip, picture, write
from tests.tiny import write_tokenizer
from tests.unit.device.conftest import FakeCard, fails
from zephon_mm import DataConfig, ExecutionConfig, Loader, Source, VideoSampling
from zephon_mm.config import Packing, Stop
from zephon_mm.device import DeviceStage
from zephon_mm.errors import ConfigError
from zephon_mm.media.probe import probe_member
from zephon_mm.media.verify import verify_member
from zephon_mm.shards import open_source
from zephon_mm.stages.materialise import MediaCounts


@dataclasses.dataclass(frozen=True)
class Made:
    verified: DataConfig
    bare: DataConfig


def samples() -> Any:
    for number in range(6):
        yield {
            "json": json.dumps(
                [{"image": "jpg"}, {"text": f"a dog {number}"}, {"video": "mp4"}, {"text": "runs"}]
            ).encode(),
            "jpg": picture(number, 60, 56),
            "mp4": clip(number, 10),
        }
    broken = bytearray(clip(9, 30))
    tag = broken.index(b"mdat")
    start, stop = tag + 720, tag - 4 + int.from_bytes(broken[tag - 4 : tag], "big")
    broken[start:stop] = bytes(stop - start)  # all after x264's own message
    yield {"json": json.dumps([{"video": "mp4"}, {"text": "x y"}]).encode(), "mp4": bytes(broken)}
    yield {"json": json.dumps([{"text": "no media, only words"}]).encode()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = write_tokenizer(folder / "tokenizer")
    configs = []
    for name in ("verified", "bare"):
        source = Source(id="s", urls=write(folder / name, "s", samples(), 1), format="interleaved")
        verify = verify_member if name == "verified" else None
        open_source(source, probe=probe_member, verify=verify)
        configs.append(
            DataConfig(
                sources=(source,),
                model="qwen2_5_vl",
                tokenizer=str(tokenizer),
                sequence_length=128,
                global_batch=2,
                lanes=2,
                video=VideoSampling(mode="uniform", num_frames=3),
                packing=Packing(pool=4),
                stop=Stop(num_steps=2),
            )
        )
    return Made(*configs)


@pytest.fixture(scope="module")
def right(made: Made) -> Any:
    """Digests and counts of a CPU's run; the marks of `verified` change no batch."""
    return digests(made.verified)


def digests(config: DataConfig, **execution: Any) -> tuple[list[list[bytes]], Any]:
    fields = {"backend": "serial", **execution}
    with Loader(config, ExecutionConfig(**fields)) as loader:
        found = [batch.row_digests(pixels=True) for batch in loader]
        return found, MediaCounts(**loader.stats()["media"])


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_batches_are_the_cpus(
    made: Made,
    right: Any,
    stage: DeviceStage,
    card: FakeCard,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    want, counts = right
    assert len(want) == 2 and counts.damaged >= 1
    monkeypatch.setattr("zephon_mm.loader.open_device", lambda execution, pixel_class: stage)
    found, on_device = digests(made.verified, backend=backend, digest_log=str(tmp_path), workers=2)
    assert found == want
    assert on_device.clips == counts.clips and on_device.damaged == counts.damaged
    assert on_device.rerouted == on_device.damaged  # only what is marked so went to the CPU
    assert len(card.decodes) == 1 + on_device.clips - on_device.rerouted
    assert stage.surfaces.peak_bytes > 0 and not stage.surfaces.held_bytes


def test_unverified_and_failing_clips_go_to_the_reference(
    made: Made, right: Any, stage: DeviceStage, card: FakeCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    want, _ = right
    monkeypatch.setattr("zephon_mm.loader.open_device", lambda execution, pixel_class: stage)
    found, counts = digests(made.bare)
    assert found == want and counts.rerouted == counts.clips > 0 and not card.decodes
    card.spoil = fails
    found, counts = digests(made.verified)
    assert found == want and counts.rerouted == counts.clips > 0 and card.decodes


def test_without_a_decoder_all_is_made_on_the_cpu_and_sent(
    made: Made, right: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = DeviceStage("cpu", None, surface_budget=1)
    want, _ = right
    monkeypatch.setattr("zephon_mm.loader.open_device", lambda execution, pixel_class: sent)
    found, counts = digests(made.verified)
    assert found == want and counts.rerouted == 0


def test_a_leader_shares_batches_of_the_cpu(
    made: Made, stage: DeviceStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zephon_mm.loader.open_device", lambda execution, pixel_class: stage)
    monkeypatch.setattr("zephon_mm.loader.Share.of", lambda share, group: object())
    with pytest.raises(ConfigError, match="use share='all'"):
        Loader(made.verified, ExecutionConfig(device="cuda"), share="leader")
