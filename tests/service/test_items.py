"""One item: what it is, its picture and its thumbnail; never anything that lies elsewhere."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
from PIL import Image
from served import problem

from dcmh.search import SearchIndex
from dcmh.search.overview import Overview
from dcmh.service import schemas


def test_an_item_is_described(client, index):
    client.get("/api/overview")  # made in the background: waits for it
    answer = client.get("/api/items/3")
    schemas.Item.model_validate_json(answer.content)
    item = index.item(3)
    assert answer.json() == {
        "id": 3,
        "name": "002.png",
        "folder": "",
        "file": "002.png",
        "text": item.text,
        "labels": list(item.labels),
        "bytes": (index.root / "002.png").stat().st_size,
        "found_by": Overview(index).words_for(index, 3),
        "taken": item.taken.isoformat(),
        "extra": {},
        "bits": 16,
        "codes": {name: code.hex() for name, code in index.codes_of(3).items()},
        "image": "/api/items/3/image",
        "thumbnail": "/api/items/3/thumbnail",
        "similar": "/api/items/3/similar",
    }


@pytest.mark.parametrize("path", ["", "/image", "/thumbnail", "/similar"])
@pytest.mark.parametrize(
    ("number", "status", "kind"),
    [("4711", 404, "no-such-item"), ("0", 422, "bad-parameter"), ("x", 422, "bad-parameter"), (str(2**63), 422, None)],
)
def test_no_such_item(client, path, number, status, kind):
    problem(client.get(f"/api/items/{number}{path}"), status, kind or "bad-parameter")


class TestImage:
    def test_it_is_the_file(self, client, index):
        answer = client.get("/api/items/3/image")
        assert answer.content == (index.root / "002.png").read_bytes()
        assert answer.headers["content-type"] == "image/png"
        assert answer.headers["cache-control"] == "private, no-cache"

    @pytest.mark.parametrize("said", ["bytes=0-9", "bytes=99999999-", "nonsense"])
    def test_it_is_sent_whole(self, client, index, said):
        answer = client.get("/api/items/3/image", headers={"Range": said})
        assert (answer.status_code, answer.headers["accept-ranges"]) == (200, "none")
        assert answer.content == (index.root / "002.png").read_bytes()

    @pytest.mark.parametrize("path", ["image", "thumbnail"])
    def test_who_has_it_gets_304(self, client, path):
        first = client.get(f"/api/items/3/{path}")
        for said in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
            again = client.get(f"/api/items/3/{path}", headers={"If-None-Match": said})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert client.get(f"/api/items/3/{path}", headers={"If-None-Match": '"other"'}).status_code == 200

    def test_a_changed_file_has_another_tag(self, serve, own):
        client = serve()
        before = client.get("/api/items/3/thumbnail").headers["etag"]
        Image.new("RGB", (50, 40), "red").save(own / "photos" / "002.png")
        after = client.get("/api/items/3/thumbnail", headers={"If-None-Match": before})
        assert (after.status_code, Image.open(io.BytesIO(after.content)).size) == (200, (50, 40))


class TestThumbnail:
    def test_the_longer_side_is_as_asked(self, serve, own):
        Image.new("RGB", (400, 100), "red").save(own / "photos" / "002.png")
        client = serve()
        for size in (16, 100, 256):
            answer = client.get(f"/api/items/3/thumbnail?size={size}")
            picture = Image.open(io.BytesIO(answer.content))
            assert (answer.headers["content-type"], picture.format) == ("image/jpeg", "JPEG")
            assert picture.size == (size, size // 4)

    def test_a_small_picture_does_not_grow(self, client, index):
        with Image.open(index.root / "002.png") as picture:
            size = picture.size
        assert Image.open(io.BytesIO(client.get("/api/items/3/thumbnail?size=1024").content)).size == size

    def test_it_is_turned_as_the_photo_says_and_keeps_nothing_else(self, serve, own):
        pixels = np.zeros((40, 80, 3), np.uint8)
        pixels[:, :40] = 255  # the left half is white
        exif = Image.Exif()
        exif[0x0112] = 6  # a quarter turn clockwise: left is up
        exif[0x010E] = "taken at home"
        picture = Image.fromarray(pixels)
        picture.save(own / "photos" / "002.png", "JPEG", exif=exif, comment=b"a secret", quality=95)
        answer = serve().get("/api/items/3/thumbnail?size=40")
        turned = Image.open(io.BytesIO(answer.content))
        assert turned.size == (20, 40)
        assert np.asarray(turned)[5, 10].min() > 200
        assert np.asarray(turned)[35, 10].max() < 50
        assert b"secret" not in answer.content
        assert b"home" not in answer.content

    def test_transparency_is_laid_on_white(self, serve, own):
        Image.new("RGBA", (40, 40), (255, 0, 0, 0)).save(own / "photos" / "002.png")
        seen = Image.open(io.BytesIO(serve().get("/api/items/3/thumbnail").content))
        assert np.asarray(seen).min() > 250

    @pytest.mark.parametrize("size", ["0", "15", "1025", "x"])
    def test_other_sizes_are_problems(self, client, size):
        problem(client.get(f"/api/items/3/thumbnail?size={size}"), 422, "bad-parameter")

    def test_it_is_made_once(self, serve, monkeypatch):
        client = serve()
        first = client.get("/api/items/3/thumbnail").content
        monkeypatch.setattr("dcmh.inputs.images.thumbnail", None)
        assert client.get("/api/items/3/thumbnail").content == first

    def test_the_kept_ones_are_bounded(self, serve):
        client = serve(thumbnail_bytes=3000)
        sizes = [len(client.get(f"/api/items/{number}/thumbnail").content) for number in range(1, 20)]
        assert sum(sizes) > 3000
        assert 0 < client.app.state.service.thumbnails.bytes <= 3000


class TestWhatIsNotServed:
    """The catalogue may say anything: only pictures in the data's folder or among the uploads are sent."""

    def outside(self, own, path):
        with SearchIndex.open(own / "photos.dcmh") as index, index.store.writing():
            index.store._run("UPDATE items SET path = ? WHERE id = 3", (str(path),))

    @pytest.mark.parametrize("kind", ["image", "thumbnail"])
    def test_a_path_outside(self, serve, own, kind):
        secret = own / "secret.png"
        Image.new("RGB", (9, 9)).save(secret)
        for path in (secret, "../secret.png", f"{own}/photos/../secret.png"):
            self.outside(own, path)
            problem(serve().get(f"/api/items/3/{kind}"), 404, "no-picture")

    @pytest.mark.parametrize("kind", ["image", "thumbnail"])
    def test_a_link_that_leads_outside(self, serve, own, kind):
        Image.new("RGB", (9, 9)).save(own / "secret.png")
        (own / "photos" / "002.png").unlink()
        (own / "photos" / "002.png").symlink_to(own / "secret.png")
        said = problem(serve().get(f"/api/items/3/{kind}"), 404, "no-picture")
        assert "secret" not in str(said)

    @pytest.mark.parametrize("kind", ["image", "thumbnail"])
    @pytest.mark.parametrize("become", ["gone", "text", "html", "folder", "pipe", "loop"])
    def test_a_file_that_is_no_picture(self, serve, own, kind, become):
        path = own / "photos" / "002.png"
        path.unlink()
        if become == "folder":
            path.mkdir()
        elif become == "pipe":
            os.mkfifo(path)
        elif become == "loop":
            path.symlink_to(path)
        elif become != "gone":
            path.write_text("<script>alert(1)</script>" if become == "html" else "words")
        problem(serve().get(f"/api/items/3/{kind}"), 404, "no-picture")

    def test_a_damaged_picture_has_no_thumbnail(self, serve, own):
        path = own / "photos" / "002.png"
        path.write_bytes(path.read_bytes()[:200])
        problem(serve().get("/api/items/3/thumbnail"), 404, "no-picture")

    def test_an_item_without_picture(self, writer):
        number = writer.post("/api/items", files={"text": (None, "sunny sea")}).json()["id"]
        item = writer.get(f"/api/items/{number}").json()
        assert (item["image"], item["thumbnail"]) == (None, None)
        problem(writer.get(f"/api/items/{number}/image"), 404, "no-picture")
