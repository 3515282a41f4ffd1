"""Who encodes blocks: this process, worker processes of this machine (`concurrent.futures`), or actors of a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from importlib import import_module
from multiprocessing import connection
from typing import Any

from dcmh.errors import DataError, EngineError, ParameterError, needs
from dcmh.search.blocks import Capacity, Pool, Result, State, Task, Work, encode_block
from dcmh.search.encode import Encoders
from dcmh.stores import models

IN_FLIGHT = 2  # blocks per worker: the next one is there when the last one is done
ATTEMPTS = 10  # times that a block may be lost with its worker
ACTOR_CPUS = 4  # cores of a Ray actor without a GPU; fewer on nodes that have fewer
TOP_UP_SECONDS = 2.0  # between two checks for new nodes of a cluster
CONNECT_SECONDS = 5.0
STORE_BYTES = 256 << 20  # of Ray's object store, where this process starts Ray


def open_pool(*, workers: int = 1, ray: str | None = None) -> Pool:
    """The workers to encode with: `ray` is "auto", "local" or the address of a cluster."""
    if workers < 1:
        raise ParameterError(f"--workers must be at least 1, not {workers}.")
    if ray is not None and workers > 1:
        raise ParameterError(
            "--workers and --ray are mutually exclusive.", hint="Ray decides how many actors there are."
        )
    return RayPool(ray) if ray is not None else Processes(workers) if workers > 1 else ThisProcess()


class _Encoder:
    """A worker's encoders, which are loaded once."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._encoders = Encoders(work.model, device=work.device, cache=work.cache)

    def __call__(self, task: Task) -> Result:
        return encode_block(self._encoders, self._work, task)

    def stop_workers(self) -> None:
        self._encoders.stop_workers()


def _lost_too_often(task: Task) -> DataError:
    first, last = task.data.ids[0], task.data.ids[-1]
    return DataError(
        f"The workers that encoded block {task.number} (items {first} to {last}) ended {ATTEMPTS} times.",
        hint="Give them more memory, or use fewer of them; if one picture ends them, find and remove it.",
    )


class _Queue:
    """The tasks that are still to be given to a worker: first those that were lost with one."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self.lost: deque[Task] = deque()
        self._tasks = tasks

    def next(self) -> Task | None:
        return self.lost.popleft() if self.lost else next(self._tasks, None)


def _cores() -> int:
    from dcmh.inputs.decoding import cores

    return cores()


def _has_gpu(device: str | None) -> bool:
    from dcmh.util import device as devices

    return devices.resolve(device or "auto").type == "cuda"


class _LocalPool:
    """A pool on this machine, with nothing to publish or to close."""

    def publish(self, state: State) -> None:
        """Nothing: the caller has the state."""

    def close(self) -> None:
        """Nothing: workers end with a run."""


class ThisProcess(_LocalPool):
    """Encodes in this process, whose threads use all cores."""

    def capacity(self, device: str | None) -> Capacity:
        """One worker with all cores."""
        return Capacity(1, 1, _cores(), int(_has_gpu(device)))

    def run(self, work: Work, tasks: Iterable[Task], count: int) -> Iterator[Result]:
        """Encode all tasks in order."""
        encoder = _Encoder(work) if count else None
        try:
            yield from map(encoder, tasks) if encoder else ()
        finally:
            if encoder:
                encoder.stop_workers()


# -- processes of this machine ------------------------------------------------------------------------------------------

_encoder: _Encoder | None = None  # of a worker process


def _start_worker(work: Work, threads: int, workers: int, number: Any) -> None:
    global _encoder
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoder = _Encoder(replace(work, device=_own_device(work.device, number)))
    _use_threads(threads, workers)


def _end_with_parent() -> None:
    """A worker of `concurrent.futures` would outlive a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _own_device(device: str | None, number: Any) -> str | None:
    """With device auto, one GPU per process."""
    if device not in (None, "auto"):
        return device
    import torch

    with number.get_lock():
        mine, number.value = number.value, number.value + 1
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{mine % count}" if count else device


