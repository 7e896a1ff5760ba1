"""Tiny models of every family, with their processors, in folders as a model's: nothing is fetched.

A folder holds a tokeniser of `tests.tiny`, the processor's settings and the model's config, as
``save_pretrained`` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import tiny

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


@dataclass(frozen=True)
class TinyFamily:
    """How to make one family.

    Attributes:
        model: name of the model's class in transformers.
        config: of the tokenizer, the model's config.
        processor: of the tokenizer, the family's own processor; None: it has none.
        named: control tokens by the name that the processor knows them by.
        tokens: further control tokens.
        video: whether it takes clips.
        refused: documents of the equality suites that it refuses.
    """

    model: str
    config: Callable[[Any], Any]
    processor: Callable[[Any], Any] | None = None
    named: Mapping[str, str] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    video: bool = True
    refused: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        """Write the tokeniser, the processor's settings and the model's config."""
        from transformers import AutoTokenizer

        extra = (*self.named.values(), *self.tokens)
        tiny.write_tokenizer(folder, 600 + len(extra), extra)
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text())
        settings |= {name: token for name, token in self.named.items()}
        if self.named:
            chat = settings["chat_template"]
            for kind, text in tiny.PLACEHOLDERS.items():
                chat = chat.replace(text, self._shown(kind))
            settings["chat_template"] = chat
        path.write_text(json.dumps(settings))
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
        if self.processor is not None:
            chat = tokenizer.chat_template
            self.processor(tokenizer).save_pretrained(str(folder))
            assert AutoTokenizer.from_pretrained(str(folder)).chat_template == chat
        self.config(tokenizer).save_pretrained(str(folder))
        return folder

    def _shown(self, kind: str) -> str:
        if kind == "video":
            return self.named.get("video_token", "")
        names = ("context_image_token", "image_token")
        if "video_token" not in self.named:  # Gemma 3's own placeholder
            names = ("boi_token", *names)
        return next(self.named[name] for name in names if name in self.named)


def tiny_model(name: str, folder: Path, attention: str = "sdpa", seed: int = 0) -> Any:
    """The family's model with seeded weights, float32, in eval mode."""
    import torch
    import transformers
    from transformers import AutoTokenizer

    made = FAMILIES[name]
    config = made.config(AutoTokenizer.from_pretrained(str(folder)))
    config._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, made.model)(config).eval()
        for parameter in model.parameters():  # some start at 0, and would hide what they do
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def hf_processor(name: str, folder: Path) -> Any:
    """The family's own processor, as AutoProcessor finds it in the folder."""
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(str(folder))


def emulate_kernels(patched: Any) -> None:
    """Qwen3.5's linear attention as its kernels compute it, which need a GPU: document by document.

    The convolution starts anew where ``seq_idx`` changes, the delta rule at each of ``cu_seqlens``,
    which it takes for one row only. transformers' own code on a CPU refuses both.
    """
    import torch
    from transformers.models.qwen3_5 import modeling_qwen3_5 as module

    convolve: Any = module.causal_conv1d_fn.__wrapped__
    rule: Any = module.torch_chunk_gated_delta_rule.__wrapped__

    def by_seq_idx(hidden: Any, *args: Any, seq_idx: Any = None, **options: Any) -> Any:
        if seq_idx is None:
            return convolve(hidden, *args, **options)
        assert seq_idx.dtype == torch.int32 and len(hidden) == 1
        lengths = torch.unique_consecutive(seq_idx[0], return_counts=True)[1].tolist()
        parts = [convolve(part, *args, **options) for part in hidden.split(lengths, 2)]
        return torch.cat(parts, 2)

    def by_cu_seqlens(*tensors: Any, cu_seqlens: Any = None, **options: Any) -> Any:
        if cu_seqlens is None:
            return rule(*tensors, **options)
        assert len(tensors[0]) == 1
        lengths = cu_seqlens.diff().tolist()
        inputs = [tensor.split(lengths, 1) for tensor in tensors]
        decay, beta = (options.pop(name).split(lengths, 1) for name in ("g", "beta"))
        parts = [
            rule(*part, g=g, beta=b, **options)[0]
            for *part, g, b in zip(*inputs, decay, beta, strict=True)
        ]
        return torch.cat(parts, 1), None

    patched.setattr(module, "causal_conv1d_fn", by_seq_idx)
    patched.setattr(module, "torch_chunk_gated_delta_rule", by_cu_seqlens)


def _text(tokenizer: Any, **changes: Any) -> dict[str, Any]:
    return {
        **_TEXT,
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        **changes,
    }


def _text_config(tokenizer: Any) -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(**_text(tokenizer))


def _llava_onevision(tokenizer: Any) -> Any:
    from transformers import LlavaOnevisionConfig

    return LlavaOnevisionConfig(
        text_config=_text(tokenizer, model_type="qwen2"),
        vision_config={**_SIGLIP, "image_size": 48, "patch_size": 16},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=_POINTS,
    )


_POINTS = [[high, wide] for high in (48, 96, 144, 192, 288) for wide in (48, 96, 144, 192, 288)]


def _llava_onevision_processor(tokenizer: Any) -> Any:
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


