"""Measuring with a user's own format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zephon_mm.errors import ConfigError, StorageError

from .conftest import (
    Opener,
    document,
    jpeg,
    refs,
    rejected,
    write_shard,
)


def write_module(folder: Path, body: str) -> None:
    (folder / "formats_of_this_test.py").write_text(
        "from zephon_mm.errors import SampleError, StorageError\n"
        "from zephon_mm.sample import Document, ImagePart, TextPart, Turn\n"
        "def make(sample, options):\n" + body
    )


@pytest.fixture
def own_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write the body of the user's function; gives its import path."""
    import sys

    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("formats_of_this_test", None)

    def write(body: str) -> str:
        write_module(tmp_path, "".join(f"    {line}\n" for line in body.splitlines()))
        return "formats_of_this_test:make"

    return write


def test_a_users_format_takes_the_template(
    tmp_path: Path, measurer: Opener, own_format: Any
) -> None:
    name = own_format(
        "return Document(parts=(TextPart(sample.text('txt')), ImagePart('left.jpg')))"
    )
    url = write_shard(tmp_path / "a.tar", {"0": {"left.jpg": jpeg(), "txt": "A man"}})
    made = measurer(url, name)
    found = document(made(refs(1))[0])
    assert found.media[0].start == 2 and len(found.tokens) == found.media[0].stop + 1
    assert found.tokens[-1] == made._tokenizer.token_id("<|endoftext|>")
    assert bool(found.loss[-1])


@pytest.mark.parametrize(
    ("body", "outcome", "says"),
    [
        ("return sample.json()['nothing']", "quarantined", "KeyError"),
        ("raise ValueError('line 1\\nline 2')", "quarantined", "ValueError: line 1 line 2"),
        ("return Document(parts=(TextPart('a b'), ImagePart('png')))", "quarantined", "'png'"),
        ("return Document(parts=(TextPart('a b'), ImagePart('txt')))", "quarantined", "'0.txt'"),
        ("return Document(parts=(TextPart('a \\ud800'),))", "quarantined", "surrogate"),
        ("return Document(parts=(ImagePart('jpg'),))", "filtered", "no part has text"),
        ("return Document()", "filtered", "no part has text"),
        ("raise SampleError('too dark', stage='format', kind='filtered')", "filtered", "too dark"),
        ("raise SampleError('odd', stage='format', kind='odd')", "quarantined", "odd"),
        ("raise RecursionError", "quarantined", "RecursionError"),
        ("raise ValueError('\\udcff')", "quarantined", "ValueError: \\udcff"),
    ],
)
def test_what_a_users_format_raises_is_an_outcome(
    tmp_path: Path, measurer: Opener, own_format: Any, body: str, outcome: str, says: str
) -> None:
    url = write_shard(tmp_path / "a.tar", {"0": {"jpg": jpeg(), "txt": "a", "json": {}}})
    (result,) = measurer(url, own_format(body))(refs(1))
    assert rejected(result).outcome == outcome and says in rejected(result).reason


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("return None", ConfigError),
        ("return Document((TextPart('a'),), (Turn('user', (TextPart('a'),), True),))", ConfigError),
        ("raise StorageError('gone')", StorageError),
        ("raise TimeoutError('slow')", TimeoutError),
        ("raise MemoryError", MemoryError),
    ],
)
def test_what_is_not_the_samples_fault_stands_in_its_place(
    tmp_path: Path, measurer: Opener, own_format: Any, body: str, kind: type[Exception]
) -> None:
    url = write_shard(tmp_path / "a.tar", {"0": {"txt": "a cat"}, "1": {"txt": "a"}})
    name = own_format(f"if sample.key == '0':\n    {body}\nreturn Document((TextPart('a b'),))")
    results = measurer(url, name)(refs(2))
    assert isinstance(results[0], kind)
    document(results[1])
