"""Odd documents, each kind once, through the whole loader: a row each, or the outcome it should."""

from __future__ import annotations

import io
import json
import tarfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from zephon_mm import Batch, DataConfig, ExecutionConfig, Loader, Source, VideoSampling
from zephon_mm.models import load_tokenizer

EXECUTION = ExecutionConfig(backend="serial")


def picture(mode: str, kind: str, size: tuple[int, int] = (60, 40), frames: int = 1) -> bytes:
    """Red to blue with grey between, as each mode can hold it; ``frames`` more are all black."""
    rows = np.zeros((size[1], size[0], 4), np.uint8)
    rows[:, : size[0] // 2, 0] = 230
    rows[:, size[0] // 2 :, 2] = 230
    rows[..., 3] = np.linspace(0, 255, size[0]).astype(np.uint8)
    base = Image.fromarray(rows)
    if mode == "I;16":
        image = Image.fromarray(rows[..., 0].astype(np.uint16) * 256)
    elif mode == "P;transparent":
        image = base.convert("RGB").convert("P")
    elif mode == "LA":
        image = base.convert("LA")
    else:
        image = base if mode == "RGBA" else base.convert("RGB").convert(mode)
    file = io.BytesIO()
    more: dict[str, Any] = {"transparency": 0} if mode == "P;transparent" else {}
    if frames > 1:
        black = [Image.new(image.mode, size) for _ in range(frames - 1)]
        more |= {"save_all": True, "append_images": black}
    image.save(file, kind, **more)
    return file.getvalue()


def clip(frames: int, container: str = "mp4", codec: str = "libx264", ticks: int = 1) -> bytes:
    """``frames`` of 4 a second; ``ticks`` stretches the time of every second one."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream: Any = out.add_stream(codec, rate=4)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 8)
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 20 * number, np.uint8), "rgb24")
            frame.pts = number * 2 + (number % 2) * (ticks - 1)
            frame.time_base = Fraction(1, 8)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return file.getvalue()


def document(*parts: str, **media: bytes) -> dict[str, bytes]:
    """Parts are texts, or the field of a medium in ``media`` (``a_png`` is ``a.png``)."""
    fields = {name.replace("_", "."): data for name, data in media.items()}
    kinds = {True: "video", False: "image"}
    items = [
        {kinds[part.endswith(("mp4", "webm", "mkv", "h264"))]: part}
        if part in fields
        else {"text": part}
        for part in parts
    ]
    return {**fields, "json": json.dumps(items).encode()}


def one(field: str, data: bytes) -> dict[str, bytes]:
    return document("See ", field, **{field.replace(".", "_"): data})


DELIVERED: dict[str, dict[str, bytes]] = {
    "alpha": one("png", picture("RGBA", "PNG")),
    "grey-alpha": one("png", picture("LA", "PNG")),
    "palette": one("gif", picture("P", "GIF")),
    "palette-transparent": one("png", picture("P;transparent", "PNG")),
    "cmyk": one("jpg", picture("CMYK", "JPEG")),
    "16-bit": one("png", picture("I;16", "PNG")),
    "1-bit": one("png", picture("1", "PNG")),
    "animated-gif": one("gif", picture("P", "GIF", frames=3)),
    "animated-webp": one("webp", picture("RGB", "WEBP", frames=3)),
    "animated-png": one("png", picture("RGB", "PNG", frames=3)),
    "1-pixel": one("png", picture("RGB", "PNG", (1, 1))),
    "ratio-200": one("png", picture("RGB", "PNG", (400, 2))),
    "adjacent": document(
        "a.png", "b.png", "mp4", "c.png", "Three.",
        a_png=picture("RGB", "PNG"), b_png=picture("L", "PNG", (30, 90)),
        c_png=picture("RGB", "PNG"), mp4=clip(4),
    ),
    "text-only": document("Words ", "and words."),
    "1-frame": one("mp4", clip(1)),
    "2-frames": one("mp4", clip(2)),
    "odd-frames": one("mp4", clip(7)),
    "no-fps-raw": one("h264", clip(5, "h264")),
    "no-fps-webm": one("webm", clip(5, "webm", "libvpx")),
    "variable-rate": one("mkv", clip(6, "matroska", ticks=2)),
}  # fmt: skip
REJECTED: dict[str, tuple[dict[str, bytes], str, str]] = {
    "image-only": (document("png", png=picture("RGB", "PNG")), "filtered", "no part has text"),
    "empty-text": (document("", "png", png=picture("RGB", "PNG")), "filtered", "no part has text"),
    "ratio-201": (one("png", picture("RGB", "PNG", (402, 2))), "dropped", "200"),
    "empty-file": (one("png", b""), "quarantined", "no readable picture header"),
    "audio-as-clip": (one("mp4", b"RIFF" * 20), "quarantined", "member"),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> DataConfig:
    path = tmp_path_factory.mktemp("odd") / "odd.tar"
    samples = {**DELIVERED, **{key: members for key, (members, _, _) in REJECTED.items()}}
    with tarfile.open(path, "w") as tar:
        for key, members in samples.items():
            for field, data in members.items():
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return DataConfig(
        sources=(Source(id="odd", urls=str(path), format="auto"),),
        model="qwen2_5_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=256,
        global_batch=4,
        lanes=4,
        video=VideoSampling(fps=4.0, min_frames=1, min_pixels=3136, max_pixels=50176),
    )


@pytest.fixture(scope="module")
def ran(config: DataConfig) -> tuple[list[Batch], list[dict[str, Any]], dict[str, Any]]:
    with Loader(config, EXECUTION, mode="eval") as loader:
        return list(loader), loader.rejected, loader.stats()


def test_each_has_its_outcome(ran: Any) -> None:
    batches, rejected, _ = ran
    rows = [documents for batch in batches for documents in batch.documents if documents]
    assert [document.key for (document,) in rows] == list(DELIVERED)
    assert not any(document.damaged for (document,) in rows)
    found = {entry["key"]: entry for entry in rejected}
    assert found.keys() == REJECTED.keys()
    for key, (_, outcome, reason) in REJECTED.items():
        assert found[key]["outcome"] == outcome and reason in found[key]["reason"]


def test_placeholders_are_features_and_frames_fill_whole_patches(
    config: DataConfig, ran: Any
) -> None:
    tokenizer = load_tokenizer(config.tokenizer)
    pads = {kind: tokenizer.token_id(f"<|{kind}_pad|>") for kind in ("image", "video")}
    frames: dict[str, tuple[int, int, float]] = {}
    for batch in ran[0]:
        for kind, patches in (("image", batch.image_patches), ("video", batch.video_patches)):
            assert 4 * int((batch.input_ids == pads[kind]).sum()) == len(patches)
        for (document,) in filter(None, batch.documents):
            for span in document.media:
                if span.kind == "video":
                    frames[document.key] = (len(span.frames), span.grid[0], span.fps)
    assert frames["1-frame"][1] == 1 and frames["2-frames"][1] == 1
    assert frames["odd-frames"][0] in (6, 7, 8) and frames["odd-frames"][1] >= 3
    for count, groups, fps in frames.values():
        assert groups == -(-count // 2) and fps > 0


def test_of_an_animation_the_first_picture_is_shown(ran: Any) -> None:
    batch_of = {
        document.key: (batch, row)
        for batch in ran[0]
        for row, documents in enumerate(batch.documents)
        for document in documents
    }
    for key in ("animated-gif", "animated-webp", "animated-png"):
        batch, row = batch_of[key]
        before = sum(
            span.num_patches
            for documents in batch.documents[:row]
            for document in documents
            for span in document.media
            if span.kind == "image"
        )
        (document,) = batch.documents[row]
        (span,) = document.media
        pixels = np.asarray(batch.image_patches[before : before + span.num_patches])
        assert pixels.max() > 200  # those that follow are black


def test_clips_without_a_rate_tell_their_own(ran: Any) -> None:
    (seconds,) = {
        round(span.pts_seconds[-1], 2)
        for batch in ran[0]
        for documents in batch.documents
        for document in documents
        for span in document.media
        if document.key == "no-fps-webm"
    }
    assert seconds == 1.0  # five frames, four a second