def _internvl(tokenizer: Any) -> Any:
    from transformers import InternVLConfig

    return InternVLConfig(
        text_config=_text(tokenizer, model_type="qwen2"),
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


def _internvl_processor(tokenizer: Any) -> Any:
    from transformers import GotOcr2ImageProcessor, InternVLProcessor, InternVLVideoProcessor

    size = {"height": 32, "width": 32}
    return InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size=size, max_patches=6),
        tokenizer=tokenizer,
        video_processor=InternVLVideoProcessor(size=size),
        image_seq_length=4,
        chat_template=tokenizer.chat_template,
    )


def _idefics3(tokenizer: Any, kind: str = "Idefics3") -> Any:
    import transformers

    return getattr(transformers, f"{kind}Config")(
        text_config=_text(tokenizer, model_type="llama"),
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


def _idefics3_processor(tokenizer: Any, kind: str = "Idefics3") -> Any:
    import transformers

    sizes = {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}}
    parts = {"image_processor": getattr(transformers, f"{kind}ImageProcessor")(**sizes)}
    if kind == "SmolVLM":
        parts["video_processor"] = transformers.SmolVLMVideoProcessor(**sizes)
    return getattr(transformers, f"{kind}Processor")(
        tokenizer=tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template, **parts
    )


_IDEFICS3_TOKENS = (
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)),
)


def _gemma3(tokenizer: Any) -> Any:
    from transformers import Gemma3Config

    return Gemma3Config(
        text_config=_text(
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


def _gemma3_processor(tokenizer: Any) -> Any:
    from transformers import Gemma3ImageProcessor, Gemma3Processor

    return Gemma3Processor(
        image_processor=Gemma3ImageProcessor(size={"height": 32, "width": 32}),
        tokenizer=tokenizer,
        image_seq_length=4,
        chat_template=tokenizer.chat_template,
    )


def _qwen(name: str, model: str) -> TinyFamily:
    def config(tokenizer: Any) -> Any:
        from zephon_mm.models import load_tokenizer

        return tiny.tiny_config(name, load_tokenizer(tokenizer.name_or_path))

    def processor(tokenizer: Any) -> Any:
        made = tiny.hf_processor(name, Path(tokenizer.name_or_path))
        for part in (made.image_processor, made.video_processor):
            part.size = {"shortest_edge": 1024, "longest_edge": 16 * 1024}
        return made

    return TinyFamily(model, config, processor)


def _gemma4(tokenizer: Any) -> Any:
    from transformers import Gemma4Config

    tokens = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(token)
        for name, token in {
            "image": "<|image_soft|>", "video": "<|video|>", "audio": "<|audio_soft|>",
            "boi": "<|image>", "eoi": "<image|>",
        }.items()
    }  # fmt: skip
    return Gemma4Config(
        text_config=_text(
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


def _gemma4_processor(tokenizer: Any) -> Any:
    import transformers

    sizes = {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2}
    return transformers.Gemma4Processor(
        feature_extractor=transformers.Gemma4AudioFeatureExtractor(),
        image_processor=transformers.Gemma4ImageProcessor(**sizes),
        tokenizer=tokenizer,
        video_processor=transformers.Gemma4VideoProcessor(**sizes),
        chat_template=tokenizer.chat_template,
    )


def _molmo2(tokenizer: Any) -> Any:
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
        text_config=_text(tokenizer, additional_vocab_size=4),
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


def _molmo2_processor(tokenizer: Any) -> Any:
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


FAMILIES: dict[str, TinyFamily] = {
    "qwen2_vl": _qwen("qwen2_vl", "Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": _qwen("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    "qwen3_vl": _qwen("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    "qwen3_5": _qwen("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    "text": TinyFamily("Qwen2ForCausalLM", _text_config, video=False),
    "llava_onevision": TinyFamily(
        "LlavaOnevisionForConditionalGeneration",
        _llava_onevision,
        _llava_onevision_processor,
        {"image_token": "<image>", "video_token": "<video>"},
    ),
    "internvl": TinyFamily(
        "InternVLForConditionalGeneration",
        _internvl,
        _internvl_processor,
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "idefics3": TinyFamily(
        "Idefics3ForConditionalGeneration",
        _idefics3,
        _idefics3_processor,
        {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"},
        _IDEFICS3_TOKENS,
        video=False,
    ),
    "smolvlm": TinyFamily(
        "SmolVLMForConditionalGeneration",
        lambda tokenizer: _idefics3(tokenizer, "SmolVLM"),
        lambda tokenizer: _idefics3_processor(tokenizer, "SmolVLM"),
        {
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "video_token": "<video>",
        },
        _IDEFICS3_TOKENS,
    ),
    "gemma3": TinyFamily(
        "Gemma3ForConditionalGeneration",
        _gemma3,
        _gemma3_processor,
        {
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        video=False,
    ),
    "gemma4": TinyFamily(
        "Gemma4ForConditionalGeneration",
        _gemma4,
        _gemma4_processor,
        {
            "image_token": "<|image_soft|>",
            "video_token": "<|video|>",
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "audio_token": "<|audio_soft|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
        },
    ),
    "molmo2": TinyFamily(
        "Molmo2ForConditionalGeneration",
        _molmo2,
        _molmo2_processor,
        {"image_token": "<|image|>", "video_token": "<|video|>"},
        (
            *(f"<{name}>" for name in ("im_patch", "im_col", "im_start", "im_end", "im_low")),
            *(f"<{name}>" for name in ("low_res_im_start", "frame_start", "frame_end")),
        ),
        refused=("clips", "mixed"),
    ),
}
