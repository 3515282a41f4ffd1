"""The public .mat conventions, on miniatures, and on the real files where they are."""

import pickle
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from scipy.sparse import csc_array, csc_matrix

from dcmh.data import load_dataset, mat_variables, split_given
from dcmh.errors import DataError, ImageError, MissingExtra, ParameterError

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
        assert data.notes == ("mini.mat (I_te, T_te, L_te, I_tr, T_tr, L_tr): 5 queries, 8 others, as given.",)


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
    for source in (tmp_path,) if turn else (tmp_path / "small-yall.mat", tmp_path / "small-lall.mat"):
        data = load_dataset(source)
        assert data.modalities == ("image", "text")
        assert data.name == "small"
        np.testing.assert_array_equal(data.text.values, words)
        np.testing.assert_array_equal(data.labels, labels)
        np.testing.assert_allclose(data.image.values, features, rtol=1e-6)


N, HEIGHT, WIDTH = 9, 6, 4
PICTURES = generator.integers(0, 256, (N, HEIGHT, WIDTH, 3), np.uint8)  # higher than wide: a turned picture shows
WORDS = (generator.random((N, 7)) < 0.4).astype(np.uint8)
LABELS = np.eye(3, dtype=np.uint8)[np.arange(N) % 3]


def save_v73(path, arrays, *, python=()):
    """A file as MATLAB 7.3 writes it: a header of 512 bytes, reversed axes, small compressed chunks.

    Arrays come in MATLAB's axes; those named in `python` were saved again by Python, as they are.
    """
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in arrays.items():
            stored = array if name in python else array.T
            chunks = tuple(min(2, length) for length in stored.shape)
            made = file.create_dataset(name, data=stored, chunks=chunks, compression="gzip")
            if name not in python:
                made.attrs["MATLAB_class"] = np.bytes_(array.dtype.name.replace("float64", "double"))
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")


def assert_pictures(data):
    assert [data.image.source(row).shape for row in range(N)] == [(HEIGHT, WIDTH, 3)] * N
    np.testing.assert_array_equal([data.image.source(row) for row in range(N)], PICTURES)


def assert_mini(data, text=WORDS):
    np.testing.assert_array_equal(data.text.values, text)
    np.testing.assert_array_equal(data.labels, LABELS)


MATLAB_ORDER = PICTURES.transpose(1, 2, 3, 0)  # height x width x 3 x N, as MATLAB has them


@pytest.mark.parametrize("resaved", [False, True])
def test_convention_1_pictures_in_hdf5(tmp_path, resaved):
    arrays = {"images": MATLAB_ORDER, "YAll": WORDS.astype(float), "LAll": LABELS.astype(float)}
    save_v73(tmp_path / "FLICKR-25K.mat", arrays, python=("YAll", "LAll") if resaved else ())
    with h5py.File(tmp_path / "FLICKR-25K.mat") as file:
        assert file["images"].shape == (N, 3, WIDTH, HEIGHT)  # the public file's axes
        assert file["YAll"].shape == ((N, 7) if resaved else (7, N))
    data = load_dataset(tmp_path / "FLICKR-25K.mat")
    assert_mini(data)
    assert_pictures(data)
    assert data.text.values.dtype == np.uint8
    assert data.notes[:2] == (
        "Read FLICKR-25K.mat (images, YAll, LAll): 9 items, image, text.",
        "images holds pictures, 6 high and 4 wide.",
    )
    turned = [note for note in data.notes if "was transposed" in note]
    assert bool(turned) == resaved
    if resaved:
        assert turned[0] == "YAll (7 x 9) was transposed: its columns are the items."


@pytest.mark.parametrize("newer", [False, True])
def test_convention_2_one_file(tmp_path, newer):
    arrays = {"IAll": MATLAB_ORDER, "TAll": WORDS.astype(float), "LAll": LABELS}
    (save_v73 if newer else savemat)(tmp_path / "IAPR-TC12.mat", arrays)
    data = load_dataset(tmp_path / "IAPR-TC12.mat")
    assert_mini(data)
    assert_pictures(data)


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)])
def test_pictures_that_python_saved(tmp_path, axes):
    savemat(tmp_path / "p.mat", {"IAll": PICTURES.transpose(axes), "YAll": WORDS, "LAll": LABELS})
    assert_pictures(load_dataset(tmp_path / "p.mat"))
    if axes == (0, 1, 2, 3):
        save_v73(tmp_path / "q.mat", {"IAll": PICTURES, "YAll": WORDS, "LAll": LABELS}, python=("IAll",))
        assert_pictures(load_dataset(tmp_path / "q.mat"))


