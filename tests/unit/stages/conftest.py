"""A small tokenizer, small media, and shards of them, opened as a run opens them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from tests.tiny import write_tokenizer
from zephon_mm.config import DataConfig, Filter, Source
from zephon_mm.media.probe import probe_member
from zephon_mm.models import build_family, load_tokenizer
from zephon_mm.sample import MeasuredDocument, Measurement, Rejected, SampleRef
from zephon_mm.shards import ShardReader, open_source
from zephon_mm.stages.measure import Measurer


def make_tokenizer(folder: Path, chat_template: str | None = None) -> Path:
    """The small tokenizer, with this chat template or with none."""
    write_tokenizer(folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    del settings["chat_template"]
    if chat_template is not None:
        settings["chat_template"] = chat_template
    file.write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def jpeg(width: int = 64, height: int = 48, value: int = 90) -> bytes:
    rows = np.full((height, width, 3), value, np.uint8)
    rows[:, : width // 2] = (200, 30, 60)
    file = io.BytesIO()
    Image.fromarray(rows).save(file, "JPEG")
    return file.getvalue()


def clip(frames: int = 9, width: int = 64, height: int = 48, rate: int = 10) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            picture = np.full((height, width, 3), 20 + 10 * number % 200, np.uint8)
            picture[:, : width // 2] = (number * 20 % 255, 120, 40)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def write_shard(path: Path, samples: Mapping[str, Mapping[str, Any]]) -> str:
    """Key to field to bytes, text, or anything that JSON takes."""
    with tarfile.open(path, "w") as tar:
        for key, members in samples.items():
            for field, value in members.items():
                if not isinstance(value, bytes):
                    value = (value if isinstance(value, str) else json.dumps(value)).encode()
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size = len(value)
                tar.addfile(info, io.BytesIO(value))
    return str(path)


Opener = Callable[..., Measurer]


@pytest.fixture
def measurer(tokenizer_folder: Path) -> Opener:
    def open_it(
        urls: str,
        format: str = "image_text",
        *,
        tokenizer: Path | None = None,
        options: Mapping[str, Any] | None = None,
        key: str = "first_dot",
        filter: Filter | None = None,
        **fields: Any,
    ) -> Measurer:
        source = Source(
            id="s",
            urls=urls,
            format=format,
            options=dict(options or {}),
            key=key,  # type: ignore[arg-type]
            filter=filter or Filter(),
        )
        fields = {"model": "qwen2_5_vl", **fields}
        config = DataConfig(
            sources=(source,), tokenizer=str(tokenizer or tokenizer_folder), **fields
        )
        manifest = open_source(source, cache_dir=None, probe=probe_member)
        loaded = load_tokenizer(config.tokenizer)
        return Measurer(config, ShardReader([manifest]), loaded, build_family(config, loaded))

    return open_it


def refs(count: int, *, shard: int = 0, epoch: int = 0) -> list[SampleRef]:
    return [SampleRef(0, shard, sample, epoch, sample) for sample in range(count)]


def document(result: Measurement | Exception) -> MeasuredDocument:
    assert isinstance(result, MeasuredDocument), result
    return result


def rejected(result: Measurement | Exception) -> Rejected:
    assert isinstance(result, Rejected), result
    return result


def same(a: Sequence[Measurement | Exception], b: Sequence[Measurement | Exception]) -> bool:
    """Equal results, arrays included."""
    return [_plain(x) for x in a] == [_plain(x) for x in b]


def _plain(result: Measurement | Exception) -> Any:
    if isinstance(result, MeasuredDocument):
        return (
            result.ref,
            result.shard,
            result.key,
            result.tokens.tolist(),
            result.loss.tolist(),
            result.media,
            result.digest,
        )
    return result
