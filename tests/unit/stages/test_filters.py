from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from zephon_mm.config import Filter
from zephon_mm.errors import ConfigError

from .conftest import Opener, clip, jpeg, refs, rejected, same, write_shard

SAMPLES: dict[str, dict[str, Any]] = {
    "a/0": {"jpg": jpeg(64, 48), "mp4": clip(9, rate=10), "json": [{"text": "Twelve chars"}]},
    "a/1": {"jpg": jpeg(200, 48), "mp4": clip(20, rate=5), "json": [{"text": "Six ch"}]},
    "b/2": {"jpg": jpeg(64, 100), "json": [{"text": "One "}, {"text": "two."}]},
}
for sample in SAMPLES.values():
    media = [{kind: name} for kind, name in (("image", "jpg"), ("video", "mp4")) if name in sample]
    sample["json"] += media
SAMPLES["b/3"] = {"json": [{"text": "Only text."}]}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_shard(tmp_path_factory.mktemp("filters") / "a.tar", SAMPLES)


def left_out(results: list[Any]) -> dict[int, str]:
    found = {}
    for at, result in enumerate(results):
        if not hasattr(result, "tokens"):
            assert (rejected(result).outcome, rejected(result).stage) == ("filtered", "filter")
            found[at] = rejected(result).reason
    return found


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"width": (64, 64)}, {1: "width 200 is above filter.width 64"}),
        ({"width": (65, None)}, dict.fromkeys((0, 1, 2), "is below filter.width 65")),
        ({"height": (48, 99)}, {2: "height 100 is above filter.height 99"}),
        ({"aspect": (0.7, 2)}, {1: "aspect 4.16667 is above", 2: "aspect 0.64 is below"}),
        ({"duration": (None, 1)}, {1: "duration 4 is above filter.duration 1"}),
        ({"fps": (6, None)}, {1: "fps 5 is below"}),
        ({"frames": (None, 9)}, {1: "frames 20 is above"}),
        ({"text_length": (7, 11)}, {0: "text_length 12 is above", 1: "text_length 6 is below"}),
        ({"images": (1, None)}, {3: "images 0 is below"}),
        ({"videos": (None, 0)}, dict.fromkeys((0, 1), "videos 1 is above")),
        ({"keys": ("a/*", "*3")}, {2: "its key matches none of filter.keys"}),
        ({"not_keys": ("a/*",)}, dict.fromkeys((0, 1), "its key matches filter.not_keys 'a/*'")),
    ],
)
def test_each_limit(
    url: str, measurer: Opener, settings: dict[str, Any], wanted: dict[int, str]
) -> None:
    made = measurer(url, "interleaved", filter=Filter(**settings))
    results = made(refs(4))
    found = left_out(results)
    assert found.keys() == wanted.keys()
    assert all(wanted[at] in reason for at, reason in found.items())
    assert same(results, pickle.loads(pickle.dumps(made))(refs(4)))
    plain = measurer(url, "interleaved")(refs(4))
    kept = [at for at in range(4) if at not in found]
    assert same([results[at] for at in kept], [plain[at] for at in kept])


def test_a_key_is_left_out_before_anything_is_read(url: str, measurer: Opener) -> None:
    made = measurer(url, "interleaved", filter=Filter(not_keys=("*",)))
    assert len(left_out(made(refs(4)))) == 4 and made.reader.reads.members == 0


def test_text_of_a_conversation_is_every_turns(tmp_path: Path, measurer: Opener) -> None:
    talk = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    url = write_shard(tmp_path / "a.tar", {"0": {"json": talk}})
    for limit, count in ((7, 0), (6, 1)):
        made = measurer(url, "chat", filter=Filter(text_length=(None, limit)))
        assert len(left_out(made(refs(1)))) == count


def test_a_broken_picture_is_quarantined_whatever_the_limits(
    tmp_path: Path, measurer: Opener
) -> None:
    url = write_shard(tmp_path / "a.tar", {"0": {"jpg": b"no picture", "txt": "x"}})
    (result,) = measurer(url, filter=Filter(width=(64, None)))(refs(1))
    assert rejected(result).outcome == "quarantined"


def test_the_users_own_function(
    url: str, tmp_path: Path, measurer: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "filters_of_this_test.py").write_text(
        "def square(sample):\n"
        "    if sample.key == 'b/3':\n        raise KeyError('no media')\n"
        "    assert sample.shard.endswith('a.tar') and sample.text\n"
        "    return all(info.width < 2 * info.height for info in sample.media)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "filters_of_this_test:square"
    results = measurer(url, "interleaved", filter=Filter(function=name))(refs(4))
    assert left_out(results[:3]) == {1: f"filter.function {name} left it out"}
    assert rejected(results[3]).outcome == "quarantined"
    assert "filter.function raised KeyError: 'no media'" in rejected(results[3]).reason
    sys.modules.pop("filters_of_this_test")
    for wrong in ("no_such_module_here:f", "filters_of_this_test:round"):
        with pytest.raises(ConfigError, match=r"^filter\.function"):
            measurer(url, "interleaved", filter=Filter(function=wrong))
