"""One small data set of every kind, and the config that mixes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from zephon_mm.config import DataConfig, Source, Stop, VideoSampling

from . import media
from .workers import SERIAL, run


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> DataConfig:
    """Texts, pictures, clips and pages; two epochs; two sources smaller than the lanes."""
    folder = tmp_path_factory.mktemp("mixed")
    return DataConfig(
        sources=(
            Source(
                id="texts",
                urls=media.write(folder, "texts", media.texts(90), 3),
                format="text",
                weight=3.0,
            ),
            Source(
                id="pictures",
                urls=media.write(folder, "pictures", media.captioned(40), 2),
                format="image_text",
                weight=2.0,
            ),
            Source(
                id="clips",
                urls=media.write(folder, "clips", media.clips(7), 1),
                format="video_text",
            ),
            Source(
                id="pages",
                urls=media.write(folder, "pages", media.pages(3), 1),
                format="interleaved",
                weight=0.5,
            ),
        ),
        model="qwen3_vl",
        tokenizer=str(tokenizer_folder),
        sequence_length=512,
        global_batch=24,
        lanes=8,
        seed=11,
        video=VideoSampling(fps=4.0, max_frames=8),
        stop=Stop(epochs=2),
    )


@pytest.fixture(scope="session")
def clips(mixed: DataConfig) -> DataConfig:
    """Texts and clips of the mixed data."""
    kept = tuple(source for source in mixed.sources if source.id in ("texts", "clips"))
    return replace(mixed, sources=kept, sequence_length=256, global_batch=8, lanes=4)


@pytest.fixture(scope="session")
def pictures(mixed: DataConfig) -> DataConfig:
    """A few pictures and clips."""
    kept = tuple(source for source in mixed.sources if source.id in ("pictures", "clips"))
    return replace(mixed, sources=kept, global_batch=2, lanes=2, stop=Stop(num_steps=3))


@pytest.fixture(scope="session")
def serial_run(clips: DataConfig) -> tuple[list[str], dict[str, Any]]:
    """Digests of the steps of `clips`, made in one thread, and the state at the end."""
    return run(clips, SERIAL)


@pytest.fixture(scope="session")
def serial_clips(serial_run: tuple[list[str], dict[str, Any]]) -> list[str]:
    """Digests of the steps of `clips`, made in one thread."""
    return serial_run[0]
