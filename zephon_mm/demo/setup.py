"""The demo's data: its own shards or the user's, a tokeniser, and the config of a small run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import DataConfig, ImageSizing, Source, VideoSampling
from ..errors import ConfigError
from ..media.info import media_kind
from ..media.probe import probe_member
from ..shards import ShardReader, open_source
from .shards import DemoSource, build_shards

MODEL = "qwen3_vl"
_CHAT_KEYS = ("messages", "conversations", "texts")


def own_sources(folder: Path, progress: Callable[[str, int], None]) -> list[Source]:
    """The demo's shards under ``folder``: those of an earlier run, or built now."""
    done = folder / "sources.json"
    if done.is_file():
        found = [DemoSource(**item) for item in json.loads(done.read_text("utf-8"))]
    else:
        for old in folder.glob("*.tar*"):  # of a run that was interrupted
            old.unlink()
        found = build_shards(folder, progress)
        done.write_text(json.dumps([asdict(source) for source in found], indent=1), "utf-8")
    return [Source(id=s.id, urls=tuple(s.urls), format=s.format, weight=s.weight) for s in found]


def user_sources(urls: Sequence[str]) -> list[Source]:
    """One source for each of the user's URLs or brace expressions, indexed; formats are guessed.

    Raises:
        ConfigError: a URL names nothing, or holds no sample.
    """
    sources = []
    for number, url in enumerate(urls):
        name = f"data{number}"
        bare = Source(id=name, urls=url, format="text")
        manifest = open_source(bare, probe=probe_member)
        reader = ShardReader([manifest])
        filled = [shard for shard, count in enumerate(manifest.num_samples) if count]
        if not filled:
            raise ConfigError(f"{url}: there is no sample in it")
        fields = reader.index(0, filled[0]).members(0)
        data = None
        if "json" in fields:
            data = _json(bytes(reader.read(0, filled[0], fields["json"])))
        sources.append(Source(id=name, urls=url, format=guess_format(fields, data)))
        reader.close()
    return sources


def guess_format(fields: Mapping[str, int], data: Any) -> str:
    """The format of a sample, from its fields and the content of its ``json`` member, if any."""
    if isinstance(data, dict):
        if any(isinstance(data.get(key), list) for key in _CHAT_KEYS):
            return "chat"
        data = data.get("parts")
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return "chat" if "role" in data[0] or "from" in data[0] else "interleaved"
    kinds = {media_kind(name) for name in fields}
    return "video_text" if "video" in kinds else "image_text" if "image" in kinds else "text"


def demo_config(sources: Sequence[Source], tokenizer: Path, seed: int) -> DataConfig:
    """A run small enough for two cores: four lanes, four rows of 384 tokens a step."""
    return DataConfig(
        sources=tuple(sources),
        model=MODEL,
        tokenizer=str(tokenizer),
        sequence_length=384,
        global_batch=4,
        lanes=4,
        seed=seed,
        video=VideoSampling(fps=2.0, max_frames=8, min_pixels=64 * 1024, max_pixels=320 * 1024),
        image=ImageSizing(min_pixels=64 * 1024, max_pixels=128 * 1024),
    )


def write_yaml(config: DataConfig, path: Path) -> None:
    """Write the config as the YAML that ``zephon-mm digest`` reads."""
    import yaml

    plain = json.loads(json.dumps(config.to_dict()))  # tuples as lists
    path.write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), "utf-8")


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
