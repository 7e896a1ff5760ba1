"""What a row may and may not hold: whole media, right labels, targets, sizes, reads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from zephon_mm import Batch, DataConfig, ExecutionConfig, Loader, Packing, Source, Stop
from zephon_mm.models import load_tokenizer

from . import media

SERIAL = ExecutionConfig(backend="serial")


def batches(config: DataConfig) -> list[Batch]:
    with Loader(config, SERIAL) as loader:
        return list(loader)


@pytest.mark.parametrize("model", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("length", [96, 160, 512])
def test_placeholders_equal_features_and_media_are_never_cut(
    mixed: DataConfig, model: str, length: int
) -> None:
    """P11: however short the rows, a medium is whole or re-laid: its tokens are its features."""
    config = replace(mixed, model=model, sequence_length=length, stop=Stop(num_steps=6))
    tokenizer = load_tokenizer(config.tokenizer)
    pads = {k: tokenizer.token_id(f"<|{k}_pad|>") for k in ("image", "video")}
    seen = {"image": 0, "video": 0}
    for batch in batches(config):
        inputs = batch.model_inputs
        for kind, pixels, grids in (
            ("image", "pixel_values", "image_grid_thw"),
            ("video", "pixel_values_videos", "video_grid_thw"),
        ):
            placeholders = int((batch.input_ids == pads[kind]).sum())
            rows = len(inputs[pixels]) if pixels in inputs else 0
            assert 4 * placeholders == rows
            if grids in inputs:
                assert int(inputs[grids].prod(1).sum()) == rows
                seen[kind] += len(inputs[grids])
        for row, documents in enumerate(batch.documents):
            for document in documents:
                for span in document.media:
                    assert document.start <= span.start and span.stop <= document.stop
                    block = batch.labels[row, span.start : span.stop]
                    assert bool((block == -100).all())
    assert min(seen.values()) > 0


def test_labels_are_the_tokens_but_for_first_ones_media_and_padding(mixed: DataConfig) -> None:
    """K04: nothing predicts across documents; every other label is its own token."""
    for batch in batches(mixed):
        for row, documents in enumerate(batch.documents):
            ids, labels = batch.input_ids[row], batch.labels[row]
            targets = labels != -100
            assert torch.equal(labels[targets], ids[targets])
            for document in documents:
                assert labels[document.start] == -100
                assert bool(targets[document.start : document.stop].any()), "it trains something"
                assert batch.position_ids[0, row, document.start] == 0
            end = documents[-1].stop if documents else 0
            assert not bool(targets[end:].any())
        assert batch.num_target_tokens == int((batch.labels != -100).sum())


def test_truncation_keeps_the_end_token(tmp_path: Path, tokenizer_folder: Path) -> None:
    """K05."""
    urls = media.write(tmp_path, "long", ({"txt": media.sentence(i, 200)} for i in range(6)), 1)
    config = DataConfig(
        sources=(Source(id="long", urls=urls, format="text"),),
        model="qwen3_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=77,
        global_batch=2,
        lanes=2,
        packing=Packing(over_long="truncate"),
        stop=Stop(epochs=1),
    )
    end = load_tokenizer(tokenizer_folder).token_id("<|endoftext|>")
    documents = 0
    for batch in batches(config):
        for row, spans in enumerate(batch.documents):
            for span in spans:
                documents += 1
                assert span.stop - span.start <= 77
                assert (
                    batch.input_ids[row, span.stop - 1] == end == batch.labels[row, span.stop - 1]
                )
    assert documents == 6


def test_samples_without_a_target_are_counted_and_no_row_is_without_one(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    """K06: empty, blank and null texts, bytes that are no UTF-8: each an outcome with a reason."""
    samples: list[dict[str, object]] = [
        {"jpg": media.picture(i, 40, 40), "txt": text}
        for i, text in enumerate(
            [b"", b"   ", b"\xff\xfe\xfa", b"fine and well", b"good words too"]
        )
    ]
    samples.append({"jpg": media.picture(9, 40, 40)})
    urls = media.write(tmp_path, "odd", iter(samples), 1)
    config = DataConfig(
        sources=(Source(id="odd", urls=urls, format="image_text"),),
        model="qwen3_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=128,
        global_batch=2,
        lanes=2,
        stop=Stop(epochs=1),
    )
    with Loader(config, SERIAL) as loader:
        rows = [
            (documents, labels)
            for batch in loader
            for documents, labels in zip(batch.documents, batch.labels, strict=True)
        ]
        counts = loader.stats()["sources"]["odd"]
        reasons = {entry["key"]: entry for entry in loader.rejected}
    assert sum(len(documents) for documents, _ in rows) == counts["delivered"] == 2
    assert counts["filtered"] + counts["quarantined"] + counts["dropped"] == 4
    assert set(reasons) == {"odd00000", "odd00001", "odd00002", "odd00005"}
    assert all(entry["reason"] and entry["shard"] and entry["stage"] for entry in reasons.values())
    for documents, labels in rows:
        assert not documents or bool((labels != -100).any())


def test_a_step_without_pictures_has_no_pixel_inputs(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    urls = media.write(tmp_path, "t", media.texts(20), 1)
    config = DataConfig(
        sources=(Source(id="t", urls=urls, format="text"),),
        model="qwen3_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=128,
        global_batch=2,
        lanes=2,
        stop=Stop(epochs=1),
    )
    for batch in batches(config):
        assert not {"pixel_values", "pixel_values_videos"} & batch.model_inputs.keys()


def test_restoring_reads_no_more_than_the_first_batch_needs(mixed: DataConfig) -> None:
    config = replace(mixed, stop=Stop())
    with Loader(config, SERIAL) as loader:
        for _, _batch in zip(range(20), loader, strict=False):
            pass
        state = loader.state_dict()
    live = sum(len(lane.sequencer.pool) for lane in loader._ring[-1][1])
    with Loader(config, SERIAL) as again:
        again.load_state_dict(state)
        assert again.read_counts.members == 0
        assert again.state_dict() == state
        batch = next(iter(again))
        media = again._run.materialise.counts.clips + again._run.materialise.counts.pictures
        texts = again.read_counts.members - media  # one text member a document
        assert media == len(batch.image_grids) + len(batch.video_grids)
        assert 0 < texts < live


def test_texts_of_an_indexed_source_load_little_of_arrow(mixed: DataConfig) -> None:
    """What Arrow computes with takes longer to load than a restore."""
    texts = mixed.sources[0]
    with Loader(replace(mixed, sources=(texts,), model="text"), SERIAL):
        pass  # it is indexed now
    code = (
        f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n"
        "from zephon_mm import DataConfig, ExecutionConfig, Loader, Source\n"
        f"source = Source(id='texts', urls={texts.urls!r}, format='text')\n"
        f"config = DataConfig(sources=(source,), model='text', tokenizer={mixed.tokenizer!r},\n"
        "    sequence_length=512, global_batch=1, lanes=1)\n"
        "with Loader(config, ExecutionConfig(backend='serial')) as loader:\n"
        "    assert next(iter(loader)).num_tokens\n"
        "print([name for name in ('pyarrow.compute', 'pyarrow.dataset') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_state_is_small_and_does_not_grow(mixed: DataConfig) -> None:
    config = replace(mixed, stop=Stop(), sources=mixed.sources[:1])
    sizes = []
    with Loader(config, SERIAL) as loader:
        for _, _batch in zip(range(120), loader, strict=False):
            lanes = loader.state_dict()["lanes"]
            sizes.append(max(len(text) * 3 // 4 for text in lanes.values()))
    assert max(sizes) <= 1024
    assert max(sizes[100:]) <= sizes[99]


@pytest.mark.parametrize("damaged", [True, False])
def test_a_damaged_clip_keeps_its_place_and_trains_nothing(
    tmp_path: Path, tokenizer_folder: Path, damaged: bool
) -> None:
    """C6: the sequence keeps its shape, the document's labels go, the log has one line."""
    good = media.clip(3, 24)
    data = bytearray(good)
    at = len(data) // 2
    data[at : at + 200] = np.random.Philox(key=1).random_raw(200).astype(np.uint8).tobytes()
    bad = bytes(data) if damaged else good
    samples = [{"mp4": bad if i == 1 else good, "txt": media.sentence(i, 8)} for i in range(3)]
    urls = media.write(tmp_path, "clips", iter(samples), 1)
    config = DataConfig(
        sources=(Source(id="clips", urls=urls, format="video_text"),),
        model="qwen3_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=1024,
        global_batch=1,
        lanes=1,
        stop=Stop(epochs=1),
    )
    with Loader(config, SERIAL) as loader:
        found = {
            d.key: (d.damaged, bool((batch.labels[row, d.start : d.stop] != -100).any()))
            for batch in loader
            for row, documents in enumerate(batch.documents)
            for d in documents
        }
        stats = loader.stats()["sources"]["clips"]
        log = [entry for entry in loader.rejected if entry["outcome"] == "damaged"]
    assert found == {
        "clips00000": (False, True),
        "clips00001": (damaged, not damaged),
        "clips00002": (False, True),
    }
    assert stats["delivered"] == 3 and stats["damaged"] == len(log) == int(damaged)
