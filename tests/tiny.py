"""Small tokenisers and models for tests: made on the spot, nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""The families that read Qwen's control tokens, built of `write_tokenizer`'s."""

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

PLACEHOLDERS = {
    "image": "<|vision_start|><|image_pad|><|vision_end|>",
    "video": "<|vision_start|><|video_pad|><|vision_end|>",
}

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif part.type == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_WORDS = """A man rides a brown horse on the beach while the sun goes down behind the hills.
Two dogs play with a red ball in the snow; 12 people watch, and 3.5 seconds later they laugh.
The quick brown fox jumps over the lazy dog. <0.5 seconds> user assistant system image video
""".splitlines()


def write_tokenizer(folder: Path, vocab_size: int = 600, extra: Sequence[str] = ()) -> Path:
    """A byte-level BPE in Qwen's layout with its control tokens, ``extra``, and a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIALS) - len(extra),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_WORDS, trainer)
    backend.add_special_tokens([*SPECIALS, *extra])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "additional_special_tokens": [*SPECIALS[1:], *extra],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def span_of(
    kind: Any, grid: tuple[int, int, int], pts_seconds: Sequence[float] = (), fps: float = 0.0
) -> Any:
    """A medium of which only its grid and times matter; times are whole milliseconds."""
    from zephon_mm.sample import MediaSpan

    pts = tuple(round(time * 1000) for time in pts_seconds)
    return MediaSpan(
        kind=kind,
        member=0,
        start=0,
        stop=0,
        grid=grid,
        size=(0, 0),
        source_size=(0, 0),
        frames=tuple(range(len(pts))),
        pts=pts,
        time_base=(1, 1000),
        fps=fps,
    )


def tiny_config(family: str, tokenizer: Any, attention: str = "sdpa") -> Any:
    """The config of a model of ``family`` with a few thousand weights, float32."""
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_id,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
    }
    ids = {
        "image_token_id": tokenizer.token_id("<|image_pad|>"),
        "video_token_id": tokenizer.token_id("<|video_pad|>"),
        "vision_start_token_id": tokenizer.token_id("<|vision_start|>"),
        "vision_end_token_id": tokenizer.token_id("<|vision_end|>"),
    }
    vision: dict[str, Any] = {"depth": 2, "hidden_size": 32, "num_heads": 4, "out_hidden_size": 32}
    if family == "qwen2_vl":
        from transformers import Qwen2VLConfig

        vision = {"depth": 2, "embed_dim": 32, "num_heads": 4, "hidden_size": 32}
        config = Qwen2VLConfig(text_config=text, vision_config=vision, **ids)
    elif family == "qwen2_5_vl":
        from transformers import Qwen2_5_VLConfig

        vision |= {"intermediate_size": 48, "fullatt_block_indexes": [1], "window_size": 56}
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)
    elif family == "qwen3_5":
        from transformers import Qwen3_5Config

        text |= {"head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}
        text |= {f"linear_{part}_head_dim": 8 for part in ("key", "value")}
        text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        text["rope_parameters"] |= {"mrope_interleaved": True, "partial_rotary_factor": 0.5}
        vision |= {"intermediate_size": 48, "num_position_embeddings": 64}
        config = Qwen3_5Config(text_config=text, vision_config=vision, **ids)
    else:
        from transformers import Qwen3VLConfig

        text |= {"head_dim": 8}
        text["rope_parameters"]["mrope_interleaved"] = True
        vision |= {
            "intermediate_size": 48,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 64,
        }
        config = Qwen3VLConfig(text_config=text, vision_config=vision, **ids)
    config._attn_implementation = attention
    return config


def tiny_model(family: str, tokenizer: Any, attention: str = "sdpa", seed: int = 0) -> Any:
    """A model of `tiny_config` with seeded weights, in eval mode."""
    import torch
    import transformers

    config = tiny_config(family, tokenizer, attention)
    names = {
        "qwen2_vl": "Qwen2VLForConditionalGeneration",
        "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
        "qwen3_vl": "Qwen3VLForConditionalGeneration",
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return getattr(transformers, names[family])(config).eval()


def hf_processor(family: str, tokenizer_folder: Path) -> Any:
    """The family's own processor of transformers, built from its classes' defaults."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder))
    if family in ("qwen2_vl", "qwen2_5_vl"):
        from transformers import (
            Qwen2_5_VLProcessor,
            Qwen2VLImageProcessor,
            Qwen2VLProcessor,
            Qwen2VLVideoProcessor,
        )

        made = Qwen2VLProcessor if family == "qwen2_vl" else Qwen2_5_VLProcessor
        return made(
            image_processor=Qwen2VLImageProcessor(),
            tokenizer=tokenizer,
            video_processor=Qwen2VLVideoProcessor(cap_pixels_per_frame=False),
        )
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    half = [0.5, 0.5, 0.5]
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=16, image_mean=half, image_std=half),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(cap_pixels_per_frame=False),
    )
