"""Tables of whole numbers in text: every way they are written in, against Python's own int()."""

import io
import re

import numpy as np
import pytest

from dcmh.data.benchmarks import numbers
from dcmh.data.benchmarks.release import Release
from dcmh.errors import DataError

generator = np.random.default_rng(0)


def text(rows: np.ndarray, gap: str = " ", end: str = "\n", last: str | None = None) -> bytes:
    lines = [gap.join(map(str, row)) for row in rows.tolist()]
    return (end.join(lines) + (end if last is None else last)).encode()


@pytest.mark.parametrize("top", [2, 10, 300, 70_000])
@pytest.mark.parametrize(
    ("gap", "end", "last"), [(" ", " \n", None), ("\t", "\t\r\n", None), (" ", "\n", ""), ("  ", "\r\n\r\n", None)]
)
def test_as_python_reads_it(monkeypatch, top, gap, end, last):
    monkeypatch.setattr(numbers, "_BLOCK", 97)  # lines lie across blocks
    rows = generator.integers(0, top, (57, 8))
    found = numbers.read_table(io.BytesIO(text(rows, gap, end, last)), "t", 8)
    np.testing.assert_array_equal(found, rows)
    assert found.dtype == (np.uint8 if rows.max() < 256 else np.int32)


def test_one_number_a_line_and_chosen_rows():
    values = generator.integers(0, 2, 500)
    found = numbers.read_table(io.BytesIO(text(values[:, None])), "labels", 1, rows=500)
    np.testing.assert_array_equal(found.ravel(), values)
    rows = generator.integers(0, 10, (40, 3))
    keep = generator.random(40) < 0.5
    np.testing.assert_array_equal(numbers.read_table(io.BytesIO(text(rows)), "t", 3, keep=keep), rows[keep])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            b"1 0 1\n1 0\n",
            "number of columns changed from 3 to 2 at row 2; .*Is it another file, truncated or transposed",
        ),
        (b"1 0 1\n" * 5, r"t has more than 4 rows, the other files 4"),
        (b"1 0 1\n" * 3, r"t has 3 rows, the other files 4. Are they of the same release\?"),
        (b"1 0 -1\n" * 4, "t holds negative numbers. Get it again"),
        (b"1 0 0.5\n" * 4, "could not convert string '0.5' to int32"),
        (b"1 0 12345678901\n" * 4, "could not convert string '12345678901'"),
        (b"1 0\n" * 4, "t has 2 numbers in row 1; expected 3. Is it another file, truncated or transposed"),
        (b"1 0 a\n" * 4, "could not convert string 'a'"),
        (b"", "t has 0 rows"),
    ],
)
def test_what_is_no_table(content, says):
    with pytest.raises(DataError, match=says):
        numbers.read_table(io.BytesIO(content), "t", 3, rows=4)


def test_lines_of_another_encoding(tmp_path):
    (tmp_path / "list.txt").write_bytes("\ufeffsky\r\n\r\n sea \n".encode())
    release = Release(tmp_path, re.compile("none"))
    assert release.lines("list.txt") == ["sky", "sea"]
    (tmp_path / "list.txt").write_bytes(b"s\xe9a\n")
    with pytest.raises(DataError, match=r"list.txt is not UTF-8 \(byte 1\). Get the file again, or save it as UTF-8."):
        release.lines("list.txt")
