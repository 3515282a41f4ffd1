"""Training without labels: from the words that items share, or only from which text belongs to which picture.

    python examples/without_labels.py

What makes two training items similar is a setting (docs/modalities.md lists all values). If the queries have no labels either,
dcmh.evaluate(model, split, relevance="pairing") measures whether each one finds its own item in the other modality.
"""

import dcmh

SIMILARITIES = {
    "labels": "they share a label, as in the paper",
    "tags": "they share rare words; no labels",
    "pairing": "they are the same item; no labels",
}

split = dcmh.load_dataset("toy").split(queries=40, seed=0)
unlabelled = dcmh.Dataset(split.train.columns, ids=split.train.ids)  # the same pictures and words, no labels

print(f"{len(unlabelled)} training items; MAP of {len(split.query)} held-out queries, relevance by their labels\n")
print(f"{'similarity':12} {'image → text':>12} {'text → image':>12}   two items are similar if")
for similarity, meaning in SIMILARITIES.items():
    train = split.train if similarity == "labels" else unlabelled
    model = dcmh.DCMH(bits=32, seed=0, hidden=256, epochs=60, similarity=similarity).fit(train)
    report = dcmh.evaluate(model, split)
    scores = [report[way].map["stable"] for way in ("image_to_text", "text_to_image")]
    print(f"{similarity:12} {scores[0]:12.3f} {scores[1]:12.3f}   {meaning}")
print(f"{'chance':12} {report.chance:12.3f} {report.chance:12.3f}")
