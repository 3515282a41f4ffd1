"""Three modalities, items that lack one, and joint codes: one code per item, from all its modalities.

    python examples/three_modalities.py

Pictures and words come from the toy data; the third modality is a synthetic sound, one vector per item.
"""

import tempfile

import numpy as np

import dcmh

toy = dcmh.load_dataset("toy")
generator = np.random.default_rng(0)
voices = generator.standard_normal((toy.labels.shape[1], 20))  # the sound of each label
sound = toy.labels @ voices + generator.standard_normal((len(toy), 20))

lacks = generator.random(len(toy))  # 30 % of the items lack words, another 30 % lack sound
texts = [None if lack < 0.3 else text for lack, text in zip(lacks, toy.text.values, strict=True)]
heard = (lacks < 0.3) | (lacks >= 0.6)
data = dcmh.Dataset(
    {"image": toy.image, "text": dcmh.Texts(texts), "sound": dcmh.Vectors(sound, observed=heard)},
    labels=toy.labels,
    label_names=toy.label_names,
    name="toy with sound",
)
print(f"{data}; {data.complete().sum()} have all three")

split = data.split(queries=30, seed=0)  # queries have every modality; training uses what each item has
model = dcmh.DCMH(bits=32, seed=0, hidden=256, epochs=60, device="cpu").fit(split.train)  # the same on every machine
report = dcmh.evaluate(model, split, joint=True)

print(f"\nMAP by chance {report.chance:.2f}; rows are queries, columns are searched")
print(" " * 8 + "".join(f"{name:>8}" for name in (*model.modalities, "joint")))
for query in model.modalities:
    row = [report.directions.get(f"{query}_to_{name}") for name in (*model.modalities, "joint")]
    print(f"{query:8}" + "".join(f"{cell.map['stable']:8.2f}" if cell else f"{'':>8}" for cell in row))

with (
    tempfile.TemporaryDirectory() as folder,
    dcmh.SearchIndex.build(model, split.database, f"{folder}/index", codes="joint") as index,
):
    sea = int((split.query.labels == np.eye(8)[toy.label_names.index("sea")]).all(axis=1).argmax())  # sea only
    by_words = index.search(text="sea boat", k=4)
    by_sound = index.search(vector=split.query.sound.values[sea], k=4)
    for query, hits in (("The words 'sea boat'", by_words), ("The sound of a sea", by_sound)):
        print(f"\n{query} found, of {hits.searched} items:")
        for hit in hits:
            item = data.ids.index(hit.name)
            known = ", ".join(name for name in data.modalities if data.observed(name)[item])
            print(f"  {hit.distance} of {hit.bits} bits differ: {', '.join(hit.labels)}; known by {known}")
