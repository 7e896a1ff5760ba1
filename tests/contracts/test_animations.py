"""Animated pictures through the loader: the first picture, or a clip, by `image.animated`."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from zephon_mm import Loader
from zephon_mm.batch import Batch
from zephon_mm.config import (
    DataConfig,
    ExecutionConfig,
    Filter,
    ImageSizing,
    Packing,
    Source,
    Stop,
    VideoSampling,
)
from zephon_mm.decoders.base import DecodedFrames
from zephon_mm.errors import ConfigError, StateError, ZephonError
from zephon_mm.media.animation import AnimationDecoder
from zephon_mm.media.animation_times import clip_of
from zephon_mm.media.pixels import video_patches
from zephon_mm.media.probe import probe_image

from . import media

SERIAL, THREADS = ExecutionConfig(backend="serial"), ExecutionConfig(backend="threads", workers=3)
FRAMES = 8


def animation(name: str, frames: int = FRAMES) -> bytes:
    random = np.random.default_rng(len(name))
    made = [Image.fromarray(random.integers(0, 256, (40, 60, 3), np.uint8)) for _ in range(frames)]
    file = io.BytesIO()
    made[0].save(file, name, save_all=True, append_images=made[1:], duration=250)
    return file.getvalue()


def interleaved(field: str, data: bytes) -> dict[str, object]:
    return {field: data, "json": json.dumps([{"text": "See "}, {"image": field}, {"text": "end"}])}


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return {name: animation(name.upper()) for name in ("gif", "webp", "png")}


@pytest.fixture(scope="module")
def config(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path, files: dict[str, bytes]
) -> DataConfig:
    folder = tmp_path_factory.mktemp("animated")
    cut = files["gif"][: len(files["gif"]) - 1500]
    samples = [interleaved(name, data) for name, data in files.items()]
    samples += [interleaved("gif", animation("GIF", 1)), interleaved("gif", cut)]
    return DataConfig(
        sources=(Source(id="a", urls=media.write(folder, "a", iter(samples), 5), format="auto"),),
        model="qwen2_5_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=512,
        global_batch=2,
        lanes=2,
        shuffle=False,
        packing=Packing(order="single"),
        video=VideoSampling(mode="uniform", num_frames=4),
        image=ImageSizing(animated="video"),
        stop=Stop(epochs=1),
    )


def bomb() -> bytes:
    """18,000 frames on a canvas of 64 million pixels, in 270 kB."""
    head = b"GIF89a" + (8000).to_bytes(2, "little") * 2 + b"\x80\0\0" + b"\0\0\0\xff\xff\xff"
    frame = b"\x2c" + b"\0\0\0\0\1\0\1\0\0" + b"\x02\x02\x44\x01\x00"
    return head + frame * 18_000 + b";"


def documents(batches: list[Batch]) -> Iterator[tuple[str, list[str], str]]:
    """Key, kinds of media and a digest of the patches of each document."""
    for batch in batches:
        at = {"image": 0, "video": 0}
        patches = {"image": batch.image_patches, "video": batch.video_patches}
        for row in batch.documents:
            for document in row:
                digest = hashlib.sha256()
                for span in document.media:
                    start = at[span.kind]
                    at[span.kind] += span.num_patches
                    digest.update(patches[span.kind][start : at[span.kind]].numpy().tobytes())
                kinds = [span.kind for span in document.media]
                yield document.key, kinds, digest.hexdigest()


def run(config: DataConfig, execution: ExecutionConfig) -> tuple[list[Batch], Loader]:
    with Loader(config, execution) as loader:
        return list(loader), loader


def test_as_clips(config: DataConfig, files: dict[str, bytes]) -> None:
    """All formats, a still, a cut one: the same by one thread and by several."""
    batches, loader = run(config, SERIAL)
    found = list(documents(batches))
    assert Counter(kind for _, kinds, _ in found for kind in kinds) == {"video": 4, "image": 1}
    assert loader.stats()["sources"]["a"]["delivered"] == 5
    damaged = [d for b in batches for row in b.documents for d in row if d.damaged]
    assert len(damaged) == 1  # the cut one, whose last frame is asked for
    for execution in (THREADS, replace(SERIAL, image_decoder="torchvision")):
        assert list(documents(run(config, execution)[0])) == found
    by_digest = {digest for _, _, digest in found}
    family = batches[0].family
    for data in files.values():
        info = clip_of(probe_image(data))
        assert info is not None and info.frames_per_second == 4.0
        chosen = [0, 2, 5, 7]
        frames: DecodedFrames = AnimationDecoder().decode(data, info, chosen)
        size = family.layout_video(4, info.height, info.width).size
        patches = video_patches(frames, size, family.patches)
        assert hashlib.sha256(patches.tobytes()).hexdigest() in by_digest
    spans = [s for b in batches for row in b.documents for d in row for s in d.media]
    assert {s.pts_seconds for s in spans if s.kind == "video" and s.frames[-1] == 7} == {
        (0.0, 0.5, 1.25, 1.75)
    }


def test_by_default_the_first_picture(config: DataConfig) -> None:
    first = replace(config, image=ImageSizing())
    batches, loader = run(first, SERIAL)
    found = list(documents(batches))
    assert [kinds for _, kinds, _ in found] == [["image"]] * 5
    with Loader(config, SERIAL) as other:
        assert other.fingerprint != loader.fingerprint
        with pytest.raises(StateError, match=r"image\.animated"):
            other.load_state_dict(loader.state_dict())


def test_filters_see_a_clip(config: DataConfig) -> None:
    for limits in (Filter(frames=(None, 7)), Filter(videos=(0, 0)), Filter(duration=(None, 1.9))):
        source = replace(config.sources[0], filter=limits)
        _, loader = run(replace(config, sources=(source,)), SERIAL)
        assert loader.stats()["sources"]["a"]["filtered"] >= 3, limits
        _, loader = run(replace(config, sources=(source,), image=ImageSizing()), SERIAL)
        assert loader.stats()["sources"]["a"]["filtered"] == 0, limits


def test_in_a_conversation_it_is_written_as_a_clip(
    config: DataConfig, files: dict[str, bytes], tmp_path: Path
) -> None:
    turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A dog."}]
    sample: dict[str, object] = {
        "gif": files["gif"],
        "json": json.dumps({"conversations": turns, "image": "gif"}),
    }
    source = replace(
        config.sources[0], urls=media.write(tmp_path, "chat", iter([sample]), 1), format="chat"
    )
    batches, _ = run(replace(config, sources=(source,)), SERIAL)
    (document,) = (d for b in batches for row in b.documents for d in row)
    assert [span.kind for span in document.media] == ["video"]
    ids = batches[0].input_ids[0].tolist()
    family = batches[0].family
    assert ids.count(family.vision.video) > 0 and family.vision.image not in ids  # type: ignore[attr-defined]


def test_a_model_without_clips_refuses_the_option(config: DataConfig) -> None:
    with pytest.raises(
        ConfigError, match=r"image\.animated='video' has no place with model='text'"
    ):
        Loader(replace(config, model="text"), SERIAL)
    with pytest.raises(ConfigError, match="must be first or video"):
        ImageSizing(animated="all")  # type: ignore[arg-type]


def test_the_bounds_of_work(config: DataConfig, files: dict[str, bytes], tmp_path: Path) -> None:
    sizing = ImageSizing(animated="video", max_source_pixels=2000)
    with pytest.raises(ZephonError, match=r"over image\.max_source_pixels=2000"):
        run(replace(config, image=sizing), SERIAL)
    samples = [interleaved("gif", bomb()), interleaved("gif", files["gif"])]
    source = replace(config.sources[0], urls=media.write(tmp_path, "bomb", iter(samples), 1))
    _, loader = run(replace(config, sources=(source,)), SERIAL)
    (entry,) = loader.rejected
    assert entry["outcome"] == "quarantined"
    assert "more work than is done for a clip" in entry["reason"]
    assert loader.stats()["sources"]["a"]["delivered"] == 1
