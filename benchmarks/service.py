"""Speed and robustness of `dcmh serve`, queried from a second process.

    python benchmarks/service.py                         # all parts, about five minutes
    python benchmarks/service.py --only load --seconds 5
    python benchmarks/service.py --items 10000 --kills 3 --malformed 200
    python benchmarks/service.py --only load --attack    # 64 clients for 60 seconds, with and without an attacker
    python benchmarks/service.py --only search --only load --no-captions  # photos alone

Parts: start (time to the first answer), search (CPU time of word queries in one process, without the service), load (word
queries of 16 clients: three random words each, nearly all asked once, with the server's CPU time; 500 queries that repeat; and
2,300 common words by Zipf's law, for a minute from an empty cache; beside them a bare FastAPI endpoint that returns an answer of
the same size), health (while 32 pictures are uploaded), malformed
(damaged files and broken requests), kills (kill -9 while items are added). With --attack also: load of 64 clients, alone and
beside a third process that holds half-open connections and uploads one byte at a time. Prints Markdown and writes
results/service.json and results/service.md beside this file (--out for another folder).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import numpy as np

import dcmh
from dcmh.index import scan
from dcmh.search import SearchIndex
from dcmh.stores.base import Item
from dcmh.stores.local import layout
from dcmh.util.blas import one_blas_thread
from dcmh.util.text import common_words

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "service"))
import malformed

PARTS = ("start", "search", "load", "health", "malformed", "kills")
CLIENTS = 16
ZIPF_SECONDS = 60.0
PICTURES = 32
TOKEN = "benchmark-token-of-some-length"
Row = tuple[str, str, str]  # what, measured, goal


# -- what is served ---------------------------------------------------------------------------------------------------


def make_index(folder: Path, items: int, *, captions: bool = True) -> Path:
    """An index with a model of the usual size; how good it is does not matter here, so its codes are made up."""
    names = ("image", "text") if captions else ("image",)
    model = folder / "model"
    toy = dcmh.load_dataset("toy")
    dcmh.DCMH(bits=64, epochs=1, device="cpu").fit(toy).save(model)
    index = folder / "items.dcmh"
    data = dcmh.Dataset({name: toy[name] for name in names}, ids=toy.ids).take(np.arange(8))
    SearchIndex.build(model, data, index, device="cpu").close()
    chance = np.random.default_rng(0)
    words = np.array(words_of(index))
    codes = chance.integers(0, 256, (items, len(names), 8), np.uint8)
    with SearchIndex.open(index) as opened:
        assert opened.encoders.fine is not None
        width = opened.encoders.fine.dimensions
        for start in range(0, items, 20_000):
            with opened.store.writing():
                for row in range(start, min(start + 20_000, items)):
                    text, labels = (" ".join(chance.choice(words, 6)), ("one", "two")) if captions else (None, ())
                    number = opened.store.put(Item(f"{row:06}.jpg", f"{row:06}.jpg", text, labels))
                    for modality, code in zip(names, codes[row], strict=True):
                        opened.store.set_code(number, modality, code.tobytes())
                        vector = np.clip(np.rint(chance.normal(0, 30, width)), -127, 127).astype(np.int8)
                        opened.store.set_fine(number, modality, vector.tobytes())
        opened.refresh()
        opened.save()
    return index


def words_of(index: Path) -> list[str]:
    lines = (index / layout.MODEL / "text.vocabulary.txt").read_text(encoding="utf-8").splitlines()[1:]
    return [line.partition("\t")[0] for line in lines]


class Server:
    """A running `dcmh serve`."""

    def __init__(self, index: Path, *options: str) -> None:
        command = [sys.executable, "-m", "dcmh", "serve", str(index), "--port", "0", "--json", "--rate", "0", "--lazy"]
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [*command, "--log", os.devnull, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = str(json.loads(self.process.stdout.readline())["address"])
        self.port = int(self.address.rpartition(":")[2])

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.address + path, timeout=60) as answer:
            return bytes(answer.read())

    def post(self, path: str, picture: bytes) -> bytes:
        headers = {"Content-Type": malformed.MULTIPART}
        request = urllib.request.Request(self.address + path, malformed.form(picture), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bytes(answer.read())

    def megabytes(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1000
        return float("nan")

    def cpu(self) -> float:
        """Seconds of CPU time that the server's own process has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def settle(self) -> None:
        """Wait until the server has nothing to do: after its start it prepares some things in the background."""
        before = self.cpu()
        for _ in range(60):
            time.sleep(0.5)
            if (now := self.cpu()) - before < 0.02:
                return
            before = now

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode


