"""Compiled scans over packed codes. Importing this module imports numba.

A scan looks at 64 rows at a time: `near_mask` compares their distances with a limit and returns one bit per row, so that
rows that are too far, nearly all of them, take no branch. Hits are 64-bit keys that sort like the results:

    nearest     distance << 32 | row
    near        query << 43 | distance << 32 | row

`width` is a tuple with one entry for each 64-bit word of a code: its length is known to the compiler, which makes one
variant for each. All kernels release the GIL, so that threads scan in parallel.

`nearest` and `near` repeat the comparison of 64 rows inline: a call would keep the compiler from vectorizing it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import types
from numpy.typing import NDArray

Words = NDArray[np.uint64]

cgutils: Any = numba.core.cgutils
ir = cgutils.ir  # llvmlite's, as numba uses it
I64, I32, I8 = ir.IntType(64), ir.IntType(32), ir.IntType(8)

GROUP = 16  # queries that share a block of rows while it is in cache
BLOCK = 4096  # rows
NOTHING = np.uint64(2**64 - 1)  # stands for hits that do not exist; sorts last


def compiled(function: Callable[..., Any]) -> Any:
    """numba.njit, with the machine code cached on disk if that is possible."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no writable folder for the cache
        return numba.njit(nogil=True)(function)


def reassociated(function: Callable[..., Any]) -> Any:
    """Like `compiled`, for sums of floats: the compiler may add in another order, the same one for each row."""
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract"}}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return numba.njit(**options)(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """numba.extending.intrinsic: a function that emits LLVM instructions."""
    return numba.extending.intrinsic(function)


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _pick(builder: Any, vector: Any, lanes: range) -> Any:
    """The named lanes of a vector."""
    order = ir.Constant(ir.VectorType(I32, len(lanes)), [I32(lane) for lane in lanes])
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), order)


def _repeat(builder: Any, values: list[Any], lanes: int) -> Any:
    """A vector that repeats the values."""
    vector = ir.Constant(ir.VectorType(I64, lanes), ir.Undefined)
    for lane in range(lanes):
        vector = builder.insert_element(vector, values[lane % len(values)], I32(lane))
    return vector


def _set_bits(builder: Any, start: Any, query: list[Any], rows: int) -> Any:
    """Set bits of the words of `rows` rows XOR the query, one lane per word."""
    lanes = rows * len(query)
    kind = ir.VectorType(I64, lanes)
    words = builder.load(builder.bitcast(start, kind.as_pointer()), align=8)
    different = builder.xor(words, _repeat(builder, query, lanes))
    return _call(builder, f"llvm.ctpop.v{lanes}i64", kind, different)


def _distances(builder: Any, start: Any, query: list[Any]) -> Any:
    """Distances of the 8 rows at `start`, as 8 lanes."""
    width = len(query)
    if width % 2 and width > 4:  # an odd, long code: sum each row on its own
        vector = ir.Constant(ir.VectorType(I64, 8), ir.Undefined)
        for row in range(8):
            counts = _set_bits(builder, builder.gep(start, [I64(width * row)]), query, 1)
            total = _call(builder, f"llvm.vector.reduce.add.v{width}i64", I64, counts)
            vector = builder.insert_element(vector, total, I32(row))
        return vector
    counts = _set_bits(builder, start, query, 8)
    while width % 2 == 0:  # add neighbours until the number of lanes per row is odd
        lanes = counts.type.count
        counts = builder.add(_pick(builder, counts, range(0, lanes, 2)), _pick(builder, counts, range(1, lanes, 2)))
        width //= 2
    total = _pick(builder, counts, range(0, 8 * width, width))
    for word in range(1, width):
        total = builder.add(total, _pick(builder, counts, range(word, 8 * width, width)))
    return total


def _compared(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The distances of 64 rows to a query as 8 vectors, emitted one after another as they are used, and the limit as one."""
    count = signature.args[5].count
    table = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0])
    asked = cgutils.create_struct_proxy(signature.args[2])(context, builder, arguments[2])
    start = builder.gep(table.data, [builder.mul(arguments[1], I64(count))])
    first = builder.gep(asked.data, [builder.mul(arguments[3], I64(count))])
    code = [builder.load(builder.gep(first, [I64(word)])) for word in range(count)]
    distances = (_distances(builder, builder.gep(start, [I64(8 * count * eighth)]), code) for eighth in range(8))
    return distances, _repeat(builder, [arguments[4]], 8)


