"""Downloads from a server on this machine: broken off, corrupted, redirected, of the wrong size, missing; and again."""

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest

from dcmh.data.benchmarks import fetch, official
from dcmh.data.benchmarks.official import Archive, Source
from dcmh.errors import DataError
from mirror import mirror


def zipped(**files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, value in files.items():
            file.writestr(name, value)
    return content.getvalue()


CONTENT = zipped(one=bytes(range(256)) * 4000, two=b"2")  # about a megabyte
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server():
    with mirror() as made:
        made.files = {"/a.zip": CONTENT, "/b.zip": CONTENT}
        yield made


@pytest.fixture
def fetched(server, tmp_path, monkeypatch):
    """Fetch a data set of one archive with two mirrors, /a.zip and /b.zip; returns what was done, and what was said."""
    monkeypatch.setattr(fetch, "WAIT", 0.01)
    folder = tmp_path / "data"

    def get(*, anew=False, **archive):
        urls = archive.pop("urls", (server.url("/a.zip"), server.url("/b.zip")))
        source = Source("Mini", "", "", "", (Archive("mini.zip", urls, "unpacked", **archive),))
        monkeypatch.setitem(official.SOURCES, "mini", source)
        said, seen = [], []
        done = fetch.get(
            "mini", folder, say=said.append, progress=lambda title: lambda *at: seen.append((title, *at)), anew=anew
        )
        return done[0], said, seen

    get.folder = folder
    return get


def whole(folder: Path) -> bool:
    left = sorted(path.name for path in folder.iterdir())
    return left == ["fetched.json", "mini.zip", "unpacked"] and (folder / "mini.zip").read_bytes() == CONTENT


def test_downloaded_verified_unpacked_and_left_alone_the_next_time(fetched, server):
    done, said, seen = fetched(size=len(CONTENT), md5=MD5)
    assert (done.state, done.known, done.files) == ("downloaded", True, 2)
    assert said == [f"Fetching mini.zip from {server.url('/a.zip')}"]
    assert ("downloading mini.zip", len(CONTENT), len(CONTENT)) in seen
    assert seen[-1][0] == "unpacking mini.zip"
    assert whole(fetched.folder)
    record = json.loads((fetched.folder / "fetched.json").read_text())["archives"]["mini.zip"]
    assert record["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert record["url"] == server.url("/a.zip")
    server.seen.clear()
    again, said, _ = fetched(size=len(CONTENT), md5=MD5)
    assert (again.state, said, server.seen) == ("was there", [], [])


def test_a_broken_download_goes_on_where_it_was(fetched, server):
    server.plans = {"/a.zip": ["break 300000", "break 200000", "ok"]}
    _, said, _ = fetched()
    assert whole(fetched.folder)
    assert [wanted for _, wanted in server.seen] == [None, "bytes=300000-", "bytes=500000-"]
    assert said[1] == (f"the connection ended after 300,000 of {len(CONTENT):,} bytes; trying again from byte 300,000.")


def test_a_later_command_goes_on_too(fetched, server):
    server.plans = {"/a.zip": ["break 300000", "status 503"], "/b.zip": ["status 404"]}
    with pytest.raises(DataError) as error:
        fetched()
    assert "300,000 bytes are kept: the same command goes on from there. Or get it with a browser" in str(error.value)
    server.plans.clear()
    server.seen.clear()
    fetched()
    assert server.seen == [("/a.zip", "bytes=300000-")]
    assert whole(fetched.folder)


def test_a_file_that_changed_between_the_halves_is_fetched_anew(fetched, server):
    server.plans = {"/a.zip": ["break 300000", "status 503"], "/b.zip": ["status 404"]}
    with pytest.raises(DataError):
        fetched()
    other = zipped(one=b"other" * 100_000)
    server.files["/a.zip"] = other
    server.plans.clear()
    fetched()
    assert (fetched.folder / "mini.zip").read_bytes() == other


@pytest.mark.parametrize("tags", [True, False])
def test_a_server_that_cannot_resume(fetched, server, tags):
    server.resumes, server.tags = False, tags
    server.plans = {"/a.zip": ["break 300000", "ok"]}
    fetched()
    assert whole(fetched.folder)


def test_a_corrupted_file_is_refused_and_the_next_mirror_asked(fetched, server):
    corrupt = bytearray(CONTENT)
    corrupt[5000] ^= 1
    server.files["/a.zip"] = bytes(corrupt)
    _, said, _ = fetched(md5=MD5)
    assert said[1] == f"{server.url('/a.zip')}: another checksum than its publishers give."
    assert whole(fetched.folder)
    (fetched.folder / "mini.zip").unlink()
    server.files["/b.zip"] = bytes(corrupt)
    with pytest.raises(DataError, match=r"mini.zip could not be fetched \(.*another checksum.*another checksum"):
        fetched(md5=MD5)
    assert not (fetched.folder / "mini.zip").exists()


def test_redirected(fetched, server):
    server.plans = {"/a.zip": [f"redirect {server.url('/b.zip')}"]}
    fetched(md5=MD5)
    assert [path for path, _ in server.seen] == ["/a.zip", "/b.zip"]
    assert whole(fetched.folder)


def test_redirected_in_a_circle(fetched, server):
    server.plans = {"/a.zip": [f"redirect {server.url('/a.zip')}"]}
    fetched(md5=MD5)
    assert whole(fetched.folder)  # from /b.zip


def test_the_wrong_size_is_refused_before_it_is_fetched(fetched, server):
    server.files["/a.zip"] = b"x" * 5000
    _, said, seen = fetched(size=len(CONTENT))
    assert said[1] == f"{server.url('/a.zip')}: it has 5,000 bytes, not {len(CONTENT):,}."
    assert all(total == len(CONTENT) for title, _, total in seen if title.startswith("downloading"))
    assert whole(fetched.folder)


def test_a_claimed_length_that_is_too_long(fetched, server):
    server.plans = {"/a.zip": [f"claim {len(CONTENT) + 7}"]}
    _, said, _ = fetched(md5=MD5)
    assert f"after {len(CONTENT):,} of {len(CONTENT) + 7:,} bytes" in said[1]
    assert whole(fetched.folder)


@pytest.mark.parametrize("status", [403, 404, 410])
def test_not_there_goes_to_the_next_mirror_at_once(fetched, server, status):
    server.plans = {"/a.zip": [f"status {status}"]}
    _, said, _ = fetched()
    assert said[1] == f"{server.url('/a.zip')}: the server answered {status}."
    assert [path for path, _ in server.seen] == ["/a.zip", "/b.zip"]


def test_a_busy_server_is_asked_again(fetched, server):
    server.plans = {"/a.zip": ["status 503", "status 429", "ok"]}
    _, said, _ = fetched()
    assert said[1] == "the server answered 503; trying again from byte 0."
    assert whole(fetched.folder)


def test_nobody_there(fetched):
    with pytest.raises(
        DataError, match=r"mini.zip could not be fetched \(http://127.0.0.1:9/x: no connection\). Or get it with"
    ):
        fetched(urls=("http://127.0.0.1:9/x",))


def test_without_a_checksum_the_first_download_is_the_measure(fetched, server):
    done, _, _ = fetched()
    assert not done.known
    (fetched.folder / "mini.zip").unlink()
    server.files = {"/a.zip": zipped(one=b"changed"), "/b.zip": CONTENT}
    done, said, _ = fetched()
    assert done.known
    assert said[1].endswith("/a.zip: another checksum than the first time.")
    (fetched.folder / "mini.zip").write_bytes(zipped(one=b"changed"))
    with pytest.raises(DataError, match=r"mini.zip is not the file that was fetched on \d{4}-.* accept it with --anew"):
        fetched()
    done, _, _ = fetched(anew=True)
    assert not done.known


def test_a_zip_that_must_not_be_unpacked(fetched, server):
    server.files["/a.zip"] = zipped(**{"../evil": b"x"})
    with pytest.raises(DataError, match="leads out of the folder"):
        fetched()
    assert not list(fetched.folder.parent.glob("evil"))


def test_a_file_put_there_by_hand_counts(fetched, server):
    fetched.folder.mkdir()
    (fetched.folder / "mini.zip").write_bytes(CONTENT)
    done, _, _ = fetched(md5=MD5)
    assert done.state == "was there"
    assert server.seen == []
    assert whole(fetched.folder)
    (fetched.folder / "mini.zip").write_bytes(CONTENT[:-9])
    with pytest.raises(DataError, match=r"mini.zip has 1,0\d\d,\d\d\d bytes, not 1,0.*Delete it and get it again"):
        fetched(size=len(CONTENT))


def test_no_room_is_said_before_the_download(fetched, monkeypatch):
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 3})())
    with pytest.raises(DataError, match=r"0.0 GB are still to come, but .* has 0.0 GB left. Make room"):
        fetched()


def test_the_table_names_real_places_and_no_invented_checksums():
    for name, source in official.SOURCES.items():
        for archive in source.archives:
            assert archive.urls[0].startswith("https://")
            assert archive.urls[0].endswith(archive.name)
            assert archive.md5 is None or (archive.size and len(archive.md5) == 32)
        assert source.page.startswith("https://"), name
