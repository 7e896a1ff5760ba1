from __future__ import annotations

import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

from zephon_mm.config import Source, VideoSampling
from zephon_mm.decoders.pyav import PyAVDecoder
from zephon_mm.errors import MediaError, ShardChangedError
from zephon_mm.media.info import VideoInfo, read_probe
from zephon_mm.media.pixels import video_patches
from zephon_mm.media.probe import probe_member
from zephon_mm.media.verify import verify_member
from zephon_mm.models.normalise import normalise
from zephon_mm.sample import MeasuredDocument, Rejected
from zephon_mm.shards import ShardReader, open_source
from zephon_mm.stages.materialise import Materialiser, MediaTask
from zephon_mm.stages.measure import Measurer

from .conftest import Opener, clip, document, jpeg, refs, write_shard

MODELS = ("qwen2_5_vl", "qwen3_vl")


def tasks(made: Measurer, count: int) -> list[MediaTask]:
    found = [document(result) for result in made(refs(count))]
    return [MediaTask(doc.ref, span) for doc in found for span in doc.media]


def opened(made: Measurer) -> Materialiser:
    return Materialiser(made.reader, made._family)


@pytest.mark.parametrize("model", MODELS)
def test_a_picture_is_the_processors(tmp_path: Path, measurer: Opener, model: str) -> None:
    path = tmp_path / "p.jpg"
    path.write_bytes(jpeg(200, 130))
    made = measurer(
        write_shard(tmp_path / "a.tar", {"0": {"jpg": path.read_bytes(), "txt": "x y"}}),
        model=model,
    )
    (task,) = tasks(made, 1)
    result = opened(made).one(task)
    family = made._family
    assert result.damaged is None and result.patches.dtype == np.uint8
    assert result.patches.shape == (task.span.num_patches, family.patches.columns)
    processor = Qwen2VLImageProcessor(
        patch_size=family.patches.patch_size,
        image_mean=list(family.image_mean),
        image_std=list(family.image_std),
    )
    want = processor(Image.open(path), return_tensors="pt")
    assert want["image_grid_thw"].tolist() == [list(task.span.grid)]
    pixels = normalise(torch.from_numpy(result.patches), family.image_mean, family.image_std)
    assert torch.equal(pixels, want["pixel_values"])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("frames", [1, 2, 5, 9])
def test_a_clips_patches_are_of_the_chosen_frames(
    tmp_path: Path, measurer: Opener, model: str, frames: int
) -> None:
    data = clip(20)
    url = write_shard(tmp_path / "a.tar", {"0": {"mp4": data, "txt": "x y"}})
    made = measurer(
        url, "video_text", model=model, video=VideoSampling(mode="uniform", num_frames=frames)
    )
    (task,) = tasks(made, 1)
    materialiser = opened(made)
    result = materialiser.one(task)
    assert result.damaged is None
    assert result.patches.shape == (task.span.num_patches, made._family.patches.columns)
    probe = made.reader.member(0, 0, task.span.member).probe
    assert probe is not None
    info = read_probe(probe)
    assert isinstance(info, VideoInfo)
    decoded = PyAVDecoder().decode(data, info, task.span.frames)
    assert decoded.pts == task.span.pts
    want = video_patches(decoded, task.span.size, made._family.patches)
    assert np.array_equal(result.patches, want)
    counts = materialiser.counts
    assert (counts.clips, counts.frames, counts.bytes) == (1, frames, len(data))


