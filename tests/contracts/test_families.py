"""Every family equals transformers: what its processor makes, and what its model computes.

(a) a document's ids and every tensor equal the processor's, pixels bit for bit; (b) packed rows
give each document the logits that the model gives the processor's own output; (c) labels; (d) the
loss and its gradients are those of the documents, summed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoConfig, AutoTokenizer

from tests.families import FAMILIES, emulate_kernels, tiny_model
from zephon_mm import Loader
from zephon_mm.batch import IGNORE
from zephon_mm.config import ExecutionConfig, Stop
from zephon_mm.dummy import with_dummy_image
from zephon_mm.errors import ConfigError
from zephon_mm.models import build_family, load_tokenizer, save_processor
from zephon_mm.models.smolvlm import number_words
from zephon_mm.pipeline.run import open_run
from zephon_mm.sample import MeasuredDocument, Rejected, SampleRef

from . import media
from .families import DOCUMENTS, Made, config, make, sample_of, takes

SERIAL = ExecutionConfig(backend="serial")
LIMIT = 1e-5
MEDIA_TENSORS = {
    "pixel_values",
    "pixel_values_videos",
    "image_grid_thw",
    "video_grid_thw",
    "second_per_grid_ts",
    "image_sizes",
    "batch_num_images",
    "token_type_ids",
    "image_position_ids",
    "video_position_ids",
    "num_frames_per_video",
    "image_grids",
    "image_num_crops",
    "image_token_pooling",
    "video_grids",
    "video_token_pooling",
}
IMPLIED = {"attention_mask", "pixel_attention_mask"}
"""Masks of ones where there is no padding: what a model takes them to be if they are missing."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The models are far too small for threads to help."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """A family by its name, made once, however often pytest sets `made` up anew."""
    return cache(lambda name: make(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="module", params=list(FAMILIES))
def made(request: pytest.FixtureRequest, opened: Callable[[str], Made]) -> Iterator[Made]:
    with pytest.MonkeyPatch.context() as patched:  # the real one is a package for this alone
        from transformers.models.smolvlm import processing_smolvlm

        patched.setattr(processing_smolvlm, "num2words", number_words)
        if request.param == "qwen3_5":
            emulate_kernels(patched)
        yield opened(request.param)


@pytest.fixture(scope="module")
def model(made: Made) -> Any:
    return tiny_model(made.name, made.folder)


def comparable(name: str, document: str) -> bool:
    """SmolVLM's processor gives one tensor for pictures and clips: the last one's."""
    return not (name == "smolvlm" and document == "mixed")


TAKEN = [(name, document) for name in FAMILIES for document in DOCUMENTS if takes(name, document)]


@pytest.mark.parametrize(
    ("made", "document"), [pair for pair in TAKEN if comparable(*pair)], indirect=["made"]
)
def test_a_document_is_what_the_processor_makes(made: Made, document: str) -> None:
    theirs = made.by_the_processor(document)
    ours = made.batch([[document]]).model_inputs
    assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
    for name, value in theirs.items():
        if name in MEDIA_TENSORS:
            value = torch.as_tensor(value)
            if made.name == "smolvlm" and name == "pixel_values":  # a row a clip, or one of all
                value = value.flatten(0, 1)[None]
            assert ours[name].shape == value.shape, name
            assert torch.equal(ours[name].to(value.dtype), value), name
        elif name in IMPLIED:
            assert bool((value == 1).all())
        else:
            assert name in {"input_ids", "mm_token_type_ids", "num_soft_tokens_per_image"}, name
    missing = (MEDIA_TENSORS & ours.keys()) - theirs.keys()
    assert not missing


ROWS = {
    "text": [["text", "word", "text"]],
    "pictures": [["picture", "text", "newlines", "several", "picture first", "picture"]],
    "clips": [["clip", "word", "odd clip", "clips", "text"]],
    "mixed": [["mixed", "text", "several", "mixed"]],
    "several rows": [
        ["picture", "word", "clip"],
        ["text", "text"],
        ["odd clip", "newlines", "several", "picture"],
    ],
}


def rows_of(name: str, made: Made) -> list[list[str]]:
    rows = [[d for d in row if takes(made.name, d)] for row in ROWS[name]]
    return [row for row in rows if row]


@pytest.fixture(scope="module")
def alone(made: Made, model: Any) -> dict[str, torch.Tensor]:
    """Logits of each document: the model's, of what the processor made, in the usual way."""
    found = {}
    with torch.no_grad():
        for document in made.documents:
            inputs = made.by_the_processor(document)
            if not comparable(made.name, document):
                ours = made.batch([[document]]).model_inputs
                inputs = {"input_ids": ours["input_ids"], "pixel_values": ours["pixel_values"]}
            found[document] = model(**inputs, use_cache=False).logits[0]
    return found


@pytest.mark.parametrize("name", list(ROWS))
@torch.no_grad()
def test_packed_logits_equal_those_of_the_documents_alone(
    name: str, made: Made, model: Any, alone: dict[str, torch.Tensor]
) -> None:
    rows = rows_of(name, made)
    batch = made.batch(rows, padding=5)
    packed = model(**batch.model_inputs, use_cache=False).logits
    packed = packed.reshape(*batch.input_ids.shape, -1)
    assert torch.isfinite(packed).all()
    for number, row in enumerate(rows):
        for document, span in zip(row, batch.documents[number], strict=True):
            found = packed[number, span.start : span.stop]
            assert (found - alone[document]).abs().max() <= LIMIT, document


def gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def test_loss_and_gradients_are_the_sum_over_the_documents(made: Made, model: Any) -> None:
    """Each document alone, with its own labels and the model's own mask, against one packed row."""
    row = [d for d in ("picture", "text", "mixed", "clip", "several") if takes(made.name, d)]
    batch = made.batch([row], padding=5)
    out = model(**batch.model_inputs, use_cache=False)
    out.loss.backward()
    packed = gradients(model)
    total = 0.0
    for document in row:
        single = made.batch([[document]])
        inputs = single.model_inputs | {"num_items_in_batch": batch.num_items_in_batch}
        loss = model(**inputs, use_cache=False).loss
        total += loss.item()
        loss.backward()
    summed = gradients(model)
    assert abs(out.loss.item() - total) < 1e-5
    assert packed.keys() == summed.keys() and packed
    for name, gradient in packed.items():
        most = summed[name].abs().max().item()
        assert (gradient - summed[name]).abs().max() <= 1e-4 * most + 1e-7, name
    media = [name for name in packed if "vision" in name or "visual" in name]
    assert bool(media) == (made.processor is not None)
    assert all(packed[name].abs().max() > 0 for name in packed if "embed_tokens" in name)


def test_a_dummy_picture_runs_the_vision_tower_and_trains_nothing(made: Made, model: Any) -> None:
    """Text-only batches: some sharded trainers hang without a picture."""
    batch = made.batch([["text", "word"], ["word"]], padding=120)
    found = with_dummy_image(batch)
    if "image" not in made.run.family.placeholders:
        assert found is batch
        return
    assert with_dummy_image(found) is found
    assert (len(found), found.slots[-1], found.num_target_tokens) == (
        3,
        -1,
        batch.num_target_tokens,
    )
    assert len(found.image_grids) == 1 and (found.labels[2] == IGNORE).all()
    assert found.row_digests(pixels=True)[:2] == batch.row_digests(pixels=True)
    results = []
    for each in (batch, found):
        model.zero_grad()
        loss = model(**each.model_inputs, use_cache=False).loss
        loss.backward()
        results.append((loss.detach(), gradients(model)))
    (loss, plain), (with_dummy, shown) = results
    torch.testing.assert_close(with_dummy, loss, rtol=1e-6, atol=1e-6)
    new = shown.keys() - plain.keys()
    assert new and all(not shown[name].any() for name in new)  # the tower ran, and learns nothing
    for name, value in plain.items():
        torch.testing.assert_close(shown[name], value, rtol=0, atol=1e-5 * float(value.abs().max()))
    if made.name == "gemma3":
        with pytest.raises(ConfigError, match="raise sequence_length"):
            with_dummy_image(made.batch([["word"]]))


@pytest.mark.parametrize(("made", "document"), TAKEN, indirect=["made"])
def test_labels_are_the_text_of_the_sample(made: Made, document: str) -> None:
    """K04: unshifted; −100 on the first token, on media and on what a family writes around them."""
    batch = made.batch([[document, "word"]], padding=3)
    first, second = batch.documents[0]
    ids, labels = batch.input_ids[0], batch.labels[0]
    targets = labels != -100
    assert torch.equal(labels[targets], ids[targets])
    assert (
        not targets[first.start] and not targets[second.start] and not targets[second.stop :].any()
    )
    for span in first.media:
        assert not targets[span.start : span.stop].any()
    text = made.run.tokenizer.decode(
        ids[first.start : first.stop][targets[first.start : first.stop]]
    )
    parts = [part for part in DOCUMENTS[document] if isinstance(part, str)]
    whole = "".join(parts) + "<|endoftext|>"
    begins_with_text = isinstance(DOCUMENTS[document][0], str) and not made.run.family.opening
    lost = made.run.tokenizer.decode(ids[:1]) if begins_with_text else ""
    assert (lost + text).replace("\n", "") == whole.replace("\n", "")
    assert batch.num_target_tokens == int(targets.sum())


@torch.no_grad()
def test_a_leak_would_be_seen(made: Made, model: Any) -> None:
    """The check itself can fail: with a mask of ones, a document sees its neighbour."""
    batch = made.batch([["text", "text"]])
    inputs = batch.model_inputs
    right = model(**inputs, use_cache=False).logits
    inputs["attention_mask"] = torch.ones_like(batch.input_ids)
    leaked = model(**inputs, use_cache=False).logits
    span = batch.documents[0][1]
    assert (right - leaked)[0, span.start : span.stop].abs().max() > 100 * LIMIT


def test_only_the_assistants_words_are_learnt(made: Made, tmp_path: Path) -> None:
    """Of a conversation with media, as the family's chat template writes it."""
    turns = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "<image>\nWhat is it?" if made.processor else "What is it?"},
        {"from": "gpt", "value": "A man rides a horse."},
        {"from": "human", "value": "And then?"},
        {"from": "gpt", "value": "Two dogs."},
    ]
    sample: dict[str, object] = {"json": json.dumps({"conversations": turns, "image": "png"})}
    if made.processor:
        sample["png"] = media.picture(1, 60, 40, "PNG")
    else:
        sample["json"] = json.dumps({"conversations": turns})
    urls = media.write(tmp_path, "chat", iter([sample]), 1)
    run = open_run(config(made.name, made.folder, urls, format="chat"), SERIAL)
    (found,) = run.measure([SampleRef(0, 0, 0, 0, 0)])
    assert isinstance(found, MeasuredDocument), found
    learnt = run.tokenizer.decode(found.tokens[found.loss])
    assert learnt == "A man rides a horse.<|im_end|>Two dogs.<|im_end|>"
    text = "".join(
        f"<|im_start|>{role}\n{turn['value']}<|im_end|>\n"
        for role, turn in zip(
            ("system", "user", "assistant", "user", "assistant"), turns, strict=True
        )
    )
    if made.processor is None:
        return
    text = text.replace("<image>", run.family.placeholders["image"])
    image = Image.open(io.BytesIO(sample["png"]))  # type: ignore[arg-type]
    want = made.processor(text=[text], images=[[image]], return_tensors="pt")
    assert found.tokens.tolist() == want["input_ids"][0].tolist()


