"""Past one machine, on one: Ray against a process pool, kills, bulk loading, and a hundred million codes.

    python benchmarks/scale.py pool PHOTOS --count 3000   # pictures/s and memory: processes, and Ray with two nodes
    python benchmarks/scale.py kills PHOTOS               # 20 kills of workers, nodes and driver; 12,000 photos take 10 minutes
    python benchmarks/scale.py data                       # what Ray Data costs, against plain actors
    python benchmarks/scale.py load --count 10000000      # codes and fine vectors into PostgreSQL and Milvus
    python benchmarks/scale.py folder --count 100000000   # open, scan and rescore a folder index; 15 GB of disk

PHOTOS is a folder. Each part prints what it measured, with the load of the machine before it, and adds it to
results/scale.json beside this file (--out for another folder). The starter model encodes.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engines"))
import servers

import clusters
from dcmh.methods import starter

ROWS = 64  # of a block where processes are killed: blocks of 1,024 would hardly ever be finished
BITS, DIMENSIONS = 64, 128
ARMS = ["processes", "ray", "processes, cached"]
PART = 100_000  # rows that are loaded by turns
OWN = 1_000_000  # rows of the collections that Milvus is compared with, which then start empty again
TURNS = 15  # of measurements that follow each other, of which the median counts


class Memory(threading.Thread):
    """What the children of this process use together: the most memory, each page once, and CPU time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.cpu: dict[int, float] = {}  # seconds, by process
        self.nice: set[int] = set()  # of the processes that worked
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.5):
            total = 0
            for process in psutil.Process().children(recursive=True):
                try:
                    total += process.memory_full_info().pss
                    times = process.cpu_times()
                    self.cpu[process.pid] = times.user + times.system
                    self.nice |= {process.nice()} if self.cpu[process.pid] > 5 else set()
                except psutil.Error:
                    continue
            self.most = max(self.most, total)

    def stop(self) -> int:
        self._over.set()
        self.join()
        return self.most


