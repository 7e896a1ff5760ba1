"""Makes ``mixed_lengths.json``: the lengths of 20,000 documents of a mixed pre-training stream.

Each document is ``[kind, parts]``; a part is ``["text", tokens]`` or ``["media", tokens]``, in
reading order. Kinds: short captions, texts with a median of 500 tokens, pictures of 256 to 3,000
tokens with a caption, clips of 1,000 to 8,000 tokens with a caption, interleaved pages of texts and
pictures.
Run it from anywhere; the seed is fixed and only raw words of the generator are used.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

KINDS = {"caption": 0.25, "text": 0.35, "image": 0.2, "video": 0.1, "interleaved": 0.1}
NUM_DOCUMENTS = 20_000


def main() -> None:
    """Write the file beside this script."""
    raw = np.random.Philox(key=20_000)

    def uniform() -> float:
        return (int(raw.random_raw()) >> 11) * 2.0**-53

    def normal() -> float:
        return math.sqrt(-2 * math.log(1 - uniform())) * math.cos(2 * math.pi * uniform())

    def log_uniform(low: int, high: int) -> int:
        return round(low * (high / low) ** uniform())

    def text(median: int, sigma: float, low: int, high: int) -> int:
        return min(high, max(low, round(median * math.exp(sigma * normal()))))

    def parts(kind: str) -> list[list[object]]:
        if kind == "caption":
            return [["text", text(24, 0.5, 4, 128)]]
        if kind == "text":
            return [["text", text(500, 1.1, 8, 60_000)]]
        if kind == "image":
            return [["media", log_uniform(256, 3000)], ["text", text(24, 0.6, 4, 200)]]
        if kind == "video":
            return [["media", log_uniform(1000, 8000)], ["text", text(60, 0.8, 4, 600)]]
        page: list[list[object]] = []
        for _ in range(1 + int(uniform() * 6)):
            page.append(["text", text(120, 0.9, 4, 2000)])
            page.append(["media", log_uniform(256, 1500)])
        return [*page, ["text", text(80, 0.9, 4, 2000)]]

    def kind() -> str:
        point, total = uniform(), 0.0
        for name, share in KINDS.items():
            total += share
            if point < total:
                return name
        return "interleaved"

    documents = [[name, parts(name)] for name in (kind() for _ in range(NUM_DOCUMENTS))]
    target = Path(__file__).with_name("mixed_lengths.json")
    target.write_text(json.dumps(documents, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
