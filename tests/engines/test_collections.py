"""Copies in a collection on a server, merging one into a folder, and what cannot be done in place."""

from __future__ import annotations

import shutil

import pytest

from dcmh.errors import ModelMismatch, ParameterError
from dcmh.search import SearchIndex
from dcmh.search.merge import merge
from toy_photos import load


def test_copies_are_found_collections_merged_and_upgrades_refused(address, folder_index, models, photos, tmp_path):
    with SearchIndex.build(models[0], load(photos), address) as index:
        copy = shutil.copyfile(photos / "005.png", tmp_path / "copy.png")
        index.add([copy], ids=["copy"])
        (exact,) = index.duplicates("exact").groups
        assert sorted(item.item.name for item in exact.copies) == ["005", "copy"]
        near = [sorted(copy.item.name for copy in group.copies) for group in index.duplicates("near").groups]
        expected = folder_index.duplicates("near").groups
        assert len(near) == len(expected)
        index.remove([index.store.find("copy").id])
        ids = [item.id for item in index.store.items()]
        merge([folder_index.folder, address], tmp_path / "both.dcmh")
        with SearchIndex.open(tmp_path / "both.dcmh") as both:
            assert list(both.store.items()) == list(folder_index.store.items())
            assert both.store.fine_of("image", ids) == folder_index.store.fine_of("image", ids)
    with pytest.raises(ParameterError, match="cannot be upgraded in place"):
        SearchIndex.build(models[1], load(photos), address, upgrade=True)
    with pytest.raises(ModelMismatch, match="--rebuild"):
        SearchIndex.build(models[1], load(photos), address)
