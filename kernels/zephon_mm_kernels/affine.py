# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""The compiled insides of `normalise`: ``(float32(v) − m) / s``, and its rounding to bfloat16."""

from __future__ import annotations

import numpy as np
from numba import float32, types, uint32

from .compiled import Compiled


def single(source, shift, divide, out):
    """[n, 3, k] bytes to float32."""
    for row in range(len(source)):
        for channel in range(3):
            m, s = shift[channel], divide[channel]
            read, result = source[row, channel], out[row, channel]
            for x in range(len(read)):
                result[x] = (float32(read[x]) - m) / s


def half(source, shift, divide, out):
    """[n, 3, k] bytes to the bits of bfloat16, by way of float32 in a line that stays in cache."""
    line = np.empty(1024, np.float32)
    bits = line.view(np.uint32)
    for row in range(len(source)):
        for channel in range(3):
            m, s = shift[channel], divide[channel]
            for start in range(0, source.shape[2], 1024):
                read = source[row, channel, start : start + 1024]
                result = out[row, channel, start : start + 1024]
                for x in range(len(read)):
                    line[x] = (float32(read[x]) - m) / s
                for x in range(len(read)):
                    odd = uint32(uint32(bits[x] >> uint32(16)) & uint32(1))
                    result[x] = uint32(bits[x] + uint32(0x7FFF) + odd) >> uint32(16)


def _signature(result):
    numbers = types.Array(types.float32, 1, "C", readonly=True)
    source = types.Array(types.uint8, 3, "C", readonly=True)
    return (types.void(source, numbers, numbers, types.Array(result, 3, "C")),)


SINGLE = Compiled(single, _signature(types.float32))
HALF = Compiled(half, _signature(types.uint16))