def damaged_media() -> dict[str, dict[str, Any]]:
    picture, video = jpeg(200, 200), bytearray(clip(40))
    start = video.index(b"mdat") + 8
    video[start + 1000 : start + 1600] = bytes(600)
    return {
        "0": {"jpg": jpeg(), "json": [{"text": "x y"}, {"image": "jpg"}]},
        "1": {"jpg": picture[: len(picture) // 2], "json": [{"text": "x y"}, {"image": "jpg"}]},
        "2": {"mp4": bytes(video), "json": [{"text": "x y"}, {"video": "mp4"}]},
        "3": {"mp4": clip(40), "json": [{"text": "x y"}, {"video": "mp4"}]},
    }


@pytest.mark.parametrize("model", MODELS)
def test_damage_keeps_the_shape_and_says_why(tmp_path: Path, measurer: Opener, model: str) -> None:
    url = write_shard(tmp_path / "a.tar", damaged_media())
    made = measurer(url, "interleaved", model=model, video=VideoSampling(mode="all"))
    materialiser = opened(made)
    all_tasks = tasks(made, 4)
    results = [materialiser.one(task) for task in all_tasks]
    assert [result.damaged is not None for result in results] == [False, True, True, False]
    assert "'1.jpg'" in str(results[1].damaged) and "'2.mp4'" in str(results[2].damaged)
    family = made._family
    for task, result in zip(all_tasks, results, strict=True):
        assert result.patches.shape == (task.span.num_patches, family.patches.columns)
    for result, mean in ((results[1], family.image_mean), (results[2], family.video_mean)):
        channels = result.patches.reshape(len(result.patches), 3, -1)
        for channel in range(3):
            assert set(np.unique(channels[:, channel])) == {round(mean[channel] * 255)}
    assert materialiser.counts.damaged == 2
    again = [materialiser.one(task) for task in all_tasks]
    for first, second in zip(results, again, strict=True):
        assert np.array_equal(first.patches, second.patches) and first.damaged == second.damaged


@pytest.mark.parametrize("model", MODELS)
def test_rows_that_are_given_get_the_same_bytes(
    tmp_path: Path, measurer: Opener, model: str
) -> None:
    """Also of damaged media, and nothing beside them is touched."""
    samples = damaged_media()
    samples["4"] = {"jpg": jpeg(900, 500), "json": [{"text": "x y"}, {"image": "jpg"}]}
    url = write_shard(tmp_path / "a.tar", samples)
    sampling = VideoSampling(mode="uniform", num_frames=5)
    made = measurer(url, "interleaved", model=model, video=sampling)
    materialiser, all_tasks = opened(made), tasks(made, 5)
    want = materialiser(all_tasks)
    assert [result.damaged is not None for result in want] == [False, True, True, False, False]
    columns = made._family.patches.columns
    sizes = [task.span.num_patches for task in all_tasks]
    room = np.full((sum(sizes) + len(sizes), columns), 7, np.uint8)
    starts = [sum(sizes[:at]) + at for at in range(len(sizes))]
    into = [room[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    for result, expected, rows in zip(materialiser(all_tasks, into), want, into, strict=True):
        assert result.patches is rows and result.damaged == expected.damaged
        assert np.array_equal(rows, expected.patches)
    assert all((room[start + size] == 7).all() for start, size in zip(starts, sizes, strict=True))


def test_v16_damaged_clips(cases: Path, tmp_path: Path, measurer: Opener) -> None:
    files = sorted((cases / "inputs/V16").iterdir())
    media = [file for file in files if file.suffix in (".mp4", ".mkv", ".webm", ".h264")]
    samples = {
        f"{at}": {media[at].suffix[1:]: media[at].read_bytes(), "txt": "x y"}
        for at in range(len(media))
    }
    made = measurer(write_shard(tmp_path / "a.tar", samples), "video_text")
    materialiser = opened(made)
    measured = [r for r in made(refs(len(samples))) if isinstance(r, MeasuredDocument)]
    assert measured
    for task in [MediaTask(found.ref, span) for found in measured for span in found.media]:
        first, second = materialiser.one(task), materialiser.one(task)
        assert first.patches.shape == (task.span.num_patches, made._family.patches.columns)
        assert np.array_equal(first.patches, second.patches)
        assert first.damaged == second.damaged


def test_the_same_in_threads_and_after_pickling(tmp_path: Path, measurer: Opener) -> None:
    url = write_shard(tmp_path / "a.tar", damaged_media())
    made = measurer(url, "interleaved")
    all_tasks = tasks(made, 4)
    materialiser = opened(made)
    want = [materialiser.one(task) for task in all_tasks]
    copy: Materialiser = pickle.loads(pickle.dumps(materialiser))
    assert copy.counts.frames == 0
    found: dict[int, Any] = {}

    def work(at: int) -> None:
        found[at] = copy(list(reversed(all_tasks)))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for results in found.values():
        for first, second in zip(want, reversed(results), strict=True):
            assert np.array_equal(first.patches, second.patches)
            assert first.damaged == second.damaged
    assert copy.counts.pictures == 6 and copy.counts.clips == 6 and copy.counts.damaged == 6


def test_a_changed_shard_is_raised(tmp_path: Path, measurer: Opener) -> None:
    path = Path(write_shard(tmp_path / "a.tar", {"0": {"jpg": jpeg(), "txt": "x y"}}))
    made = measurer(str(path))
    (task,) = tasks(made, 1)
    data = bytearray(path.read_bytes())
    data[512 + 400] ^= 255
    path.write_bytes(data)
    materialiser = opened(made)
    with pytest.raises(ShardChangedError, match=r"a\.tar"):
        materialiser.one(task)
    assert materialiser.counts.damaged == 0


def test_task_bytes_grow_with_what_is_held(tmp_path: Path, measurer: Opener) -> None:
    samples = {
        "0": {"jpg": jpeg(64, 64), "json": [{"text": "x y"}, {"image": "jpg"}]},
        "1": {"jpg": jpeg(1000, 1000), "json": [{"text": "x y"}, {"image": "jpg"}]},
        "2": {"mp4": clip(20, 320, 240), "json": [{"text": "x y"}, {"video": "mp4"}]},
    }
    made = measurer(write_shard(tmp_path / "a.tar", samples), "interleaved")
    materialiser = opened(made)
    all_tasks = tasks(made, 3)
    small, large, video = (materialiser.task_bytes(task) for task in all_tasks)
    assert small < large
    for task, size in zip(all_tasks, (small, large, video), strict=True):
        assert size >= task.span.num_patches * made._family.patches.columns
        assert size >= task.span.source_size[0] * task.span.source_size[1] * 3
    assert materialiser.reader.reads.members == 3  # the JSON: estimates read no media
    in_rgb = Materialiser(materialiser.reader, made._family, decoder="decord")
    frames = len(all_tasks[2].span.frames)
    assert in_rgb.task_bytes(all_tasks[2]) == video + 3 * 320 * 240 * frames
    assert in_rgb.task_bytes(all_tasks[1]) == large


def test_p05_p06_pictures(cases: Path, tmp_path: Path, measurer: Opener) -> None:
    files = [*sorted((cases / "inputs/P05").glob("*.png"))]
    files += sorted((cases / "inputs/P06").glob("*.png"))
    samples = {file.stem: {"png": file.read_bytes(), "txt": "x y"} for file in files}
    made = measurer(write_shard(tmp_path / "a.tar", samples))
    materialiser = opened(made)
    shown: dict[str, str] = {}
    for result in made(refs(len(files))):
        if isinstance(result, Rejected):
            shown[result.key] = result.outcome
            continue
        found = document(result)
        done = materialiser.one(MediaTask(found.ref, found.media[0]))
        assert done.damaged is None and min(found.media[0].grid) >= 1
        shown[found.key] = "delivered"
    assert shown["6000x20"] == shown["8000x9"] == "dropped"
    assert shown["31x639"] == shown["1x1"] == shown["3x1"] == shown["1x3"] == "delivered"


def test_p10_bomb(cases: Path, tmp_path: Path, measurer: Opener) -> None:
    url = str(shutil.copy(cases / "inputs/P10/shard.tar", tmp_path))
    made = measurer(url)
    results = made(refs(made.reader.index(0, 0).num_samples))
    refused = [result for result in results if isinstance(result, Rejected)]
    assert len(results) == 5 and [result.outcome for result in refused] == ["dropped"]
    materialiser = opened(made)
    for found in results:
        if isinstance(found, MeasuredDocument):
            assert materialiser.one(MediaTask(found.ref, found.media[0])).damaged is None


def verified_materialiser(made: Measurer, url: str, marked: bool, **names: str) -> Materialiser:
    source = Source(id="s", urls=url, format="interleaved")
    manifest = open_source(
        source,
        cache_dir=None,
        probe=probe_member,
        verify=verify_member if marked else None,
        force=True,
    )
    return Materialiser(ShardReader([manifest]), made._family, **names)


@pytest.mark.parametrize("marked", [False, True])
def test_other_libraries_give_the_same_or_leave_it_to_the_reference(
    tmp_path: Path, measurer: Opener, marked: bool
) -> None:
    pytest.importorskip("torchcodec")
    url = write_shard(tmp_path / "a.tar", damaged_media())
    made = measurer(url, "interleaved", video=VideoSampling(mode="all"))
    all_tasks = tasks(made, 4)
    want = [opened(made).one(task) for task in all_tasks]
    other = verified_materialiser(
        made, url, marked, decoder="torchcodec", image_decoder="torchvision"
    )
    for first, second in zip(want, other(all_tasks), strict=True):
        assert np.array_equal(first.patches, second.patches) and first.damaged == second.damaged
    # what is clean and marked goes to the other library; all else to the reference
    assert other.counts.rerouted == (2 if marked else 4)
    assert other.counts.damaged == 2


def test_a_failure_of_another_library_is_no_damage(
    tmp_path: Path, measurer: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchcodec = pytest.importorskip("zephon_mm.decoders.torchcodec")
    url = write_shard(tmp_path / "a.tar", {"0": {"mp4": clip(20), "txt": "x y"}})
    made = measurer(url, "video_text", video=VideoSampling(mode="all"))
    (task,) = tasks(made, 1)
    want = opened(made).one(task)
    decode = torchcodec.raw_frames

    def fail(*args: Any) -> Any:
        yield from (frame for frame, _ in zip(decode(*args), range(5), strict=False))
        raise MediaError("lost", stage="decode")

    monkeypatch.setattr(torchcodec, "raw_frames", fail)
    other = verified_materialiser(made, url, True, decoder="torchcodec")
    found = other.one(task)
    assert found.damaged is None and np.array_equal(found.patches, want.patches)
    assert other.counts.rerouted == 1