@torch.no_grad()
def test_the_model_takes_what_the_loader_yields(made: Made, model: Any) -> None:
    """P11: in rows too short for many documents, placeholders still are as many as features."""
    data = replace(
        made.run.config,
        sequence_length=64,
        global_batch=2,
        lanes=2,
        stop=Stop(epochs=2),
    )
    keys = set()
    with Loader(data, SERIAL) as loader:
        for batch in loader:
            out = model(**batch.model_inputs, use_cache=False)  # raises unless they match
            assert torch.isfinite(out.loss) and torch.isfinite(out.logits).all()
            keys |= {document.key for row in batch.documents for document in row}
        counts = loader.stats()["sources"]["a"]
        reasons = {entry["reason"] for entry in loader.rejected}
    total = counts["delivered"] + counts["dropped"] + counts["filtered"]
    assert total == 2 * len(made.documents) and len(keys) * 2 == counts["delivered"]
    if counts["dropped"]:
        assert all("however few" in reason or "can't split" in reason for reason in reasons)
    assert counts["delivered"] >= total // 3


def test_a_processor_object_is_saved_and_read(made: Made, tmp_path: Path) -> None:
    part = made.processor or made.run.config.tokenizer
    if made.processor is None:
        with pytest.raises(ConfigError, match="a str has no save_pretrained"):
            save_processor(part, tmp_path)
        part = AutoTokenizer.from_pretrained(str(made.folder))
    model_config = AutoConfig.from_pretrained(str(made.folder))
    folder = save_processor(part, tmp_path / "new", model_config)
    found = build_family(replace(made.run.config, tokenizer=folder), load_tokenizer(folder))
    assert found.settings() == made.run.family.settings()


