"""The data of the comparison, made once a seed: ``WORK-000.tar`` … and ``tokenizer/`` in a folder.

- ``text``: JSON samples of ``{"text": …}``; slices of the sources of Python's standard library, as
  long as the texts of ``data/mixed_lengths.json``, four characters a token.
- ``image_text``: square JPEGs of 512 pixels, cut from scikit-image's photos, with captions.
- ``video_360p``, ``video_720p``: 10 s of H.264, keyframes every 150 frames, with captions.
- ``interleaved``: JSON lists of texts and of two to four such JPEGs.

A work is complete when its ``WORK.json`` is there, which says how much it holds.
"""

from __future__ import annotations

import io
import itertools
import json
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import webdataset as wds
from PIL import Image
from tokenizers import Tokenizer

from benchmarks.bench_decode import X264, make_clip
from benchmarks.bench_first_batch import LENGTHS
from benchmarks.compare.shards import samples as samples_of
from benchmarks.compare.shards import shards_of
from benchmarks.compare.work import END, Making
from zephon_mm.demo.shards import data_folder
from zephon_mm.demo.tokenizer import SPECIALS, build_tokenizer, trained_tokenizer

Sample = dict[str, Any]
SIDE = 512


@dataclass(frozen=True)
class Size:
    """How many samples of each work, and in how many shards."""

    text: int = 12_000
    image_text: int = 600
    video: int = 8
    interleaved: int = 200
    shards: int = 4


FULL = Size()
QUICK = Size(text=300, image_text=24, video=4, interleaved=8)


def library_sources() -> str:
    """The modules of Python's standard library, one after another: some millions of characters."""
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted([*library.glob("*.py"), *library.glob("[a-z]*/*.py")])
    wanted = [p for p in paths if p.parent.name not in ("test", "site-packages", "dist-packages")]
    return "\n".join(path.read_text("utf-8", errors="ignore") for path in wanted)


def texts(corpus: str, count: int, seed: int) -> Iterator[str]:
    """Slices of the corpus at random places, as long as measured texts."""
    rows = [parts for kind, parts in json.loads(LENGTHS.read_text()) if kind == "text"]
    starts = np.random.Philox(key=seed).random_raw(count)
    for number in range(count):
        length = 4 * int(rows[number % len(rows)][0][1])
        at = int(starts[number]) % max(1, len(corpus) - length)
        yield corpus[at : at + length]


def pictures(count: int, seed: int) -> Iterator[bytes]:
    """Square cuts of photos, as JPEG; every other one mirrored."""
    folder = data_folder("skimage", "data")
    names = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
    photos = [Image.open(folder / name).convert("RGB") for name in names]
    raw = np.random.Philox(key=seed).random_raw((count, 3)) % 2**32 / 2**32
    for number in range(count):
        photo = photos[number % len(photos)]
        side = int(min(photo.size) * (0.6 + 0.4 * raw[number, 0]))
        left, top = (int(r * (s - side)) for r, s in zip(raw[number, 1:], photo.size, strict=True))
        cut = photo.resize((SIDE, SIDE), box=(left, top, left + side, top + side))
        if number % 2:
            cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        out = io.BytesIO()
        cut.save(out, "JPEG", quality=90)
        yield out.getvalue()


