"""Codes for vectors: neighbours by brute force are the oracle; what is written is read back by the other commands."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import dcmh
from dcmh import codes
from dcmh.cli import main
from dcmh.errors import DataError, ParameterError
from dcmh.methods._solvers import itq, principal_axes
from dcmh.methods.dcmh import similarity
from dcmh.search.compress import compress
from dcmh.util.arrays import unit


def clusters(count=400, width=24, kinds=8, seed=0):
    """Vectors around a few centres, and the centre of each."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((kinds, width)) * 1.5
    kind = random.integers(0, kinds, count)
    return (centres[kind] + random.standard_normal((count, width))).astype(np.float32), kind


def test_neighbours_are_those_of_brute_force():
    vectors, _ = clusters(60)
    built = similarity.build("neighbours", dcmh.Dataset.from_arrays(x=vectors))
    near = np.argsort(-(unit(vectors) @ unit(vectors).T), axis=1)[:, :11]  # itself, and ten others
    expected = np.zeros((60, 60), bool)
    np.put_along_axis(expected, near, True, axis=1)
    expected |= expected.T
    S = built.to(torch.device("cpu"), torch.float32).S(torch.arange(60), 0, 60).numpy()
    np.testing.assert_array_equal(S, expected)
    assert built.W(torch.zeros(1), torch.arange(1), 0, 1) is None
    assert "nearest 10 of the other" in built.description
    with pytest.raises(DataError, match="needs vectors"):
        similarity.build("neighbours", dcmh.Dataset.from_arrays(text=["a", "b"]))
    with pytest.raises(DataError, match="There are: x"):
        similarity.build("neighbours:y", dcmh.Dataset.from_arrays(x=vectors))


def test_learning_starts_at_the_solution_of_itq():
    vectors, _ = clusters()
    data = dcmh.Dataset.from_arrays(x=vectors)
    settings = {"similarity": "neighbours", "validation": 0.0, "hidden": 0, "dropout": 0.0}
    model = dcmh.DCMH(8, epochs=1, learning_rate=0.0, **settings).fit(data, fine=0)
    x = vectors - vectors.mean(0)
    axes = principal_axes(x, 8)
    assert (model.encode(x=vectors) == codes.sign(x @ axes @ itq(x @ axes, 8, 0))).mean() > 0.995  # but for rounding
    other = dcmh.DCMH(8, epochs=5, **settings).fit(data, fine=0)
    assert (other.encode(x=vectors) != model.encode(x=vectors)).any()


def test_learned_codes_keep_more_neighbours_than_random_ones():
    vectors, kind = clusters(1200, 64, 30)
    done = compress(dcmh.Dataset.from_arrays(vectors=vectors), 16)
    recall = done.measured["recall"]["vectors"]
    random = np.random.default_rng(0).standard_normal((64, 16))
    packed = codes.pack(codes.sign((vectors - vectors.mean(0)) @ random))
    near = np.argsort(-(unit(vectors) @ unit(vectors).T), axis=1)[:, 1:11]
    order = np.argsort(codes.hamming(packed, packed), axis=1, kind="stable")[:, :201]
    by_chance = np.mean([np.isin(near[row], order[row]).mean() for row in range(1200)])
    assert recall["candidates"] > by_chance + 0.02
    assert recall["codes"] < recall["rescored"] <= recall["candidates"]
    assert done.measured["queries"] == 60
    labelled = compress(dcmh.Dataset.from_arrays(vectors=vectors, labels=kind), 16).model
    assert labelled.similarity == "labels"


