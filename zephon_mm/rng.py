"""C4: every random decision draws from a counter-based generator whose key says what it is for.

A key is BLAKE2b of the purpose and its parts, so no decision depends on rank, worker, time,
list position, Python's ``hash()`` or a global generator. Streams are Philox4x64-10 in counter
mode (Salmon et al., *Parallel Random Numbers: As Easy as 1, 2, 3*, SC 2011): draw ``n`` of a stream
costs the same for any ``n``. Only raw 64-bit words are taken from NumPy, whose streams of
higher-level draws may change between releases.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_WORDS_PER_BLOCK = 4  # Philox4x64 gives four words a counter


def key(purpose: str, *parts: str | int) -> int:
    """A 128-bit key from a purpose and its parts; text and numbers never collide."""
    digest = hashlib.blake2b(digest_size=16, person=b"zephon_mm.rng")
    for part in (purpose, *parts):
        data = part.encode() if isinstance(part, str) else b"%d" % part
        digest.update(b"%c%d:" % (b"s" if isinstance(part, str) else b"i", len(data)))
        digest.update(data)
    return int.from_bytes(digest.digest(), "little")


def words(stream_key: int, first: int, count: int) -> NDArray[np.uint64]:
    """Words ``first … first + count - 1`` of a stream: uint64 [count]."""
    block, skip = divmod(first, _WORDS_PER_BLOCK)
    philox = np.random.Philox(key=stream_key, counter=block)
    return philox.random_raw(skip + count)[skip:]


def uniforms(stream_key: int, first: int, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits, one a word: float64 [count]."""
    return (words(stream_key, first, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(stream_key: int, index: int, limit: int) -> int:
    """A whole number in [0, limit) from word ``index``; bias under limit / 2**64."""
    return int(words(stream_key, index, 1)[0]) * limit >> 64
