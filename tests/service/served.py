"""What the tests of the service share."""

from __future__ import annotations

import json

import dcmh

COUNT = 48  # photos
TOKEN = "a-token-of-sufficient-length"


def train(folder, bits=16):
    data = dcmh.load_dataset("toy")
    split = data.split(12, seed=0)
    model = dcmh.DCMH(bits=bits, hidden=64, epochs=20, device="cpu").fit(split.train)
    report = dcmh.evaluate(model, split)
    model.save(folder, extra={"report.json": json.dumps(report.to_json())})
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
