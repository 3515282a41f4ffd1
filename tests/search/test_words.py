"""Words to codes in NumPy: the same as torch, of any recipe and shape."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dcmh
from dcmh import codes
from dcmh.errors import DataError, ModelError
from dcmh.methods import folder as model_folder
from dcmh.search.words import ModelWords, WordEncoder, map_arrays, open_words, text_modality

GENERATOR = np.random.default_rng(0)
TEXTS = dcmh.load_dataset("toy").text.values


@pytest.fixture(scope="module")
def data():
    """Toy words beside made-up feature vectors: no image network is needed."""
    toy = dcmh.load_dataset("toy")
    vectors = toy.labels @ GENERATOR.normal(size=(8, 12)) + GENERATOR.normal(size=(200, 12))
    return dcmh.Dataset.from_arrays(image=vectors.astype(np.float32), text=TEXTS, labels=toy.labels)


@pytest.fixture(
    scope="module",
    params=[{"hidden": 32}, {"hidden": 0}, {"recipe": "paper"}, {"hidden": 16, "bits": 70}],
    ids=["stable", "one layer", "paper", "70 bits"],
)
def model(request, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("words") / "model"
    dcmh.DCMH(**{"bits": 16, "epochs": 2, "device": "cpu", **request.param}).fit(data).save(folder)
    return folder


def test_the_codes_are_those_of_torch(model):
    torch_model = dcmh.load(model)
    encoder = WordEncoder(model)
    outputs = torch_model.outputs(text=TEXTS)
    ours = encoder.outputs(TEXTS)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, outputs, rtol=1e-4, atol=1e-5)
    clear = abs(outputs) > 1e-4
    unpacked = codes.unpack(encoder.encode(TEXTS), torch_model.bits)
    assert (unpacked == torch_model.encode(text=TEXTS))[clear].all()


def test_a_code_does_not_depend_on_the_company(model):
    encoder = WordEncoder(model)
    together = encoder.encode(TEXTS)
    for row in (0, 7, 199):
        assert (encoder.encode([TEXTS[row]])[0] == together[row]).all()
    assert encoder.encode([]).shape == (0, together.shape[1])


def test_other_methods_go_through_the_method(data, tmp_path):
    method = dcmh.methods.get("ridge")(bits=16).fit(data)
    method.save(tmp_path / "ridge")
    record = model_folder.read_record(tmp_path / "ridge")
    encoder = open_words(tmp_path / "ridge", record, "text")
    assert isinstance(encoder, ModelWords)
    assert (encoder.encode(TEXTS[:20]) == codes.pack(method.encode(text=TEXTS[:20]))).all()
    assert encoder.encode([]).shape == (0, 2)


def test_which_modality_takes_words():
    words, vectors = {"view": "words"}, {"view": "vectors"}
    assert text_modality({"modalities": {"image": vectors, "title": words, "text": words}}) == "text"
    assert text_modality({"modalities": {"image": vectors, "tags": words}}) == "tags"
    assert text_modality({"modalities": {"image": vectors, "text": vectors}}) is None


def test_no_torch_and_no_numba(model):
    program = (
        f"import sys; from dcmh.search.words import WordEncoder; WordEncoder({str(model)!r}).encode(['sunny sea']); "
        "print([name for name in ('torch', 'numba', 'safetensors', 'PIL') if name in sys.modules])"
    )
    environment = {"PYTHONPATH": str(Path(dcmh.__file__).parents[1]), "DCMH_HOME": os.environ["DCMH_HOME"]}
    for _ in range(2):  # the first one of all unpacks the text encoder
        found = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert found == "[]\n"


class TestWeights:
    def test_mapped_arrays_are_those_that_were_saved(self, tmp_path):
        from safetensors.numpy import save_file

        arrays = {"a": GENERATOR.normal(size=(3, 4)).astype(np.float32), "b": np.ones(5), "c": np.zeros((0, 2))}
        save_file({**arrays, "whole": np.arange(3)}, tmp_path / "w", {"note": "of no interest"})
        mapped = map_arrays(tmp_path / "w")
        assert set(mapped) == {"a", "b"}  # neither empty nor whole numbers
        for name, array in mapped.items():
            assert (array == arrays[name]).all()

    @pytest.mark.parametrize("keep", [0, 4, 100, 0.5])
    def test_damage_is_explained(self, model, tmp_path, keep):
        whole = (model / "weights.safetensors").read_bytes()
        kept = keep if isinstance(keep, int) else int(keep * len(whole))
        (tmp_path / "w").write_bytes(whole[:kept])
        with pytest.raises(ModelError, match="w is missing or damaged"):
            map_arrays(tmp_path / "w")

    def test_none_is_explained(self, tmp_path):
        with pytest.raises(ModelError, match="is missing or damaged"):
            map_arrays(tmp_path / "w")
        with pytest.raises(DataError, match=r"vocabulary\.txt does not exist"):
            WordEncoder(tmp_path)
