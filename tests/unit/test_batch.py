from __future__ import annotations

import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import QWEN, write_tokenizer
from zephon_mm.batch import IGNORE, Batch
from zephon_mm.collate import PackedPiece, PackedRow, collate
from zephon_mm.config import DataConfig, Source
from zephon_mm.errors import ZephonError
from zephon_mm.models import ModelFamily, build_family, load_tokenizer, measure_digest
from zephon_mm.models.normalise import normalise
from zephon_mm.sample import MeasuredDocument, MediaSpan, SampleRef

PAD = 7
SOURCES = ["words", "clips"]


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFamily]:
    folder: Path = write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    source = Source(id="a", urls="a.tar", format="text")
    made = {}
    for model in QWEN:
        config = DataConfig(sources=(source,), model=model, tokenizer=str(folder))
        made[model] = build_family(config, load_tokenizer(folder))
    return made


@pytest.fixture(params=QWEN)
def family(request: pytest.FixtureRequest, families: dict[str, ModelFamily]) -> ModelFamily:
    return families[request.param]


def document(
    family: ModelFamily, parts: list[int | str], *, source: int = 0, sample: int = 0
) -> MeasuredDocument:
    """Numbers are so many text tokens; ``image`` and ``video`` a small medium."""
    tokens: list[int] = []
    loss: list[bool] = []
    media: list[MediaSpan] = []
    for part in parts:
        if isinstance(part, int):
            tokens += range(100 + len(tokens), 100 + len(tokens) + part)
            loss += [True] * part
            continue
        video = part == "video"
        grid = (2, 4, 6) if video else (1, 4, 4)
        side = family.patches.patch_size
        span = MediaSpan(
            kind="video" if video else "image",
            member=len(media),
            start=len(tokens),
            stop=0,
            grid=grid,
            size=(grid[1] * side, grid[2] * side),
            source_size=(50, 60),
            frames=(0, 4, 8) if video else (),
            pts=(0, 40, 80) if video else (),
            time_base=(1, 100),
            fps=2.5 if video else 0.0,
        )
        block = family.block(span)
        media.append(replace(span, stop=span.start + len(block)))
        tokens += block.tolist()
        loss += [False] * len(block)
    ids, mask = np.array(tokens, np.int32), np.array(loss, np.bool_)
    ref = SampleRef(source, 3, sample, 1, sample)
    digest = measure_digest(ids, mask, media)
    return MeasuredDocument(ref, "d/s.tar", f"key{sample}", ids, mask, tuple(media), digest)


def row(family: ModelFamily, *pieces: PackedPiece, seed: int = 0) -> PackedRow:
    draw = np.random.default_rng(seed)
    patches: dict[str, list[Any]] = {"image": [], "video": []}
    for piece in pieces:
        for span in piece.media:
            shape = (span.num_patches, family.patches.columns)
            patches[span.kind].append(draw.integers(0, 256, shape, np.uint8))
    return PackedRow(pieces, patches["image"], patches["video"])


def whole(item: MeasuredDocument, damaged: bool = False) -> PackedPiece:
    return PackedPiece(item, 0, len(item.tokens), damaged)


def batch(family: ModelFamily, rows: list[PackedRow], length: int = 64) -> Batch:
    return collate(
        rows,
        family=family,
        sequence_length=length,
        pad_id=PAD,
        step=5,
        slots=[8 + n for n in range(len(rows))],
        source_ids=SOURCES,
    )


def test_shapes_types_and_places(family: ModelFamily) -> None:
    first, second = document(family, [5]), document(family, [3, "image", 4], source=1, sample=9)
    made = batch(family, [row(family, whole(first), whole(second)), row(family, whole(first))])
    assert (made.step, made.slots, len(made)) == (5, (8, 9), 2)
    for tensor, shape, dtype in (
        (made.input_ids, (2, 64), torch.int64),
        (made.labels, (2, 64), torch.int64),
        (made.position_ids, (4, 2, 64), torch.int64),
        (made.seq_idx, (2, 64), torch.int32),
        (made.cu_seq_lens, (6,), torch.int32),
        (made.image_grids, (1, 3), torch.int64),
        (made.image_patches, (16, family.patches.columns), torch.uint8),
        (made.video_grids, (0, 3), torch.int64),
        (made.video_patches, (0, family.patches.columns), torch.uint8),
    ):
        assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
    assert made.input_ids[0, :5].tolist() == first.tokens.tolist()
    assert made.input_ids[0, 5:18].tolist() == second.tokens.tolist()
    assert set(made.input_ids[0, 18:].tolist()) == {PAD}
    assert made.cu_seq_lens.tolist() == [0, 5, 18, 64, 69, 128]
    assert made.max_length == 59
    assert made.seq_idx[0].tolist() == [0] * 5 + [1] * 13 + [2] * 46

    span = made.documents[0][1]
    assert (span.source, span.shard, span.key, span.epoch) == ("clips", "d/s.tar", "key9", 1)
    assert (span.start, span.stop, span.token_start, span.token_stop) == (5, 18, 0, 13)
    assert (span.media[0].start, span.media[0].stop) == (8, 14)
    assert span.frame_pts == ((),)


