from __future__ import annotations

import sys
from pathlib import Path

import pytest

from zephon_mm.errors import ConfigError
from zephon_mm.formats import FormatOptions, check_options, load_format
from zephon_mm.sample import Document, ImagePart, TextPart

from .samples import sample


def test_the_users_own_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_formats_of_test.py").write_text(
        "from zephon_mm.sample import Document, ImagePart, TextPart\n"
        "def two_views(sample, options):\n"
        "    views = [ImagePart(field) for field in sample.image_fields()]\n"
        "    return Document(parts=(*views, TextPart(sample.json()['text'])))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    function = load_format("my_formats_of_test:two_views")
    made = function(
        sample({"right.jpg": b"", "left.jpg": b"", "json": {"text": "Two."}}), FormatOptions()
    )
    assert made == Document(parts=(ImagePart("left.jpg"), ImagePart("right.jpg"), TextPart("Two.")))
    sys.modules.pop("my_formats_of_test")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("image_txt", "did you mean 'image_text'"),
        ("parquet", "formats are text"),
        ("no_such_module_here:f", "can't import"),
        ("json:no_such_function", "no function"),
        ("json:", "no function"),
        (":f", "can't import"),
        ("math:pi", "no function"),
    ],
)
def test_a_format_that_is_not_there(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_format(name)


def test_options_that_are_not_there() -> None:
    check_options("text", {"text_key": "body"})
    check_options("package.module:function", {"anything": 1})
    with pytest.raises(ConfigError, match="did you mean 'text_key'"):
        check_options("text", {"txt_key": "body"})
    with pytest.raises(ConfigError, match="it has"):
        check_options("chat", {"zzz": 1})