@pytest.mark.parametrize("newer", [False, True])
def test_convention_3_split_over_files(tmp_path, newer):
    save = save_v73 if newer else savemat
    features = generator.random((N, 5))
    save(tmp_path / "nus-wide-tc10-iall.mat", {"IAll": MATLAB_ORDER})
    save(tmp_path / "nus-wide-tc10-yall.mat", {"YAll": WORDS.astype(float)})
    save(tmp_path / "nus-wide-tc10-lall.mat", {"LAll": LABELS.astype(float)})
    save(tmp_path / "nus-wide-tc10-xall-vgg.mat", {"XAll": features})
    data = load_dataset(tmp_path / "nus-wide-tc10-yall.mat")
    assert_mini(data)
    assert_pictures(data)
    assert data.name == "nus-wide-tc10"
    assert data.notes[-1] == "Not used: XAll (choose with the option image)."
    other = load_dataset(tmp_path, image="XAll")
    np.testing.assert_allclose(other.image.values, features, rtol=1e-6)
    with pytest.raises(ParameterError, match="image must be one of IAll, XAll, not 'VAll'"):
        load_dataset(tmp_path, image="VAll")


@pytest.mark.parametrize("newer", [False, True])
def test_convention_4_test_and_database(tmp_path, newer):
    arrays = {}
    for part, n, labels in (("Test", 4, "testL"), ("Database", 8, "databaseL")):
        arrays |= {f"X{part}": generator.random((n, 6)), f"Y{part}": generator.random((n, 3))}
        arrays |= {f"V{part}": generator.random((n, 10)), labels: np.eye(3)[np.arange(n) % 3]}
    (save_v73 if newer else savemat)(tmp_path / "d.mat", arrays)
    split = split_given(load_dataset(tmp_path / "d.mat"))
    np.testing.assert_allclose(split.query.image.values, arrays["XTest"], rtol=1e-6)
    np.testing.assert_allclose(split.database.text.values, arrays["YDatabase"], rtol=1e-6)
    np.testing.assert_array_equal(split.database.labels, arrays["databaseL"])
    deep = split_given(load_dataset(tmp_path / "d.mat", image="V"))
    np.testing.assert_allclose(deep.database.image.values, arrays["VDatabase"], rtol=1e-6)


def test_convention_5_in_hdf5(tmp_path):
    arrays = part(8, "tr") | part(5, "te")
    save_v73(tmp_path / "mini.mat", arrays)
    split = split_given(load_dataset(tmp_path / "mini.mat"))
    np.testing.assert_allclose(split.query.image.values, arrays["I_te"], rtol=1e-6)
    np.testing.assert_allclose(split.train.text.values, arrays["T_tr"], rtol=1e-6)


def names(n=N):
    return [f"photos/{row:02}.png" for row in range(n)]


@pytest.mark.parametrize(("image", "text", "labels"), [("FAll", "YAll", "LAll"), ("imgs", "tags", "labels")])
def test_convention_6_lists(tmp_path, image, text, labels):
    write_photos(tmp_path)
    cells = np.array(["D:\\else\\photos\\" + Path(name).name for name in names()], object)
    savemat(tmp_path / "imgList.mat", {image: cells})
    savemat(tmp_path / "tagList.mat", {text: WORDS})
    savemat(tmp_path / "labelList.mat", {labels: LABELS})
    data = load_dataset(tmp_path / "tagList.mat")
    assert_mini(data)
    assert [data.image.path(row) for row in range(N)] == [tmp_path / name for name in names()]


def write_photos(folder):
    (folder / "photos").mkdir()
    for row, name in enumerate(names()):
        Image.fromarray(PICTURES[row]).save(folder / name)


@pytest.mark.parametrize("newer", [False, True])
def test_convention_6_paths_and_captions(tmp_path, newer):
    write_photos(tmp_path)
    captions = [f"photo {row}, ünïcode" for row in range(N)]
    if newer:
        save_cells(tmp_path / "index.mat", "index", names())
        save_cells(tmp_path / "caption.mat", "caption", captions)
    else:
        savemat(tmp_path / "index.mat", {"index": names()})
        savemat(tmp_path / "caption.mat", {"caption": np.array(captions, object)})
    savemat(tmp_path / "label.mat", {"category": LABELS})
    data = load_dataset(tmp_path / "index.mat")
    assert data.text.values == captions
    np.testing.assert_array_equal(data.labels, LABELS)
    assert data.image.path(3) == tmp_path / "photos/03.png"
    assert data.name == tmp_path.name
    (tmp_path / "photos/03.png").unlink()
    assert load_dataset(tmp_path / "index.mat").notes[-1] == (
        "1 of 9 pictures are missing, the first is photos/03.png."
    )
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    with pytest.raises(
        DataError, match=r"None of the 9 pictures that index.mat names is in .*; the first is photos/00.png"
    ):
        load_dataset(tmp_path / "index.mat")
    assert load_dataset(tmp_path / "index.mat", photos=tmp_path / "elsewhere").image.path(0).is_file()


