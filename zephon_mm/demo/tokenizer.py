"""A tokeniser for the demo, with nothing downloaded.

`qwen_tokenizer` turns the vocabulary that the package dashscope carries (Qwen's own, 151,643
ranks) into a Hugging Face folder with transformers' converter; its ids are Qwen's. Where dashscope
is not installed, `trained_tokenizer` trains a small byte-level BPE on Python's documentation.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.normalizers import NFC
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from ..errors import MissingDependencyError
from .shards import data_folder, library_texts

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Qwen2's special tokens, in the order of their ids (from 151,643)."""

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2's tokeniser cuts text before byte pairs are merged."""

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part['type'] == 'video' -%}
{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- else -%}
{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}
"""

NUM_TRAINED = 4096


class _Ranks(TikTokenConverter):
    """The converter, reading the ranks itself: tiktoken would cache them by path."""

    @staticmethod
    def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
        lines = Path(tiktoken_url).read_bytes().splitlines()
        pairs = (line.split() for line in lines if line)
        return {base64.b64decode(token): int(rank) for token, rank in pairs}


def build_tokenizer(folder: Path) -> str:
    """Save a tokeniser as a Hugging Face folder, and say in a few words which one it is."""
    try:
        ranks = data_folder("dashscope", "resources") / "qwen.tiktoken"
    except MissingDependencyError:
        tokenizer, what = trained_tokenizer(library_texts()), "a BPE, trained on the spot"
    else:
        tokenizer, what = qwen_tokenizer(ranks), "Qwen's vocabulary, from dashscope"
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIALS[1:]),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=131072,
    )
    wrapped.save_pretrained(str(folder))
    return what


def qwen_tokenizer(ranks: Path) -> Tokenizer:
    """Qwen's tokeniser from its tiktoken file of ranks."""
    converter = _Ranks(  # type: ignore[no-untyped-call]
        vocab_file=str(ranks), pattern=PATTERN, extra_special_tokens=list(SPECIALS)
    )
    tokenizer: Tokenizer = converter.converted()
    tokenizer.normalizer = NFC()
    return tokenizer


def trained_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE of at most `NUM_TRAINED` tokens and Qwen's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TRAINED,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIALS])
    return tokenizer
