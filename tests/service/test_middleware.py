"""What every request passes: hosts, limits, headers, log; and that no trace of a mistake gets out."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from pathlib import Path

import pytest
from served import problem

from dcmh.errors import ModelError
from dcmh.service import logs, middleware, server
from dcmh.service.limits import BoundedPool, RateLimiter
from dcmh.service.problems import Problem
from dcmh.service.routes import page


class TestHeaders:
    @pytest.mark.parametrize(
        "path", ["/", "/docs", "/api/health", "/api/search", "/nowhere", "/api/items/1/thumbnail", "/metrics"]
    )
    def test_all_answers_have_them(self, client, path):
        headers = client.get(path).headers
        for name, value in middleware.HEADERS.items():
            if name != b"cache-control":
                assert headers[name.decode()] == value.decode()
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert len(headers["x-request-id"]) == 16

    def test_the_page_keeps_to_its_policy(self):
        for file in Path(page.FILES.directory).glob("*.html"):
            for inline in ("<style", " style=", " onclick="):
                assert inline not in file.read_text(encoding="utf-8")

    def test_long_queries_take_no_more_memory_than_their_answers(self, serve):
        client = serve()
        query = {"text": "sea", "label": ["sea", *["x" * 900] * 10]}
        answer = client.get("/api/search", params=query)
        assert answer.status_code == 200
        assert client.get("/api/search", params=query).content == answer.content
        assert max(map(len, client.app.state.service.answers._cache)) < 100

    def test_answers_are_not_stored_but_pictures_are(self, client):
        assert client.get("/api/search?text=sea").headers["cache-control"] == "no-store"
        assert client.get("/api/items/1/image").headers["cache-control"] == "private, no-cache"


def test_answers_are_sent_at_once():
    """Not when the client has acknowledged the headers, which takes 40 ms."""
    seen = []

    async def answer(reader, writer):
        seen.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def run():
        listener = server.listen("photos.dcmh", "127.0.0.1", 0)
        async with await asyncio.start_server(answer, sock=listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            await reader.read()
            writer.close()

    asyncio.run(run())
    assert seen == [1]


class TestHosts:
    """The server that a connection reached decides: a name that leads to loopback must be ours."""

    def ask(self, app, host, server):
        sent = []

        async def run():
            scope = {
                "type": "http",
                "method": "GET",
                "path": "/api/health",
                "query_string": b"",
                "headers": [(b"host", host.encode())],
                "server": server,
                "client": ("127.0.0.1", 1),
            }

            async def receive():
                return {"type": "http.request"}

            async def send(message):
                sent.append(message)

            await app(scope, receive, send)

        asyncio.run(run())
        return sent[0]["status"]

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000"])
    def test_names_of_loopback_are_ours(self, client, host):
        assert self.ask(client.app, host, ("127.0.0.1", 8000)) == 200

    @pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "localhost.x"])
    def test_other_names_are_not(self, client, host):
        assert self.ask(client.app, host, ("127.0.0.1", 8000)) == 421
        assert self.ask(client.app, host, ("::1", 8000)) == 421

    def test_an_address_of_the_network_takes_any_name_unless_some_are_given(self, client, serve):
        assert self.ask(client.app, "photos.example", ("192.168.1.5", 8000)) == 200
        app = serve(hosts=("photos.example",)).app
        assert self.ask(app, "photos.example", ("192.168.1.5", 8000)) == 200
        assert self.ask(app, "photos.example:443", ("127.0.0.1", 8000)) == 200
        assert self.ask(app, "evil.example", ("192.168.1.5", 8000)) == 421


def test_forms_of_other_sites_are_refused(client):
    for site in ("cross-site", "same-site"):  # the latter is another port of this host, or a neighbouring host name
        headers = {"Sec-Fetch-Site": site}
        problem(client.post("/api/reload", headers=headers), 403, "cross-site")
        problem(client.delete("/api/items/1", headers=headers), 403, "cross-site")
    assert client.get("/api/health", headers=headers).status_code == 200
    assert client.post("/api/reload", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


class TestRate:
    def test_a_bucket_empties_and_fills(self):
        now = [0.0]
        buckets = RateLimiter(10, clock=lambda: now[0])
        for _ in range(20):
            buckets.take("a")
        with pytest.raises(Problem) as caught:
            buckets.take("a")
        assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
        buckets.take("b")  # another client
        now[0] += 0.35
        for _ in range(3):
            buckets.take("a")
        with pytest.raises(Problem):
            buckets.take("a")
        now[0] += 100
        for _ in range(20):
            buckets.take("a")
        with pytest.raises(Problem):
            buckets.take("a")

    def test_what_costs_more_than_a_bucket_holds_takes_it_whole(self):
        now = [0.0]
        buckets = RateLimiter(1, clock=lambda: now[0])
        buckets.take("a", 10)
        with pytest.raises(Problem):
            buckets.take("a", 1)

    def test_clients_are_forgotten(self):
        buckets = RateLimiter(10)
        for number in range(11_000):
            buckets.take(str(number))
        assert len(buckets._buckets) == 10_000

    def test_zero_is_no_limit(self):
        buckets = RateLimiter(0)
        for _ in range(1000):
            buckets.take("a")

    def test_too_many_requests_are_told_when_to_come_back(self, serve):
        client = serve(rate=2)
        for _ in range(4):
            assert client.get("/api/info").status_code == 200
        answer = client.get("/api/info")
        problem(answer, 429, "too-many-requests")
        assert answer.headers["retry-after"] == "1"
        assert client.get("/api/health").status_code == 200  # whoever watches is not limited


def test_a_pool_refuses_what_is_too_much():
    async def run():
        pool = BoundedPool("test", 1, 2)
        gate = asyncio.Event()
        loop = asyncio.get_running_loop()
        held = [asyncio.create_task(pool.run(lambda: asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()))]
        held.append(asyncio.create_task(pool.run(lambda: 2)))
        await asyncio.sleep(0.05)
        with pytest.raises(Problem, match="overloaded"):
            await pool.run(lambda: 3)
        gate.set()
        assert await asyncio.gather(*held) == [True, 2]
        await asyncio.sleep(0.01)
        assert pool.pending == 0
        assert await pool.run(lambda: 4) == 4
        pool.close()

    asyncio.run(run())


class TestMistakes:
    @pytest.mark.parametrize("error", [RuntimeError("secret detail"), ModelError("/secret/path is damaged. Copy it.")])
    def test_no_detail_reaches_the_caller_but_the_log_has_it(self, serve, monkeypatch, caplog, error):
        def fail(*arguments, **more):
            raise error

        client = serve()
        monkeypatch.setattr("dcmh.search.SearchIndex.search", fail)
        monkeypatch.setattr(logs.events, "propagate", True)
        with caplog.at_level(logging.ERROR, "dcmh.service"):
            answer = client.get("/api/search?text=sea")
        said = problem(answer, 500, "bug")
        assert "secret" not in answer.text
        assert said["request"] == answer.headers["x-request-id"]
        assert said["request"] in caplog.text
        assert "secret" in caplog.text

    def test_other_addresses_and_methods(self, client):
        problem(client.get("/api/nothing"), 404, "not-found")
        problem(client.get("/api/search/"), 404, "not-found")
        for method in ("PUT", "PATCH", "DELETE", "OPTIONS"):
            answer = client.request(method, "/api/search")
            problem(answer, 405, "method-not-allowed")
            assert "GET" in answer.headers["allow"]


class TestLog:
    @pytest.fixture
    def lines(self, tmp_path):
        logs.configure(str(tmp_path / "access.log"))
        yield lambda: [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
        logs.configure(None)

    def test_a_line_for_each_request_without_secrets(self, serve, lines):
        client = serve()
        headers = {"Authorization": "Bearer hush-hush", "Cookie": "hush=hush"}
        answer = client.get("/api/search?text=hush&k=3", headers=headers)
        client.get("/api/items/3", headers=headers)
        client.delete("/api/items/3", headers=headers)
        first, second, third = lines()
        assert set(first) == {"time", "request", "client", "method", "path", "route", "status", "ms", "bytes"}
        assert (first["method"], first["path"], first["status"]) == ("GET", "/api/search", 200)
        assert first["request"] == answer.headers["x-request-id"]
        assert first["bytes"] == len(answer.content)
        assert (second["route"], second["path"]) == ("/api/items/{id}", "/api/items/3")
        assert third["status"] == 403
        assert "hush" not in json.dumps([first, second, third])

    def test_a_path_cannot_forge_a_line(self, serve, lines):
        serve().get("/x%0a%7b%22status%22:200%7d" + "y" * 1000)
        (line,) = lines()
        assert line["path"].startswith("/x\n{")
        assert len(line["path"]) == logs.MAX_PATH
