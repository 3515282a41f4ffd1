"""Zips that must not be unpacked, and those that are: whole, again, and after a break."""

import stat
import struct
import zipfile

import pytest

from dcmh.data.benchmarks import unpack as module
from dcmh.data.benchmarks.unpack import unpack
from dcmh.errors import DataError


def make(path, entries, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in entries:
            file.writestr(name, content)
    return path


def listing(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_files_come_whole_and_only_once(tmp_path):
    archive = make(tmp_path / "a.zip", [("x/", ""), ("x/one.txt", "1"), ("x/y/two.txt", "22"), ("three.txt", "333")])
    seen = []
    assert unpack(archive, tmp_path / "out", progress=lambda done, total: seen.append((done, total))) == 3
    assert listing(tmp_path / "out") == ["three.txt", "x/one.txt", "x/y/two.txt"]
    assert seen == [(1, 6), (3, 6), (6, 6)]
    before = (tmp_path / "out/x/one.txt").stat().st_mtime_ns
    (tmp_path / "out/three.txt").write_text("cut")
    (tmp_path / "out/three.txt").write_text("")  # of another size: written again
    assert unpack(archive, tmp_path / "out") == 3
    assert (tmp_path / "out/three.txt").read_text() == "333"
    assert (tmp_path / "out/x/one.txt").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "name", ["../out.txt", "a/../../out.txt", "/etc/out.txt", "..\\out.txt", "C:/out.txt", "a/..", "x\\y.txt"]
)
def test_paths_that_lead_out(tmp_path, name):
    archive = make(tmp_path / "a.zip", [("good.txt", "1"), (name, "2")])
    with pytest.raises(
        DataError, match=r"a.zip is not unpacked: its entry .* leads out of the folder. Get it from its own"
    ):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_are_refused(tmp_path):
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive = make(tmp_path / "a.zip", [(link, "/etc"), ("link/passwd", "x")])
    with pytest.raises(DataError, match="its entry 'link' is a link or a device"):
        unpack(archive, tmp_path / "out")


def test_a_link_that_waits_in_the_folder(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out/x").symlink_to(tmp_path / "elsewhere")
    archive = make(tmp_path / "a.zip", [("x/one.txt", "1")])
    with pytest.raises(DataError, match="out/x is a link, so nothing is unpacked through it"):
        unpack(archive, tmp_path / "out")
    assert listing(tmp_path / "elsewhere") == []


def test_bombs_are_refused_before_they_unfold(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SMALL", 1 << 20)
    archive = make(tmp_path / "bomb.zip", [("zeros", b"\0" * (8 << 20))])
    with pytest.raises(DataError, match=r"bomb.zip is not unpacked: [\d,]+ bytes would become 8,388,608 in 1 files"):
        unpack(archive, tmp_path / "out")
    monkeypatch.setattr(module, "MAX_FILES", 2)
    many = make(tmp_path / "many.zip", [(f"{i}.txt", "") for i in range(3)])
    with pytest.raises(DataError, match="in 3 files"):
        unpack(many, tmp_path / "out")


def test_a_size_that_lies(tmp_path):
    """The directory says one byte, the data holds a million: no more than said is written, and the checksum tells."""
    archive = make(tmp_path / "a.zip", [("x", b"\0" * 1_000_000)])
    content = bytearray(archive.read_bytes())
    place = content.rfind(b"PK\x01\x02") + 24
    assert struct.unpack_from("<I", content, place)[0] == 1_000_000
    struct.pack_into("<I", content, place, 1)
    archive.write_bytes(content)
    with pytest.raises(DataError, match=r"a.zip is damaged \(Bad CRC-32.*\). Delete it and get it again."):
        unpack(archive, tmp_path / "out")
    assert listing(tmp_path / "out") == []


def test_the_same_name_twice(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive = make(tmp_path / "a.zip", [("x", "1"), ("x", "2")])
    with pytest.raises(DataError, match="its entry 'x' comes twice"):
        unpack(archive, tmp_path / "out")


def test_encrypted_truncated_and_no_zip(tmp_path):
    archive = make(tmp_path / "a.zip", [("x", "secret")])
    content = bytearray(archive.read_bytes())
    content[content.rfind(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)
    with pytest.raises(DataError, match="its entry 'x' is encrypted"):
        unpack(archive, tmp_path / "out")
    archive.write_bytes(make(tmp_path / "b.zip", [("x", "y" * 500)]).read_bytes()[:60])
    with pytest.raises(DataError, match=r"a.zip is damaged \(File is not a zip file\). Delete it and get it again."):
        unpack(archive, tmp_path / "out")


def test_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 3})())
    with pytest.raises(
        DataError, match=r"a.zip unpacks to 0.0 GB, but .* has 0.0 GB left. Make room, or choose another"
    ):
        unpack(make(tmp_path / "a.zip", [("x", "12345")]), tmp_path / "out")
    assert listing(tmp_path / "out") == []
