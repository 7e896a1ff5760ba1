"""GNU sparse members: reading their maps and filling the holes.

Three PAX dialects (0.0, 0.1, 1.0) and the old GNU type ``S`` say the same: the stored bytes are
runs of a longer file whose other bytes are zero. A map here is a tuple of ``(offset, length)`` in
the expanded file, in rising order, without empty runs. Format: GNU tar manual, appendix D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Runs = tuple[tuple[int, int], ...]
Read = Callable[[int, int], bytes]

MAX_EXPANDED_BYTES = 1 << 30
"""A sparse member that expands to more is refused: a few header bytes can claim exabytes."""

_MAX_RUNS = 1 << 20


class SparseMapError(ValueError):
    """A sparse map makes no sense, or its version is not known."""


def check_runs(runs: Iterable[tuple[int, int]], stored: int, expanded: int) -> Runs:
    """The map without empty runs.

    Raises:
        SparseMapError: runs overlap, fall, leave the file, or don't add up to ``stored`` bytes.
    """
    kept: list[tuple[int, int]] = []
    end = total = 0
    for offset, length in runs:
        if offset < 0 or length < 0 or offset + length > expanded or (length and offset < end):
            raise SparseMapError(f"run of {length} bytes at {offset} doesn't fit {expanded} bytes")
        if length:
            kept.append((offset, length))
            end = offset + length
            total += length
    if total != stored:
        raise SparseMapError(f"its runs hold {total} bytes and {stored} are stored")
    if expanded > MAX_EXPANDED_BYTES:
        raise SparseMapError(f"it expands to {expanded} bytes, over {MAX_EXPANDED_BYTES}")
    return tuple(kept)


def digits(text: bytes) -> int:
    """A decimal number.

    Raises:
        SparseMapError: it's something else, or longer than 20 digits.
    """
    if not text.isdigit() or len(text) > 20:
        raise SparseMapError(f"{text[:20]!r} is not a number")
    return int(text)


def pair_up(numbers: list[int]) -> list[tuple[int, int]]:
    """``[a, b, c, d]`` as ``[(a, b), (c, d)]``."""
    if len(numbers) % 2:
        raise SparseMapError(f"it has {len(numbers)} numbers, an odd count")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def read_map_1_0(read: Read, offset: int, stored: int) -> tuple[list[tuple[int, int]], int]:
    """Read the map that a 1.0 member stores before its data.

    Args:
        read: ranged read of the shard.
        offset: where the member's stored bytes begin.
        stored: how many there are, the map's included.

    Returns:
        The runs, and the bytes that the map takes (a multiple of 512).
    """
    text = b""
    numbers: list[int] = []
    used = 0
    while not numbers or len(numbers) < 1 + 2 * numbers[0]:
        if used + 512 > stored:
            raise SparseMapError("its map is longer than the member")
        text += read(offset + used, 512)
        used += 512
        *lines, text = text.split(b"\n")
        for line in lines:
            if numbers and len(numbers) == 1 + 2 * numbers[0]:
                break
            numbers.append(digits(line))
        if numbers and numbers[0] > _MAX_RUNS:
            raise SparseMapError(f"its map claims {numbers[0]} runs")
    return pair_up(numbers[1:]), used


def expand(stored: memoryview | bytes, runs: Runs, expanded: int) -> bytes:
    """The whole file: stored runs at their places, zeros between."""
    whole = bytearray(expanded)
    at = 0
    for offset, length in runs:
        whole[offset : offset + length] = stored[at : at + length]
        at += length
    return bytes(whole)
