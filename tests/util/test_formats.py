"""Readers of JSON, TOML and .npy files: whatever the file holds, one error that names it."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from dcmh.errors import DataError, ModelError
from dcmh.util import formats

DEEP = 3_000


def test_json_nested_deeply(tmp_path):
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000)
    message = r"deep\.json is damaged \(it is nested too deeply\)\. Copy it again"
    with (
        pytest.raises(ModelError, match=message) as caught,
        formats.readable(file, ModelError, hint="Copy it again."),
    ):
        formats.read_json(file)
    assert caught.value.which == file
    assert caught.value.hint == "Copy it again."


def test_toml_nested_deeply(tmp_path):
    file = tmp_path / "deep.toml"
    file.write_text("a = " + "[" * DEEP + "]" * DEEP)
    with pytest.raises(ValueError, match="nested too deeply"):
        formats.read_toml(file)


def test_json_lines_say_the_line(tmp_path):
    file = tmp_path / "history.jsonl"
    file.write_text('{"epoch": 1}\n{"epo')
    with pytest.raises(ValueError, match="line 2"):
        formats.parse_json_lines(file.read_text())
    file.write_text('{"epoch": 1}\n[2]\n')
    with pytest.raises(ValueError, match="line 2 is not a JSON object"):
        formats.parse_json_lines(file.read_text())


def npy(header: str, body: bytes = b"", version: int = 1) -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2, "little") + text + body


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        b"\x93NUMPY\x01\x00",
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,"),  # tokenize.TokenError
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "(" * 500),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"x" * 8),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", b"x" * 7),
        npy("{'descr': '<V0', 'fortran_order': False, 'shape': (9999999999999,)}"),
        npy("{'descr': 5, 'fortran_order': False, 'shape': (2,)}"),
        npy("{}", version=9),
    ],
)
@pytest.mark.parametrize("mmap", [None, "r"])
def test_damaged_npy(tmp_path, content, mmap):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError):  # noqa: PT011 - many reasons
        formats.read_npy(tmp_path / "a.npy", mmap=mmap)


@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.arange(6).reshape(2, 3), np.asfortranarray(np.ones((2, 3)))])
@pytest.mark.parametrize("mmap", [None, "r", "c"])
def test_npy(tmp_path, array, mmap):
    np.save(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(formats.read_npy(tmp_path / "a.npy", mmap=mmap), array)


@pytest.mark.parametrize("version", [0, -1, True, 1.5, "1", None, [1]])
def test_format_numbers_that_are_damage(version):
    with pytest.raises(DataError, match="is damaged: it says that it has format"):
        formats.check_format(version, 2, "x", DataError)


def test_newer_formats():
    formats.check_format(2, 2, "x", DataError)
    with pytest.raises(DataError, match=r"x has format 3; this dcmh .* reads up to 2\. Upgrade"):
        formats.check_format(3, 2, "x", DataError)


def test_a_path_with_braces_and_permission(tmp_path):
    file = tmp_path / "{path}{reason}{0}.json"
    file.write_text("{")
    with pytest.raises(DataError, match=r"\{0\}\.json is damaged"), formats.readable(file, hint=""):
        formats.read_json(file)


def test_files_over_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MAX_JSON", 10)
    (tmp_path / "a.json").write_text(json.dumps("x" * 20))
    with pytest.raises(ValueError, match="22 bytes; the limit is 10"):
        formats.read_json(tmp_path / "a.json")


def test_what_numpy_writes_is_read(tmp_path):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.arange(5), version=(2, 0))
    (tmp_path / "a.npy").write_bytes(buffer.getvalue())
    assert formats.read_npy(tmp_path / "a.npy").tolist() == [0, 1, 2, 3, 4]