def test_labels(family: ModelFamily) -> None:
    """K04: the first token of each document is nobody's target; nor are media and padding."""
    first, second = document(family, [5]), document(family, [3, "video", 4])
    second.loss[1] = False
    made = batch(family, [row(family, whole(first), whole(second), whole(first))], 72)
    labels = made.labels[0].tolist()
    end = 5 + len(second.tokens)
    assert labels[:5] == [IGNORE, *first.tokens[1:].tolist()]
    assert labels[5:8] == [IGNORE, IGNORE, second.tokens[2]]
    assert set(labels[8 : end - 4]) == {IGNORE}
    assert labels[end - 4 : end] == second.tokens[-4:].tolist()
    assert labels[end : end + 5] == labels[:5]
    assert set(labels[end + 5 :]) == {IGNORE}
    assert made.num_target_tokens == 4 + 1 + 4 + 4
    shifted = made.labels[:, 1:]
    assert made.num_target_tokens == int((shifted != IGNORE).sum())
    assert made.num_items_in_batch == made.num_target_tokens


def test_media_never_train_even_if_the_mask_says_so(family: ModelFamily) -> None:
    item = document(family, [2, "image", 2])
    item.loss[:] = True
    made = batch(family, [row(family, whole(item))])
    span = item.media[0]
    assert set(made.labels[0, span.start : span.stop].tolist()) == {IGNORE}
    assert made.num_target_tokens == 3


def test_a_damaged_document_trains_nothing_and_moves_nothing(family: ModelFamily) -> None:
    """C6: ids, positions, lengths and neighbours stay; only its labels go."""
    one, bad, two = document(family, [4]), document(family, [3, "image", 4]), document(family, [6])
    good = batch(family, [row(family, whole(one), whole(bad), whole(two))])
    hurt = batch(family, [row(family, whole(one), whole(bad, damaged=True), whole(two))])
    for name in ("input_ids", "position_ids", "cu_seq_lens", "seq_idx", "image_grids"):
        assert torch.equal(getattr(good, name), getattr(hurt, name))
    end = 4 + len(bad.tokens)
    assert set(hurt.labels[0, 4:end].tolist()) == {IGNORE}
    assert torch.equal(hurt.labels[0, :4], good.labels[0, :4])
    assert torch.equal(hurt.labels[0, end:], good.labels[0, end:])
    assert [span.damaged for span in hurt.documents[0]] == [False, True, False]
    assert hurt.num_target_tokens == good.num_target_tokens - 6
    assert hurt.row_digests() != good.row_digests()


def test_positions_restart_with_each_document(family: ModelFamily) -> None:
    first, second = document(family, [3, "image", 4]), document(family, [2, "video", 5])
    made = batch(family, [row(family, whole(first), whole(second), whole(first))], 80)
    at = 0
    for item in (first, second, first):
        end = at + len(item.tokens)
        assert made.position_ids[0, 0, at:end].tolist() == list(range(end - at))
        expected = family.positions(item.tokens, item.media)
        assert made.position_ids[1:, 0, at:end].tolist() == expected.tolist()
        at = end
    tail = list(range(80 - at))
    assert made.position_ids[:, 0, at:].tolist() == [tail] * 4


