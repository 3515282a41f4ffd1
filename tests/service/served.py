"""What the tests of the service share."""

from __future__ import annotations

import json

from PIL import Image

import dcmh

COUNT = 48
TOKEN = "a-token-of-sufficient-length"


def write_photos(folder, count=COUNT):
    folder.mkdir(parents=True, exist_ok=True)
    toy = dcmh.load_dataset("toy")
    lines = ["file,text,labels"]
    for row in range(count):
        Image.fromarray(toy.image.values[row]).save(folder / f"{row:03}.png")
        named = [name for name, there in zip(toy.label_names, toy.labels[row], strict=True) if there]
        lines.append(f"{row:03}.png,{toy.text.values[row]},{';'.join(named)}")
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return folder


def train(folder, bits=16):
    data = dcmh.load_dataset("toy")
    split = data.split(12, seed=0)
    model = dcmh.DCMH(bits=bits, hidden=64, epochs=20, device="cpu").fit(split.train)
    report = dcmh.evaluate(model, split)
    model.save(folder, extra={"report.json": json.dumps(report.to_json())})
    return folder


def load(folder):
    return dcmh.load_dataset(folder, keep_partial=True)


def problem(answer, status, kind):
    """Checks that an answer is a problem document of a kind, and gives it."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    record = answer.json()
    assert record["status"] == status
    assert record["type"] == kind, record
    assert record["title"].endswith((".", "…"))
    assert "Traceback" not in answer.text
    return record
