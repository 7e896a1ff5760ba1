"""Samples of public data sets in exactly their shapes: captions and pages.

A shape is the format that `auto` takes, its samples, and what is made of each: media as
``[member]``, what is learnt from in ``«»``, or the outcome and its reason.
"""

from __future__ import annotations

import base64
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

Samples = dict[str, dict[str, Any]]
Shapes = dict[str, tuple[str, Samples, list[str]]]


def picture(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (60, 32), (value, 90, 200)).save(file, "JPEG")
    return file.getvalue()


def make_clip() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=4)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        for number in range(8):
            frame = np.full((32, 64, 3), 30 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


A, B, CLIP = picture(10), picture(200), make_clip()
META = {"key": "000000000", "status": "success", "error_message": None, "width": 60, "exif": "{}"}


def inline(data: bytes) -> str:
    return base64.b64encode(data).decode()


MMC4 = {
    "url": "https://a.b",
    "text_list": ["A dog.", "A cat."],
    "similarity_matrix": [[0.1, 0.3], [0.2, 0.1]],
    "could_have_url_duplicate": 0,
}
INFO = [
    {"image_name": "x.jpg", "raw_url": "u", "matched_text_index": 1, "matched_sim": 0.3},
    {"image_name": "y.jpg", "raw_url": "v", "matched_text_index": 0, "matched_sim": 0.2},
    {"image_name": "z.jpg", "raw_url": "w", "matched_text_index": 0, "matched_sim": 0.1},
]

SHAPES: Shapes = {
    "img2dataset": (
        "image_text",
        {
            "000000000": {"jpg": A, "json": {**META, "caption": "A cat."}, "txt": "A cat."},
            "000000001": {"jpg": B, "json": {**META, "caption": ""}, "txt": ""},
        },
        ["[jpg]«A cat.<|endoftext|>»", "filtered: the text is empty"],
    ),
    "cc3m-wds": (
        "image_text",
        {"cc3m/0": {"jpg": A, "txt": "A cat."}},
        ["[jpg]«A cat.<|endoftext|>»"],
    ),
    "video2dataset": (
        "video_text",
        {
            "00_0000": {
                "mp4": CLIP,
                "txt": "A dog runs.",
                "json": {**META, "clips": [["00:00:01.000", 3.5]], "yt_meta_dict": {"info": {}}},
            }
        },
        ["[mp4]«A dog runs.<|endoftext|>»"],
    ),
    "energon-captions": (
        "image_text",
        {"0": {"jpg": A, "json": {"caption": "A cat.", "__module__": "megatron.energon"}}},
        ["[jpg]«A cat.<|endoftext|>»"],
    ),
    "obelics": (
        "obelics",
        {
            "0": {
                "json": {
                    "images": ["https://a.b/y.jpg", None, None, "https://a.b/x.jpg"],
                    "texts": [None, "One.", "Two.", None],
                    "metadata": '[{"src": "y"}, null, null, {"src": "x"}]',
                    "general_metadata": '{"url": "https://a.b"}',
                },
                "0.jpg": A,
                "1.jpg": B,
            }
        },
        ["[0.jpg]«One.\n\nTwo.»[1.jpg]«<|endoftext|>»"],
    ),
    "mmc4": (
        "mmc4",
        {
            "0": {"json": {**MMC4, "image_info": INFO[:2]}, "x.jpg": A, "y.jpg": B},
            "1": {"json": {**MMC4, "image_info": INFO}, "x.jpg": A, "y.jpg": B},
        },
        [
            "[y.jpg]«A dog. »[x.jpg]«A cat.<|endoftext|>»",
            "quarantined: member '1.json': 'image_info' names 3 pictures and 2 of them are here",
        ],
    ),
    "mmc4-openflamingo": (
        "mmc4",
        {
            "0": {
                "json": {
                    **MMC4,
                    "image_info": [
                        {**INFO[0], "image_base64": inline(A)},
                        {**INFO[1], "image_base64": inline(B)},
                        INFO[2],
                    ],
                }
            },
            "1": {"json": {**MMC4, "image_info": [{**INFO[0], "image_base64": inline(b"0" * 60)}]}},
        },
        [
            "[json#/image_info/1/image_base64.jpg]«A dog. »"
            "[json#/image_info/0/image_base64.jpg]«A cat.<|endoftext|>»",
            "quarantined: member '1.json': 'image_info': 1 of 1 pictures are not base64",
        ],
    ),
    "parts": (
        "interleaved",
        {
            "0": {
                "json": [
                    {"text": "See "},
                    {"image": "a.jpg"},
                    {"image": "b.jpg"},
                    {"video": "mp4"},
                ],
                "a.jpg": A,
                "b.jpg": B,
                "mp4": CLIP,
            },
        },
        ["«See »[a.jpg][b.jpg][mp4]«<|endoftext|>»"],
    ),
    "text": ("text", {"0": {"json": {"text": "Words."}}}, ["«Words.<|endoftext|>»"]),
}


def write(path: Path, samples: Samples) -> str:
    with tarfile.open(path, "w") as tar:
        for key, members in samples.items():
            for field, value in members.items():
                data = (
                    value
                    if isinstance(value, bytes)
                    else value.encode()
                    if isinstance(value, str)
                    else json.dumps(value).encode()
                )
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return str(path)
