"""Configs of tiny models of the families of tiles, and their processors, from a tokenizer."""

from __future__ import annotations

from typing import Any

_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vision_use_head": False,
}
_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "pad_token_id": None,
}


def text(tokenizer: Any, **changes: Any) -> dict[str, Any]:
    return {
        **_TEXT,
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        **changes,
    }


def text_config(tokenizer: Any) -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(**text(tokenizer))


def llava_onevision(tokenizer: Any) -> Any:
    from transformers import LlavaOnevisionConfig

    return LlavaOnevisionConfig(
        text_config=text(tokenizer, model_type="qwen2"),
        vision_config={**_SIGLIP, "image_size": 48, "patch_size": 16},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=_POINTS,
    )


_POINTS = [[high, wide] for high in (48, 96, 144, 192, 288) for wide in (48, 96, 144, 192, 288)]


def llava_onevision_processor(tokenizer: Any) -> Any:
    from transformers import (
        LlavaOnevisionImageProcessor,
        LlavaOnevisionProcessor,
        LlavaOnevisionVideoProcessor,
    )

    size = {"height": 48, "width": 48}
    return LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=_POINTS),
        tokenizer=tokenizer,
        video_processor=LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=9,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
    )


def internvl(tokenizer: Any) -> Any:
    from transformers import InternVLConfig

    return InternVLConfig(
        text_config=text(tokenizer, model_type="qwen2"),
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "image_size": [32, 32],
            "patch_size": [8, 8],
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=False,
    )


def internvl_processor(tokenizer: Any) -> Any:
    from transformers import GotOcr2ImageProcessor, InternVLProcessor, InternVLVideoProcessor

    size = {"height": 32, "width": 32}
    return InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size=size, max_patches=6),
        tokenizer=tokenizer,
        video_processor=InternVLVideoProcessor(size=size),
        image_seq_length=4,
        chat_template=tokenizer.chat_template,
    )


def idefics3(tokenizer: Any, kind: str = "Idefics3") -> Any:
    import transformers

    return getattr(transformers, f"{kind}Config")(
        text_config=text(tokenizer, model_type="llama"),
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 8,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
    )


def idefics3_processor(tokenizer: Any, kind: str = "Idefics3") -> Any:
    import transformers

    sizes = {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}}
    parts = {"image_processor": getattr(transformers, f"{kind}ImageProcessor")(**sizes)}
    if kind == "SmolVLM":
        parts["video_processor"] = transformers.SmolVLMVideoProcessor(**sizes)
    return getattr(transformers, f"{kind}Processor")(
        tokenizer=tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template, **parts
    )


IDEFICS3_TOKENS = (
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)),
)


def gemma3(tokenizer: Any) -> Any:
    from transformers import Gemma3Config

    return Gemma3Config(
        text_config=text(
            tokenizer,
            num_hidden_layers=3,
            query_pre_attn_scalar=8,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        vision_config={**_SIGLIP, "image_size": 32, "patch_size": 8},
        mm_tokens_per_image=4,
        boi_token_index=tokenizer.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=tokenizer.convert_tokens_to_ids("<end_of_image>"),
        image_token_index=tokenizer.convert_tokens_to_ids("<image_soft_token>"),
    )


def gemma3_processor(tokenizer: Any) -> Any:
    from transformers import Gemma3ImageProcessor, Gemma3Processor

    return Gemma3Processor(
        image_processor=Gemma3ImageProcessor(size={"height": 32, "width": 32}),
        tokenizer=tokenizer,
        image_seq_length=4,
        chat_template=tokenizer.chat_template,
    )


def gemma4(tokenizer: Any) -> Any:
    from transformers import Gemma4Config

    tokens = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(token)
        for name, token in {
            "image": "<|image_soft|>", "video": "<|video|>", "audio": "<|audio_soft|>",
            "boi": "<|image>", "eoi": "<image|>",
        }.items()
    }  # fmt: skip
    return Gemma4Config(
        text_config=text(
            tokenizer,
            num_hidden_layers=3,
            global_head_dim=8,
            sliding_window=6,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            vocab_size_per_layer_input=len(tokenizer),
            hidden_size_per_layer_input=4,
            use_bidirectional_attention="vision",
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "position_embedding_size": 700,
        },
        audio_config=None,
        **tokens,
    )


def gemma4_processor(tokenizer: Any) -> Any:
    import transformers

    sizes = {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2}
    return transformers.Gemma4Processor(
        feature_extractor=transformers.Gemma4AudioFeatureExtractor(),
        image_processor=transformers.Gemma4ImageProcessor(**sizes),
        tokenizer=tokenizer,
        video_processor=transformers.Gemma4VideoProcessor(**sizes),
        chat_template=tokenizer.chat_template,
    )


def molmo2(tokenizer: Any) -> Any:
    from transformers import Molmo2Config

    ids = {
        "image_start_token_id": "<im_start>",
        "low_res_image_start_token_id": "<low_res_im_start>",
        "image_end_token_id": "<im_end>",
        "image_patch_id": "<im_patch>",
        "frame_start_token_id": "<frame_start>",
        "frame_end_token_id": "<frame_end>",
    }
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8}
    return Molmo2Config(
        text_config=text(tokenizer, additional_vocab_size=4),
        vision_config={
            **sizes,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "image_size": [32, 32],
            "patch_size": 4,
        },
        adapter_config={
            **sizes,
            "vision_feature_layer": [1, 0],
            "intermediate_size": 48,
            "text_hidden_size": 32,
        },
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in ids.items()},
    )


def molmo2_processor(tokenizer: Any) -> Any:
    import transformers

    sizes = {"size": {"height": 32, "width": 32}, "patch_size": 4}
    return transformers.Molmo2Processor(
        image_processor=transformers.Molmo2ImageProcessor(
            max_crops=6, overlap_margins=[1, 2], **sizes
        ),
        video_processor=transformers.Molmo2VideoProcessor(  # its class's own default is neither
            do_rescale=True, do_normalize=True, **sizes
        ),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )
