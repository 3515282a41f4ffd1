"""load_dataset: names, paths, and near misses."""

import os
from pathlib import Path

import pytest

from dcmh.data import available, load_dataset, named
from dcmh.errors import DataError, ParameterError
from dcmh.util.cache import home


def test_available_says_one_line_each():
    assert list(available()) == ["mirflickr25k", "nuswide", "nuswide21", "openmoji", "toy"]
    assert all(line and "\n" not in line for line in available().values())


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("openmojis", "No data set or folder 'openmojis'. Did you mean 'openmoji'"),
        ("", "No data set or folder ''"),
        ("toyy", "Did you mean 'toy'"),
        ("{tmp}/fotos", "Did you mean '.*/photos'"),
        ("{tmp}/none/at/all", "Give a folder of photos, a table"),
        ("{tmp}/letter.docx", "Cannot read data from .*letter.docx. Give a folder .* or a .mat file; or a name"),
    ],
)
def test_near_misses(tmp_path, source, says):
    (tmp_path / "photos").mkdir()
    (tmp_path / "letter.docx").write_bytes(b"x")
    with pytest.raises(DataError, match=says):
        load_dataset(source.format(tmp=tmp_path))


def test_a_path_with_the_name_of_a_built_in_set(tmp_path, monkeypatch):
    (tmp_path / "toy").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_dataset("toy").name == "toy"
    with pytest.raises(DataError, match="No images in toy/"):
        load_dataset("./toy")


def test_a_name_with_its_folder(tmp_path):
    assert named("toy") == ("toy", None)
    assert named(f"mirflickr25k:{tmp_path}") == ("mirflickr25k", tmp_path)
    assert named("nuswide:~/nus") == ("nuswide", Path.home() / "nus")
    assert named("photos/") is None
    assert named("C:/photos") is None
    assert named("toy:/x") is None  # toy lies in no folder
    with pytest.raises(DataError, match=f"mirflickr25k is not in {tmp_path}/none. Get it: dcmh data get mirflickr25k:"):
        load_dataset(f"mirflickr25k:{tmp_path}/none")


def test_options_of_other_loaders_are_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"has no option 'size'. It has: text, keep_partial"):
        load_dataset(tmp_path, size=3)


def test_home_is_a_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("DCMH_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.delenv("DCMH_HOME")
    assert home().parts[-2:] == (".cache", "dcmh")


@pytest.mark.skipif(os.name == "nt", reason="names are always Unicode there")
def test_a_folder_whose_name_is_not_unicode_is_refused(tmp_path, monkeypatch):
    try:
        folder = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"caf\xe9")))
        (folder / "photos").mkdir(parents=True)
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    with pytest.raises(DataError, match=r"caf\? is not UTF-8"):
        load_dataset(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(DataError, match=r"caf\?/photos is not UTF-8"):
        load_dataset("photos")
