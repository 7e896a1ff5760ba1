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

from tests import family_models, tiny


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


FAMILIES: dict[str, TinyFamily] = {
    "qwen2_vl": _qwen("qwen2_vl", "Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": _qwen("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    "qwen3_vl": _qwen("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    "qwen3_5": _qwen("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    "text": TinyFamily("Qwen2ForCausalLM", family_models.text_config, video=False),
    "llava_onevision": TinyFamily(
        "LlavaOnevisionForConditionalGeneration",
        family_models.llava_onevision,
        family_models.llava_onevision_processor,
        {"image_token": "<image>", "video_token": "<video>"},
    ),
    "internvl": TinyFamily(
        "InternVLForConditionalGeneration",
        family_models.internvl,
        family_models.internvl_processor,
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "idefics3": TinyFamily(
        "Idefics3ForConditionalGeneration",
        family_models.idefics3,
        family_models.idefics3_processor,
        {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"},
        family_models.IDEFICS3_TOKENS,
        video=False,
    ),
    "smolvlm": TinyFamily(
        "SmolVLMForConditionalGeneration",
        lambda tokenizer: family_models.idefics3(tokenizer, "SmolVLM"),
        lambda tokenizer: family_models.idefics3_processor(tokenizer, "SmolVLM"),
        {
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "video_token": "<video>",
        },
        family_models.IDEFICS3_TOKENS,
    ),
    "gemma3": TinyFamily(
        "Gemma3ForConditionalGeneration",
        family_models.gemma3,
        family_models.gemma3_processor,
        {
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        video=False,
    ),
    "gemma4": TinyFamily(
        "Gemma4ForConditionalGeneration",
        family_models.gemma4,
        family_models.gemma4_processor,
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
        family_models.molmo2,
        family_models.molmo2_processor,
        {"image_token": "<|image|>", "video_token": "<|video|>"},
        (
            *(f"<{name}>" for name in ("im_patch", "im_col", "im_start", "im_end", "im_low")),
            *(f"<{name}>" for name in ("low_res_im_start", "frame_start", "frame_end")),
        ),
        refused=("clips", "mixed"),
    ),
}