def command(photos: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("encode", photos, "--model", starter.folder(), "--modality", "image", "--out", out, *more)


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, which is also the cache folder: no features are known."""
    before = os.environ.get("DCMH_HOME")
    with tempfile.TemporaryDirectory(prefix="dcmh-scale-") as folder:
        os.environ["DCMH_HOME"] = str(Path(folder) / "home")
        yield Path(folder)
    os.environ.pop("DCMH_HOME")
    if before is not None:
        os.environ["DCMH_HOME"] = before


def encode(photos: Path, kind: str, *, cache: bool, address: str | None = None) -> dict[str, Any]:
    """Encode in a process of its own; the rate is that between the first finished block and the last."""
    with scratch() as folder:
        child = [sys.executable, __file__, "encode", str(photos), "--child", str(folder), "--kind", address or kind]
        memory = Memory()
        memory.start()
        done = subprocess.run([*child, *(["--cache"] if cache else [])], check=True, capture_output=True)
        found = json.loads(done.stdout.splitlines()[-1])
        most = memory.stop()
        cpu = 1000 * sum(memory.cpu.values()) / found.pop("photos")
        return {**found, "CPU ms per photo": cpu, "nice": sorted(memory.nice), "memory, GB": most / 1e9}


def encode_here(photos: Path, folder: Path, kind: str, *, cache: bool) -> dict[str, Any]:
    import dcmh
    from dcmh.search import blocks, pools

    blocks.ROWS = 128
    model = starter.folder()
    data = dcmh.load_dataset(photos, keep_partial=True)
    work = blocks.Work(model, "cpu", cache=cache)
    made = blocks.Blocks(folder / "blocks", blocks.Encoders(model), data, work, modalities=["image"])
    pool = pools.Processes(2) if kind == "processes" else pools.RayPool(kind)
    states: list[tuple[float, int, int]] = []
    made.encode(pool, lambda state: states.append((time.monotonic(), state.done, state.written)))
    pool.close()
    first, last = states[1], states[-1]  # the very first one is before anything is encoded
    return {
        "photos/s": (last[1] - first[1]) / (last[0] - first[0]),
        "bytes per photo": last[2] / last[1],
        "photos": last[1],
    }


def pool(options: argparse.Namespace) -> dict[str, Any]:
    """Processes and Ray with the same work, features not cached; and processes as `dcmh encode` starts them, which cache.

    On a machine with other work, compare the CPU time per photo, start-up included: photos/s also depend on how the system
    shares the cores between them and the others.
    """
    turns: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as some:
        for path in sorted(options.photos.rglob("*.jpg"))[: options.count]:
            (Path(some) / path.name).symlink_to(path.resolve())
        for turn in range(options.turns):
            found: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)}
            for arm in options.arms if turn % 2 == 0 else reversed(options.arms):  # a drift of the load favours neither
                if arm == "ray":
                    with clusters.nodes(2) as cluster:
                        found[arm] = encode(Path(some), arm, cache=False, address=cluster.address)
                else:
                    found[arm] = encode(Path(some), "processes", cache=arm != "processes")
            found["share"] = found["ray"]["photos/s"] / found["processes"]["photos/s"]
            found["share by CPU"] = found["processes"]["CPU ms per photo"] / found["ray"]["CPU ms per photo"]
            turns.append(found)
            print(json.dumps(found), flush=True)
    shares, by_cpu = ([turn[name] for turn in turns] for name in ("share", "share by CPU"))
    return {
        "photos": options.count,
        "turns": turns,
        "share, quartiles": np.quantile(shares, (0.25, 0.5, 0.75)).tolist(),
        "median share by CPU": float(np.median(by_cpu)),
    }


def kills(options: argparse.Namespace) -> dict[str, Any]:
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(2))
    with scratch() as folder:
        began = time.monotonic()
        unbroken = clusters.drive(*command(options.photos, folder / "one"), rows=ROWS, cwd=folder, log=folder / "log")
        assert unbroken.wait() == 0, (folder / "log").read_text()
        alone = time.monotonic() - began
        began = time.monotonic()
        with clusters.nodes(2) as cluster:
            done = clusters.finish_with_kills(
                cluster,
                command(options.photos, folder / "killed", "--ray", cluster.address),
                rows=ROWS,
                cwd=folder,
                blocks=folder / ".killed.blocks",
                kills=options.kills,
                wait=options.wait,
                seed=seed,
            )
        took = time.monotonic() - began
        names = sorted(path.name for path in (folder / "one").iterdir())
        same = all((folder / "one" / name).read_bytes() == (folder / "killed" / name).read_bytes() for name in names)
        count = len(np.load(folder / "one" / "codes.npy"))
    assert same, f"seed {seed}: the result differs"
    return {
        "seed": seed,
        "kills": done,
        "codes": count,
        "equal": same,
        "seconds": took,
        "seconds of one process": alone,
    }


# -- what Ray Data costs ----------------------------------------------------------------------------------------------------


class Spin:
    """A worker that takes 20 ms of a core per block, as a picture network would, and returns a block of 200 kB."""

    def __init__(self) -> None:
        self._block = np.random.default_rng(0).bytes(200_000)

    def encode(self, number: int) -> tuple[int, bytes]:
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        return number, self._block

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        made = [self.encode(int(number)) for number in batch["id"]]
        return {"id": [number for number, _ in made], "block": [block for _, block in made]}


def data(options: argparse.Namespace) -> dict[str, Any]:
    """The same blocks through Ray Data and through an actor with two blocks in flight.

    With as many actors as cores, Ray Data waits for ever: its tasks that read need a core, too. So there is one of each here.
    """
    import ray

    count = options.count or 400
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    figures: dict[str, Any] = {"blocks": count}
    actors = [ray.remote(num_cpus=1)(Spin).remote() for _ in range(1)]
    ray.get([actor.encode.remote(0) for actor in actors])
    began = time.monotonic()
    running = {actor.encode.remote(number): actor for number, actor in enumerate(actors * 2)}
    following, done = 2, 0
    while running:
        (ready,), _ = ray.wait(list(running))
        actor = running.pop(ready)
        done += len(ray.get(ready)[1]) > 0
        if following < count:
            running[actor.encode.remote(following)] = actor
            following += 1
    figures["an actor, blocks/s"] = done / (time.monotonic() - began)
    for actor in actors:
        ray.kill(actor)
    blocks = ray.data.range(count, override_num_blocks=count)
    made = blocks.map_batches(Spin, batch_size=1, compute=ray.data.ActorPoolStrategy(size=1), num_cpus=1)
    moments = []
    for batch in made.iter_batches(batch_size=None):
        moments += [time.monotonic()] * len(batch["id"])
    figures["ray data with an actor, blocks/s"] = (len(moments) - 1) / (moments[-1] - moments[0])
    ray.shutdown()
    return figures


# -- bulk loading ---------------------------------------------------------------------------------------------------------


def rows_of(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    packed = np.frombuffer(rng.bytes(count * BITS // 8), np.uint8).reshape(count, -1)
    fine = np.frombuffer(rng.bytes(count * DIMENSIONS), np.int8).reshape(count, -1)
    return np.arange(1, count + 1), packed, fine


def load_postgres(count: int) -> dict[str, Any]:
    """Ours, and COPY of prepared bytes into tables of the same columns."""
    import psycopg

    from dcmh.stores.postgres.index import PostgresIndex

    part = min(count, 1_000_000)
    figures: dict[str, Any] = {"rows": count}
    settings = ("shared_buffers=512MB", "max_wal_size=8GB", "synchronous_commit=off")
    with servers.run_postgres(*settings) as server:
        _, packed, fine = rows_of(min(part, 100_000))
        head, tail = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
        code_row = np.dtype(
            [
                ("a", ">i2"),
                ("b", ">i4"),
                ("id", ">i8"),
                ("c", ">i4"),
                ("d", ">i4"),
                ("v", "u1", (8,)),
                ("e", ">i4"),
                ("f", "u1"),
            ]
        )
        fine_row = np.dtype([("a", ">i2"), ("b", ">i4"), ("id", ">i8"), ("c", ">i4"), ("v", "i1", (DIMENSIONS,))])
        spent = 0.0
        with psycopg.connect(server.address(collection=None)) as connection:
            connection.execute(
                "CREATE TABLE own_codes (id bigint PRIMARY KEY, code bit(64) NOT NULL, alone boolean NOT NULL)"
            )
            connection.execute("CREATE TABLE own_fine (id bigint PRIMARY KEY, vector bytea NOT NULL)")
            for start in range(0, count, len(packed)):
                size = min(len(packed), count - start)
                a, b = np.zeros(size, code_row), np.zeros(size, fine_row)
                a["a"], a["b"], a["id"], a["c"], a["d"], a["v"], a["e"] = (
                    3,
                    8,
                    np.arange(size) + start,
                    12,
                    64,
                    packed[:size],
                    1,
                )
                b["a"], b["b"], b["id"], b["c"], b["v"] = 2, 8, np.arange(size) + start, DIMENSIONS, fine[:size]
                ready = head + a.tobytes() + tail, head + b.tobytes() + tail
                began = time.monotonic()
                for statement, content in zip(
                    ("own_codes (id, code, alone)", "own_fine (id, vector)"), ready, strict=True
                ):
                    with connection.cursor().copy(f"COPY {statement} FROM STDIN (FORMAT binary)") as copy:
                        copy.write(content)
                connection.commit()
                spent += time.monotonic() - began
            figures["the server's own, rows/s"] = count / spent
            connection.execute("DROP TABLE own_codes, own_fine")
        index = PostgresIndex(server.address(collection="bench"), BITS)
        spent = 0.0
        for start in range(0, count, part):
            ids, packed, fine = rows_of(min(part, count - start))
            began = time.monotonic()
            index.load(ids + start, packed, fine=fine)
            spent += time.monotonic() - began
        figures["dcmh, rows/s"] = count / spent
        assert index.count == count
        began = time.monotonic()
        index.optimise()
        figures["then optimise, s"] = time.monotonic() - began
    figures["share"] = figures["dcmh, rows/s"] / figures["the server's own, rows/s"]
    return figures


def load_milvus(count: int) -> dict[str, Any]:
    """Ours, and inserts of prepared rows into collections of the same fields, by turns."""
    from base64 import b64encode

    from dcmh.stores.milvus.collection import Collection
    from dcmh.stores.milvus.connection import BATCH
    from dcmh.stores.milvus.fine import FineCollection
    from dcmh.stores.milvus.index import MilvusIndex

    figures: dict[str, Any] = {"rows": count}
    with tempfile.TemporaryDirectory(prefix="dcmh-milvus-") as folder:
        server = servers.Milvus(Path(folder))
        server.start()
        try:
            index = MilvusIndex(server.address("bench"), BITS)
            own, beside = Collection(index.server, BITS, "own"), FineCollection(index.server, "own_fine")
            first, packed, fine = rows_of(1)
            index.load(first - 1, packed, fine=fine)  # creates the collection of fine vectors
            spent = dict.fromkeys(("dcmh, rows/s", "the server's own, rows/s"), 0.0)
            for start in range(0, count, PART):  # by turns: the server is never quiet, as it stores what came before
                ids, packed, fine = rows_of(min(PART, count - start), seed=start)
                ids += start
                if start % OWN == 0:  # the server keeps what is loaded in memory, and both would not fit
                    for collection in (own, beside):
                        index.server.call(lambda client, _, name=collection.name: client.drop_collection(name))
                        collection.open(create=True)
                prepared = [
                    (
                        [{"id": n, "code": c.tobytes(), "alone": False} for n, c in zip(some, codes, strict=True)],
                        [
                            {"id": n, "code": bytes(1), "fine": b64encode(v).decode()}
                            for n, v in zip(some, vectors, strict=True)
                        ],
                    )
                    for some, codes, vectors in (
                        (ids[row : row + BATCH].tolist(), packed[row : row + BATCH], fine[row : row + BATCH])
                        for row in range(0, len(ids), BATCH)
                    )
                ]
                began = time.monotonic()
                for batch in prepared:
                    for name, rows in zip(("own", "own_fine"), batch, strict=True):
                        index.server.call(
                            lambda client, _, name=name, rows=rows: client.insert(name, rows, timeout=60.0)
                        )
                spent["the server's own, rows/s"] += time.monotonic() - began
                began = time.monotonic()
                index.load(ids, packed, fine=fine)
                spent["dcmh, rows/s"] += time.monotonic() - began
            figures |= {name: count / seconds for name, seconds in spent.items()}
        finally:
            server.stop()
    figures["share"] = figures["dcmh, rows/s"] / figures["the server's own, rows/s"]
    return figures


def load(options: argparse.Namespace) -> dict[str, Any]:
    count = options.count or 10_000_000
    found = {}
    if "postgres" in options.engines:
        found["postgres"] = load_postgres(count)
        print(json.dumps(found["postgres"], indent=1), flush=True)
    if "milvus" in options.engines:
        found["milvus"] = load_milvus(count)
    return found


# -- a folder index ---------------------------------------------------------------------------------------------------------


def reader(words: np.ndarray) -> Callable[[], object]:
    """Reads all words with one thread per core, as a scan does, and only adds them up."""
    import numba

    from dcmh.index import scan

    @numba.njit(nogil=True)
    def total(words: np.ndarray) -> int:
        answer = np.uint64(0)
        for i in range(len(words)):
            answer += words[i]
        return answer

    parts = np.array_split(words.reshape(-1), scan.threads_of(None))
    total(words.reshape(-1)[:1000])
    return lambda: scan.in_threads([partial(total, part) for part in parts])


def random_reads(path: Path, count: int, threads: int = 32) -> Callable[[], object]:
    """Reads `count` random pages of a file past the page cache, many at a time: what the disk can do."""
    pages = np.random.default_rng().integers(0, path.stat().st_size // mmap.PAGESIZE, count) * mmap.PAGESIZE
    pool = ThreadPoolExecutor(threads)
    rooms = [mmap.mmap(-1, mmap.PAGESIZE) for _ in range(threads)]

    def read(file: int, room: mmap.mmap, offsets: list[int]) -> None:
        for offset in offsets:
            os.preadv(file, [room], offset)

    def run() -> None:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        list(pool.map(partial(read, file), rooms, [part.tolist() for part in np.array_split(np.sort(pages), threads)]))
        os.close(file)

    return run


def milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


def folder(options: argparse.Namespace) -> dict[str, Any]:
    """Random codes and fine vectors in the files of an index folder; opened by another process."""
    count = options.count or 100_000_000
    with tempfile.TemporaryDirectory(prefix="dcmh-folder-", dir=options.disk) as place:
        child = [sys.executable, __file__, "--child", place, "--count", str(count)]
        subprocess.run([*child, "write"], check=True)
        size = sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file())
        found: dict[str, Any] = json.loads(subprocess.run([*child, "read"], check=True, capture_output=True).stdout)
    return {"codes": count, "bytes": size, **found}


def write_folder(place: Path, count: int) -> None:
    from dcmh.index import HammingIndex
    from dcmh.index.fine import FineIndex

    rng = np.random.default_rng(0)
    ids = np.arange(1, count + 1)
    index = HammingIndex(BITS)
    index.add(ids, np.frombuffer(rng.bytes(8 * count), np.uint8).reshape(count, 8))
    index.save(place)
    del index
    vectors = np.memmap(place / "draft", np.int8, "w+", shape=(count, DIMENSIONS))
    for start in range(0, count, 1 << 20):
        size = min(1 << 20, count - start)
        vectors[start : start + size] = np.frombuffer(rng.bytes(size * DIMENSIONS), np.int8).reshape(size, DIMENSIONS)
    FineIndex.of(ids, vectors).save(place, 0)
    (place / "draft").unlink()


def read_folder(place: Path) -> dict[str, Any]:
    from dcmh.index import HammingIndex
    from dcmh.index.fine import FineIndex

    rng = np.random.default_rng(1)
    began = time.perf_counter()
    index = HammingIndex.load(place)
    fine = FineIndex.load(place, 0)
    opened = time.perf_counter() - began
    queries = rng.integers(0, 256, (TURNS + 1, 1, 8), dtype=np.uint8)
    first = milliseconds(lambda: index.search(queries[-1], 10))  # checks and reads the file, and compiles
    mapped = index._state.table.words
    copied = np.empty_like(mapped)
    copied[:] = mapped
    reads = {"same memory": reader(mapped), "anonymous memory": reader(copied)}
    took: dict[str, list[float]] = {name: [] for name in ("query", *reads, "rescore", "disk")}
    for query in queries[:-1]:
        took["query"].append(milliseconds(lambda query=query: index.search(query, 10)))
        for name, read in reads.items():
            took[name].append(milliseconds(read))
    del copied, reads
    direction = rng.standard_normal(DIMENSIONS).astype(np.float32)
    for _ in range(TURNS):
        wanted = np.sort(rng.choice(len(index), 1000, replace=False)) + 1
        for path in place.glob("*"):  # out of the page cache
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        took["rescore"].append(milliseconds(lambda wanted=wanted: fine.scores_of(direction, wanted)))
        took["disk"].append(milliseconds(random_reads(next(place.glob("*-fine.npy")), 2000)))
    middle = {name: float(np.median(times)) for name, times in took.items()}
    rates = {name: 8e-6 * len(index) / middle[name] for name in ("query", "same memory", "anonymous memory")}
    return {
        "open, s": opened,
        "first query, s": first / 1000,
        "query, ms": middle["query"],
        "scan, GB/s": rates["query"],
        "reading the same memory, GB/s": rates["same memory"],
        "reading anonymous memory, GB/s": rates["anonymous memory"],
        "share of the bandwidth": rates["query"] / max(rates["same memory"], rates["anonymous memory"]),
        "rescore 1,000 from disk, ms": middle["rescore"],
        "rescore, all turns, ms": took["rescore"],
        "2,000 random reads of 4 kB, ms": middle["disk"],
    }


PARTS = {"pool": pool, "kills": kills, "data": data, "load": load, "folder": folder}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "write", "read", "encode"])
    parser.add_argument("photos", nargs="?", type=Path)
    parser.add_argument("--count", type=int, help="photos, blocks, rows or codes")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS, help="of pool")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--wait", type=float, default=5.0, help="seconds between kills, on average")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--engines", nargs="+", default=["postgres", "milvus"])
    parser.add_argument("--disk", type=Path, help="the folder for large files")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--cache", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.child is not None:
        if options.part == "write":
            write_folder(options.child, options.count)
        elif options.part == "encode":
            print(json.dumps(encode_here(options.photos, options.child, options.kind, cache=options.cache)))
        else:
            print(json.dumps(read_folder(options.child)))
        return
    load_before = os.getloadavg()[0]
    found = {"load": round(load_before, 1), "cores": os.cpu_count(), **PARTS[options.part](options)}
    print(json.dumps(found, indent=1))
    file = options.out / "scale.json"
    known = json.loads(file.read_text()) if file.is_file() else {}
    name = " ".join(["load", *options.engines]) if options.part == "load" else options.part
    file.write_text(json.dumps(known | {name: found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