def test_a_piece_of_a_document_counts_from_its_own_start(family: ModelFamily) -> None:
    item = document(family, [6, "image", 5, "video", 7])
    cut = item.media[0].stop + 2
    head, tail = PackedPiece(item, 0, cut), PackedPiece(item, cut, len(item.tokens))
    made = batch(family, [row(family, head), row(family, tail)], 60)
    video = item.media[1]
    moved = replace(video, start=video.start - cut, stop=video.stop - cut)
    length = len(item.tokens) - cut
    expected = family.positions(item.tokens[cut:], [moved])
    assert made.position_ids[1:, 1, :length].tolist() == expected.tolist()
    assert made.input_ids[1, :length].tolist() == item.tokens[cut:].tolist()
    assert made.labels[1, 0] == IGNORE and made.labels[1, 1] == item.tokens[cut + 1]
    span = made.documents[1][0]
    assert (span.start, span.token_start, span.token_stop) == (0, cut, len(item.tokens))
    assert span.media == (moved,)
    assert span.frame_pts == ((0.0, 0.4, 0.8),)
    assert made.image_grids.tolist() == [[1, 4, 4]] and made.video_grids.tolist() == [[2, 4, 6]]


def test_a_full_row_has_no_padding_and_an_empty_one_nothing_else(family: ModelFamily) -> None:
    item = document(family, [16])
    made = batch(family, [row(family, whole(item)), row(family)], 16)
    assert made.cu_seq_lens.tolist() == [0, 16, 32]
    assert made.documents[1] == ()
    assert made.position_ids[:, 1].tolist() == [list(range(16))] * 4
    assert set(made.labels[1].tolist()) == {IGNORE}
    empty = batch(family, [row(family)], 16)
    assert (empty.num_target_tokens, empty.num_items_in_batch) == (0, 1)
    assert len(empty.row_digests(pixels=True)) == 1


def test_pixels_go_to_the_model_normalised_and_in_order(family: ModelFamily) -> None:
    one, two = document(family, ["video", 2, "image", 2]), document(family, ["image", 1, "video"])
    rows = [row(family, whole(one), seed=1), row(family, whole(two), whole(one), seed=2)]
    made = batch(family, rows, 90)
    images = torch.from_numpy(np.concatenate([p for r in rows for p in r.image_patches]))
    videos = torch.from_numpy(np.concatenate([p for r in rows for p in r.video_patches]))
    assert torch.equal(made.image_patches, images) and torch.equal(made.video_patches, videos)
    inputs = made.model_inputs
    assert torch.equal(
        inputs["pixel_values"], normalise(images, family.image_mean, family.image_std)
    )
    assert torch.equal(
        inputs["pixel_values_videos"], normalise(videos, family.video_mean, family.video_std)
    )
    assert inputs["image_grid_thw"].tolist() == [[1, 4, 4]] * 3
    assert inputs["video_grid_thw"].tolist() == [[2, 4, 6]] * 3
    assert torch.equal(made.image_patches, images)
    if family.name == "qwen2_5_vl":
        assert inputs["second_per_grid_ts"].dtype == torch.float32
        assert torch.allclose(inputs["second_per_grid_ts"], torch.tensor([0.8] * 3))
    else:
        assert "second_per_grid_ts" not in inputs