def clips(count: int, size: tuple[int, int]) -> Iterator[bytes]:
    """10 s of the footage each, from another frame on."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        for number in range(count):
            make_clip(path, "libx264", "mp4", {**X264, "g": "150"}, size, 17 * number)
            yield path.read_bytes()


def captions(corpus: str, seed: int) -> Iterator[str]:
    """Endless: 40 to 200 characters each."""
    for block in itertools.count():
        raw = np.random.Philox(key=seed, counter=block << 20).random_raw((64, 2))
        for at, length in raw:
            begin = int(at) % max(1, len(corpus) - 200)
            yield corpus[begin : begin + 40 + int(length) % 161]


def samples(work: str, size: Size, seed: int, corpus: str) -> Iterator[Sample]:
    """The samples of a work, as `webdataset.TarWriter` takes them."""
    says = captions(corpus, seed)
    if work == "text":
        for text in texts(corpus, size.text, seed):
            yield {"json": json.dumps({"text": text}).encode()}
    elif work == "image_text":
        for jpeg in pictures(size.image_text, seed):
            yield {"jpg": jpeg, "txt": next(says).encode()}
    elif work == "interleaved":
        jpegs = itertools.cycle(pictures(min(size.interleaved, 100), seed + 1))
        for number in range(size.interleaved):
            parts: list[dict[str, str]] = [{"text": next(says)}]
            sample: Sample = {}
            for name in (f"{i}.jpg" for i in range(2 + number % 3)):
                sample[name] = next(jpegs)
                parts += [{"image": name}, {"text": next(says)}]
            yield sample | {"json": json.dumps(parts).encode()}
    else:
        dimensions = {"video_360p": (640, 360), "video_720p": (1280, 720)}[work]
        for clip in clips(size.video, dimensions):
            yield {"mp4": clip, "txt": next(says).encode()}


WORKS = ("text", "image_text", "video_360p", "video_720p", "interleaved")


def total(work: str, size: Size) -> int:
    """Samples of a work."""
    return size.video if work.startswith("video") else int(getattr(size, work))


def make(
    folder: Path,
    works: Sequence[str],
    size: Size = FULL,
    seed: int = 0,
    vocabulary: str = "trained",
    done: Callable[[str], None] = lambda work: None,
    corpus: str | None = None,
) -> None:
    """Write what isn't there.

    Args:
        folder: its data are those of one size, seed and vocabulary; see `folder_of`.
        works: which.
        size: how much of each.
        seed: of texts, cuts and captions.
        vocabulary: ``trained`` (a BPE of 4,096 tokens trained on the texts) or ``qwen`` (Qwen's
            151,643, where the package dashscope is installed).
        done: called with the work after each sample.
        corpus: what texts and captions are cut from; None: `library_sources`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    corpus = library_sources() if corpus is None else corpus
    if not (folder / "tokenizer" / "tokenizer_config.json").is_file():
        _tokenizer(folder / "tokenizer", corpus, vocabulary)
    for work in works:
        if (folder / f"{work}.json").is_file():
            continue
        paths = [folder / f"{work}-{i:03d}.tar" for i in range(size.shards)]
        writers = [wds.TarWriter(str(p), encoder=False, mtime=0, user="", group="") for p in paths]
        for number, sample in enumerate(samples(work, size, seed, corpus)):
            writers[number % size.shards].write({"__key__": f"{number:06d}", **sample})
            done(work)
        for writer in writers:
            writer.close()
        facts = {
            "samples": total(work, size),
            "bytes": sum(path.stat().st_size for path in paths),
            "seed": seed,
            "vocabulary": vocabulary,
        }
        (folder / f"{work}.json").write_text(json.dumps(facts))


def facts(folder: Path) -> dict[str, Any]:
    """What rows say of the data: the vocabulary and its size."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    stored = json.loads(next(folder.glob("*.json")).read_text())
    return {"vocabulary": stored["vocabulary"], "vocabulary_size": tokenizer.get_vocab_size()}


def end_token(folder: Path) -> int:
    """Id of the token that ends each document."""
    end: int = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json")).token_to_id(END)
    return end


def steps_of_epoch(folder: Path, tokens: int) -> int:
    """In how many steps of so many tokens the texts have come once; the tokens are counted once."""
    counted = folder / "text.tokens"
    if counted.is_file():
        return int(counted.read_text()) // tokens
    making = Making(str(folder / "tokenizer"))
    total = sum(
        len(making.text(sample).tokens)
        for shard in shards_of(folder, "text")
        for sample in samples_of(shard)
    )
    counted.write_text(str(total))
    return total // tokens


def folder_of(cache: Path, size: Size, seed: int, vocabulary: str) -> Path:
    """Where the data of these choices lie."""
    name = {FULL: "full", QUICK: "quick"}.get(size) or "-".join(map(str, vars(size).values()))
    return cache / "data" / f"{name}-seed{seed}-{vocabulary}"


def _tokenizer(folder: Path, corpus: str, vocabulary: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if vocabulary == "qwen":
        build_tokenizer(folder)
        return
    trained_tokenizer(texts(corpus, 1000, 1)).save(str(folder / "tokenizer.json"))
    settings = {"eos_token": SPECIALS[0], "pad_token": SPECIALS[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
