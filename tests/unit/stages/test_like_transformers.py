"""A measured document has the token ids and grids that transformers' own processor gives."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from tests.tiny import CHAT_TEMPLATE, hf_processor
from zephon_mm.config import VideoSampling
from zephon_mm.models.qwen import QwenFamily
from zephon_mm.sample import MeasuredDocument

from .conftest import Opener, clip, document, jpeg, make_tokenizer, refs, write_shard

MODELS = ("qwen2_5_vl", "qwen3_vl")
IMAGE, VIDEO = QwenFamily.placeholders["image"], QwenFamily.placeholders["video"]


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("chat"), CHAT_TEMPLATE)


def shown(data: bytes, frames: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The chosen frames as RGB, [frames, height, width, 3]."""
    with av.open(io.BytesIO(data), "r") as container:
        every = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack([every[at] for at in frames])


def check(found: MeasuredDocument, want: Any) -> None:
    assert found.tokens.tolist() == want["input_ids"][0].tolist()
    for kind in ("image", "video"):
        grids = [list(span.grid) for span in found.media if span.kind == kind]
        assert grids == (want[f"{kind}_grid_thw"].tolist() if grids else [])


@pytest.mark.parametrize("model", MODELS)
def test_a_caption(tmp_path: Path, measurer: Opener, tokenizer_folder: Path, model: str) -> None:
    data = jpeg(300, 170)
    url = write_shard(
        tmp_path / "a.tar", {"0": {"jpg": data, "txt": "A man\n rides; 12 caf\u00e9"}}
    )
    (result,) = measurer(url, model=model)(refs(1))
    want = hf_processor(model, tokenizer_folder)(
        text=[IMAGE + "A man\n rides; 12 caf\u00e9<|endoftext|>"],
        images=[Image.open(io.BytesIO(data))],
        return_tensors="pt",
    )
    check(document(result), want)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rate", [10, 25])
def test_a_clip_of_constant_rate(
    tmp_path: Path, measurer: Opener, tokenizer_folder: Path, model: str, rate: int
) -> None:
    data = clip(60, rate=rate)
    url = write_shard(tmp_path / "a.tar", {"0": {"mp4": data, "txt": "A man rides"}})
    (result,) = measurer(url, "video_text", model=model, video=VideoSampling(fps=2.0))(refs(1))
    found = document(result)
    frames = found.media[0].frames
    want = hf_processor(model, tokenizer_folder)(
        text=[VIDEO + "A man rides<|endoftext|>"],
        videos=[shown(data, frames)],
        video_metadata=[{"fps": rate, "total_num_frames": 60, "frames_indices": list(frames)}],
        do_sample_frames=False,
        return_tensors="pt",
    )
    check(found, want)


@pytest.mark.parametrize("model", MODELS)
def test_a_conversation_with_media(
    tmp_path: Path, measurer: Opener, chat_folder: Path, model: str
) -> None:
    picture, video = jpeg(130, 200), clip(20)
    conversations = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "<image>\nWhat is it, and <video> then?"},
        {"from": "gpt", "value": "A man rides a horse."},
        {"from": "human", "value": "And this: <image>?"},
        {"from": "gpt", "value": "Two dogs."},
    ]
    data = {"image": ["0.jpg", "0.jpg"], "video": ["v.mp4"], "conversations": conversations}
    url = write_shard(tmp_path / "a.tar", {"0": {"0.jpg": picture, "v.mp4": video, "json": data}})
    (result,) = measurer(url, "chat", tokenizer=chat_folder, model=model)(refs(1))
    found = document(result)
    frames = next(span.frames for span in found.media if span.kind == "video")
    text = "".join(
        f"<|im_start|>{role}\n{turn['value']}<|im_end|>\n"
        for role, turn in zip(
            ("system", "user", "assistant", "user", "assistant"), conversations, strict=True
        )
    )
    image = Image.open(io.BytesIO(picture))
    want = hf_processor(model, chat_folder)(
        text=[text.replace("<image>", IMAGE).replace("<video>", VIDEO)],
        images=[image, image],
        videos=[shown(video, frames)],
        video_metadata=[{"fps": 10, "total_num_frames": 20, "frames_indices": list(frames)}],
        do_sample_frames=False,
        return_tensors="pt",
    )
    check(found, want)
    hf = hf_processor(model, chat_folder).tokenizer
    target = hf.decode(found.tokens[found.loss])
    assert target == "A man rides a horse.<|im_end|>Two dogs.<|im_end|>"