@intrinsic
def any_near(_context: Any, words: Any, row: Any, queries: Any, query: Any, limit: Any, width: Any) -> Any:
    """Whether one of the 64 rows from `row` on is nearer to the query than the limit."""
    signature = types.boolean(words, types.int64, queries, types.int64, types.uint64, width)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        several, limits = _compared(context, builder, signature, arguments)
        least = next(several)
        for distances in several:
            least = builder.select(builder.icmp_unsigned("<", distances, least), distances, least)
        nearer = builder.bitcast(builder.icmp_unsigned("<", least, limits), I8)
        return builder.icmp_unsigned("!=", nearer, I8(0))

    return signature, generate


@intrinsic
def near_mask(_context: Any, words: Any, row: Any, queries: Any, query: Any, limit: Any, width: Any) -> Any:
    """Bit i is set when row + i is nearer to the query than the limit, for the 64 rows from `row` on."""
    signature = types.uint64(words, types.int64, queries, types.int64, types.uint64, width)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        several, limits = _compared(context, builder, signature, arguments)
        mask = I64(0)
        for eighth, distances in enumerate(several):
            nearer = builder.bitcast(builder.icmp_unsigned("<", distances, limits), I8)
            mask = builder.or_(mask, builder.shl(builder.zext(nearer, I64), I64(8 * eighth)))
        return mask

    return signature, generate


@intrinsic
def popcount(_context: Any, _word: Any) -> Any:
    """The number of set bits of a word."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _call(builder, "llvm.ctpop.i64", I64, arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic
def lowest_bit(_context: Any, _word: Any) -> Any:
    """The position of the lowest set bit of a word that is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), generate


@compiled
def distance(words: Words, row: int, queries: Words, query: int, width: tuple[int, ...]) -> Any:
    """The Hamming distance of one row to one query."""
    total = np.uint64(0)
    for word in range(len(width)):
        total += popcount(words[row * len(width) + word] ^ queries[query * len(width) + word])
    return total


@compiled
def end_mask(words: Words, row: int, end: int, queries: Words, query: int, limit: Any, width: tuple[int, ...]) -> Any:
    """Like `near_mask`, for the fewer than 64 rows at the end of a table."""
    mask = np.uint64(0)
    for i in range(end - row):
        if distance(words, row + i, queries, query, width) < limit:
            mask |= np.uint64(1) << np.uint64(i)
    return mask


@compiled
def keep_nearest(keys: Words, size: int, k: int, histogram: NDArray[np.int64]) -> Any:
    """Move the k nearest of `size` keys to the front, in their order, and return the distance of the k-th."""
    histogram[:] = 0
    for i in range(size):
        histogram[keys[i] >> np.uint64(32)] += 1
    limit, nearer = 0, 0
    while nearer + histogram[limit] < k:
        nearer += histogram[limit]
        limit += 1
    ties, kept = k - nearer, 0
    for i in range(size):
        d = np.int64(keys[i] >> np.uint64(32))
        if d < limit or (d == limit and ties > 0):
            ties -= d == limit
            keys[kept] = keys[i]
            kept += 1
    return np.uint64(limit)


@compiled
def write_nearest(out: Words, keys: Words, size: int, histogram: NDArray[np.int64]) -> None:
    """Write the nearest of `size` keys to out, padded with NOTHING."""
    if size > len(out):
        keep_nearest(keys, size, len(out), histogram)
        size = len(out)
    out[:size] = keys[:size]
    out[size:] = NOTHING


