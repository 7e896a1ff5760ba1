"""Samples of public data sets in exactly their shapes: conversations. See `public_pages`."""

from __future__ import annotations

import json
from typing import Any

from .public_pages import CLIP, A, B, Shapes, inline


def ask(text: str, answer: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": text}, {"from": "gpt", "value": answer}]


def say(text: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


USER, REPLY = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"

SHAPES: Shapes = {
    "llava-onevision-mixed": (
        "chat",
        {
            "0": {
                "json": {
                    "texts": say("<image>What is it?", "A cat."),
                    "media": "image",
                    "name": ["0_a.jpg"],
                },
                "0_a.jpg": A,
            },
            "1": {
                "json": {
                    "texts": say("<video>And this?", "A dog."),
                    "media": "video",
                    "name": ["0_b.mp4"],
                },
                "0_b.mp4": CLIP,
            },
            "2": {"json": {"texts": say("Hi.", "Hello."), "media": "text", "name": []}},
        },
        [
            f"{USER}[0_a.jpg]What is it?{REPLY}«A cat.<|im_end|>»\n",
            f"{USER}[0_b.mp4]And this?{REPLY}«A dog.<|im_end|>»\n",
            f"{USER}Hi.{REPLY}«Hello.<|im_end|>»\n",
        ],
    ),
    "llava-onevision-image": (
        "chat",
        {
            "0": {"jpg": A, "json": say("<image>\nWhat?", "A cat.")},
            "1": {"jpg": A, "json": say("<image> and <image>?", "A cat.")},
        },
        [
            f"{USER}[jpg]\nWhat?{REPLY}«A cat.<|im_end|>»\n",
            "quarantined: member '1.json': 2 <image> markers for 1 picture",
        ],
    ),
    "llava-onevision-packed": (
        "packed",
        {
            "0": {
                "img0.jpg": A,
                "img1.jpg": B,
                "json": {
                    "images": ["img0.jpg", "img1.jpg"],
                    "prompts": ["Say it.", "And this?"],
                    "captions": ["A cat.", "A dog."],
                },
            }
        },
        [
            f"{USER}[img0.jpg]Say it.{REPLY}«A cat.<|im_end|>»\n"
            f"{USER}[img1.jpg]And this?{REPLY}«A dog.<|im_end|>»\n"
        ],
    ),
    "llava": (
        "chat",
        {
            "0": {
                "jpg": A,
                "json": {"image": "coco/1.jpg", "conversations": ask("<image>\nWhat?", "A cat.")},
            },
            "1": {"json": {"conversations": ask("Hi.", "Hello.") + ask("Why?", "So.")}},
        },
        [
            f"{USER}[jpg]\nWhat?{REPLY}«A cat.<|im_end|>»\n",
            f"{USER}Hi.{REPLY}«Hello.<|im_end|>»\n{USER}Why?{REPLY}«So.<|im_end|>»\n",
        ],
    ),
    "llava-video": (
        "chat",
        {
            "0": {
                "mp4": CLIP,
                "json": {
                    "data_source": "0_30_s_academic_v0_1",
                    "video": "academic_source/a.mp4",
                    "conversations": ask("<image>\nWhat?", "A dog."),
                },
            },
            "1": {"mp4": CLIP, "json": {"video": "a.mp4", "conversations": ask("<video>?", "So.")}},
        },
        [
            f"{USER}[mp4]\nWhat?{REPLY}«A dog.<|im_end|>»\n",
            f"{USER}[mp4]?{REPLY}«So.<|im_end|>»\n",
        ],
    ),
    "energon-vqa": (
        "energon",
        {
            "0": {"jpg": A, "json": {"context": "What is it?", "answers": ["A cat.", "Cat"]}},
            "1": {"jpg": B, "json": {"context": "<image>\nAnd this?", "answers": "A dog."}},
        },
        [
            f"{USER}[jpg]What is it?{REPLY}«A cat.<|im_end|>»\n",
            f"{USER}[jpg]\nAnd this?{REPLY}«A dog.<|im_end|>»\n",
        ],
    ),
    "energon-chat": (
        "chat",
        {
            "a/0": {
                "1.jpg": A,
                "2.jpg": B,
                "json": {"conversations": ask("<image> or <image>?", "A cat."), "source": "x"},
            }
        },
        [f"{USER}[1.jpg] or [2.jpg]?{REPLY}«A cat.<|im_end|>»\n"],
    ),
    "qwen-packed": (
        "packed",
        {
            "0": {
                "json": [
                    {"image": ["b.jpg", "a.jpg"], "conversations": ask("<image><image>?", "Two.")},
                    {"conversations": ask("Hi.", "Hello.")},
                    {"video": "c.mp4", "conversations": ask("<video>?", "A dog.")},
                ],
                "a.jpg": A,
                "b.jpg": B,
                "c.mp4": CLIP,
            }
        },
        [
            f"{USER}[b.jpg][a.jpg]?{REPLY}«Two.<|im_end|>»\n"
            f"{USER}Hi.{REPLY}«Hello.<|im_end|>»\n"
            f"{USER}[c.mp4]?{REPLY}«A dog.<|im_end|>»\n"
        ],
    ),
    "sharegpt": (
        "chat",
        {
            "0": {
                "json": {
                    "system": "Be brief.",
                    "messages": say("<video>Then <image>?", "A cat.") + say("<image>", "A dog."),
                    "images": ["a.jpg", "b.jpg"],
                    "videos": ["c.mp4"],
                },
                "a.jpg": A,
                "b.jpg": B,
                "c.mp4": CLIP,
            },
        },
        [
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            f"{USER}[c.mp4]Then [a.jpg]?{REPLY}«A cat.<|im_end|>»\n"
            f"{USER}[b.jpg]{REPLY}«A dog.<|im_end|>»\n"
        ],
    ),
    "hugging-face": (
        "chat",
        {
            "0": {
                "json": {
                    "messages": [
                        {
                            "role": "user",
                            "content": [
                                {
                                    "type": "image_url",
                                    "image_url": {"url": f"data:image/jpeg;base64,{inline(A)}"},
                                },
                                {"type": "text", "text": "What?"},
                            ],
                        },
                        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
                        {"role": "tool", "content": "3"},
                        {"role": "assistant", "content": "Three."},
                    ]
                }
            }
        },
        [
            f"{USER}[json#/messages/0/content/0/image_url/url.jpg]What?{REPLY}«A cat.<|im_end|>»\n"
            "<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n«Three.<|im_end|>»\n"
        ],
    ),
}

CALL = {"name": "look", "arguments": {"at": "the sky", "times": 2}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TOOLS = f"<|im_start|>system\n# Tools\n{json.dumps(TOOL)}<|im_end|>\n"
CALLED = f"<tool_call>\n{json.dumps(CALL)}\n</tool_call><|im_end|>"
ANSWERED = "<|im_start|>user\n<tool_response>\ndry\n</tool_response>" + REPLY


def rain(call: dict[str, Any], answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Rain?"}, call, answer, say("", "No rain.")[1]]


def sharegpt(first: str, call: str) -> list[dict[str, str]]:
    asked, told = ask(first, "No rain.")
    return [
        asked,
        {"from": "function_call", "value": call},
        {"from": "observation", "value": "dry"},
        told,
    ]


TOOL_SHAPES: Shapes = {
    "openai-tools": (
        "chat",
        {
            "0": {
                "json": {
                    "tools": [TOOL],
                    "messages": rain(
                        {
                            "role": "assistant",
                            "content": None,
                            "tool_calls": [
                                {
                                    "id": "call_1",
                                    "type": "function",
                                    "function": {
                                        **CALL,
                                        "arguments": json.dumps(CALL["arguments"]),
                                    },
                                }
                            ],
                        },
                        {"role": "tool", "tool_call_id": "call_1", "content": "dry"},
                    ),
                }
            },
            "1": {
                "json": rain(
                    {"role": "assistant", "tool_calls": [{"function": CALL}], "content": ""},
                    {"role": "tool", "name": "look", "content": "dry"},
                )
            },
        },
        [
            f"{TOOLS}{USER}Rain?{REPLY}«{CALLED}»\n{ANSWERED}«No rain.<|im_end|>»\n",
            f"{USER}Rain?{REPLY}«{CALLED}»\n{ANSWERED}«No rain.<|im_end|>»\n",
        ],
    ),
    "sharegpt-tools": (
        "chat",
        {
            "0": {
                "json": {
                    "tools": json.dumps([TOOL]),
                    "conversations": sharegpt("Rain?", json.dumps(CALL)),
                }
            },
            "1": {
                "jpg": A,
                "json": {
                    "images": ["jpg"],
                    "conversations": sharegpt(
                        "<image>Rain?",
                        json.dumps({**CALL, "arguments": json.dumps(CALL["arguments"])}),
                    ),
                },
            },
            "2": {"json": {"conversations": sharegpt("Rain?", "look at the sky")}},
            "3": {
                "json": {
                    "messages": rain(
                        {"role": "tool_call", "content": json.dumps(CALL)},
                        {"role": "tool_response", "content": "dry"},
                    )
                }
            },
        },
        [
            f"{TOOLS}{USER}Rain?{REPLY}«{CALLED}»\n{ANSWERED}«No rain.<|im_end|>»\n",
            f"{USER}[jpg]Rain?{REPLY}«{CALLED}»\n{ANSWERED}«No rain.<|im_end|>»\n",
            "quarantined: member '2.json': 'conversations'[1], a call of a tool, is not JSON",
            f"{USER}Rain?{REPLY}«{CALLED}»\n{ANSWERED}«No rain.<|im_end|>»\n",
        ],
    ),
}
"""Their template is `QWEN3_VL` of the unit tests' chat templates."""