def test_only_what_the_rows_hold_is_an_input(family: ModelFamily) -> None:
    always = {"input_ids", "labels", "position_ids", "num_items_in_batch"}
    always |= {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
    text = batch(family, [row(family, whole(document(family, [4])))])
    assert set(text.model_inputs) == always
    image = batch(family, [row(family, whole(document(family, [1, "image"])))])
    assert set(image.model_inputs) == always | {"pixel_values", "image_grid_thw"}
    video = batch(family, [row(family, whole(document(family, [1, "video"])))])
    extra = {"second_per_grid_ts"} if family.name == "qwen2_5_vl" else set()
    assert set(video.model_inputs) == (always | extra | {"pixel_values_videos", "video_grid_thw"})


def test_to_and_pin_memory_keep_everything(family: ModelFamily) -> None:
    made = batch(family, [row(family, whole(document(family, [1, "video", 3, "image"])))])
    moved = made.to("meta", non_blocking=True)
    for entry in fields(made):
        value = getattr(made, entry.name)
        found = getattr(moved, entry.name)
        if isinstance(value, torch.Tensor):
            assert found.device.type == "meta" and found.shape == value.shape
        elif entry.name == "extras":
            assert {k: v.device.type for k, v in found.items()} == {k: "meta" for k in value}
        else:
            assert found == value
    assert all(
        t.device.type == "meta" for t in moved.model_inputs.values() if isinstance(t, torch.Tensor)
    )
    pinned = made.pin_memory()
    assert pinned.row_digests(pixels=True) == made.row_digests(pixels=True)
    assert torch.cuda.is_available() or pinned is made
    copy = pickle.loads(pickle.dumps(made))
    assert copy.row_digests(pixels=True) == made.row_digests(pixels=True)


def test_row_digests_tell_rows_apart_and_ignore_the_rank(family: ModelFamily) -> None:
    items = [document(family, [3, "image", 4], sample=n) for n in range(2)]
    rows = [row(family, whole(items[0]), seed=1), row(family, whole(items[1]), seed=2)]
    both = batch(family, rows)
    each = [batch(family, [one]) for one in rows]
    for pixels in (False, True):
        digests = both.row_digests(pixels)
        assert digests == [one.row_digests(pixels)[0] for one in each]
        assert all(len(digest) == 32 for digest in digests)
        assert digests[0] != digests[1]


def test_row_digests_are_over_what_is_trained_on(family: ModelFamily) -> None:
    item = document(family, [3, "video", 4])
    base = batch(family, [row(family, whole(item))])
    seen = {base.row_digests()[0]}
    changed = [
        replace(item, ref=item.ref._replace(epoch=2)),
        replace(item, ref=item.ref._replace(source=1)),
        replace(item, key="other"),
        replace(item, tokens=item.tokens + np.int32(1) * (item.tokens == 100).astype(np.int32)),
        replace(item, loss=np.zeros_like(item.loss)),
        replace(item, media=(replace(item.media[0], pts=(0, 41, 80)),)),
    ]
    for other in changed:
        digest = batch(family, [row(family, whole(other))]).row_digests()[0]
        assert digest not in seen
        seen.add(digest)
    elsewhere = batch(family, [row(family, whole(replace(item, shard="/mnt/s.tar")))])
    assert elsewhere.row_digests(pixels=True) == base.row_digests(pixels=True)
    pixels = batch(family, [row(family, whole(item), seed=5)])
    assert pixels.row_digests() == base.row_digests()
    assert pixels.row_digests(pixels=True) != base.row_digests(pixels=True)


def test_patches_that_lie_together_are_not_copied(family: ModelFamily) -> None:
    item = document(family, [3, "image", 4, "image", 2])
    apart = [row(family, whole(item), seed=seed) for seed in (1, 2)]
    rows = np.concatenate([patches for one in apart for patches in one.image_patches])
    count = len(rows) // 4
    mine = [rows[at : at + count] for at in range(0, len(rows), count)]
    halves = (mine[:2], mine[2:])
    together = [replace(a, image_patches=b) for a, b in zip(apart, halves, strict=True)]
    want, made = batch(family, apart), batch(family, together)
    assert torch.equal(made.image_patches, want.image_patches)
    assert made.row_digests(pixels=True) == want.row_digests(pixels=True)
    assert np.shares_memory(made.image_patches.numpy(), rows)
    alone = batch(family, together[1:])
    assert torch.equal(alone.image_patches, want.image_patches[2 * count :])
    assert alone.image_patches.untyped_storage().nbytes() == rows[2 * count :].nbytes


def test_faults_of_the_caller_are_named(family: ModelFamily) -> None:
    item = document(family, [3, "image", 4])
    good = row(family, whole(item))
    with pytest.raises(ZephonError, match="1 rows for 2 slots"):
        collate(
            [good],
            family=family,
            sequence_length=64,
            pad_id=PAD,
            step=0,
            slots=[0, 1],
            source_ids=SOURCES,
        )
    with pytest.raises(ZephonError, match="row 0 has 13 tokens for 12"):
        batch(family, [good], 12)
    with pytest.raises(ZephonError, match="patches of 0 media for 1 media"):
        batch(family, [PackedRow(good.pieces)])
    short = PackedRow(good.pieces, [good.image_patches[0][:-1]])
    with pytest.raises(ZephonError, match=r"grid \(1, 4, 4\) came as uint8 \(15, "):
        batch(family, [short])
    wide = PackedRow(good.pieces, [good.image_patches[0].astype(np.float32)])
    with pytest.raises(ZephonError, match="came as float32"):
        batch(family, [wide])