def test_fine_vectors_keep_cosines():
    vectors, _ = clusters()
    model = compress(dcmh.Dataset.from_arrays(vectors=vectors), 8).model
    space = model.fine_
    assert space.dimensions == 24
    z = space.of_inputs("vectors", vectors, model.views_["vectors"])
    np.testing.assert_allclose(z @ z.T, unit(vectors) @ unit(vectors).T, atol=1e-5)
    assert np.abs(space.restore(space.quantise(z)) - z).mean() < 0.005


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_for_every_format(here, capsys):
    import pyarrow
    import pyarrow.feather
    import pyarrow.parquet

    vectors, _ = clusters(300, 12)
    np.save("a.npy", vectors)
    np.savez("b.npz", embedding=vectors, ids=[f"v{i}" for i in range(300)])
    table = pyarrow.table({"id": [f"v{i}" for i in range(300)], "embedding": list(vectors)})
    pyarrow.parquet.write_table(table, "c.parquet")
    pyarrow.feather.write_feather(table, "d.arrow", compression="uncompressed")
    packed = {}
    for name in ("a.npy", "b.npz", "c.parquet", "d.arrow"):
        assert main(["compress", name, "--bits", "16", "--out", f"{name}.codes", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["count"], said["bits"], said["queries"]) == (300, 16, 15)
        packed[name] = np.load(here / f"{name}.codes" / "codes.npy")
        assert np.load(here / f"{name}.codes" / "fine.npy").shape == (300, 12)
        assert main(["check", f"{name}.codes"]) == 0
        assert main(["info", f"{name}.codes"]) == 0
        capsys.readouterr()
    assert packed["a.npy"].shape == (300, 2)
    for name, array in packed.items():
        np.testing.assert_array_equal(array, packed["a.npy"], err_msg=name)
    assert (here / "b.npz.codes" / "ids.txt").read_text().splitlines()[7] == "v7"
    # the same codes from the hash function that is kept, and an index with both stages
    assert main(["encode", "a.npy", "--model", "a.npy.codes.model", "--modality", "vectors", "--out", "again"]) == 0
    np.testing.assert_array_equal(np.load(here / "again" / "codes.npy"), packed["a.npy"])
    assert main(["index", "a.npy", "--model", "a.npy.codes.model", "--out", "a.dcmh"]) == 0
    assert "in a browser" not in capsys.readouterr().err
    np.save("query.npy", vectors[7])
    assert main(["search", "a.dcmh", "query.npy", "--as", "vectors", "-k", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hits"][0]["name"] == dcmh.load_dataset("a.npy").ids[7]


def test_the_command_with_labels_and_pairs(here, capsys):
    vectors, kind = clusters(300, 12)
    np.savez("both.npz", image=vectors, text=vectors @ np.random.default_rng(0).standard_normal((12, 7)))
    assert main(["compress", "both.npz", "--bits", "8", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert sorted(said["codes"]) == ["image", "text"]
    assert dcmh.load("both.codes.model").similarity == "pairing"
    assert not (here / "both.codes.image" / "fine.npy").exists()
    assert main(["index", "both.npz", "--model", "both.codes.model", "--out", "b.dcmh"]) == 0
    assert capsys.readouterr().err.endswith("Next: dcmh search b.dcmh vector.npy --as image\n")
    np.savez("labels.npz", image=vectors, labels=kind)
    assert main(["compress", "labels.npz", "--bits", "8"]) == 0
    assert "of the 10 nearest neighbours" in capsys.readouterr().out
    assert dcmh.load("labels.codes.model").similarity == "labels"
    assert main(["compress", "labels.npz", "--similarity", "pairing"]) == 1
    assert "relates two modalities, and there is one: image" in capsys.readouterr().err
    assert main(["train", "labels.npz"]) == 1
    assert (
        "labels has only 'image'. Add another one; for codes of vectors alone: dcmh compress" in capsys.readouterr().err
    )
    assert main(["compress", "both.npz", "--column", "sound"]) == 1
    assert "It has: image, text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(5), "not a matrix of numbers"),
        (np.array([["a", "b"]]), "not a matrix of numbers"),
        (np.full((30, 4), np.nan), "NaN or infinity"),
    ],
)
def test_vectors_that_are_none(here, capsys, array, message):
    np.save("wrong.npy", array)
    assert main(["compress", "wrong.npy"]) == 1
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir()) == ["wrong.npy"]


def test_files_that_cannot_be_read_or_written(here, capsys):
    (here / "cut.npz").write_bytes(b"PK\x03\x04")
    assert main(["compress", "cut.npz"]) == 1
    assert "cut.npz" in capsys.readouterr().err
    np.save("a.npy", clusters(40, 4)[0])
    (here / "mine").mkdir()
    (here / "mine" / "letter.txt").write_text("dear")
    assert main(["compress", "a.npy", "--out", "mine"]) == 1
    assert "not overwritten" in capsys.readouterr().err
    with pytest.raises(ParameterError, match="train_size"):
        compress(dcmh.load_dataset("a.npy"), 8, train_size=1)
    with pytest.raises(DataError, match="one vector per item"):
        compress(dcmh.Dataset.from_arrays(text=["a"] * 30), 8)