def save_cells(path, name, texts):
    """A cell array of char arrays, as MATLAB 7.3 writes it."""
    with h5py.File(path, "w", userblock_size=512) as file:
        cells = file.create_dataset(name, (1, len(texts)), h5py.ref_dtype)
        cells.attrs["MATLAB_class"] = np.bytes_("cell")
        for row, text in enumerate(texts):
            letters = np.frombuffer(text.encode("utf-16-le"), np.uint16)[:, None]
            made = file.create_dataset(f"#refs#/{row}", data=letters)
            made.attrs["MATLAB_class"] = np.bytes_("char")
            cells[0, row] = made.ref


def test_sparse_matrices_of_both_versions(tmp_path):
    sparse = csc_matrix(WORDS.astype(float))
    savemat(tmp_path / "old-yall.mat", {"YAll": sparse})
    savemat(tmp_path / "old-lall.mat", {"LAll": LABELS})
    with h5py.File(tmp_path / "new-yall.mat", "w", userblock_size=512) as file:
        group = file.create_group("YAll")
        group.attrs["MATLAB_sparse"] = np.uint64(N)
        group["data"], group["ir"], group["jc"] = sparse.data, sparse.indices, sparse.indptr
    savemat(tmp_path / "new-lall.mat", {"LAll": LABELS})
    assert_mini(load_dataset(tmp_path / "old-yall.mat"))
    assert_mini(load_dataset(tmp_path / "new-yall.mat"))


def test_a_sparse_matrix_whose_columns_are_not_in_order_is_damaged(tmp_path):
    """SciPy's own check passes it, and the dense array would be written outside its memory."""
    sparse = csc_matrix(WORDS.astype(float))
    columns = np.zeros_like(sparse.indptr)
    columns[1] = 10**6
    with h5py.File(tmp_path / "new-yall.mat", "w", userblock_size=512) as file:
        group = file.create_group("YAll")
        group.attrs["MATLAB_sparse"] = np.uint64(N)
        group["data"], group["ir"], group["jc"] = sparse.data, sparse.indices, columns
    savemat(tmp_path / "new-lall.mat", {"LAll": LABELS})
    with pytest.raises(DataError, match="not in order"):
        load_dataset(tmp_path / "new-yall.mat")


def test_large_matrices_are_read_in_blocks(tmp_path, monkeypatch):
    """Whole numbers up to a block in the middle that has none: nothing before it may be lost."""
    monkeypatch.setattr(mat_variables, "_BLOCK", 100)
    values = generator.integers(0, 200, (40, 30)).astype(float)
    values[7, 21] = 0.5
    save_v73(tmp_path / "big-yall.mat", {"YAll": values})
    save_v73(tmp_path / "big-lall.mat", {"LAll": np.eye(4)[np.arange(40) % 4]})
    data = load_dataset(tmp_path / "big-yall.mat")
    np.testing.assert_array_equal(data.text.values, values)
    assert data.text.values.dtype == np.float32


def test_pictures_are_read_one_at_a_time_in_any_order(tmp_path):
    save_v73(tmp_path / "f.mat", {"images": MATLAB_ORDER, "YAll": WORDS, "LAll": LABELS})
    data = load_dataset(tmp_path / "f.mat")
    store = data.image.values[0].store
    assert store._source._set is None  # nothing has been opened
    rows = [7, 2, 2, 8]
    some = data.image.take(np.array(rows))
    np.testing.assert_array_equal([some.source(place) for place in range(4)], PICTURES[rows])
    again = pickle.loads(pickle.dumps(some))  # as another process gets it: by name, not by an open file
    np.testing.assert_array_equal(again.source(0), PICTURES[7])


def test_a_picture_in_a_damaged_file(tmp_path):
    save_v73(tmp_path / "f.mat", {"images": MATLAB_ORDER, "YAll": WORDS, "LAll": LABELS})
    data = load_dataset(tmp_path / "f.mat")
    with h5py.File(tmp_path / "f.mat") as file:
        place = file["images"].id.get_chunk_info(0).byte_offset
    content = bytearray((tmp_path / "f.mat").read_bytes())
    content[place : place + 12] = b"\xff" * 12
    (tmp_path / "f.mat").write_bytes(content)
    with pytest.raises(ImageError, match=r"damaged in images of f.mat"):
        data.image.source(0)


