"""dcmh serve as its own process: starts, answers, follows signals, keeps what it accepted."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from commands import SRC, finish, spawn
from PIL import Image

from dcmh.cli import main
from dcmh.search import SearchIndex
from dcmh.service import server as serving
from toy_photos import write_photos

TOKEN = "a-token-of-sufficient-length"


class Server:
    """A running server, asked over real connections."""

    def __init__(self, index: Path, *options: object, stderr: int = subprocess.PIPE) -> None:
        arguments = ("serve", index, "--port", 0, "--json", "--lazy", *options)
        self.process = spawn(*arguments, cwd=index.parent, stderr=stderr)
        said = self.process.stdout.readline()
        assert said, self.process.communicate()[1]
        self.said = json.loads(said)
        self.port = int(self.said["address"].rpartition(":")[2])

    def ask(self, method, path, body=None, **headers):
        """Status and body of an answer, over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path):
        status, body = self.ask("GET", path)
        assert status == 200, body
        return json.loads(body)

    def post(self, path, picture=None, **fields):
        parts = [f'name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
        if picture is not None:
            parts.append(b'name="image"; filename="a.png"\r\n\r\n' + picture)
        whole = b"".join(b"--limit\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts)
        headers = {"Content-Type": "multipart/form-data; boundary=limit", "Authorization": f"Bearer {TOKEN}"}
        return self.ask("POST", path, whole + b"--limit--\r\n", **headers)

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return finish(self.process)


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), (number % 256, number // 256 % 256, 77)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session")
def built(toy_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    photos = write_photos(folder / "photos")
    assert main(["index", str(photos), "--model", str(toy_model), "--out", str(folder / "photos.dcmh")]) == 0
    return folder


@pytest.fixture
def index(built, tmp_path):
    shutil.copytree(built, tmp_path / "own")
    return tmp_path / "own" / "photos.dcmh"


@pytest.fixture
def start(index, tmp_path):
    running = []
    (tmp_path / "token").write_text(TOKEN)

    def run(*options: object, **streams: int) -> Server:
        running.append(Server(index, *options, **streams))
        return running[-1]

    yield run
    for server in running:
        if server.process.poll() is None:
            server.process.kill()  # its workers end by themselves
            server.process.communicate()


def test_it_answers_words_without_torch_and_ends_in_order(start, index):
    server = start()
    assert server.said == {
        "index": str(index),
        "items": 40,
        "address": f"http://127.0.0.1:{server.port}",
        "process": server.process.pid,
    }
    assert len(server.get("/api/search?text=sunny&k=3")["hits"]) == 3
    assert server.ask("GET", "/api/items/1/thumbnail")[0] == 200
    assert "libtorch" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    assert server.ask("GET", "/api/health", Host="evil.example")[0] == 421
    answer = server.stop()
    assert (answer.code, answer.last) == (0, "Stopped.")
    lines = [json.loads(line) for line in answer.err.splitlines()[:-1]]
    assert [line["status"] for line in lines] == [200, 200, 421]
    assert "sunny" not in answer.err


@pytest.mark.parametrize(("options", "is_logged"), [((), False), (("--log", "-"), True)])
def test_a_terminal_shows_the_access_log_only_if_asked(start, options, is_logged):
    controller, terminal = os.openpty()
    try:
        server = start(*options, stderr=terminal)
        server.get("/api/health")
        server.stop()
        os.set_blocking(controller, False)
        said = os.read(controller, 100_000).decode().splitlines()
    finally:
        os.close(controller)
        os.close(terminal)
    assert said[-1] == "Stopped."
    assert ["/api/health" in line for line in said[:-1]] == [True] * is_logged


def test_ctrl_c_is_the_usual_end(start):
    server = start("--log", "none")
    server.get("/api/health")
    answer = server.stop(signal.SIGINT)
    assert (answer.code, answer.err) == (0, "Stopped.\n")


def test_what_has_begun_is_finished(start):
    server = start()
    found = []
    asking = threading.Thread(target=lambda: found.append(server.post("/api/search?k=1", png(1))))
    asking.start()  # loads the image network first, which takes a second or more
    time.sleep(0.5)
    answer = server.stop()
    asking.join()
    assert [status for status, _ in found] == [200]
    assert answer.code == 0


def test_a_hangup_takes_in_changes(start, index):
    server = start()
    with SearchIndex.open(index) as other:
        other.add(text=["sunny sea"], ids=["new"])
    server.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 10
    while server.get("/api/info")["items"] != 41 and time.monotonic() < end:
        time.sleep(0.05)
    assert server.get("/api/info")["items"] == 41
    assert server.stop().code == 0


def test_health_answers_while_pictures_are_encoded(start):
    server = start("--log", "none")
    server.post("/api/search", png(0))
    statuses, times = [], []
    uploads = [
        threading.Thread(target=lambda number=number: statuses.append(server.post("/api/search", png(number))[0]))
        for number in range(16)
    ]
    for thread in uploads:
        thread.start()
    while any(thread.is_alive() for thread in uploads):
        began = time.perf_counter()
        server.get("/api/health")
        times.append(time.perf_counter() - began)
        time.sleep(0.01)
    assert statuses == [200] * 16
    assert max(times) < 0.5  # benchmarks/service.py holds it to 0.1 on a quiet machine


def test_several_workers_share_the_work_and_the_counters(start, tmp_path):
    server = start("--workers", 2, "--token-file", tmp_path / "token")
    for _ in range(30):
        assert len(server.get("/api/search?text=sunny&k=3")["hits"]) == 3
    status, body = server.post("/api/items", text="sunny sea")
    assert status == 201
    number = json.loads(body)["id"]
    assert {server.get(f"/api/items/{number}")["id"] for _ in range(10)} == {number}
    end = time.monotonic() + 10
    while time.monotonic() < end:  # each worker looks for changes once a second
        if all(server.get("/api/info")["items"] == 41 for _ in range(10)):
            break
        time.sleep(0.1)
    else:
        pytest.fail("a worker does not see the new item")
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    assert len(children) >= 2
    counted = server.ask("GET", "/metrics")[1].decode()
    assert 'dcmh_requests_total{method="POST",route="/api/items",status="201"} 1.0' in counted
    found = [
        line for line in counted.splitlines() if line.startswith('dcmh_requests_total{method="GET",route="/api/search"')
    ]
    assert [float(line.split()[-1]) for line in found] == [30]
    assert server.stop().code == 0
    end = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_workers_end_with_their_parent(start):
    server = start("--workers", 2, "--log", "none")
    server.get("/api/health")
    server.process.kill()
    server.process.communicate(timeout=30)  # the workers hold the same pipes
    with pytest.raises(ConnectionRefusedError):
        server.get("/api/health")


def test_no_accepted_write_is_lost_when_the_server_is_killed(start, index, tmp_path):
    accepted: dict[int, int | None] = {}
    for turn in range(3):
        server = start("--token-file", tmp_path / "token", "--log", "none")
        pictures = turn == 2
        if pictures:
            server.post("/api/search", png(0))

        def write(server=server, turn=turn, pictures=pictures):
            for number in range(turn * 1000, turn * 1000 + 1000):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    status, body = server.post("/api/items", png(number) if pictures else None, text=f"sunny {number}")
                    if status == 201:
                        accepted[json.loads(body)["id"]] = number if pictures else None
                        continue
                return

        writer = threading.Thread(target=write)
        writer.start()
        time.sleep(0.7 + 0.1 * turn)
        server.process.kill()
        server.process.communicate()
        writer.join()
    assert accepted
    assert any(number is not None for number in accepted.values())
    with SearchIndex.open(index) as opened:
        assert len(opened) >= 40 + len(accepted)
        for item, number in accepted.items():
            found = opened.item(item)
            assert opened.codes_of(item)
            if number is not None:
                assert opened.path_of(found).read_bytes() == png(number)
            assert opened.similar(item, k=1)


def test_uvicorn_can_run_it_by_name(index):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(SRC), "DCMH_INDEX": str(index)}
    program = [sys.executable, "-m", "uvicorn", "--factory", "dcmh.service:app", "--port", str(port)]
    process = subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                connection.request("GET", "/api/info")
                assert json.loads(connection.getresponse().read())["items"] == 40
                connection.close()
                break
            time.sleep(0.1)
        else:
            pytest.fail("it does not answer")
    finally:
        process.terminate()
        process.wait()


class TestSentences:
    def test_a_port_in_use(self, cli, index):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            answer = cli("serve", index, "--port", port)
        assert answer.code == 1
        said, _, suggested = answer.err.strip().rpartition(" ")
        assert said == f"Port {port} is in use. Try: dcmh serve {index} --port"
        assert int(suggested) > port

    @pytest.mark.parametrize("missing", ["uvicorn", "fastapi"])
    def test_a_missing_extra(self, index, tmp_path, missing):
        program = (
            f"import sys; sys.modules[{missing!r}] = None; from dcmh.cli import main; sys.exit(main(sys.argv[1:]))"
        )
        answer = finish(spawn("serve", index, "--port", 0, cwd=tmp_path, program=("-c", program)))
        assert (answer.code, answer.err) == (1, 'dcmh serve needs FastAPI. Install: pip install "dcmh[serve]"\n')

    def test_no_index(self, cli, tmp_path):
        answer = cli("serve", tmp_path / "none.dcmh", "--port", 0)
        assert answer.code == 1
        assert answer.err.startswith("There is no index ")

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--port", 0, "--workers", 0), "--workers must be at least 1"),
            (("--port", 0, "--rate", -1), "rate must be at least 0"),
            (("--port", 70000), "--port must be 0 to 65535"),
            (("--port", 0, "--host", "300.1.1.1"), "Cannot listen at 300.1.1.1"),
            (("--port", 0, "--token-file", "none"), "Cannot read the token file"),
        ],
    )
    def test_wrong_options(self, cli, index, options, said):
        answer = cli("serve", index, *options)
        assert answer.code == 1
        assert said in answer.err

    @pytest.mark.parametrize("host", ["127.0.0.1", "photos.example"])
    def test_where_it_listens_and_who_can_see_it(self, cli, index, monkeypatch, host):
        """Listens on this machine whatever the host; the server itself does not run."""
        monkeypatch.setattr(
            serving, "listen", lambda index, host, port, listen=serving.listen: listen(index, "127.0.0.1", 0)
        )
        monkeypatch.setattr(serving, "prepare", lambda *arguments: serving.Ready(40, lambda listener: None))
        answer = cli("serve", index, "--host", host)
        first, *warned, last = answer.err.splitlines()
        assert re.fullmatch(rf"{re.escape(str(index))}: 40 items · http://{host}:\d+  \(Ctrl-C to stop\)", first)
        assert bool(warned) is (host != "127.0.0.1")
        assert (answer.code, last) == (0, "Stopped.")