@contextlib.contextmanager
def serving(index: Path, *options: str) -> Iterator[Server]:
    server = Server(index, *options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


# -- the second process -----------------------------------------------------------------------------------------------


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, bytes]:
    """Send a request over a connection that stays; the answer's status and body."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return status, await reader.readexactly(length)


async def load(
    port: int, targets: list[str], seconds: float, clients: int, seed: int = 0, by_rank: bool = False
) -> dict[str, Any]:
    """Clients that ask again as soon as they have an answer. `targets` that begin with no / are words to ask for at random.

    With `by_rank`, the first target is asked for twice as often as the second, three times as often as the third, and so on.
    """
    weights = list(itertools.accumulate(1 / (rank + 1 if by_rank else 1) for rank in range(len(targets))))
    times: list[float] = []
    statuses: Counter[int] = Counter()
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        chance = random.Random(1000 * seed + number)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            target = chance.choices(targets, cum_weights=weights)[0]
            if not target.startswith("/"):
                target = f"/api/search?text={quote_plus(' '.join(chance.sample(targets, 3)))}&k=20"
            request = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
            began = time.perf_counter()
            status, _ = await ask(reader, writer, request)
            times.append(time.perf_counter() - began)
            statuses[status] += 1
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return {"times": times, "seconds": time.perf_counter() - began, "statuses": dict(statuses)}


async def health(port: int, pictures: list[str]) -> dict[str, Any]:
    """How long the health endpoint takes while all pictures are uploaded at once."""
    host = f"127.0.0.1:{port}"
    times: list[float] = []
    waiting = len(pictures)

    async def upload(path: str) -> int:
        nonlocal waiting
        body = malformed.form(Path(path).read_bytes())
        request = malformed.Sent("POST", "/api/search?k=20", body, {"Content-Type": malformed.MULTIPART}).raw(host)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return (await ask(reader, writer, request))[0]
        finally:
            waiting -= 1
            writer.close()

    async def watch() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while waiting:
            began = time.perf_counter()
            await ask(reader, writer, f"GET /api/health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            times.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)
        writer.close()

    began = time.perf_counter()
    *statuses, _ = await asyncio.gather(*(upload(path) for path in pictures), watch())
    return {"times": times, "seconds": time.perf_counter() - began, "statuses": dict(Counter(statuses))}


async def attack(port: int, half_open: int, uploads: int, stop: str) -> dict[str, Any]:
    """Hold connections without a request, and uploads of one byte at a time, until a file exists. Closed ones are reopened."""
    counts: Counter[str] = Counter()
    head = f"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {malformed.MULTIPART}\r\n"
    slow = (head + "Content-Length: 1000000\r\n\r\n").encode() + malformed.form(b"")[:-60]

    async def hold(first: bytes, name: str) -> None:
        while not Path(stop).exists():
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                counts[name] += 1
                writer.write(first)
                closed = asyncio.create_task(reader.read())
                while not closed.done() and not Path(stop).exists():
                    await asyncio.wait([closed], timeout=0.5)
                    if first:
                        writer.write(b"x")
                closed.cancel()
                writer.close()
            await asyncio.sleep(0.2)

    await asyncio.gather(
        *(hold(b"", "half-open connections") for _ in range(half_open)),
        *(hold(slow, "slow uploads") for _ in range(uploads)),
    )
    return dict(counts)


async def send_malformed(port: int, count: int) -> dict[str, Any]:
    """Requests that are wrong, eight at a time; a connection that is closed without an answer counts as 0."""
    host = f"127.0.0.1:{port}"
    statuses: Counter[int] = Counter()
    gate = asyncio.Semaphore(8)

    async def one(sent: malformed.Sent) -> None:
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            status = 0
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                writer.write(sent.raw(host))
                status = int((await asyncio.wait_for(reader.readline(), 60))[9:12])
                await reader.read()
            statuses[status] += 1
            writer.close()

    await asyncio.gather(*(one(sent) for sent in malformed.requests(count)))
    return {"statuses": dict(statuses)}


async def write(port: int, seed: int, record: str) -> dict[str, Any]:
    """Add items until the server is gone; what it accepted is written down at once."""
    host = f"127.0.0.1:{port}"
    with open(record, "a") as accepted:

        async def client(number: int) -> None:
            place = 0
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                while True:
                    key = (seed * 100 + number) * 10_000 + place
                    body = malformed.form(malformed.picture("PNG", (16, 16), key))
                    headers = {"Content-Type": malformed.MULTIPART, "Authorization": f"Bearer {TOKEN}"}
                    raw = malformed.Sent("POST", "/api/items", body, headers).raw(host)
                    status, answer = await ask(reader, writer, raw.replace(b"Connection: close\r\n", b""))
                    if status in (200, 201):
                        accepted.write(f"{json.loads(answer)['id']}\t{key}\n")
                        accepted.flush()
                    place += 1

        await asyncio.gather(*(client(number) for number in range(4)))
    return {}


def second_process(task: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--task", json.dumps([task, *arguments])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=600)
    return dict(json.loads(out))


# -- the parts --------------------------------------------------------------------------------------------------------


def start(index: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[Row]]:
    times = []
    for _ in range(5):
        with serving(index) as server:
            server.get("/api/search?text=" + quote_plus(words_of(index)[0]))
            times.append(time.perf_counter() - server.began)
            megabytes = server.megabytes()
    found = {"seconds": sorted(times)[2], "megabytes": megabytes}
    return found, [("start to the first answer of a word query, s", f"{found['seconds']:.2f}", "")]


def search_part(index: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[Row]]:
    words, chance = words_of(index), random.Random(0)
    scan.engines.load()
    times = []
    with SearchIndex.open(index) as opened, one_blas_thread():
        for _ in range(1000):
            text = " ".join(chance.sample(words, 3))
            began = time.thread_time()
            opened.search(text, k=20)
            times.append(1000 * (time.thread_time() - began))
    median = float(np.median(times[200:]))
    name = f"word queries, {options.items:,} items, in process, each asked once: CPU time per query, ms"
    return {"cpu_ms": median}, [(name, f"{median:.2f}", "")]


def load_part(index: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[Row]]:
    words, chance, seconds = words_of(index), random.Random(0), options.seconds
    few = [f"/api/search?text={quote_plus(' '.join(chance.sample(words, 3)))}&k=20" for _ in range(500)]
    rows, found = [], {}
    for workers in (1, 2):
        with serving(index, "--workers", str(workers)) as server:
            answer = server.get(few[0])
            for seed in (1, 2):  # the first run warms up: numba's kernels, pages
                server.settle()
                before = server.cpu()
                new = rates(result_of(second_process("load", server.port, words, seconds, CLIENTS, seed)))
            new["cpu_ms"] = 1000 * (server.cpu() - before) / (new["rate"] * seconds)
            for target in few * (5 * workers - 4):  # each worker keeps its own answers
                server.get(target)
            repeated = rates(result_of(second_process("load", server.port, few, seconds, CLIENTS)))
        found[f"{workers} workers"] = {"new": new, "repeated": repeated}
        name = f"word queries, {options.items:,} items, {CLIENTS} clients, {workers} worker{'s' * (workers > 1)}"
        rows.append((f"{name}, uncached: requests/s", f"{new['rate']:,.0f}", ""))
        times = f"{new['p50_ms']:.1f}, {new['p99_ms']:.1f}"
        rows.append((f"{name}, uncached: p50, p99, ms", times, "p99 under 100"))
        rows.append((f"{name}, 500 queries that repeat: requests/s", f"{repeated['rate']:,.0f}", "at least 300"))
        if workers == 1:
            rows.append((f"{name}, uncached: CPU time of the server per request, ms", f"{new['cpu_ms']:.2f}", ""))
            with bare_endpoint(answer) as port:
                bare = rates(result_of(second_process("load", port, few, seconds, CLIENTS)))
            found["bare"] = bare | {"bytes": len(answer)}
            common = [f"/api/search?text={quote_plus(word)}&k=20" for word in common_words()]
            with serving(index) as server:
                server.get(few[0])
                server.settle()
                zipf = rates(result_of(second_process("load", server.port, common, ZIPF_SECONDS, CLIENTS, 0, True)))
            found["zipf"] = zipf
            name = f"{len(common):,} common words by Zipf's law, {ZIPF_SECONDS:.0f} s from an empty cache"
            rows.append((f"{name}: requests/s", f"{zipf['rate']:,.0f}", ""))
            size = f"{len(answer) / 1000:.1f} kB"
            rows.append((f"bare endpoint with an answer of {size}: requests/s", f"{bare['rate']:,.0f}", ""))
            shares = ", ".join(f"{part['rate'] / bare['rate']:.2f}" for part in (new, zipf, repeated))
            rows.append(
                ("share of the bare endpoint's requests/s: uncached, Zipf's law, repeated", shares, "at least 0.50")
            )
    return found, rows


def rates(result: dict[str, Any]) -> dict[str, float]:
    """Requests per second and response times of a load, all of whose answers are 200."""
    assert set(result["statuses"]) == {"200"}, result["statuses"]
    times = np.sort(result["times"])
    p50, p99 = (1000 * float(np.quantile(times, q)) for q in (0.5, 0.99))
    return {"rate": len(times) / result["seconds"], "p50_ms": p50, "p99_ms": p99, "max_ms": 1000 * float(times[-1])}


BARE = """
import os
from fastapi import FastAPI
from starlette.responses import Response