@compiled
def even_group(queries: int, most: int) -> Any:
    """The size of about equal groups of at most `most` queries: each group is a pass over all rows."""
    groups = max(1, -(-queries // most))
    return max(1, -(-queries // groups))


@compiled
def nearest(
    words: Words,
    width: tuple[int, ...],
    first: int,
    end: int,
    live: Words,
    queries: Words,
    q0: int,
    q1: int,
    out: Words,
) -> None:
    """Write the keys of the k nearest live rows of [first, end) to out[q0:q1], shape (queries, k), in no order.

    Rows are visited in order, so once k hits are known only a strictly nearer row can replace one: ties go to the
    older row. `first` is a multiple of 64; `live` has one bit per row, or is empty if all rows are live.
    """
    k, bits = out.shape[1], 64 * len(width)
    capacity = 2 * k + 64
    group = even_group(q1 - q0, min(GROUP, max(1, (1 << 21) // capacity)))
    found = np.empty((group, capacity), np.uint64)
    sizes, limits = np.empty(group, np.int64), np.empty(group, np.uint64)
    histogram = np.empty(bits + 1, np.int64)
    for start in range(q0, q1, group):
        stop = min(start + group, q1)
        sizes[:], limits[:] = 0, bits + 1
        rows = BLOCK if stop - start > 1 else max(1, end - first)  # one query passes over all rows without a break
        for block in range(first, end, rows):
            block_end = min(block + rows, end)
            for query in range(start, stop):
                keys, size, limit = found[query - start], sizes[query - start], limits[query - start]
                for row in range(block, block_end, 64):
                    if row + 64 <= block_end:
                        mask = near_mask(words, row, queries, query, limit, width)
                    else:
                        mask = end_mask(words, row, block_end, queries, query, limit, width)
                    if len(live) > 0:
                        mask &= live[row >> 6]
                    while mask:
                        hit = row + np.int64(lowest_bit(mask))
                        mask &= mask - np.uint64(1)
                        d = distance(words, hit, queries, query, width)
                        if d < limit:  # the limit may have fallen since the mask was made
                            keys[size] = d << np.uint64(32) | np.uint64(hit)
                            size += 1
                            if size == capacity:
                                limit = keep_nearest(keys, size, k, histogram)
                                size = k
                sizes[query - start], limits[query - start] = size, limit
        for query in range(start, stop):
            write_nearest(out[query], found[query - start], sizes[query - start], histogram)


@compiled
def grown(keys: Words, size: int, more: int) -> Words:
    """The same keys, with room for `more`."""
    if size + more <= len(keys):
        return keys
    larger = np.empty(2 * len(keys) + more, np.uint64)
    larger[:size] = keys[:size]
    return larger


@compiled
def near(
    words: Words,
    width: tuple[int, ...],
    first: int,
    end: int,
    live: Words,
    queries: Words,
    q0: int,
    q1: int,
    radius: int,
) -> Words:
    """Keys of all live rows of [first, end) within the radius of the queries q0 to q1, in no order."""
    keys, size = np.empty(1024, np.uint64), 0
    found = np.empty(BLOCK, np.int64)
    limit, group = np.uint64(radius + 1), even_group(q1 - q0, GROUP)
    for start in range(q0, q1, group):
        for block in range(first, end, BLOCK):
            block_end = min(block + BLOCK, end)
            for query in range(start, min(start + group, q1)):
                count = 0
                for row in range(block, block_end, 64):
                    if row + 64 <= block_end:
                        if len(width) == 1 and not any_near(words, row, queries, query, limit, width):
                            continue  # with longer codes this would cost more than it saves
                        mask = near_mask(words, row, queries, query, limit, width)
                    else:
                        mask = end_mask(words, row, block_end, queries, query, limit, width)
                    if len(live) > 0:
                        mask &= live[row >> 6]
                    while mask:
                        found[count] = row + np.int64(lowest_bit(mask))
                        count += 1
                        mask &= mask - np.uint64(1)
                if count:
                    keys = grown(keys, size, count)
                for hit in found[:count]:
                    d = distance(words, hit, queries, query, width)
                    keys[size] = np.uint64(query) << np.uint64(43) | d << np.uint64(32) | np.uint64(hit)
                    size += 1
    return keys[:size]


@reassociated
def products(vectors: NDArray[np.int8], query: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """The inner product of each vector with the query."""
    for row in range(len(vectors)):
        total = np.float32(0)
        for column in range(len(query)):
            total += np.float32(vectors[row, column]) * query[column]
        out[row] = total
