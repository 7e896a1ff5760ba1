"""What text costs beside its tokenizer: ``python benchmarks/bench_text.py [--rounds N]``.

CPU time of a loader that reads texts from shards and packs them into rows (backend ``serial``,
shards indexed and opened before), divided by that of the bare tokenizer over the same texts.
Limits: 1.08 for plain text, 1.2 for conversations with loss masks, where the bare tokenizer reads
what the chat template wrote.

The bare tokenizer is the package ``tokenizers``, called in its cheapest way (``encode_batch_fast``
of one text at a time, which no thread of its own takes part in, and the ids as an array by way of
``struct``, as ours are: in half the time that NumPy takes). A round
is one epoch of the loader and one pass of the tokenizer over its texts, in turns of some rows, so
that both see the machine at the same speed; a row gives median,
p20 and p80 of the rounds' ratios. Opening the loader (tokenizer, index, plan) is not in them:
``open_ms`` is its CPU time, once modules are imported. The bare tokenizer brings every text into
Unicode's form C, as its file says; the loader does where a text may not be in it already, which
saves more than the rest of it costs. So ``form_c: false`` is the harder case: the same vocabularies
with that step taken out of their files, as in those of Llama 3 and GPT-2. Texts have the lengths of
``data/mixed_lengths.json`` (at most ``--longest`` words), conversations two to eight turns of 5 to
300 words; the words are those of the documentation of Python's own modules. Vocabularies: a BPE of
4,096 tokens trained on the spot, and Qwen's of 151,643 where dashscope is installed.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import webdataset as wds
from tokenizers import Tokenizer

from zephon_mm import DataConfig, ExecutionConfig, Loader, Source, Stop
from zephon_mm.demo.shards import library_texts
from zephon_mm.demo.tokenizer import CHAT_TEMPLATE, build_tokenizer, trained_tokenizer
from zephon_mm.models.tokenizer import pack_ids

RESULTS = Path(__file__).with_name("results") / "text.jsonl"
LENGTHS = Path(__file__).with_name("data") / "mixed_lengths.json"
TURN_ROWS, TURN_TEXTS = 12, 100  # a quarter of a second: changing over costs little beside it
LIMITS = {"text": 1.08, "chat": 1.2}
Chat = list[dict[str, str]]
T = TypeVar("T")


class Words:
    """Runs of words of real text, found by number: the same ones in every run."""

    def __init__(self) -> None:
        self._words = " ".join(library_texts()).split(" ")

    def __call__(self, key: int, count: int) -> str:
        start = int(np.random.Philox(key=key).random_raw() % len(self._words))
        return " ".join(self._words[(start + at) % len(self._words)] for at in range(count))


def make_texts(words: Words, count: int, longest: int) -> list[str]:
    """Texts with the lengths of the text part of the mix."""
    rows = [int(parts[0][1]) for kind, parts in json.loads(LENGTHS.read_text()) if kind == "text"]
    return [words(at, min(rows[at % len(rows)], longest)) for at in range(count)]


def make_chats(words: Words, count: int) -> list[Chat]:
    """Conversations: a question of 5 to 80 words and an answer of 20 to 300, one to four times."""
    chats = []
    for number in range(count):
        draws = [int(raw) for raw in np.random.Philox(key=number).random_raw(9)]
        chat = []
        for turn in range(2 * (1 + draws[8] % 4)):
            least, most = ((5, 80), (20, 300))[turn % 2]
            text = words(1000 * number + turn, least + draws[turn] % (most - least))
            chat.append({"role": ("user", "assistant")[turn % 2], "content": text})
        chats.append(chat)
    return chats


def write_shards(path: Path, field: str, values: Sequence[Any]) -> str:
    """One shard, a sample a value."""
    with wds.TarWriter(str(path), mtime=0) as writer:
        for number, value in enumerate(values):
            writer.write({"__key__": f"{number:06d}", field: value})
    return str(path)


def rendered(chat: Chat) -> str:
    """What the demo's template, and Qwen's, write for a conversation of texts."""
    return "".join(f"<|im_start|>{t['role']}\n{t['content']}<|im_end|>\n" for t in chat)


def bare_turns(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[int]:
    """The tokens of some texts after another, made by the tokenizer alone."""
    for block in batched(texts, TURN_TEXTS):
        tokens = 0
        for text in block:
            (item,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
            tokens += len(np.frombuffer(pack_ids(item.ids), np.int32))
        yield tokens


def loader_turns(loader: Loader) -> Iterator[int]:
    """The tokens of some rows after another, made by a loader."""
    for block in batched(loader, TURN_ROWS):
        yield sum(d.stop - d.start for batch in block for row in batch.documents for d in row)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items, so many at a time."""
    source = iter(items)
    while block := list(islice(source, size)):
        yield block