body = open(os.environ["BODY"], "rb").read()
app = FastAPI()

@app.get("/api/search")
async def search(text: str, k: int = 20) -> Response:
    return Response(body, media_type="application/json")
"""


@contextlib.contextmanager
def bare_endpoint(answer: bytes) -> Iterator[int]:
    """A FastAPI application of one endpoint that returns these bytes, with the same server as `dcmh serve`, in one process."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        Path(folder, "bare.py").write_text(BARE)
        Path(folder, "body").write_bytes(answer)
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
        free.close()
        command = [
            sys.executable,
            "-m",
            "uvicorn",
            "bare:app",
            "--app-dir",
            folder,
            "--port",
            str(port),
            "--http",
            "h11",
        ]
        command += ["--log-level", "critical"]
        process = subprocess.Popen(command, env=os.environ | {"BODY": f"{folder}/body"})
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/api/search?text=a", timeout=5).close()
                    break
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()
            process.wait(timeout=60)


def attack_part(index: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[Row]]:
    words, chance = words_of(index), random.Random(0)
    targets = [f"/api/search?text={quote_plus(' '.join(chance.sample(words, 2)))}&k=20" for _ in range(500)]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, serving(index) as server:
        result_of(second_process("load", server.port, targets, 2, 64))
        for state in ("alone", "attacked"):
            stop = f"{folder}/stop"
            attacker = second_process("attack", server.port, 1000, 32, stop) if state == "attacked" else None
            time.sleep(3 if attacker else 0)
            result = result_of(second_process("load", server.port, targets, options.attack_seconds, 64))
            times = [1000 * seconds for seconds in result["times"]]
            failed = sum(count for status, count in result["statuses"].items() if status != "200")
            found[state] = {
                "requests": len(times),
                "failed": failed,
                "p50_ms": float(np.quantile(times, 0.5)),
                "p99_ms": float(np.quantile(times, 0.99)),
            }
            if attacker is not None:
                Path(stop).touch()
                found["opened by the attacker"] = result_of(attacker)
    p99 = [found[state]["p99_ms"] for state in ("alone", "attacked")]
    failures = found["alone"]["failed"] + found["attacked"]["failed"]
    name = "64 clients beside 1,000 half-open connections and 32 slow uploads"
    return found, [
        (f"{name}: failed requests of {found['attacked']['requests']:,}", str(failures), "0"),
        (f"{name}: p99 without and with, ms", f"{p99[0]:.1f}, {p99[1]:.1f}", "at most twice"),
    ]


