"""A Hugging Face tokeniser, read from a folder, a ``tokenizer.json`` or the hub.

A sample's own text is data: a caption that spells ``<|image_pad|>`` must not become a placeholder
without a picture, nor ``<|im_end|>`` the end of a turn. So the backend here never recognises a
control token in text (``encode_special_tokens``), and text that a template wrote is cut at control
tokens first, which is what the backend itself would do. Added tokens that are words rather than
control tokens, such as ``<think>``, stay what the tokeniser makes of them.

``tokenizers`` is used directly where the folder holds a ``tokenizer.json``; importing
``transformers`` takes seconds and is left to folders that don't.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import re
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .plain import PlainTexts

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_FILES = ["*.json", "*.jinja", "merges.txt", "vocab.txt", "*.model", "*.tiktoken"]
_MODEL = re.compile(r'"model"\s*:\s*\{')
ID_BYTES = 4  # of a packed id
_LARGE = 1 << 20  # characters
_NEITHER = (False, False)
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
_SPACES += "".join(map(chr, range(0x2000, 0x200B)))  # as Rust; Python's own has four more
_CONTROL = re.compile(r"<\|[^|<>\s]+\|>")


class Tokenizer:
    """Text to token ids. Safe to share between threads; pickles as its path and folder.

    Attributes:
        path: as the config names it.
        folder: where its files lie, for the processor settings that may lie beside them.
        digest: 32 bytes over the tokeniser, its chat template and its end and padding tokens.
        chat_template: Jinja text, or None.
        eos_id: the token that ends a document or a turn.
        pad_id: what fills a row.
        strips: of control tokens that take the white space beside them away (Phi-3's), by id:
            whether what comes before, and what comes after.
    """

    one_a_worker = True  # the stages that a worker process runs share it, see `backends.callables`

    def __init__(self, path: str) -> None:
        self.path = str(path)
        self._lock = threading.RLock()
        self._load(_find(self.path))

    def _load(self, folder: Path) -> None:
        self.folder = folder
        text, data = _tokenizer_json(self.path, self.folder)
        self._added = {t["content"]: int(t["id"]) for t in data.get("added_tokens") or ()}
        self._backend = _backend(self.path, text, data)
        words = [t["content"] for t in data["added_tokens"] if not _is_control(t)]
        self._plain = PlainTexts(self._backend, data.get("normalizer"), words)
        settings = _read_json(self.folder / "tokenizer_config.json")
        self.chat_template = _chat_template(self.folder, settings)
        self._special_names = _special_names(settings)
        self.strips: dict[int | None, tuple[bool, bool]] = {
            int(t["id"]): (bool(t.get("lstrip")), bool(t.get("rstrip")))
            for t in data["added_tokens"]
            if _is_control(t) and (t.get("lstrip") or t.get("rstrip"))
        }
        control = [t["content"] for t in data["added_tokens"] if t["content"] and _is_control(t)]
        control.sort(key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, control))) if control else None
        self._control_starts = tuple({token[:2] for token in control})
        self.eos_id = self._named("eos_token", "<|endoftext|>", "<|im_end|>")
        self.pad_id = self._named("pad_token", "<|endoftext|>", default=self.eos_id)
        identity = {
            "settings": {k: v for k, v in data.items() if k != "model"},
            "template": self.chat_template,
            "special": [self.eos_id, self.pad_id],
        }
        canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        self.digest = hashlib.sha256(canonical.encode() + _model_bytes(text, data)).digest()
        if len(text) > _LARGE:
            _give_memory_back()

    def _named(self, field: str, *names: str, default: int | None = None) -> int:
        for name in (self._special_names.get(field), *names):
            if name is not None and (found := self._backend.token_to_id(name)) is not None:
                return int(found)
        if default is not None:
            return default
        raise ConfigError(
            f"tokenizer={self.path!r} names no {field} and has none of {', '.join(names)}: "
            f"set {field} in its tokenizer_config.json"
        )

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "folder": str(self.folder), "digest": self.digest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path = state["path"]
        self._expected = Path(state["folder"]), state["digest"]
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        """Load what a pickle left out, at the first use; raises ConfigError if it has changed."""
        if "_expected" not in self.__dict__ or name.startswith("__"):
            raise AttributeError(name)
        with self._lock:
            if "_expected" in self.__dict__:
                folder, digest = self.__dict__["_expected"]
                self._load(folder if folder.is_dir() else _find(self.path))  # another host's
                if self.digest != digest:
                    raise ConfigError(f"tokenizer={self.path!r} has changed since the run began")
                del self._expected
        return self.__dict__[name]

    def get_ready(self) -> None:
        """Load now what a pickle left out, rather than at the first use. Raises ConfigError."""
        _ = self._backend

    def encode(self, text: str, *, special: bool) -> NDArray[np.int32]:
        """Token ids of one text, int32 [n]; nothing is added before or after it.

        Args:
            text: any text, also empty.
            special: whether control tokens in it are recognised: true for text of a template,
                false for text of a sample.
        """
        if special:
            return self._encode_template(text)
        return _ids(self._plain.encode(text).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """`encode` of each text of samples."""
        return [np.frombuffer(ids, np.int32) for ids in self.encode_packed(texts)]

    def encode_packed(self, texts: Sequence[str]) -> list[bytes]:
        """The same for texts of samples, packed (`pack_ids`).

        Only one text's ids at a time are Python numbers: they stay in the CPU's caches. Each text
        is a batch of its own, which is done in this thread: with the library's threads it takes
        more CPU time, and workers tokenise side by side already.
        """
        encode = self._plain.encode
        return [pack_ids(encode(text).ids) for text in texts]

    def _encode_template(self, text: str) -> NDArray[np.int32]:
        cut = self.split_control(text)
        if self.strips:
            tokens = [None, *(token for _, token in cut), None]
            cut = [
                (self.strip(piece, *beside), token)
                for (piece, token), *beside in zip(cut, tokens, tokens[2:], strict=False)
            ]
        pieces = [
            self.encode(piece, special=False) if token is None else _ids([token])
            for piece, token in cut
        ]
        return np.concatenate(pieces) if pieces else _ids([])

    def decode(self, tokens: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """The text of token ids, control tokens shown."""
        return str(self._backend.decode([int(t) for t in tokens], skip_special_tokens=False))

    def token_id(self, token: str) -> int:
        """The id of one control token. Raises ConfigError where the tokeniser has none."""
        found = self._backend.token_to_id(token)
        if found is None:
            raise ConfigError(
                f"tokenizer={self.path!r} has no token {token}, which the model family needs: "
                "name the tokenizer of a model of this family, or add the token to it"
            )
        return int(found)

    def has_token(self, token: str) -> bool:
        """Whether the vocabulary holds this exact token."""
        return self._backend.token_to_id(token) is not None

    @property
    def special_names(self) -> dict[str, str]:
        """The variables ``bos_token``, ``eos_token`` … that chat templates read."""
        return {name: token for name, token in self._special_names.items() if token is not None}

    def split_control(self, text: str) -> list[tuple[str, int | None]]:
        """Text cut at control tokens, in order: (piece, None) or (control token, its id)."""
        for start in self._control_starts:
            if start[0] in text and start in text:  # a single character is found faster
                break
        else:
            return [(text, None)] if text else []
        assert self._control is not None  # it has starts
        pieces: list[tuple[str, int | None]] = []
        at = 0
        for match in self._control.finditer(text):
            if match.start() > at:
                pieces.append((text[at : match.start()], None))
            pieces.append((match.group(), self._added[match.group()]))
            at = match.end()
        if at < len(text):
            pieces.append((text[at:], None))
        return pieces

    def strip(self, text: str, before: int | None, after: int | None) -> str:
        """The text without the white space that control tokens beside it take away."""
        if self.strips.get(before, _NEITHER)[1]:
            text = text.lstrip(_SPACES)
        return text.rstrip(_SPACES) if self.strips.get(after, _NEITHER)[0] else text

    def encode_offsets(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Token ids as of `encode` with ``special=False``, and their characters, int64 [n, 2]."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return _ids(encoding.ids), np.array(encoding.offsets, np.int64).reshape(-1, 2)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Open a tokeniser: a folder, a ``tokenizer.json``, or a hub id (fetched, or from its cache).

    Raises:
        ConfigError: nothing is there, or it can't be read; the message says what to do.
    """
    return Tokenizer(str(path))


def pack_ids(ids: Sequence[int]) -> bytes:
    """Ids as int32 of the machine's byte order: by ``struct``, in half the time NumPy takes."""
    return struct.pack(f"{len(ids)}i", *ids)


def _ids(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def _give_memory_back() -> None:
    """To the system, what the C library keeps of freed memory: reading a vocabulary leaves much."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)


def _find(path: str) -> Path:
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


def _tokenizer_json(path: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """``tokenizer.json``, as text and parsed; transformers makes it from older files."""
    named = Path(path).expanduser()
    file = named if named.is_file() else folder / "tokenizer.json"
    try:
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            data = _settings(text)
            data["added_tokens"] = data.get("added_tokens") or []
            known = {t["content"] for t in data["added_tokens"]}
            beside = _read_json(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
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


def _model_bytes(text: str, data: Mapping[str, Any]) -> bytes:
    """The model's part of the identity: its JSON, however it is indented or escaped."""
    start = _MODEL.search(text)
    escaped = "\\u" in text.replace("\\\\", "")  # not the backslashes of the vocabulary
    if "model" in data or start is None or escaped:
        model = json.loads(text).get("model")
        tail = json.dumps({"model": model}, ensure_ascii=False, separators=(",", ":"))[1:]
    else:
        tail = text[start.start() :]
    return tail.encode("utf-8", "surrogatepass").translate(None, b" \t\r\n")


def _is_control(token: Mapping[str, Any]) -> bool:
    return bool(token.get("special")) or _CONTROL.fullmatch(token["content"]) is not None


def _backend(path: str, text: str, data: dict[str, Any]) -> Backend:
    """The Rust tokeniser, set so that control tokens in a text stay text."""
    from tokenizers import Tokenizer as Backend

    odd = [t for t in data["added_tokens"] if _is_control(t) and not t.get("special")]
    try:
        if odd:
            whole = json.loads(text)
            for token in whole["added_tokens"]:
                token["special"] = _is_control(token)
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


def _read_json(file: Path) -> dict[str, Any]:
    """A JSON object beside the tokeniser, or {} where there is none. Raises ConfigError."""
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{file}: can't be read as JSON ({_first_line(error)})") from error
    return data if isinstance(data, dict) else {}


def _special_names(settings: Mapping[str, Any]) -> dict[str, str | None]:
    names: dict[str, str | None] = {}
    for field in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(field)
        names[field] = value.get("content") if isinstance(value, dict) else value
    return names


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: its own file first, as in transformers, then the tokeniser's settings."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    for source in (_read_json(folder / "chat_template.json"), settings):
        value = source.get("chat_template")
        if isinstance(value, list):
            value = {item["name"]: item["template"] for item in value}.get("default")
        if isinstance(value, str):
            return value
    return None