def _use_threads(threads: int, workers: int) -> None:
    """Limit what this process takes of the machine: threads of the network, and processes that decode."""
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read when torch is loaded
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    os.environ["LOCAL_WORLD_SIZE"] = str(workers)


def _encode_here(task: Task) -> Result:
    assert _encoder is not None
    return _encoder(task)


class Processes(_LocalPool):
    """Worker processes of this machine. If one is killed, all are started again, with the blocks that they had."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def capacity(self, device: str | None) -> Capacity:
        """These processes, which divide the cores."""
        return Capacity(1, self.workers, max(1, _cores() // self.workers), int(_has_gpu(device)))

    def run(self, work: Work, tasks: Iterable[Task], count: int) -> Iterator[Result]:
        """Encode all tasks; results come as they are finished."""
        if not count:
            return
        queue = _Queue(iter(tasks))
        losses: Counter[int] = Counter()
        while True:
            lost: list[Task] = []
            yield from self._run(work, queue, min(self.workers, count), lost)
            if not lost:
                return
            losses.update(task.number for task in lost)
            for task in sorted(lost, key=lambda task: task.number):
                if losses[task.number] >= ATTEMPTS:
                    raise _lost_too_often(task)
                queue.lost.append(task)

    def _run(self, work: Work, queue: _Queue, workers: int, lost: list[Task]) -> Iterator[Result]:
        """Encode until all is done, or until a process ends: then `lost` has what was not finished."""
        context = multiprocessing.get_context("spawn")
        settings = (work, max(1, _cores() // workers), workers, context.Value("i", 0))
        pool = ProcessPoolExecutor(workers, context, _start_worker, settings)
        running: dict[Future[Result], Task] = {}
        try:
            while True:
                while len(running) < IN_FLIGHT * workers and (task := queue.next()) is not None:
                    lost.append(task)  # if a process ends now, the pool refuses it
                    future = pool.submit(_encode_here, task)
                    running[future] = lost.pop()
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    del running[future]
                    yield result
        except BrokenProcessPool:
            lost.extend(running.values())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


# -- Ray ------------------------------------------------------------------------------------------------------------------


def _check_address(address: str) -> None:
    """Raise an OSError or ValueError if nothing listens there: Ray itself would try forever."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if address != "auto":
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


