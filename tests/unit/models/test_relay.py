from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.tiny import QWEN, span_of
from tests.unit.models.test_blocks import by_zephon
from tests.unit.models.test_sizes import config
from zephon_mm.errors import MediaError
from zephon_mm.models import ModelFamily, Tokenizer, build_family, measure_digest
from zephon_mm.sample import MeasuredDocument, MediaSpan, SampleRef

Part = Any


@pytest.fixture(params=QWEN)
def family(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> ModelFamily:
    return build_family(config(request.param), tokenizer)


def document(parts: list[Part], family: ModelFamily, tokenizer: Tokenizer) -> MeasuredDocument:
    tokens, media = by_zephon(parts, family, tokenizer)
    loss = np.ones(len(tokens), np.bool_)
    for span in media:
        loss[span.start : span.stop] = False
    digest = measure_digest(tokens, loss, media)
    return MeasuredDocument(SampleRef(0, 0, 0, 0, 0), "s", "k", tokens, loss, tuple(media), digest)


def blocks_are_whole(found: MeasuredDocument, family: ModelFamily) -> None:
    outside = np.ones(len(found.tokens), np.bool_)
    for span in found.media:
        block = family.block(span)
        assert found.tokens[span.start : span.stop].tolist() == block.tolist()
        outside[span.start : span.stop] = False
        assert span.grid[1:] == tuple(side // family.patches.patch_size for side in span.size)
    assert found.loss.tolist() == outside.tolist()
    assert found.digest == measure_digest(found.tokens, found.loss, found.media)


def test_a_document_that_fits_comes_back_as_it_is(
    family: ModelFamily, tokenizer: Tokenizer
) -> None:
    whole = document(
        ["a", ("image", 1, 90, 90, 0), "b", ("video", 6, 60, 60, 10.0)], family, tokenizer
    )
    most = max(span.stop - span.start for span in whole.media)
    assert family.relayout(whole, most, 10**6) is whole
    assert family.relayout(whole, most - 1, 10**6) is not whole


@pytest.mark.parametrize("max_tokens", [20, 35, 50, 90, 150, 300, 700])
def test_every_medium_fits_and_the_rest_is_untouched(
    family: ModelFamily, tokenizer: Tokenizer, max_tokens: int
) -> None:
    parts: list[Part] = [
        "First words ",
        ("video", 13, 120, 160, 8.0),
        ("image", 1, 700, 300, 0),
        " between ",
        ("image", 1, 56, 56, 0),
        ("video", 2, 300, 200, 2.0),
        " the end",
    ]
    whole = document(parts, family, tokenizer)
    found = family.relayout(whole, max_tokens, 10**6)
    blocks_are_whole(found, family)
    assert len(found.media) == 4
    for old, new in zip(whole.media, found.media, strict=True):
        assert new.stop - new.start <= max_tokens
        if old.stop - old.start <= max_tokens:
            assert replace(new, start=old.start, stop=old.stop) == old
    assert found.tokens[found.loss].tolist() == whole.tokens[whole.loss].tolist()
    again = family.relayout(whole, max_tokens, 10**6)
    assert again.digest == found.digest
    assert family.relayout(found, max_tokens, 10**6) is found


def test_patches_are_a_capacity_too(family: ModelFamily, tokenizer: Tokenizer) -> None:
    whole = document([("image", 1, 900, 500, 0), ("video", 5, 90, 90, 1.0)], family, tokenizer)
    found = family.relayout(whole, 10**6, 120)
    assert all(span.num_patches <= 120 for span in found.media)
    blocks_are_whole(found, family)


def test_frames_are_halved_first_then_pixels(family: ModelFamily, tokenizer: Tokenizer) -> None:
    whole = document([("video", 13, 240, 320, 8.0)], family, tokenizer)
    span = whole.media[0]
    kept = {13: 1, 7: 2, 4: 4, 2: 8}
    smallest = None
    for frames, every in kept.items():
        part = replace(
            span,
            frames=span.frames[::every],
            pts=span.pts[::every],
            grid=((frames + 1) // 2, *span.grid[1:]),
            fps=span.fps / every,
        )
        length = len(family.block(part))
        found = family.shrink(span, length, 10**6)
        assert found == replace(part, stop=span.start + length)
        smallest = found
    assert smallest is not None and len(smallest.frames) == 2
    least = family.shrink(span, smallest.stop - smallest.start - 1, 10**6)
    assert (least.frames, least.fps) == (smallest.frames, smallest.fps)
    assert least.num_patches < smallest.num_patches
    assert least.size != span.size


def test_what_cannot_fit_is_dropped(family: ModelFamily, tokenizer: Tokenizer) -> None:
    for part in (("image", 1, 200, 300, 0), ("video", 8, 200, 300, 5.0)):
        whole = document(["a", part, "b"], family, tokenizer)
        for limits in ((2, 10**6), (10**6, 3)):
            with pytest.raises(MediaError, match="however small") as caught:
                family.relayout(whole, *limits)
            assert (caught.value.kind, caught.value.stage) == ("dropped", "layout")
        with pytest.raises(MediaError, match="more than 2 tokens however small"):
            family.relayout(whole, 2, 1 << 62)
    image = document([("image", 1, 200, 300, 0)], family, tokenizer)
    assert family.relayout(image, 3, 4).media[0].grid == (1, 2, 2)


def test_a_narrow_picture_is_cut_to_fit(family: ModelFamily, tokenizer: Tokenizer) -> None:
    whole = document([("image", 1, 8, 1500, 0)], family, tokenizer)
    found = family.relayout(whole, 8, 10**6)
    assert found.media[0].stop - found.media[0].start == 8
    blocks_are_whole(found, family)


def test_the_digest_is_over_everything(family: ModelFamily, tokenizer: Tokenizer) -> None:
    whole = document(
        ["a b c", ("image", 1, 60, 60, 0), ("video", 4, 60, 60, 5.0)], family, tokenizer
    )
    tokens, loss, media = whole.tokens, whole.loss, list(whole.media)
    assert len(whole.digest) == 16
    seen = {whole.digest}

    def differs(*changed: Any) -> None:
        digest = measure_digest(*changed)
        assert digest not in seen
        seen.add(digest)

    differs(np.append(tokens, 0).astype(np.int32), np.append(loss, False), media)
    differs(tokens[::-1].copy(), loss, media)
    differs(tokens, ~loss, media)
    differs(tokens, loss, media[::-1])
    video = media[1]
    changes: list[dict[str, Any]] = [
        {"kind": "image"},
        {"member": 3},
        {"start": 0},
        {"stop": 1},
        {"grid": (1, 1, 1)},
        {"size": (1, 1)},
        {"source_size": (1, 1)},
        {"frames": (1, 2)},
        {"pts": (1, 2)},
        {"time_base": (1, 7)},
        {"fps": 2.50001},
    ]
    assert len(changes) == len(MediaSpan.__dataclass_fields__)
    for change in changes:
        differs(tokens, loss, [media[0], replace(video, **change)])
    numpy_ints = replace(video, pts=tuple(np.int64(p) for p in video.pts))
    assert measure_digest(tokens, loss, [media[0], numpy_ints]) == whole.digest


def test_families_pickle(family: ModelFamily) -> None:
    copy = pickle.loads(pickle.dumps(family))
    assert copy.settings() == family.settings()
    clip = span_of("video", (2, 4, 4), (0.0, 0.5, 1.0), 2.0)
    assert copy.block(clip).tolist() == family.block(clip).tolist()
