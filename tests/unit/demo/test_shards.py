from __future__ import annotations

import io
import json
import tarfile

import av
import pytest
from PIL import Image

from zephon_mm.demo import shards
from zephon_mm.errors import MissingDependencyError


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    seen: list[tuple[str, int]] = []
    folder = tmp_path_factory.mktemp("shards")
    sources = shards.build_shards(folder, lambda name, done: seen.append((name, done)))
    assert len(seen) == shards.num_samples()
    members = {}
    for source in sources:
        for url in source.urls:
            with tarfile.open(url) as tar:
                for member in tar:
                    file = tar.extractfile(member)
                    assert file is not None
                    members.setdefault(source.id, {})[member.name] = file.read()
    return members


def test_every_source_has_its_samples(built: dict[str, dict[str, bytes]]) -> None:
    keys = {name: {n.split(".")[0] for n in members} for name, members in built.items()}
    assert {name: len(found) for name, found in keys.items()} == {
        "text": shards.NUM_TEXTS,
        "photos": len(shards.PHOTOS),
        "clips": len(shards.CLIPS),
        "stories": len(shards.STORIES),
        "chat": len(shards.CHATS),
    }


def test_photos_are_the_files_as_they_are(built: dict[str, dict[str, bytes]]) -> None:
    for name, data in built["photos"].items():
        if not name.endswith(".txt"):
            Image.open(io.BytesIO(data)).load()
    assert (
        built["photos"]["000000.png"]
        == (shards.data_folder("skimage", "data") / "astronaut.png").read_bytes()
    )


def test_clips_hold_the_frames_of_their_shot(built: dict[str, dict[str, bytes]]) -> None:
    for index, (_, start, stop, _) in enumerate(shards.CLIPS):
        with av.open(io.BytesIO(built["clips"][f"{index:06d}.mp4"])) as container:
            frames = list(container.decode(video=0))
        assert len(frames) == stop - start
        assert frames[0].pts == 0 and frames[0].width <= shards.CLIP_WIDTH


def test_json_names_members_that_are_there(built: dict[str, dict[str, bytes]]) -> None:
    for source in ("stories", "chat"):
        for name, data in built[source].items():
            if not name.endswith(".json"):
                continue
            parts = json.loads(data)
            if isinstance(parts, dict):
                parts = [p for m in parts["messages"] for p in m["content"]]
            fields = [p.get("image") or p.get("video") for p in parts]
            for field in filter(None, fields):
                assert f"{name.split('.')[0]}.{field}" in built[source]


def test_a_missing_package_says_what_to_install() -> None:
    with pytest.raises(MissingDependencyError, match=r"zephon-mm\[demo\]"):
        shards.data_folder("no_such_package_at_all", "data")
