"""The loader's part of ``gpu_check.py``: digests on a GPU against the CPU's, and frames/s.

Takes the carried clips and pictures that it makes, as one shard that is verified, and a tokeniser
of bytes that it writes; needs the libraries of the loader itself (PyAV, Pillow, pyarrow, …).
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STEPS = 6
SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip


def check(device: str, clips: Path, folder: Path, steps: int = STEPS) -> dict[str, Any]:
    """Digests with pixels of a run's steps on the CPU and on ``device``, and frames/s of both.

    A run's first step is left out of its frames/s. ``rerouted`` counts clips that the reference
    decoded in place of the device's decoder: none should be, on a card that decodes all the kinds
    of the carried clips (``nvdec_capabilities`` says which it has).
    """
    data = config(clips, folder)
    right, on_cpu = run(data, "cpu", steps)
    found, on_device = run(data, device, steps)
    equal = found == right
    return {
        "cpu": on_cpu,
        "device": on_device,
        "equal": equal,
        "ok": equal and on_device["rerouted"] == 0,
        "digests": found,
    }


def config(clips: Path, folder: Path) -> Any:
    """A run over the carried clips, each with a picture and some words; indexed and verified."""
    from zephon_mm import DataConfig, Source, VideoSampling
    from zephon_mm.config import Packing
    from zephon_mm.media.probe import probe_member
    from zephon_mm.media.verify import verify_member
    from zephon_mm.shards import open_source

    shard = folder / "clips.tar"
    with tarfile.open(shard, "w") as tar:
        for name, content in members(clips):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    source = Source(id="clips", urls=str(shard), format="interleaved")
    open_source(source, probe=probe_member, verify=verify_member)
    return DataConfig(
        sources=(source,),
        model="qwen2_5_vl",
        tokenizer=str(tokenizer(folder / "tokenizer")),
        sequence_length=16384,
        global_batch=2,
        lanes=1,
        video=VideoSampling(mode="uniform", num_frames=16),
        packing=Packing(pool=4),
    )


def members(clips: Path) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the shard's members."""
    from PIL import Image

    files = sorted(path for path in clips.iterdir() if path.suffix in (".mp4", ".webm"))
    for number, path in enumerate(files):
        key, field = f"{number:03d}", path.suffix[1:]
        parts = [{"image": "png"}, {"text": f"clip {number}"}, {"video": field}, {"text": "end"}]
        picture = io.BytesIO()
        Image.new("RGB", (100 + 30 * number, 90), (10 * number, 200, 90)).save(picture, "PNG")
        yield f"{key}.json", json.dumps(parts).encode()
        yield f"{key}.png", picture.getvalue()
        yield f"{key}.{field}", path.read_bytes()


def tokenizer(folder: Path) -> Path:
    """A byte-level vocabulary without merges, and Qwen's control tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIALS))
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": list(SPECIALS[1:]),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def run(data: Any, device: str, steps: int) -> tuple[list[str], dict[str, Any]]:
    """A digest of each step, and how it went."""
    from zephon_mm import ExecutionConfig, Loader
    from zephon_mm.cli.digest import step_digest

    digests = []
    with Loader(data, ExecutionConfig(device=device)) as loader:
        before, start = 0, time.perf_counter()
        for batch in loader:
            digests.append(step_digest([batch], True))
            if len(digests) == 1:
                before, start = loader.stats()["media"]["frames"], time.perf_counter()
            if len(digests) == steps:
                break
        seconds = time.perf_counter() - start
        last = loader.stats()["media"]
    return digests, {
        "frames_per_s": round((last["frames"] - before) / seconds),
        "clips": last["clips"],
        "rerouted": last["rerouted"],
        "damaged": last["damaged"],
    }
