"""The public .mat conventions, on miniatures, and on the real files where they are."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import csc_matrix

from dcmh.data import load_dataset, split_given
from dcmh.errors import DataError, MissingExtra

REAL = Path(__file__).parents[2] / "../shared/data"
generator = np.random.default_rng(0)


def part(n: int, name: str) -> dict[str, np.ndarray]:
    labels = np.eye(3)[np.arange(n) % 3]
    return {f"I_{name}": generator.random((n, 6)), f"T_{name}": generator.random((n, 4)), f"L_{name}": labels}


def test_train_and_test(tmp_path):
    arrays = part(8, "tr") | part(5, "te")
    savemat(tmp_path / "mini.mat", arrays | {"sampleInds": np.arange(8)})
    for source in (tmp_path / "mini.mat", tmp_path):
        data = load_dataset(source)
        split = split_given(data)
        np.testing.assert_allclose(split.query.image.values, arrays["I_te"], rtol=1e-6)
        np.testing.assert_allclose(split.train.text.values, arrays["T_tr"], rtol=1e-6)
        np.testing.assert_array_equal(split.train.labels, arrays["L_tr"])
        assert split.database.ids == split.train.ids
        assert data.image.values.dtype == np.float32
        assert data.notes == ("mini.mat: 5 queries, 8 others, as given.",)


def test_a_database_that_repeats_the_training_items(tmp_path):
    arrays = part(8, "tr") | part(5, "te")
    more = part(3, "x")
    arrays |= {f"{kind}_db": np.concatenate([arrays[f"{kind}_tr"], more[f"{kind}_x"]]) for kind in "ITL"}
    savemat(tmp_path / "mini.mat", arrays)
    split = split_given(load_dataset(tmp_path / "mini.mat"))
    assert (len(split.query), len(split.database), len(split.train)) == (5, 11, 8)


def test_one_class_an_item(tmp_path):
    arrays = part(8, "tr") | part(5, "te")
    arrays |= {"L_tr": np.arange(8).reshape(-1, 1) % 3 + 1.0, "L_te": np.arange(5).reshape(-1, 1) % 3 + 1.0}
    savemat(tmp_path / "mini.mat", arrays)
    data = load_dataset(tmp_path / "mini.mat")
    assert data.label_names == ["1", "2", "3"]
    assert (data.labels.sum(axis=1) == 1).all()


@pytest.mark.parametrize("turn", [False, True])
def test_split_over_files(tmp_path, turn):
    words = generator.integers(0, 2, (12, 7)).astype(np.uint8)
    labels = np.eye(4, dtype=np.uint8)[np.arange(12) % 4]
    features = generator.random((12, 5))
    savemat(tmp_path / "small-yall.mat", {"YAll": csc_matrix(words.astype(float)) if turn else words})
    savemat(tmp_path / "small-lall.mat", {"LAll": labels.T if turn else labels})
    savemat(tmp_path / "small-xall-vgg.mat", {"XAll": features.T if turn else features})
    for source in (tmp_path, tmp_path / "small-yall.mat", tmp_path / "small-lall.mat"):
        data = load_dataset(source)
        assert data.modalities == ("image", "text")
        assert data.name == "small"
        np.testing.assert_array_equal(data.text.values, words)
        np.testing.assert_array_equal(data.labels, labels)
        np.testing.assert_allclose(data.image.values, features, rtol=1e-6)


def test_what_cannot_be_read(tmp_path):
    savemat(tmp_path / "odd.mat", {"A": np.eye(2), "name": "x"})
    with pytest.raises(DataError, match=r"odd.mat holds A. Read are files with I_tr"):
        load_dataset(tmp_path / "odd.mat")
    savemat(tmp_path / "n-yall.mat", {"YAll": np.eye(3)})
    savemat(tmp_path / "n-lall.mat", {"LAll": np.eye(4)})
    with pytest.raises(DataError, match="no length in common"):
        load_dataset(tmp_path / "n-lall.mat")
    with pytest.raises(DataError, match=r"holds 2 data sets in .mat files. Name one"):
        load_dataset(tmp_path)
    (tmp_path / "bad.mat").write_bytes(b"not a mat file at all" * 20)
    with pytest.raises(DataError, match="no MATLAB file, or it is damaged"):
        load_dataset(tmp_path / "bad.mat")
    header = b"MATLAB 7.3 MAT-file".ljust(116) + b"\0" * 8 + b"\x00\x02IM"
    (tmp_path / "new.mat").write_bytes(header + b"\0" * 512)
    with pytest.raises(DataError, match=r"MATLAB 7.3 file \(HDF5\)"):
        load_dataset(tmp_path / "new.mat")


def test_scipy_missing(tmp_path, monkeypatch):
    savemat(tmp_path / "mini.mat", part(3, "tr"))
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(MissingExtra, match=r'pip install "dcmh\[bench\]"'):
        load_dataset(tmp_path / "mini.mat")


@pytest.mark.skipif(not (REAL / "wiki/wikiData.mat").exists(), reason="wikiData.mat is not here")
def test_the_real_wiki_set():
    data = load_dataset(REAL / "wiki/wikiData.mat")
    split = split_given(data)
    assert (len(split.query), len(split.train), len(split.database)) == (693, 2173, 2173)
    assert data.image.values.shape == (2866, 128)
    assert data.text.values.shape == (2866, 10)
    assert (data.labels.sum(axis=1) == 1).all()
    assert data.labels.shape[1] == 10


@pytest.mark.skipif(not (REAL / "mirflickr25k").exists(), reason="the tags of MIRFLICKR-25K are not here")
def test_the_real_mirflickr_tags():
    data = load_dataset(REAL / "mirflickr25k")
    assert data.text.values.shape == (20_015, 1386)
    assert data.labels.shape == (20_015, 24)
    assert data.modalities == ("text",)
