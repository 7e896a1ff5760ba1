"""The files of a tokeniser: found, fetched, read, and opened by ``tokenizers``.

``tokenizers`` is used directly where the folder holds a ``tokenizer.json``; importing
``transformers`` takes seconds and is left to folders that don't.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_FILES = ["*.json", "*.jinja", "merges.txt", "vocab.txt", "*.model", "*.tiktoken"]
_MODEL = re.compile(r'"model"\s*:\s*\{')
_CONTROL = re.compile(r"<\|[^|<>\s]+\|>")


def give_memory_back() -> None:
    """To the system, what the C library keeps of freed memory: reading a vocabulary leaves much."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)


def find_folder(path: str) -> Path:
    """The folder that holds the tokeniser's files; fetches a hub id."""
    local = Path(path).expanduser()
    if local.is_file():
        return local.parent
    if local.is_dir():
        return local
    if not _HUB_ID.fullmatch(path) or path.startswith("."):
        raise ConfigError(
            f"tokenizer={path!r}: there is no such folder or file. Name a folder with a "
            "tokenizer.json, such as a model's, or a Hugging Face model id"
        )
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(path, allow_patterns=_HUB_FILES))
    except Exception as error:
        raise ConfigError(
            f"tokenizer={path!r} is not a local folder, and the Hugging Face hub gave no model of "
            f"that id ({type(error).__name__}: {_first_line(error)}). Check the name and the "
            f"network, or download it elsewhere (`hf download {path}`) and name the folder"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:200]


def read_tokenizer(path: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """``tokenizer.json``, as text and parsed; transformers makes it from older files."""
    named = Path(path).expanduser()
    file = named if named.is_file() else folder / "tokenizer.json"
    try:
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            data = _settings(text)
            data["added_tokens"] = data.get("added_tokens") or []
            known = {t["content"] for t in data["added_tokens"]}
            beside = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
            if named.is_file() or all(t.get("content") in known for t in beside.values()):
                return text, data
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise ConfigError(
            f"tokenizer={path!r}: {file.name} can't be read as a tokenizer "
            f"({type(error).__name__}: {_first_line(error)}): download it again"
        ) from error
    try:
        from transformers import AutoTokenizer

        text = AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer.to_str()
    except Exception as error:
        raise ConfigError(
            f"tokenizer={path!r}: {folder} holds no tokenizer that transformers can read "
            f"({type(error).__name__}: {_first_line(error)}). A folder needs a tokenizer.json; "
            "AutoTokenizer.from_pretrained(…).save_pretrained(folder) writes one"
        ) from error
    return text, _settings(text)


def _settings(text: str) -> dict[str, Any]:
    """A ``tokenizer.json`` but for its ``model``: megabytes of vocabulary, which only Rust reads.

    Where ``model`` is not its last key, all of it.
    """
    start = _MODEL.search(text)
    if start is not None:
        with contextlib.suppress(ValueError):
            head = json.loads(text[: start.start()].rstrip().rstrip(",") + "}")
            if "added_tokens" in head and "decoder" in head:
                return dict(head)
    return dict(json.loads(text))


def model_bytes(text: str, data: Mapping[str, Any]) -> bytes:
    """The model's part of the identity: its JSON, however it is indented or escaped."""
    start = _MODEL.search(text)
    escaped = "\\u" in text.replace("\\\\", "")  # not the backslashes of the vocabulary
    if "model" in data or start is None or escaped:
        model = json.loads(text).get("model")
        tail = json.dumps({"model": model}, ensure_ascii=False, separators=(",", ":"))[1:]
    else:
        tail = text[start.start() :]
    return tail.encode("utf-8", "surrogatepass").translate(None, b" \t\r\n")


def is_control(token: Mapping[str, Any]) -> bool:
    """Whether an added token controls, rather than being a word."""
    return bool(token.get("special")) or _CONTROL.fullmatch(token["content"]) is not None


def open_backend(path: str, text: str, data: dict[str, Any]) -> Backend:
    """The Rust tokeniser, set so that control tokens in a text stay text."""
    from tokenizers import Tokenizer as Backend

    odd = [t for t in data["added_tokens"] if is_control(t) and not t.get("special")]
    try:
        if odd:
            whole = json.loads(text)
            for token in whole["added_tokens"]:
                token["special"] = is_control(token)
            text = json.dumps(whole)
        backend = Backend.from_str(text)
    except Exception as error:
        raise ConfigError(
            f"tokenizer={path!r}: tokenizer.json can't be loaded ({_first_line(error)}): it may be "
            "cut short or written by a newer `tokenizers`"
        ) from error
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return backend


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object beside the tokeniser, or {} where there is none. Raises ConfigError."""
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{file}: can't be read as JSON ({_first_line(error)})") from error
    return data if isinstance(data, dict) else {}


def special_names(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """The tokens that its settings name: of ``bos_token`` and so on, which; None: none."""
    names: dict[str, str | None] = {}
    for field in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(field)
        names[field] = value.get("content") if isinstance(value, dict) else value
    return names


def read_chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: its own file first, as in transformers, then the tokeniser's settings."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    for source in (read_json(folder / "chat_template.json"), settings):
        value = source.get("chat_template")
        if isinstance(value, list):
            value = {item["name"]: item["template"] for item in value}.get("default")
        if isinstance(value, str):
            return value
    return None
