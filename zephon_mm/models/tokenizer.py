"""A Hugging Face tokeniser, read from a folder, a ``tokenizer.json`` or the hub.

A sample's own text is data: a caption that spells ``<|image_pad|>`` must not become a placeholder
without a picture, nor ``<|im_end|>`` the end of a turn. So the backend here never recognises a
control token in text (``encode_special_tokens``), and text that a template wrote is cut at control
tokens first, which is what the backend itself would do. Added tokens that are words rather than
control tokens, such as ``<think>``, stay what the tokeniser makes of them.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .plain import PlainTexts
from .tokenizer_file import (
    find_folder,
    give_memory_back,
    is_control,
    model_bytes,
    open_backend,
    read_chat_template,
    read_json,
    read_tokenizer,
    special_names,
)

ID_BYTES = 4  # of a packed id
_LARGE = 1 << 20  # characters
_NEITHER = (False, False)
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
_SPACES += "".join(map(chr, range(0x2000, 0x200B)))  # as Rust; Python's own has four more


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
        self._load(find_folder(self.path))

    def _load(self, folder: Path) -> None:
        self.folder = folder
        text, data = read_tokenizer(self.path, self.folder)
        self._added = {t["content"]: int(t["id"]) for t in data.get("added_tokens") or ()}
        self._backend = open_backend(self.path, text, data)
        words = [t["content"] for t in data["added_tokens"] if not is_control(t)]
        self._plain = PlainTexts(self._backend, words)
        settings = read_json(self.folder / "tokenizer_config.json")
        self.chat_template = read_chat_template(self.folder, settings)
        self._special_names = special_names(settings)
        self.strips: dict[int | None, tuple[bool, bool]] = {
            int(t["id"]): (bool(t.get("lstrip")), bool(t.get("rstrip")))
            for t in data["added_tokens"]
            if is_control(t) and (t.get("lstrip") or t.get("rstrip"))
        }
        control = [t["content"] for t in data["added_tokens"] if t["content"] and is_control(t)]
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
        self.digest = hashlib.sha256(canonical.encode() + model_bytes(text, data)).digest()
        if len(text) > _LARGE:
            give_memory_back()

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
                fresh = object.__new__(Tokenizer)
                fresh.path = self.path
                fresh._load(folder if folder.is_dir() else find_folder(self.path))  # another host's
                if fresh.digest != digest:
                    raise ConfigError(f"tokenizer={self.path!r} has changed since the run began")
                self.__dict__.update(fresh.__dict__)
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