def one_round(
    config: DataConfig, tokenizer: Tokenizer, texts: Sequence[str], first: int
) -> tuple[list[float], list[int], float]:
    """CPU seconds and tokens of the loader and of the tokenizer; seconds of opening the loader.

    ``first``: whose turn comes first, 0 or 1.
    """
    seconds, tokens = [0.0, 0.0], [0, 0]
    begun = time.process_time()
    with Loader(config, ExecutionConfig(backend="serial", workers=1)) as loader:
        opened = time.process_time() - begun
        turns = {0: loader_turns(loader), 1: bare_turns(tokenizer, texts)}
        order = [first, 1 - first]
        while turns:
            for side in [side for side in order if side in turns]:
                start = time.process_time()
                made = next(turns[side], None)
                seconds[side] += time.process_time() - start
                if made is None:
                    del turns[side]
                else:
                    tokens[side] += made
    return seconds, tokens, opened


def compare(config: DataConfig, texts: Sequence[str], rounds: int) -> dict[str, Any]:
    """The row of one kind of sample and one vocabulary."""
    tokenizer = Tokenizer.from_file(str(Path(config.tokenizer) / "tokenizer.json"))
    one_round(config, tokenizer, texts, 0)  # warm
    rows, opened = [], []
    for number in range(rounds):
        seconds, tokens, opening = one_round(config, tokenizer, texts, number % 2)
        rows.append(seconds)
        opened.append(opening)
    ours, theirs = tokens
    p20, median, p80 = np.quantile([a / b for a, b in rows], (0.2, 0.5, 0.8))
    return {
        "ratio": round(float(median), 4),
        "p20": round(float(p20), 4),
        "p80": round(float(p80), 4),
        "loader_us_a_sample": round(1e6 * float(np.median([a for a, _ in rows])) / len(texts), 1),
        "bare_us_a_sample": round(1e6 * float(np.median([b for _, b in rows])) / len(texts), 1),
        "open_ms": round(1e3 * float(np.median(opened)), 1),
        "samples": len(texts),
        "tokens": ours,
        "tokens_of_bare": theirs,
        "vocabulary": tokenizer.get_vocab_size(),
        "form_c": tokenizer.normalizer is not None,
        "rounds": rounds,
    }


def write_tokenizers(folder: Path, wanted: Sequence[str]) -> dict[str, str]:
    """The tokenizers' folders, by name: each vocabulary as it is, and less its normalizer."""
    for name in wanted:
        if name == "large":
            build_tokenizer(folder / name)
        else:
            (folder / name).mkdir()
            trained_tokenizer(library_texts()).save(str(folder / name / "tokenizer.json"))
            settings = {"eos_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
            (folder / name / "tokenizer_config.json").write_text(json.dumps(settings))
        file = Path(shutil.copytree(folder / name, folder / f"{name}_raw")) / "tokenizer.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "normalizer": None}))
    return {name: str(folder / name) for one in wanted for name in (one, f"{one}_raw")}


def machine() -> dict[str, Any]:
    """What a row says of where and on what it was measured."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit,
        "cpu": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "tokenizers": version("tokenizers"),
        "jinja2": version("jinja2"),
    }


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11, help="paired rounds a row")
    parser.add_argument("--samples", type=int, default=1000, help="samples an epoch")
    parser.add_argument("--longest", type=int, default=4000, help="most words of a plain text")
    parser.add_argument("--kinds", nargs="+", choices=LIMITS, default=list(LIMITS))
    parser.add_argument(
        "--vocabularies", nargs="+", choices=("small", "large"), default=["small", "large"]
    )
    parser.add_argument("--save", action="store_true", help=f"add the rows to {RESULTS.name}")
    options = parser.parse_args()
    words = Words()
    texts = make_texts(words, options.samples, options.longest)
    chats = make_chats(words, options.samples)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        urls = {
            "text": write_shards(folder / "text.tar", "txt", texts),
            "chat": write_shards(folder / "chat.tar", "json", [{"messages": c} for c in chats]),
        }
        read = {
            # the template of plain texts writes what ends a document
            "text": [f"{text}<|endoftext|>" for text in texts],
            "chat": [rendered(chat) for chat in chats],
        }
        tokenizers = write_tokenizers(folder, options.vocabularies)
        for kind in options.kinds:
            for path in tokenizers.values():
                config = DataConfig(
                    sources=(Source(id=kind, urls=urls[kind], format=kind),),
                    model="text",
                    tokenizer=path,
                    sequence_length=8192,
                    global_batch=1,
                    lanes=1,
                    stop=Stop(epochs=1, count="never"),
                )
                row = compare(config, read[kind], options.rounds)
                row = {"kind": kind, "limit": LIMITS[kind], **row, **machine()}
                print(json.dumps(row), flush=True)
                if options.save:
                    with RESULTS.open("a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
