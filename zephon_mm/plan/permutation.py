"""Keyed permutations of ``[0, n)`` with random access, the same for ever on every machine.

Large ``n``: a Feistel network on a rectangle of ``a`` by ``b`` values, just over ``n``
(``a = ⌈√n⌉``, ``b = ⌈n / a⌉``), whose halves are added to modulo ``a`` and ``b`` in turn, with
cycle walking for the few values past ``n`` (Black and Rogaway, *Ciphers with Arbitrary Finite
Domains*, CT-RSA 2002). It costs O(1) memory and ``ROUNDS`` hashes a value; since ``a·b < n + a``,
fewer than one value in ``√n`` walks.

Small ``n`` (up to ``SMALL``): Feistel halves of a few values reach only some of the ``n!`` orders,
so the values are sorted by a keyed 64-bit hash instead, a table of at most 32 KB. The hash is a
bijection of 64-bit words, so there are no ties and any sorting algorithm gives the same order.

The hash is MurmurHash3's 64-bit finaliser (most of it, in a Feistel round) with keys that BLAKE2b
expands from the caller's key (`rng.key`). Nothing here depends on NumPy's random streams. Golden
values in the tests pin it.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
SMALL = 4096
LARGEST = 1 << 62

_WORD = (1 << 64) - 1
_MULTIPLY_1 = 0xFF51AFD7ED558CCD
_MULTIPLY_2 = 0xC4CEB9FE1A85EC53
_FACTOR_1, _FACTOR_2 = np.uint64(_MULTIPLY_1), np.uint64(_MULTIPLY_2)
_SHIFT, _ONE = np.uint64(33), np.uint64(1)

Array = NDArray[np.uint64]


class Permutation:
    """A permutation of ``[0, n)`` chosen by a 128-bit key; equal keys give equal permutations.

    Args:
        key: what it is for, from `rng.key`; in ``[0, 2**128)``.
        n: how many values, ``1 … 2**62``.
    """

    __slots__ = ("_columns", "_keys", "_rows", "_table", "n")

    def __init__(self, key: int, n: int) -> None:
        if not 1 <= n <= LARGEST:
            raise ValueError(f"a permutation of n={n} values; expected 1 … 2**62")
        self.n = n
        digest = hashlib.blake2b(
            key.to_bytes(16, "little"), digest_size=8 * ROUNDS, person=b"zephon_mm.perm"
        ).digest()
        self._keys = [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 8 * ROUNDS, 8)]
        self._rows = math.isqrt(n - 1) + 1
        self._columns = -(-n // self._rows)
        self._table: NDArray[np.int64] | None = (
            _sorted_by_hash(self._keys, n) if n <= SMALL else None
        )

    def __len__(self) -> int:
        return self.n

    def at(self, index: int) -> int:
        """The value at one place. Raises IndexError outside ``[0, n)``."""
        if not 0 <= index < self.n:
            raise IndexError(f"index {index} of a permutation of {self.n}")
        if self._table is not None:
            return int(self._table[index])
        value = self._feistel(index)
        while value >= self.n:
            value = self._feistel(value)
        return value

    def take(self, indices: NDArray[np.int64] | Array) -> NDArray[np.int64]:
        """The values at many places: int64 of the shape of ``indices``, which lie in [0, n)."""
        if self._table is not None:
            return self._table[indices]
        values = self._feistel_array(indices.astype(np.uint64))
        over = np.flatnonzero(values >= self.n)
        while len(over):
            values[over] = self._feistel_array(values[over])
            over = over[values[over] >= self.n]
        return values.astype(np.int64)

    def all(self) -> NDArray[np.int64]:
        """The whole permutation: int64 [n]. Costs O(n) memory."""
        return self.take(np.arange(self.n, dtype=np.int64))

    def _feistel(self, value: int) -> int:
        left, right = divmod(value, self._columns)
        for i in range(0, ROUNDS, 2):
            left = (left + _step(right, self._keys[i])) % self._rows
            right = (right + _step(left, self._keys[i + 1])) % self._columns
        return left * self._columns + right

    def _feistel_array(self, values: Array) -> Array:
        rows, columns = np.uint64(self._rows), np.uint64(self._columns)
        left, right = np.divmod(values, columns)
        for i in range(0, ROUNDS, 2):
            left = (left + _step_array(right, self._keys[i])) % rows
            right = (right + _step_array(left, self._keys[i + 1])) % columns
        result: Array = left * columns + right
        return result


def _sorted_by_hash(keys: list[int], n: int) -> NDArray[np.int64]:
    hashes = np.arange(n, dtype=np.uint64)
    for round_key in keys[:2]:
        hashes ^= np.uint64(round_key)
        hashes ^= hashes >> _SHIFT
        hashes *= _FACTOR_1
        hashes ^= hashes >> _SHIFT
        hashes *= _FACTOR_2
        hashes ^= hashes >> _SHIFT
    return np.argsort(hashes)


def _step(half: int, key: int) -> int:
    mixed = (half ^ key) * _MULTIPLY_1 & _WORD
    return ((mixed ^ mixed >> 33) * _MULTIPLY_2 & _WORD) >> 1


def _step_array(half: Array, key: int) -> Array:
    mixed = half ^ np.uint64(key)
    mixed *= _FACTOR_1
    mixed ^= mixed >> _SHIFT
    mixed *= _FACTOR_2
    mixed >>= _ONE  # room for the addition that follows
    return mixed
