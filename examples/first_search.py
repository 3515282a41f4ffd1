"""From pairs to search: learn codes from pictures with words, measure them, and search both ways.

    python examples/first_search.py            the toy pictures that come with the package
    python examples/first_search.py photos/    a folder of your own (docs/data.md describes the format)

The toy texts contain meaningless words (rexo, lavum) as noise.
"""

import sys
import tempfile

import dcmh

own = len(sys.argv) > 1
data = dcmh.load_dataset(sys.argv[1] if own else "toy")
if data.labels is None:
    data = data.with_labels_from_text()
split = data.split(queries=min(len(data) // 5, 1000), seed=0)  # queries are neither searched nor trained on
print(f"{len(split.train):,} items to train on, {len(split.query):,} others as queries.", *data.notes)

# The defaults suit thousands of photos. On the CPU the toy results are the same on every machine.
quick = {} if own else {"hidden": 512, "epochs": 60, "device": "cpu"}
model = dcmh.DCMH(bits=64, seed=0, **quick).fit(split.train)

report = dcmh.evaluate(model, split)
for direction, measured in report.directions.items():
    print(f"MAP {direction.replace('_', ' ')}: {measured.map['stable']:.2f} (by chance {report.chance:.2f})")

query = split.query
about = ", ".join(name for name, has in zip(query.label_names, query.labels[0], strict=True) if has)
print(f"\nA query that the model has not seen, about: {about}")

with (
    tempfile.TemporaryDirectory() as folder,  # to keep the index, use a folder of your own and dcmh.SearchIndex.open
    dcmh.SearchIndex.build(model, split.database, f"{folder}/first.dcmh", report=report, split=split) as index,
):
    by_words = index.search(text=query.text.values[0], k=4)
    by_picture = index.search(image=query.image.source(0), modality="text", k=4)
    found_by = {f"words ({' '.join(by_words.query.used)}) found pictures": by_words, "picture found words": by_picture}
    for what, hits in found_by.items():
        print(f"\nIts {what}, of {hits.searched:,}:\n  score  precision of such hits")
        for hit in hits:
            precision = "" if hit.precision is None else f"{hit.precision:.2f}"
            about = ", ".join(hit.labels)
            print(f"  {hit.score:.2f}  {precision:9}  {about:10}  {hit.path or hit.text}")
