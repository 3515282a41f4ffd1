"""Compiled loops over all pairs of queries and database points. Importing this module needs numba.

Queries have shape (n_queries, words); the database has shape (words, n_database), so that one word of many points is
contiguous. The key of a pair is 2 · distance + relevant. Keys are computed for a block of points that stays in the L1
cache, in loops without branches, which the compiler vectorizes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dcmh.index.kernels import Words, compiled, popcount

BLOCK = 1024
TABLES = 4


@compiled
def _fill_keys(
    query: Words, database: Words, query_labels: Words, database_labels: Words, start: int, keys: Words, shared: Words
) -> int:
    """Write the keys of the points from start on, as many as fit; returns their number."""
    size: int = min(len(keys), database.shape[1] - start)
    keys[:size] = 0
    shared[:size] = 0
    for word in range(len(query)):
        bits = query[word]
        for j in range(size):
            keys[j] += popcount(bits ^ database[word, start + j])
    for word in range(len(query_labels)):
        mask = query_labels[word]
        if mask != 0:  # an item has few labels, so most words of a long mask are zero
            for j in range(size):
                shared[j] |= mask & database_labels[word, start + j]
    for j in range(size):
        keys[j] = (keys[j] << np.uint64(1)) | np.uint64(shared[j] != 0)
    return size


@compiled
def _fill_grades(
    query: Words, database: Words, query_labels: Words, database_labels: Words, start: int, near: Words, shared: Words
) -> int:
    """Write distances and numbers of shared labels of the points from start on; returns how many fit."""
    size: int = min(len(near), database.shape[1] - start)
    near[:size] = 0
    shared[:size] = 0
    for word in range(len(query)):
        bits = query[word]
        for j in range(size):
            near[j] += popcount(bits ^ database[word, start + j])
    for word in range(len(query_labels)):
        mask = query_labels[word]
        if mask != 0:
            for j in range(size):
                shared[j] += popcount(mask & database_labels[word, start + j])
    return size


@compiled
def grades(
    query: Words, database: Words, query_labels: Words, database_labels: Words, table: NDArray[np.int32]
) -> None:
    """Add the number of points at each distance with each number of shared labels to table, (n_queries, bits + 1, grades)."""
    near, shared = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    for i in range(len(query)):
        for start in range(0, database.shape[1], BLOCK):
            size = _fill_grades(query[i], database, query_labels[i], database_labels, start, near, shared)
            for j in range(size):
                table[i, near[j], shared[j]] += 1


@compiled
def stable_gains(
    query: Words,
    database: Words,
    query_labels: Words,
    database_labels: Words,
    table: NDArray[np.int32],
    gain: NDArray[np.float64],
    discounts: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Write each query's discounted gain for each k, (n_queries, ks), with equally distant points in database order.

    discounts, (ks, n_database + 1), are cumulative, and constant beyond rank k.
    """
    near, shared = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    ranks = np.empty(table.shape[1], np.int64)
    for i in range(len(query)):
        nearer = 0
        for distance in range(table.shape[1]):
            ranks[distance] = nearer
            nearer += table[i, distance].sum()
        for start in range(0, database.shape[1], BLOCK):
            size = _fill_grades(query[i], database, query_labels[i], database_labels, start, near, shared)
            for j in range(size):
                rank = ranks[near[j]]
                ranks[near[j]] = rank + 1
                if shared[j] != 0:
                    for k in range(len(discounts)):
                        sums[i, k] += gain[shared[j]] * (discounts[k, rank + 1] - discounts[k, rank])


@compiled
def histograms(
    query: Words,
    database: Words,
    query_labels: Words,
    database_labels: Words,
    points: NDArray[np.int32],
    relevant: NDArray[np.int32],
) -> None:
    """Add the counts per distance of each query to points and relevant, both (n_queries, bits + 1)."""
    keys, shared = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    # Keys are counted in four tables in turn: in a single one, equal neighbours would wait for each other.
    tables = np.empty((TABLES, 2 * points.shape[1]), np.int32)
    for i in range(len(query)):
        tables[:] = 0
        for start in range(0, database.shape[1], BLOCK):
            size = _fill_keys(query[i], database, query_labels[i], database_labels, start, keys, shared)
            for j in range(0, size - TABLES + 1, TABLES):
                tables[0, keys[j]] += 1
                tables[1, keys[j + 1]] += 1
                tables[2, keys[j + 2]] += 1
                tables[3, keys[j + 3]] += 1
            for j in range(size - size % TABLES, size):
                tables[0, keys[j]] += 1
        for distance in range(points.shape[1]):
            for table in range(TABLES):
                hits = tables[table, 2 * distance + 1]
                relevant[i, distance] += hits
                points[i, distance] += tables[table, 2 * distance] + hits


@compiled
def stable_sums(
    query: Words,
    database: Words,
    query_labels: Words,
    database_labels: Words,
    points: NDArray[np.int32],
    relevant: NDArray[np.int32],
    k: int,
    sums: NDArray[np.float64],
) -> None:
    """Write each query's sum of precisions at its relevant points within the first k ranks, (n_queries,).

    Points of one distance are visited in database order, so that a counter per distance, started at the number of nearer
    points, is the rank of the current point; a second one counts the relevant points up to that rank.
    """
    keys, shared = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    ranks, hits = np.empty(points.shape[1], np.int64), np.empty(points.shape[1], np.int64)
    for i in range(len(query)):
        nearer, nearer_relevant = 0, 0
        for distance in range(points.shape[1]):
            ranks[distance], hits[distance] = nearer, nearer_relevant
            nearer += points[i, distance]
            nearer_relevant += relevant[i, distance]
        total = 0.0
        for start in range(0, database.shape[1], BLOCK):
            size = _fill_keys(query[i], database, query_labels[i], database_labels, start, keys, shared)
            for j in range(size):
                at, is_relevant = keys[j] >> np.uint64(1), np.int64(keys[j] & np.uint64(1))
                rank, hit = ranks[at] + 1, hits[at] + is_relevant
                ranks[at], hits[at] = rank, hit
                total += is_relevant * (rank <= k) * (hit / rank)
        sums[i] = total
