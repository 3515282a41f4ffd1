"""The Hamming index alone, for codes of your own: add, search, filter, save, open memory-mapped.

    python examples/own_codes.py

The codes here are signs of random projections of synthetic embeddings; any binary codes will do.
"""

import tempfile

import numpy as np

import dcmh

BITS, ITEMS, QUERIES = 128, 50_000, 500
generator = np.random.default_rng(0)
embeddings = generator.standard_normal((ITEMS, 96), np.float32)
projections = generator.standard_normal((96, BITS), np.float32)


def encode(vectors):
    """Packed codes, shape (n, BITS / 8): similar vectors get codes that differ in few bits."""
    return dcmh.codes.pack(dcmh.codes.sign(vectors @ projections))


index = dcmh.HammingIndex(bits=BITS)
index.add(np.arange(ITEMS), encode(embeddings))  # ids are up to you: any whole numbers, each once
print(f"{len(index):,} codes take {ITEMS * BITS / 8e6:.1f} MB, the embeddings {embeddings.nbytes / 1e6:.1f} MB")

# Queries: the first items with noise added. The original should come first.
noise = generator.standard_normal((QUERIES, 96), np.float32)
queries = encode(embeddings[:QUERIES] + 0.7 * noise)
results = index.search(queries, k=3)
first = np.array([hits.ids[0] for hits in results])
print(f"{np.mean(first == np.arange(QUERIES)):.1%} of {QUERIES} noisy queries find their original first")
print(f"hits of query 7, as (id, distance): {list(results[7])}")

near = index.within(queries, radius=30)
print(f"within 30 of {BITS} bits: {near.counts.mean():.2f} items per query on average, at most {near.counts.max()}")

even = index.search(queries[7:8], k=2, allowed=np.arange(0, ITEMS, 2))
print(f"query 7 among even ids only: {list(even[0])}")

index.remove([7])
print(f"query 7 after item 7 was removed: {list(index.search(queries[7:8], k=2)[0])}")

with tempfile.TemporaryDirectory() as folder:
    index.save(f"{folder}/codes")
    opened = dcmh.HammingIndex.load(f"{folder}/codes")  # memory-mapped: opens at once, shared between processes
    same = np.array_equal(opened.search(queries, k=3).ids, index.search(queries, k=3).ids)
    print(f"saved and opened again: {opened}, {'the same' if same else 'different'} answers")
