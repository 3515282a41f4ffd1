"""Downloads from a server on this machine: broken off, corrupted, redirected, missing; and unpacking what arrived."""

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest

from dcmh.data.benchmarks import download, sources
from dcmh.data.benchmarks.sources import Archive, Source
from dcmh.errors import DataError
from mirror import mirror


def zipped(**files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, value in files.items():
            file.writestr(name, value)
    return content.getvalue()


CONTENT = zipped(one=bytes(range(256)) * 4000, two=b"2", **{"three/four": b"4"})  # about a megabyte
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server():
    with mirror() as made:
        made.files = {"/a.zip": CONTENT, "/b.zip": CONTENT}
        yield made


@pytest.fixture
def fetched(server, tmp_path, monkeypatch):
    """Get a data set of one archive with two mirrors, /a.zip and /b.zip; gives what was done, said and reported."""
    folder = tmp_path / "data"

    def get(*, accept_changed=False, **archive):
        urls = archive.pop("urls", (server.url("/a.zip"), server.url("/b.zip")))
        source = Source("Mini", "", "", "", (Archive("mini.zip", urls, "unpacked", **archive),))
        monkeypatch.setitem(sources.SOURCES, "mini", source)
        messages, reports = [], []
        done = download.get(
            "mini",
            folder,
            say=messages.append,
            progress=lambda title: lambda *at: reports.append((title, *at)),
            accept_changed=accept_changed,
        )
        return done[0], messages, reports

    get.folder = folder
    return get


def is_complete(folder: Path) -> bool:
    """Whether the archive is there, unpacked, with nothing else beside it."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = ["fetched.json", "mini.zip", "unpacked/one", "unpacked/three/four", "unpacked/two"]
    return files == names and (folder / "mini.zip").read_bytes() == CONTENT


def test_downloaded_verified_unpacked_and_left_alone_the_next_time(fetched, server):
    done, messages, reports = fetched(size=len(CONTENT), md5=MD5)
    assert (done.state, done.known, done.files) == ("downloaded", True, 3)
    assert messages == [f"Fetching mini.zip from {server.url('/a.zip')}"]
    assert reports[-1] == ("downloading mini.zip", len(CONTENT), len(CONTENT))
    assert all(done <= total == len(CONTENT) for _, done, total in reports)
    assert is_complete(fetched.folder)
    record = json.loads((fetched.folder / "fetched.json").read_text())["archives"]["mini.zip"]
    assert record["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert record["url"] == server.url("/a.zip")
    server.seen.clear()
    again, messages, _ = fetched(size=len(CONTENT), md5=MD5)
    assert (again.state, messages, server.seen) == ("was there", [], [])


def test_a_broken_download_goes_to_the_next_mirror(fetched, server):
    server.plans = {"/a.zip": ["break 300000"]}
    _, messages, _ = fetched()
    assert is_complete(fetched.folder)
    assert messages[1] == f"{server.url('/a.zip')}: the connection broke off."
    assert server.seen == ["/a.zip", "/b.zip"]


def test_nothing_half_written_is_left(fetched, server):
    server.plans = {"/a.zip": ["break 300000"], "/b.zip": ["status 503"]}
    with pytest.raises(DataError) as error:
        fetched()
    assert "the server answered 503). Try again later. Or get it with a browser and put it into" in str(error.value)
    assert list(fetched.folder.iterdir()) == []


def test_a_corrupted_file_is_refused_and_the_next_mirror_asked(fetched, server):
    corrupt = bytearray(CONTENT)
    corrupt[5000] ^= 1
    server.files["/a.zip"] = bytes(corrupt)
    _, messages, _ = fetched(md5=MD5)
    assert messages[1] == f"{server.url('/a.zip')}: another checksum than its publishers give."
    assert is_complete(fetched.folder)
    (fetched.folder / "mini.zip").unlink()
    server.files["/b.zip"] = bytes(corrupt)
    with pytest.raises(DataError, match=r"mini.zip could not be fetched \(.*another checksum.*another checksum"):
        fetched(md5=MD5)
    assert not (fetched.folder / "mini.zip").exists()


def test_redirected(fetched, server):
    server.plans = {"/a.zip": [f"redirect {server.url('/b.zip')}"]}
    fetched(md5=MD5)
    assert server.seen == ["/a.zip", "/b.zip"]
    assert is_complete(fetched.folder)


def test_redirected_in_a_circle(fetched, server):
    server.plans = {"/a.zip": [f"redirect {server.url('/a.zip')}"]}
    fetched(md5=MD5)
    assert is_complete(fetched.folder)  # from /b.zip


@pytest.mark.parametrize("size", [5000, len(CONTENT) + 7])
def test_a_file_of_another_size(fetched, server, size):
    server.files["/a.zip"] = (CONTENT + b"x" * 7)[:size]
    fetched(md5=MD5)
    assert is_complete(fetched.folder)


def test_a_claimed_length_that_is_too_long(fetched, server):
    server.plans = {"/a.zip": [f"claim {len(CONTENT) + 7}"]}
    _, messages, _ = fetched()
    assert messages[1].endswith("the connection broke off.")
    assert is_complete(fetched.folder)


@pytest.mark.parametrize("status", [403, 404, 410, 503])
def test_not_there_goes_to_the_next_mirror(fetched, server, status):
    server.plans = {"/a.zip": [f"status {status}"]}
    _, messages, _ = fetched()
    assert messages[1] == f"{server.url('/a.zip')}: the server answered {status}."
    assert server.seen == ["/a.zip", "/b.zip"]


def test_nobody_there(fetched):
    with pytest.raises(DataError, match=r"mini.zip could not be fetched \(http://127.0.0.1:9/x: no connection\). Try"):
        fetched(urls=("http://127.0.0.1:9/x",))


def test_without_a_checksum_the_first_download_is_the_measure(fetched, server):
    done, _, _ = fetched()
    assert not done.known
    (fetched.folder / "mini.zip").unlink()
    server.files = {"/a.zip": zipped(one=b"changed"), "/b.zip": CONTENT}
    done, messages, _ = fetched()
    assert done.known
    assert messages[1].endswith("/a.zip: another checksum than the first time.")
    (fetched.folder / "mini.zip").write_bytes(zipped(one=b"changed"))
    with pytest.raises(
        DataError, match=r"mini.zip is not the file that was fetched on \d{4}-.* accept it with --accept-changed"
    ):
        fetched()
    done, _, _ = fetched(accept_changed=True)
    assert not done.known


def test_a_file_put_there_by_hand_counts(fetched, server):
    fetched.folder.mkdir()
    (fetched.folder / "mini.zip").write_bytes(CONTENT)
    done, _, _ = fetched(md5=MD5)
    assert done.state == "was there"
    assert server.seen == []
    assert is_complete(fetched.folder)
    (fetched.folder / "mini.zip").write_bytes(CONTENT[:-9])
    with pytest.raises(DataError, match=r"mini.zip has 1,0\d\d,\d\d\d bytes, not 1,0.*Delete it and get it again"):
        fetched(size=len(CONTENT))


def test_no_room_is_said_before_the_download(fetched, server, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 3})())
    with pytest.raises(DataError, match=r"data has 0.0 GB left, but mini.zip needs 0.0 GB. Make room, or choose"):
        fetched(size=len(CONTENT))
    assert server.seen == []
    with pytest.raises(DataError, match=r"left, but what mini.zip unpacks to needs 0.0 GB. Make room"):
        fetched()


def test_a_damaged_record(fetched):
    fetched.folder.mkdir()
    (fetched.folder / "fetched.json").write_text("[]")
    with pytest.raises(DataError, match=r"fetched.json is damaged .* Delete it; it will be written again"):
        fetched()


def test_the_table_names_real_places_and_no_invented_checksums():
    for name, source in sources.SOURCES.items():
        for archive in source.archives:
            assert archive.urls[0].startswith("https://")
            assert archive.urls[0].endswith(archive.name)
            assert archive.md5 is None or (archive.size and len(archive.md5) == 32)
        assert source.page.startswith("https://"), name


class TestUnpacking:
    def test_only_what_is_missing_or_of_another_size_is_written(self, fetched):
        fetched()
        unpacked = fetched.folder / "unpacked"
        before = (unpacked / "one").stat().st_mtime_ns
        (unpacked / "two").write_text("")
        (unpacked / "three/four").unlink()
        fetched()
        assert is_complete(fetched.folder)
        assert (unpacked / "two").read_bytes() == b"2"
        assert (unpacked / "one").stat().st_mtime_ns == before

    @pytest.mark.parametrize("name", ["../evil", "a/../../../evil", "/evil"])
    def test_nothing_is_written_outside_of_the_folder(self, fetched, server, name):
        server.files["/a.zip"] = zipped(**{name: b"x"})
        fetched()
        assert [path.relative_to(fetched.folder).parts[0] for path in fetched.folder.parent.rglob("*evil")] == [
            "unpacked"
        ]
        assert not Path("/evil").exists()

    def test_a_damaged_entry_is_named_and_nothing_is_left(self, fetched, server):
        damaged = bytearray(CONTENT)
        damaged[5000] ^= 1
        server.files["/a.zip"] = bytes(damaged)
        with pytest.raises(DataError, match=r"mini.zip is damaged \(Bad CRC-32.*\). Delete it and get it again."):
            fetched()
        assert list((fetched.folder / "unpacked").iterdir()) == []

    @pytest.mark.parametrize("content", [b"<html>Not found</html>", CONTENT[:60]], ids=["html", "truncated"])
    def test_not_a_zip(self, fetched, server, content):
        server.files["/a.zip"] = content
        with pytest.raises(DataError, match=r"mini.zip is damaged \(File is not a zip file\). Delete it and get it"):
            fetched()