@pytest.mark.parametrize(
    "made", [name for name, family in FAMILIES.items() if not family.video], indirect=True
)
def test_media_that_a_family_does_not_take_are_dropped(made: Made, tmp_path: Path) -> None:
    """Counted with the reason, also in a conversation, where its template has no place for them."""
    clip = media.clip(1, 3)
    turns = [{"from": "human", "value": "<video>?"}, {"from": "gpt", "value": "Yes."}]
    samples: dict[str, list[dict[str, object]]] = {
        "interleaved": [{"mp4": clip, "json": json.dumps([{"video": "mp4"}, {"text": "a"}])}],
        "chat": [{"mp4": clip, "json": json.dumps({"conversations": turns, "video": "mp4"})}],
    }
    for form, sample in samples.items():
        urls = media.write(tmp_path / form, "clips", iter(sample), 1)
        run = open_run(config(made.name, made.folder, urls, format=form), SERIAL)
        (found,) = run.measure([SampleRef(0, 0, 0, 0, 0)])
        assert isinstance(found, Rejected) and found.outcome == "dropped", found
        assert f"model '{made.name}' takes no videos" in found.reason


@pytest.mark.parametrize(
    "made", [name for name, family in FAMILIES.items() if family.refused], indirect=True
)
def test_documents_that_a_family_refuses_are_dropped(made: Made, tmp_path: Path) -> None:
    refused = FAMILIES[made.name].refused
    urls = media.write(tmp_path, "docs", iter([sample_of(name) for name in refused]), 1)
    run = open_run(config(made.name, made.folder, urls), SERIAL)
    measured = run.measure([SampleRef(0, 0, at, 0, at) for at in range(len(refused))])
    for found in measured:
        assert isinstance(found, Rejected) and found.outcome == "dropped", found
        assert f"model '{made.name}' takes" in found.reason


@pytest.mark.parametrize("made", ["molmo2"], indirect=True)
def test_a_template_may_write_the_opening_itself(made: Made, tmp_path: Path) -> None:
    urls = media.write(tmp_path, "docs", iter([sample_of("text")]), 1)
    template = made.run.family.opening + "{media}{text}<|endoftext|>"
    run = open_run(config(made.name, made.folder, urls, template=template), SERIAL)
    (found,) = run.measure([SampleRef(0, 0, 0, 0, 0)])
    assert isinstance(found, MeasuredDocument)
    assert found.tokens.tolist() == made.documents["text"].tokens.tolist()
