"""Adding and removing: only with the token, safe on the disk before the answer."""

from __future__ import annotations

import contextlib
import errno
import io
import shutil
import sqlite3

import pytest
from PIL import Image
from served import COUNT, TOKEN, UNREADABLE, problem
from starlette.testclient import TestClient

from dcmh.errors import DataError, ParameterError, StorageError
from dcmh.inputs import decoding
from dcmh.search import SearchIndex
from dcmh.service import Settings, create_app, schemas
from dcmh.stores.local import database, layout
from toy_photos import load


def png(color="red", size=(60, 40)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


def add(client, data=None, **fields):
    parts = [("image", ("x.png", data))] if data is not None else []
    for name, value in fields.items():
        parts += [(name, (None, one)) for one in (value if isinstance(value, list) else [value])]
    return client.post("/api/items", files=parts)


class TestToken:
    def test_without_a_token_file_nothing_changes(self, client):
        said = problem(client.post("/api/items", headers={"Authorization": f"Bearer {TOKEN}"}), 403, "read-only")
        assert "--token-file" in said["hint"]
        problem(client.delete("/api/items/1"), 403, "read-only")
        assert client.get("/api/info").json()["writable"] is False

    def test_read_only_wins_over_the_token(self, serve, tmp_path):
        (tmp_path / "token").write_text(TOKEN)
        client = serve(token_file=str(tmp_path / "token"), read_only=True)
        problem(client.delete("/api/items/1", headers={"Authorization": f"Bearer {TOKEN}"}), 403, "read-only")

    @pytest.mark.parametrize("said", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"])
    def test_a_wrong_token_is_refused_before_the_body_is_read(self, writer, said):
        del writer.headers["Authorization"]
        headers = {} if said is None else {"Authorization": said}
        for answer in (
            writer.post("/api/items", headers=headers, files={"image": png()}),
            writer.delete("/api/items/1", headers=headers),
        ):
            problem(answer, 401, "token-needed")
            assert answer.headers["www-authenticate"] == "Bearer"
        assert len(writer.get("/api/search?text=sea&k=100").json()["hits"]) == COUNT

    @pytest.mark.parametrize("content", ["", "short", "two words that are long enough", "é" * 20])
    def test_a_token_file_must_hold_a_token(self, ready, tmp_path, content):
        (tmp_path / "token").write_text(content, encoding="utf-8")
        with pytest.raises(ParameterError, match="Make one: python -c"):
            create_app(ready / "photos.dcmh", Settings(token_file=str(tmp_path / "token")))

    def test_a_missing_token_file_is_said(self, ready, tmp_path):
        with pytest.raises(ParameterError, match="Cannot read the token file"):
            create_app(ready / "photos.dcmh", Settings(token_file=str(tmp_path / "none")))


class TestAdding:
    def test_an_item_is_found_at_once_and_after_opening_again(self, writer, own):
        answer = add(writer, png(), text="sunny sea", labels=["sun", "sea", "sun"])
        assert answer.status_code == 201
        schemas.Item.model_validate_json(answer.content)
        item = answer.json()
        assert (item["text"], item["labels"], set(item["codes"])) == ("sunny sea", ["sun", "sea"], {"image", "text"})
        assert writer.get(item["image"]).content == png()
        assert writer.get(item["thumbnail"]).status_code == 200
        hits = writer.post("/api/search?k=3", files={"image": png()}).json()["hits"]
        assert (item["id"], 0) in [(hit["id"], hit["distance"]) for hit in hits]
        with SearchIndex.open(own / "photos.dcmh") as index:
            assert index.item(item["id"]).text == "sunny sea"
            assert len(index) == COUNT + 1

    def test_a_picture_is_decoded_once_in_its_own_process(self, writer, monkeypatch):
        monkeypatch.setattr(decoding.Decoder, "submit", lambda *arguments: pytest.fail("decoded again"))
        added = add(writer, png("teal"), text="a sea of teal")
        assert added.status_code == 201
        assert "image" in added.json()["codes"]

    def test_answers_are_kept_until_the_index_changes(self, writer):
        ask = "/api/search?text=sea&k=100"
        first = writer.get(ask).json()
        assert writer.get(ask).json() == first  # down to the milliseconds that it took
        added = add(writer, png("navy"), text="sea").json()
        hits = writer.get(ask).json()["hits"]
        assert added["id"] in [hit["id"] for hit in hits]
        assert len(hits) == len(first["hits"]) + 1

    def test_the_same_picture_is_the_same_item(self, writer):
        first = add(writer, png(), text="sunny")
        again = add(writer, png(), text="yellow sea")
        assert (again.status_code, again.json()["id"], again.json()["text"]) == (200, first.json()["id"], "yellow sea")
        code = writer.post("/api/encode", json={"text": ["yellow sea"]}).json()["codes"][0]
        assert again.json()["codes"]["text"] == code != first.json()["codes"]["text"]
        assert add(writer, png("blue")).json()["id"] != first.json()["id"]

    def test_a_picture_alone_and_words_alone(self, writer):
        assert set(add(writer, png()).json()["codes"]) == {"image"}
        item = add(writer, text="sunny sea").json()
        assert (set(item["codes"]), item["image"]) == ({"text"}, None)
        assert item["id"] in [hit["id"] for hit in writer.get("/api/search?text=sunny+sea&k=100").json()["hits"]]

    def test_words_that_nobody_knows_do_with_a_picture_only(self, writer):
        assert add(writer, png(), text=UNREADABLE).status_code == 201
        for text in (
            UNREADABLE,
            "\U0001f992",  # a query of it is read by its name, a text is not
            "\u2d30\u2d4e\u2d53\u2d54",
        ):  # the second has letters, of a script that nobody taught it
            problem(add(writer, text=text), 422, "query-not-encodable")

    def test_half_a_character_is_mended(self, writer):
        form = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\nsunny +2D0-\r\n--x--\r\n'
        kind = "multipart/form-data; boundary=x; charset=utf-7"
        answer = writer.post("/api/items", content=form, headers={"content-type": kind})
        assert (answer.status_code, answer.json()["text"]) == (201, "sunny \ufffd")

    def test_what_is_refused_leaves_nothing(self, writer, own):
        problem(add(writer, b"<svg/>", text="sunny"), 415, "not-a-picture")
        problem(add(writer, png()[:-40], text="sunny"), 422, "damaged-picture")
        problem(add(writer), 415, "not-a-form")
        problem(add(writer, labels="sun"), 422, "bad-parameter")
        problem(add(writer, png(), text="x" * 10_001), 422, "bad-parameter")
        problem(add(writer, png(), labels=[f"label {n}" for n in range(65)]), 422, "bad-parameter")
        uploads = own / "photos.dcmh" / "uploads"
        assert not uploads.exists() or [path.name for path in uploads.iterdir()] in ([], [".lock"])
        with SearchIndex.open(own / "photos.dcmh") as index:
            assert len(index) == COUNT
            assert not index.store.skipped()

    def test_another_writer_is_waited_for_or_told(self, writer, own, monkeypatch):
        with layout.writer(own / "photos.dcmh"):
            answer = add(writer, png())
            assert problem(answer, 503, "busy")["title"] == "Another process is writing the index."
            assert int(answer.headers["retry-after"]) >= 1
        assert not list((own / "photos.dcmh" / "uploads").glob("*.png"))
        assert add(writer, png()).status_code == 201


class TestRemoving:
    def test_an_uploaded_item_goes_with_its_picture(self, writer, own):
        number = add(writer, png()).json()["id"]
        assert len(list((own / "photos.dcmh" / "uploads").glob("*.png"))) == 1
        assert writer.delete(f"/api/items/{number}").status_code == 204
        assert not list((own / "photos.dcmh" / "uploads").glob("*.png"))
        problem(writer.get(f"/api/items/{number}"), 404, "no-such-item")
        problem(writer.delete(f"/api/items/{number}"), 404, "no-such-item")

    def test_a_photo_stays_where_it_is(self, writer, own):
        assert writer.delete("/api/items/3").status_code == 204
        assert (own / "photos" / "002.png").is_file()
        assert 3 not in [hit["id"] for hit in writer.get("/api/search?text=sea&k=100").json()["hits"]]


class TestUploadedItems:
    def test_they_stay_when_the_folder_is_indexed_again(self, writer, own):
        number = add(writer, png(), text="sunny").json()["id"]
        with SearchIndex.open(own / "photos.dcmh") as index:
            changes = index.update(load(own / "photos"))
        assert (changes.gone, changes.unchanged) == (0, COUNT)
        assert writer.get(f"/api/items/{number}/image").content == png()

    def test_they_move_with_the_index(self, writer, own, tmp_path):
        number = add(writer, png(), text="sunny").json()["id"]
        writer.app.state.service.save()
        shutil.move(own, tmp_path / "elsewhere")
        with TestClient(create_app(tmp_path / "elsewhere" / "photos.dcmh")) as client:
            assert client.get(f"/api/items/{number}/image").content == png()
        (tmp_path / "elsewhere").rename(own)

    def test_changes_are_saved_at_the_end(self, own, tmp_path):
        (tmp_path / "token").write_text(TOKEN)
        app = create_app(own / "photos.dcmh", Settings(token_file=str(tmp_path / "token")))
        with TestClient(app, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            add(client, png())
        assert layout.read_header(own / "photos.dcmh")["items"] == COUNT + 1


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (StorageError("no room in /secret", state="full"), 507, "disk-full"),
        (StorageError("in /secret", state="read-only"), 503, "disk-read-only"),
        (OSError(errno.EIO, "Input/output error", "/secret"), 503, "disk-failing"),
        (OSError(errno.ENOSPC, "No space left on device", "/secret"), 507, "disk-full"),
    ],
)
def test_a_disk_that_takes_nothing_is_not_a_bug(writer, monkeypatch, error, status, kind):
    def fail(*arguments, **settings):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(SearchIndex, "add", fail)
        answer = problem(add(writer, png()), status, kind)
    assert "/secret" not in str(answer)
    assert add(writer, png()).status_code == 201


def old_catalogue(index, *changes):
    """Make the catalogue one of the version before uploads were marked, after some changes."""
    with contextlib.closing(sqlite3.connect(index / layout.CATALOGUE, isolation_level=None)) as database:
        for command, values in changes:
            database.execute(command, values)
        for command in ("DROP INDEX items_by_taken", "DROP INDEX items_by_path", "DROP TABLE attributes"):
            database.execute(command)
        for column in ("uploaded", "taken", "extra"):
            database.execute(f"ALTER TABLE items DROP COLUMN {column}")
        database.execute("PRAGMA user_version = 2")


class TestWhatIsAnUpload:
    """Only what a client uploaded is deleted with its item, whatever a data set calls its items."""

    @pytest.mark.parametrize("name", ["upload:../../victim.txt", "upload:victim.txt", "upload:/victim.txt"])
    def test_an_id_of_the_data_deletes_no_file(self, own, serve, tmp_path, name):
        victim = tmp_path / "own" / "victim.txt"
        victim.write_text("keep me")
        (own / "photos.dcmh" / "uploads").mkdir()
        (own / "photos.dcmh" / "uploads" / "victim.txt").write_text("keep me too")
        with SearchIndex.open(own / "photos.dcmh") as index:
            (number,) = index.add([own / "photos" / "002.png"], ids=[name.replace("/victim", str(victim)[:-4])])
            assert not index.item(number).uploaded
        (tmp_path / "token").write_text(TOKEN)
        client = serve(token_file=str(tmp_path / "token"))
        answer = client.delete(f"/api/items/{number}", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 204
        assert victim.read_text() == "keep me"
        assert (own / "photos.dcmh" / "uploads" / "victim.txt").is_file()
        assert (own / "photos" / "002.png").is_file()

    def test_data_cannot_take_over_an_upload(self, writer, own):
        number = add(writer, png(), text="sunny").json()["id"]
        with SearchIndex.open(own / "photos.dcmh") as index:
            name = index.item(number).name
            with pytest.raises(DataError, match="its id is that of an uploaded item"):
                index.add([own / "photos" / "002.png"], ids=[name])
            assert index.item(number).uploaded
        assert writer.get(f"/api/items/{number}/image").content == png()

    def test_an_older_index_is_migrated_by_name_and_file(self, writer, own):
        picture, text = add(writer, png()).json()["id"], add(writer, text="sunny sea").json()["id"]
        forged = "UPDATE items SET name = ? WHERE id = ?"
        names = ["upload:../../victim.txt", f"upload:{'a' * 32}.png", "upload:003.png", f"upload:{'b' * 32}"]
        old_catalogue(own / "photos.dcmh", *((forged, (name, row)) for row, name in enumerate(names, 5)))
        with SearchIndex.open(own / "photos.dcmh") as index:
            assert {item.id for item in index.store.uploads()} == {picture, text}
            assert not any(index.item(row).uploaded for row in range(5, 9))

    def test_an_older_index_that_is_read_only(self, writer, own):
        picture = add(writer, png()).json()["id"]
        old_catalogue(own / "photos.dcmh")
        before = database.MIGRATIONS
        database.MIGRATIONS = before[:2]  # as where the file may not be written: it stays at version 2
        try:
            with SearchIndex.open(own / "photos.dcmh") as index:
                assert [item.id for item in index.store.uploads()] == [picture]
        finally:
            database.MIGRATIONS = before


class TestSweep:
    """What a kill between two steps leaves behind is put right when a service with a token starts."""

    def start(self, serve, tmp_path):
        (tmp_path / "token").write_text(TOKEN)
        return serve(token_file=str(tmp_path / "token"))

    def test_files_without_an_item(self, serve, own, tmp_path):
        folder = own / "photos.dcmh" / "uploads"
        folder.mkdir()
        orphan, deleted = f"{'a' * 32}.png", f".removed-{'b' * 32}.png"
        for name in (orphan, deleted, ".x.png.abc.part", "notes.txt"):
            (folder / name).write_bytes(png())
        self.start(serve, tmp_path)
        assert {path.name for path in folder.iterdir()} == {".lock", "orphans", "notes.txt"}
        assert (folder / "orphans" / orphan).is_file()

    def test_items_without_a_file(self, writer, serve, own, tmp_path):
        gone, kept = add(writer, png()).json(), add(writer, png("blue")).json()
        words = add(writer, text="sunny sea").json()
        folder = own / "photos.dcmh" / "uploads"
        with SearchIndex.open(own / "photos.dcmh") as index:
            files = {number: index.path_of(index.item(number)) for number in (gone["id"], kept["id"])}
        files[gone["id"]].unlink()
        files[kept["id"]].rename(folder / f".removed-{files[kept['id']].name}")  # not yet committed
        client = self.start(serve, tmp_path)
        problem(client.get(f"/api/items/{gone['id']}"), 404, "no-such-item")
        assert client.get(f"/api/items/{kept['id']}/image").content == png("blue")
        assert client.get(f"/api/items/{words['id']}").status_code == 200

    def test_a_read_only_service_changes_nothing(self, serve, own):
        folder = own / "photos.dcmh" / "uploads"
        folder.mkdir()
        (folder / f"{'a' * 32}.png").write_bytes(png())
        serve()
        assert [path.name for path in folder.iterdir()] == [f"{'a' * 32}.png"]

    def test_a_failed_removal_keeps_the_picture(self, writer, own):
        number = add(writer, png()).json()["id"]
        with layout.writer(own / "photos.dcmh"):
            problem(writer.delete(f"/api/items/{number}"), 503, "busy")
        assert writer.get(f"/api/items/{number}/image").content == png()