class _Actor:
    """The encoders of one Ray actor. The model comes from the driver, so nodes need no shared folder for it."""

    def __init__(self, work: Work, fingerprint: str, files: dict[str, bytes], threads: int) -> None:
        folder = models.find(fingerprint) or models.restore(files)
        self._encoder = _Encoder(replace(work, model=folder, cache=False))  # its disk may be small
        _use_threads(threads, max(1, _cores() // threads))

    def ready(self) -> int:
        """The id of the process."""
        return os.getpid()

    def encode(self, task: Task) -> Result:
        return self._encoder(task)


class RayPool:
    """Actors of a Ray cluster, one per GPU or per few cores. Ray is started where `address` is "local".

    A block that is lost with its actor or node is encoded by another actor. Lost actors are replaced, and nodes that join the
    cluster get actors, while there are blocks for them. Results go to this process, so nodes share nothing but the pictures.
    """

    def __init__(self, address: str) -> None:
        with needs("--ray needs Ray", "dcmh[ray]"):
            ray: Any = import_module("ray")
        self._ray = ray
        self._gauges: dict[str, Any] = {}
        self._connected = not ray.is_initialized()
        if not self._connected:
            return
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if address == "local":
                ray.init("local", include_dashboard=False, object_store_memory=STORE_BYTES, **quiet)
            else:
                _check_address(address)
                ray.init(address, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            where = "that this machine belongs to" if address == "auto" else f"at {address}"
            raise EngineError(
                f"There is no Ray cluster {where}.",
                hint="Start one: ray start --head; or use this machine alone: --ray local",
            ) from error

    def capacity(self, device: str | None) -> Capacity:
        """The actors that the cluster, as it is now, has room for."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        gpus = int(sum(node.get("GPU", 0) for node in nodes))
        if gpus and device != "cpu":
            return Capacity(len(nodes), gpus, 1, 1)
        sizes = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
        cpus = min([ACTOR_CPUS, *sizes])
        return Capacity(len(nodes), sum(size // cpus for size in sizes), cpus, 0)

    def run(self, work: Work, tasks: Iterable[Task], count: int) -> Iterator[Result]:
        """Encode all tasks; results come as they are finished."""
        if count:
            yield from _RayRun(self, self._ray, work, iter(tasks), count).results()

    def publish(self, state: State) -> None:
        """Set Ray's gauges, which the agent of the driver's node exports to Prometheus."""
        from ray.util.metrics import Gauge

        for name, (about, value) in state.metrics().items():
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, about)
            if value == value:
                self._gauges[name].set(value)

    def close(self) -> None:
        """Disconnect from Ray, and stop it if it was started here; unless the program had connected itself."""
        if self._connected:
            self._ray.shutdown()


class _RayRun:
    """One run over some blocks: its actors, and what each of them is doing."""

    def __init__(self, pool: RayPool, ray: Any, work: Work, tasks: Iterator[Task], count: int) -> None:
        self._pool, self._ray, self._work = pool, ray, work
        self._left = count
        self._queue = _Queue(tasks)
        self._files = ray.put(models.files_of(work.model))
        self._fingerprint = str(Encoders(work.model).record["fingerprint"])
        self._starting: dict[Any, Any] = {}  # what `ready` will answer, to its actor
        self._actors: dict[Any, int] = {}  # running actors to their blocks in flight
        self._running: dict[Any, tuple[Any, Task]] = {}  # answers to come
        self._losses: Counter[int] = Counter()
        self._failed_starts = 0

    def results(self) -> Iterator[Result]:
        """Submit, wait and collect until all is done."""
        try:
            while self._left:
                self._top_up()
                self._submit()
                waiting = [*self._running, *self._starting]
                for answer in self._ray.wait(waiting, timeout=TOP_UP_SECONDS)[0] if waiting else ():
                    if answer in self._starting:
                        self._started(answer)
                    elif (result := self._finished(answer)) is not None:
                        self._left -= 1
                        yield result
        finally:
            for actor in (*self._actors, *self._starting.values()):
                self._ray.kill(actor)

    def _top_up(self) -> None:
        capacity = self._pool.capacity(self._work.device)
        missing = min(capacity.actors, self._left) - len(self._actors) - len(self._starting)
        for _ in range(missing):
            remote = self._ray.remote(_Actor).options(num_cpus=capacity.cpus, num_gpus=capacity.gpus)
            actor = remote.remote(self._work, self._fingerprint, self._files, capacity.cpus)
            self._starting[actor.ready.remote()] = actor

    def _submit(self) -> None:
        for depth in range(IN_FLIGHT):  # first one for each
            for actor, busy in list(self._actors.items()):
                if busy <= depth and (task := self._queue.next()) is not None:
                    self._running[actor.encode.remote(task)] = actor, task
                    self._actors[actor] += 1

    def _started(self, answer: Any) -> None:
        actor = self._starting.pop(answer)
        try:
            self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= ATTEMPTS:
                reason = str(error).strip().rpartition("\n")[2]
                raise EngineError(
                    f"Ray actors do not start: {reason}", hint="Install the same dcmh on every node of the cluster."
                ) from error
        else:
            self._failed_starts = 0
            self._actors[actor] = 0

    def _finished(self, answer: Any) -> Result | None:
        """The result of a block; None if it was lost."""
        actor, task = self._running.pop(answer)
        try:
            result: Result = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except self._ray.exceptions.RayError:  # the actor, its node, or the result
            self._actors.pop(actor, None)
            self._losses[task.number] += 1
            if self._losses[task.number] >= ATTEMPTS:
                raise _lost_too_often(task) from None
            self._queue.lost.append(task)
            return None
        if actor in self._actors:  # otherwise it died after this block, which its next one has shown already
            self._actors[actor] -= 1
        return result
