"""A tiny Qwen-VL, built from its config with random weights: the real classes, 5 M parameters.

Nearly all of them are the embedding of Qwen's vocabulary, which is tied to the output layer.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from ..errors import ConfigError
from ..models import Tokenizer

HIDDEN = 32
TEXT: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}


def tiny_model(family: str, tokenizer: Tokenizer, seed: int) -> PreTrainedModel:
    """A model of ``family`` with weights drawn from ``seed``, in float32, in training mode.

    Args:
        family: ``qwen3_vl`` or ``qwen2_5_vl``, as `DataConfig.model` names it.
        tokenizer: its size and special tokens go into the config.
        seed: of the weights; the global generator is left as it was.
    """
    builders = {"qwen3_vl": _qwen3_vl, "qwen2_5_vl": _qwen2_5_vl}
    if family not in builders:
        raise ConfigError(f"no tiny model of family {family!r}; there are {', '.join(builders)}")
    names = ("image", "video")
    ids: dict[str, Any] = {
        f"{name}_token_id": tokenizer.token_id(f"<|{name}_pad|>") for name in names
    }
    ids["vision_start_token_id"] = tokenizer.token_id("<|vision_start|>")
    ids["vision_end_token_id"] = tokenizer.token_id("<|vision_end|>")
    text = {**TEXT, "vocab_size": -(-len(tokenizer) // 64) * 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = builders[family](text, ids)
    model.train()
    return model


def _qwen3_vl(text: dict[str, Any], ids: dict[str, Any]) -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [2, 1, 1]}
    config = Qwen3VLConfig(
        text_config={**text, "rope_parameters": {**rope, "mrope_interleaved": True}},
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": HIDDEN,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 256,
        },
        tie_word_embeddings=True,
        **ids,
    )
    return Qwen3VLForConditionalGeneration(config)


def _qwen2_5_vl(text: dict[str, Any], ids: dict[str, Any]) -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1]}
    config = Qwen2_5_VLConfig(
        text_config={**text, "rope_parameters": rope},
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": HIDDEN,
            "fullatt_block_indexes": [1],
        },
        tie_word_embeddings=True,
        **ids,
    )
    return Qwen2_5_VLForConditionalGeneration(config)