def health_part(index: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[Row]]:
    found, rows = {}, []
    with tempfile.TemporaryDirectory() as folder, serving(index) as server:
        paths = []
        for number in range(PICTURES):
            paths.append(f"{folder}/{number}.jpg")
            Path(paths[-1]).write_bytes(malformed.picture("JPEG", (1600, 1200), number, quality=80))
        for state in ("image network not yet loaded (--lazy)", "image network loaded, as by default"):
            result = result_of(second_process("health", server.port, paths))
            assert set(result["statuses"]) == {"200"}, result["statuses"]
            times = [1000 * seconds for seconds in result["times"]]
            found[state] = {
                "max_ms": max(times),
                "p99_ms": float(np.quantile(times, 0.99)),
                "asked": len(times),
                "pictures_per_second": PICTURES / result["seconds"],
            }
            name = f"health while {PICTURES} pictures are uploaded and encoded, {state}"
            rows.append((f"{name}: longest of {len(times)}, ms", f"{max(times):.0f}", "under 100"))
    rows.append(("pictures encoded a second meanwhile", f"{found[state]['pictures_per_second']:.1f}", ""))
    return found, rows


def malformed_part(index: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[Row]]:
    with serving(index) as server:
        for number in range(3):  # what a server that has done its work holds anyway
            server.post("/api/search", malformed.picture("JPEG", (1600, 1200), number))
        result_of(second_process("send_malformed", server.port, 100))
        before = server.megabytes()
        result = result_of(second_process("send_malformed", server.port, options.malformed))
        time.sleep(1)
        after = server.megabytes()
        alive = server.get("/api/health")
    assert alive
    fives = sum(count for status, count in result["statuses"].items() if status.startswith("5"))
    unanswered = result["statuses"].get("0", 0)
    found = {**result, "before_mb": before, "after_mb": after}
    return found, [
        (f"{options.malformed:,} malformed requests: answers of 5xx", str(fives), "0"),
        ("of these not answered at all", str(unanswered), "0"),
        ("memory before and after, MB", f"{before:.0f}, {after:.0f}", "within 50"),
    ]