def test_what_cannot_be_read(tmp_path):
    savemat(tmp_path / "odd.mat", {"A": np.eye(2), "name": "x"})
    with pytest.raises(DataError, match=r"odd.mat holds A, name. Supported are files with I_tr"):
        load_dataset(tmp_path / "odd.mat")
    savemat(tmp_path / "n-yall.mat", {"YAll": np.eye(3)})
    savemat(tmp_path / "n-lall.mat", {"LAll": np.eye(4)})
    with pytest.raises(
        DataError, match=r"no length in common: YAll 3 x 3, LAll 4 x 4. Are they complete, and of one data set"
    ):
        load_dataset(tmp_path / "n-lall.mat")
    with pytest.raises(DataError, match=r"holds 2 data sets in .mat files. Name one"):
        load_dataset(tmp_path)
    (tmp_path / "bad.mat").write_bytes(b"not a mat file at all" * 20)
    with pytest.raises(DataError, match=r"bad.mat is not a MATLAB file, or it is damaged"):
        load_dataset(tmp_path / "bad.mat")
    savemat(tmp_path / "flat.mat", {"images": np.zeros((5, 4, 4, 4)), "LAll": np.eye(5)})
    with pytest.raises(
        DataError, match=r"images of flat.mat has the shape 5 x 4 x 4 x 4; pictures need four axes, one of them"
    ):
        load_dataset(tmp_path / "flat.mat")


def test_a_truncated_hdf5_file(tmp_path):
    save_v73(tmp_path / "f.mat", {"images": MATLAB_ORDER, "YAll": WORDS, "LAll": LABELS})
    whole = (tmp_path / "f.mat").read_bytes()
    (tmp_path / "f.mat").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"f.mat is a damaged MATLAB 7.3 file \(.*Get it again"):
        load_dataset(tmp_path / "f.mat")


def test_h5py_missing(tmp_path, monkeypatch):
    save_v73(tmp_path / "f.mat", {"YAll": WORDS, "LAll": LABELS})
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r'MATLAB 7.3 files needs h5py. Install: pip install "dcmh\[bench\]"'):
        load_dataset(tmp_path / "f.mat")


@pytest.mark.parametrize("compressed", [False, True])
def test_damage_that_ends_the_process_of_scipy(tmp_path, compressed):
    """A row index outside the sparse array: SciPy writes outside its memory."""
    bags = csc_array(np.eye(6, 9))
    savemat(tmp_path / "bad.mat", {"IAll": np.ones((6, 2)), "YAll": bags, "LAll": np.eye(6, 3)})
    content = (tmp_path / "bad.mat").read_bytes()
    rows = np.arange(6, dtype=np.int32).tobytes()
    damaged = content.replace(rows, rows[:4] + np.int32(2**30).tobytes() + rows[8:], 1)
    if compressed:
        damaged = content[:128] + b"".join(zipped(element) for element in elements(damaged[128:]))
    (tmp_path / "bad.mat").write_bytes(damaged)
    with pytest.raises(DataError, match=r"bad\.mat is not a MATLAB file, or it is damaged \(.*\)\. Get it again"):
        load_dataset(tmp_path / "bad.mat")


def elements(data):
    """The elements of a file, each with its tag."""
    while data:
        size = 8 + int.from_bytes(data[4:8], "little")
        yield data[:size]
        data = data[size:]


def zipped(element):
    packed = zlib.compress(element)
    return np.array([15, len(packed)], np.uint32).tobytes() + packed


def test_a_process_that_dies_or_takes_too_long(tmp_path, monkeypatch):
    savemat(tmp_path / "mini.mat", {"IAll": np.ones((6, 2)), "YAll": np.eye(6), "LAll": np.eye(6, 3)})
    (tmp_path / "scipy.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with pytest.raises(DataError, match=r"mini\.mat .*damaged \(the process that read it ended with status -11\)"):
            load_dataset(tmp_path / "mini.mat")
    monkeypatch.setattr("dcmh.data.mat_process.SECONDS", 0.0)
    with pytest.raises(DataError, match="took too long"):
        load_dataset(tmp_path / "mini.mat")


def test_scipy_missing(tmp_path, monkeypatch):
    savemat(tmp_path / "mini.mat", part(3, "tr"))
    (tmp_path / "scipy.py").write_text("raise ImportError('no SciPy')")
    monkeypatch.syspath_prepend(tmp_path)  # the process that reads the file searches it too
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
