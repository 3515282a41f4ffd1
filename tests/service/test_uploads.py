"""What callers send is bounded while it arrives, and looked at before it is decoded."""

from __future__ import annotations

import io
import time

import malformed
import pytest
from malformed import MULTIPART, form, grey_16_bits, hostile_files, many_scans, picture, png_of
from served import problem

from dcmh.inputs.sandbox import Sandbox
from dcmh.service import Settings, uploads
from dcmh.service.problems import Problem


@pytest.mark.parametrize("name", hostile_files())
def test_hostile_files_are_refused(client, name):
    answer = client.post("/api/search", files={"image": hostile_files()[name]})
    if name == "fewer rows than said":  # Pillow takes it: the other rows are black
        assert answer.status_code == 200
        return
    assert answer.status_code in (413, 415, 422)
    said = problem(answer, answer.status_code, answer.json()["type"])
    assert said["type"] in ("not-a-picture", "too-large", "damaged-picture")


@pytest.mark.parametrize("name", ["svg", "pdf", "postscript", "html", "zip", "icon", "portable", "empty", "text"])
def test_other_kinds_of_files_are_no_pictures(client, name):
    said = problem(client.post("/api/search", files={"image": hostile_files()[name]}), 415, "not-a-picture")
    assert "JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF and HEIC" in said["hint"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF"])
def test_the_kinds_that_are_taken(client, kind):
    assert client.post("/api/search", files={"image": ("x.bin", picture(kind), "text/html")}).status_code == 200


def test_a_picture_with_something_behind_it_is_only_a_picture(client):
    data = picture("GIF") + b"<script>alert(1)</script>"
    assert client.post("/api/search", files={"image": data}).status_code == 200


class TestBounds:
    def test_pixels(self):
        settings = Settings(megapixels=1)
        sandbox = Sandbox(1, 10, 500)
        with sandbox.open(png_of(1000, 1000)) as accepted:
            assert uploads.inspect_image(accepted, settings) == ("PNG", 10**6)
        for width, height in ((1001, 1000), (100_000, 100_000), (2**31 - 1, 1)):
            with (
                sandbox.open(png_of(width, height)) as large,
                pytest.raises(Problem, match="too many pixels") as caught,
            ):
                uploads.inspect_image(large, settings)
            assert caught.value.status == 413
        sandbox.close()

    @pytest.mark.parametrize("path", ["/api/search", "/api/encode", "/api/items"])
    def test_time_and_memory_of_decoding(self, writer, path):
        """A picture that takes too long ends the process that decodes it, not the service."""
        service = writer.app.state.service
        scans = many_scans(100)
        assert "scans" in problem(writer.post(path, files={"image": scans}), 422, "damaged-picture")["title"]
        large = grey_16_bits(3000, 3000)
        for sandbox, reason in ((Sandbox(1, 0.02, 1000), "longer than"), (Sandbox(1, 30, 30), "more than 30 MB")):
            sandbox.start()
            service.sandbox, before = sandbox, service.sandbox
            assert reason in problem(writer.post(path, files={"image": large}), 422, "damaged-picture")["title"]
            sandbox.close()
            service.sandbox = before
        assert writer.post("/api/search", files={"image": large}).status_code == 200

    def test_thumbnails_are_made_within_the_same_limits(self, writer):
        item = writer.post("/api/items", files={"image": grey_16_bits(2000, 2000)}).json()
        service = writer.app.state.service
        service.preview_sandbox = Sandbox(1, 0.005, 1000)
        service.preview_sandbox.start()
        problem(writer.get(item["thumbnail"]), 404, "no-picture")
        service.preview_sandbox.seconds = 10
        assert writer.get(item["thumbnail"]).status_code == 200

    def test_bytes_of_a_picture(self, serve):
        client = serve(upload_bytes=10_000)
        said = problem(client.post("/api/search", files={"image": picture("BMP", (100, 100))}), 413, "too-large")
        assert said["title"] == "The upload is larger than 0.01 MB."
        assert client.post("/api/search", files={"image": picture("PNG", (20, 20))}).status_code == 200

    def test_a_length_that_is_said_is_refused_before_the_body(self, client):
        answer = client.post("/api/search", headers={"Content-Length": "99000000", "Content-Type": MULTIPART})
        problem(answer, 413, "too-large")

    def test_a_body_without_length_is_read_no_further_than_the_limit(self, serve):
        client = serve(upload_bytes=100_000)
        read = []

        def body():
            yield form(b"")[:-60]
            for number in range(1000):
                read.append(number)
                yield bytes(100_000)

        headers = {"Content-Type": MULTIPART}
        problem(client.post("/api/search", content=body(), headers=headers), 413, "too-large")

    def test_many_or_large_fields(self, client):
        parts = [(f"f{n}", (None, "x")) for n in range(100)]
        problem(client.post("/api/search", files=parts), 400, "bad-request")
        problem(client.post("/api/search", files={"text": (None, "x" * 100_000)}), 400, "bad-request")
        two = [("image", ("a", picture("PNG"))), ("image", ("b", picture("PNG")))]
        problem(client.post("/api/search", files=two), 400, "bad-request")

    def test_slowness(self, serve, monkeypatch):
        async def never(*arguments, **more):
            import asyncio

            await asyncio.sleep(60)

        monkeypatch.setattr("starlette.requests.Request._get_form", never)
        client = serve(upload_seconds=0.05)
        problem(client.post("/api/search", files={"image": picture("PNG")}), 408, "too-slow")

    def test_how_many_may_wait(self, serve):
        client = serve(waiting=1)
        service = client.app.state.service
        with service.pictures.slot():
            answer = client.post("/api/search", files={"image": picture("PNG")})
            problem(answer, 503, "busy")
            assert answer.headers["retry-after"] == "1"
        assert client.post("/api/search", files={"image": picture("PNG")}).status_code == 200
        assert service.pictures.pending == 0


class TestForms:
    @pytest.mark.parametrize("path", ["/api/search", "/api/encode"])
    def test_a_form_without_picture(self, client, path):
        for files in ({"picture": picture("PNG")}, {"image": (None, "words")}, {"other": (None, "x")}):
            problem(client.post(path, files=files), 422, "bad-parameter")

    def test_no_form(self, client):
        for kind in ("image/png", "application/json", "application/x-www-form-urlencoded"):
            answer = client.post("/api/search", content=picture("PNG"), headers={"Content-Type": kind})
            problem(answer, 415, "not-a-form")
        problem(client.post("/api/search"), 415, "not-a-form")

    def test_a_broken_form(self, client):
        whole = form(picture("PNG"))
        for body, kind in ((whole, "multipart/form-data"), (b"nonsense", MULTIPART), (whole, f"{MULTIPART}x")):
            problem(client.post("/api/search", content=body, headers={"Content-Type": kind}), 400, "bad-request")

    def test_names_of_files_do_not_matter(self, client):
        for name in ("../../etc/passwd", "a.svg", "x" * 1000):
            assert client.post("/api/search", files={"image": (name, picture("PNG"))}).status_code == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Starlette lets go of half a file
def test_malformed_requests_are_never_a_mistake_of_the_server(client):
    """A small part of what benchmarks/service.py sends."""
    seen = set()
    for sent in malformed.requests(250, seed=1):
        answer = client.request(sent.method, sent.target, content=sent.body, headers=sent.headers)
        assert answer.status_code < 500, (sent, answer.text)
        seen.add(answer.status_code)
        if answer.status_code >= 400 and sent.method != "HEAD":
            assert answer.headers["content-type"] == "application/problem+json"
    assert {400, 404, 405, 413, 415, 422} <= seen


def test_the_image_network_is_loaded_at_the_first_picture_or_in_the_background(serve):
    def is_loaded():
        with client.app.state.service.holder.use() as opened:
            return opened.has_image_network

    client = serve()
    client.get("/api/search?text=sea")
    assert not is_loaded()
    assert client.post("/api/search", files={"image": picture("PNG")}).status_code == 200
    assert is_loaded()
    client = serve(preload=True)
    for _ in range(1000):
        if is_loaded():
            break
        time.sleep(0.02)
    assert is_loaded()


def test_bytes_of_a_form_do_not_stay(client):
    """A spooled upload is closed when it was read."""
    data = picture("BMP", (900, 900))
    assert len(data) > 2_000_000
    assert client.post("/api/search", files={"image": io.BytesIO(data)}).status_code == 200