def kills_part(index: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[Row]]:
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        token, record = Path(folder, "token"), Path(folder, "accepted")
        token.write_text(TOKEN)
        record.touch()
        for number in range(options.kills):
            server = Server(index, "--token-file", str(token))
            server.post("/api/search", malformed.picture("PNG"))  # the image network is loaded
            writer = second_process("write", server.port, number, str(record))
            time.sleep(0.5 + chance.random())
            server.stop(signal.SIGKILL)
            result_of(writer)
        accepted = [tuple(map(int, line.split("\t"))) for line in record.read_text().splitlines()]
    lost = 0
    with SearchIndex.open(index) as opened:
        for number, key in accepted:
            picture = malformed.picture("PNG", (16, 16), key)
            item = opened.store.get([number]).get(number)
            path = None if item is None else opened.path_of(item)
            whole = path is not None and path.is_file() and path.read_bytes() == picture
            lost += not (whole and "image" in opened.codes_of(number) and opened.similar(number, k=1))
    assert accepted
    found = {"kills": options.kills, "accepted": len(accepted), "lost": lost}
    return found, [(f"{options.kills} times kill -9: of {len(accepted):,} accepted writes lost", str(lost), "0")]


RUN = {
    "start": start,
    "search": search_part,
    "load": load_part,
    "health": health_part,
    "malformed": malformed_part,
    "kills": kills_part,
}
RUN["attack"] = attack_part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load, each time")
    parser.add_argument("--malformed", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--attack", action="store_true", help="also measure the load beside an attacker")
    parser.add_argument("--no-captions", action="store_true", help="an index of photos alone")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--attack-seconds", type=float, default=60.0, help="of each load with --attack")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        name, *arguments = json.loads(options.task)
        tasks = {
            "attack": attack,
            "load": load,
            "health": health,
            "send_malformed": send_malformed,
            "write": write,
        }
        print(json.dumps(asyncio.run(tasks[name](*arguments))))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows: list[Row] = []
    record: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "items": options.items,
        "load_before": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory() as folder:
        index = make_index(Path(folder), options.items, captions=not options.no_captions)
        for part in (*(options.only or PARTS), *(["attack"] if options.attack else [])):
            record[part], found = RUN[part](index, options)
            rows += found
            print(f"{part} done", file=sys.stderr, flush=True)
    lines = ["| what | measured | goal |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    title = f"`python benchmarks/service.py`, {record['machine']}, Python {record['python']}"
    page = f"# Service\n\n{title}; other load on the machine at the start: {record['load_before']:.1f}.\n\n"
    page += "\n".join(lines) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "service.json").write_text(json.dumps(record, indent=1) + "\n")
    (options.out / "service.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
