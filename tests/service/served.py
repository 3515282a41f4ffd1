"""What the tests of the service share."""

from __future__ import annotations

import json

import dcmh
from dcmh.search import calibration

COUNT = 48  # photos
TOKEN = "a-token-of-sufficient-length"
UNREADABLE = "\u1230\u120b\u121d"  # to the sentence encoder: Amharic


def train(folder, bits=16, *, fine=128, **options):
    """A model folder, with what was measured on 40 items that the model did not learn from."""
    data = dcmh.load_dataset("toy")
    split = data.split(12, 160, seed=0)
    options = {"ranking": 0, **options}  # codes differ by more bits, so that a radius can hold nothing
    model = dcmh.DCMH(bits=bits, hidden=64, epochs=20, device="cpu", **options).fit(split.train, fine=fine)
    report = dcmh.evaluate(model, split).to_json()
    if measured := calibration.measure(model, split):
        report[calibration.HELD] = measured
    model.save(folder, extra={"report.json": json.dumps(report)})
    return folder


def problem(answer, status, kind):
    """Checks that an answer is a problem document of a kind, and gives it."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    record = answer.json()
    assert record["status"] == status
    assert record["type"] == kind, record
    assert record["title"].endswith((".", "…"))
    assert "Traceback" not in answer.text
    return record
