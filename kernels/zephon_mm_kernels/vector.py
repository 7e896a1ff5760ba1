# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""Three vector operations that numba's loops don't give, written as LLVM's portable vector code.

`weigh` is both passes of the resize: 64 neighbouring sums of products of 16-bit numbers, held in
registers over all taps. Taps go in pairs, since x86 multiplies pairs and adds them in one
instruction (``pmaddwd``), which LLVM finds by itself; other processors get plain products.
`turn_block` transposes 8 × 8 numbers. `copy_word` moves 8 bytes, aligned or not.

Nothing checks bounds here. Arrays are one-dimensional and contiguous; places count elements.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 64
"""How many sums `weigh` makes at once."""

_TILE = 16
_I16, _I32 = ir.IntType(16), ir.IntType(32)
_INDEX = types.intp
_LOW = [v for half in (0, 8) for k in range(4) for v in (half + k, half + k + _TILE)]
_HIGH = [v + 4 for v in _LOW]
_NATURAL = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]
"""Rows are interleaved within 128 bits, as x86 does it cheaply, and put in order at the end."""


@intrinsic
def weigh(typingctx, source, at, pitch, weights, row, count, half, bits, target, to):
    """``target[to + x] = (half + Σ_k weights[row + k] · source[at + k·pitch + x]) >> bits``.

    For x from 0 to 63 and k below ``count``. Source is uint8 or int16, weights and target int16;
    ``weights[row + count]`` is read too where count is odd, and must be zero.
    """
    signature = types.void(
        source, _INDEX, _INDEX, weights, _INDEX, _INDEX, types.int32, types.int32, target, _INDEX
    )

    def code(context, builder, signature, args):
        kinds = signature.args
        origin, weight, result = (_data(context, builder, kinds[k], args[k]) for k in (0, 3, 8))
        _, at, pitch, _, row, count, half, bits, _, to = args
        element = context.get_value_type(source.dtype)
        sums = [cgutils.alloca_once(builder, ir.VectorType(_I32, 8)) for _ in range(BLOCK // 8)]
        for total in sums:
            builder.store(_splat(builder, half, 8), total)

        def numbers(place):
            read = _load(builder, origin, place, element, _TILE)
            return builder.zext(read, ir.VectorType(_I16, _TILE)) if element.width == 8 else read

        zero, one, two = (ir.Constant(at.type, value) for value in (0, 1, 2))
        with cgutils.for_range_slice(builder, zero, count, two, at.type) as (k, _):
            first = builder.add(at, builder.mul(k, pitch))
            is_pair = builder.icmp_signed("<", builder.add(k, one), count)
            second = builder.select(is_pair, builder.add(first, pitch), first)
            address = builder.gep(weight, [builder.add(row, k)])
            pair = builder.load(builder.bitcast(address, _I32.as_pointer()), align=2)
            pairs = builder.bitcast(_splat(builder, pair, 8), ir.VectorType(_I16, _TILE))
            factor = builder.sext(pairs, ir.VectorType(_I32, _TILE))
            for tile in range(BLOCK // _TILE):
                shift = ir.Constant(at.type, tile * _TILE)
                a, b = numbers(builder.add(first, shift)), numbers(builder.add(second, shift))
                for part, order in enumerate((_LOW, _HIGH)):
                    both = builder.shuffle_vector(a, b, _mask(order))
                    product = builder.mul(builder.sext(both, factor.type), factor)
                    even = builder.shuffle_vector(product, product, _mask(range(0, _TILE, 2)))
                    odd = builder.shuffle_vector(product, product, _mask(range(1, _TILE, 2)))
                    total = sums[2 * tile + part]
                    added = builder.add(builder.load(total), builder.add(even, odd))
                    builder.store(added, total)
        for tile in range(BLOCK // _TILE):
            low, high = (
                builder.trunc(
                    builder.ashr(builder.load(sums[2 * tile + part]), _splat(builder, bits, 8)),
                    ir.VectorType(_I16, 8),
                )
                for part in range(2)
            )
            ordered = builder.shuffle_vector(low, high, _mask(_NATURAL))
            _store(builder, ordered, result, builder.add(to, ir.Constant(to.type, tile * _TILE)))
        return context.get_dummy_value()

    return signature, code


@intrinsic
def turn_block(typingctx, source, at, pitch, target, to, target_pitch):
    """``target[to + x·target_pitch + y] = source[at + y·pitch + x]`` for x and y from 0 to 7.

    Interleaving row k with row k + 4, three times over, is a transposition.
    """
    signature = types.void(source, _INDEX, _INDEX, target, _INDEX, _INDEX)

    def code(context, builder, signature, args):
        origin, result = (_data(context, builder, signature.args[k], args[k]) for k in (0, 3))
        _, at, pitch, _, to, target_pitch = args
        element = context.get_value_type(source.dtype)

        def place(start, step, k):
            return builder.add(start, builder.mul(step, ir.Constant(step.type, k)))

        rows = [_load(builder, origin, place(at, pitch, k), element, 8) for k in range(8)]
        halves = _mask([0, 8, 1, 9, 2, 10, 3, 11]), _mask([4, 12, 5, 13, 6, 14, 7, 15])
        for _ in range(3):
            rows = [
                builder.shuffle_vector(rows[k // 2], rows[k // 2 + 4], halves[k % 2])
                for k in range(8)
            ]
        for k, row in enumerate(rows):
            _store(builder, row, result, place(to, target_pitch, k))
        return context.get_dummy_value()

    return signature, code


@intrinsic
def copy_word(typingctx, source, at, target, to):
    """``target[to … to + 7] = source[at … at + 7]``; bytes."""
    signature = types.void(source, _INDEX, target, _INDEX)

    def code(context, builder, signature, args):
        origin, result = (_data(context, builder, signature.args[k], args[k]) for k in (0, 2))
        _store(builder, _load(builder, origin, args[1], ir.IntType(8), 8), result, args[3])
        return context.get_dummy_value()

    return signature, code


def _data(context, builder, kind, array):
    return context.make_array(kind)(context, builder, array).data


def _load(builder, data, place, element, lanes):
    pointer = ir.VectorType(element, lanes).as_pointer()
    return builder.load(builder.bitcast(builder.gep(data, [place]), pointer), align=1)


def _store(builder, vector, data, place):
    pointer = builder.bitcast(builder.gep(data, [place]), vector.type.as_pointer())
    builder.store(vector, pointer, align=1)


def _splat(builder, value, lanes):
    empty = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, empty, _mask([0] * lanes))


def _mask(order):
    return ir.Constant(ir.VectorType(_I32, len(order)), list(order))
