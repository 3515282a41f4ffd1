"""Silent and slow clients: connections that send nothing, and uploads that take for ever, shut nobody out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import pytest

from dcmh.service import Settings, limits
from dcmh.service.limits import BodySlots, Connections
from dcmh.service.problems import Problem

pytestmark = pytest.mark.skipif(os.name != "posix", reason="limits of descriptors are POSIX")


@pytest.fixture
def start(ready):
    """Start `dcmh serve` in a process that has few file descriptors; gives its port."""
    started = []

    def serve(*options, descriptors=256):
        command = [sys.executable, "-m", "dcmh", "serve", str(ready / "photos.dcmh"), "--port", "0", "--json", "--lazy"]
        script = f'ulimit -n {descriptors}; exec "$@"'
        process = subprocess.Popen(
            ["sh", "-c", script, "sh", *command, "--log", "none", *options], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return int(json.loads(process.stdout.readline())["address"].rpartition(":")[2])

    yield serve
    for process in started:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def healthy(port):
    """The status of a health check over a new connection."""
    with connect(port) as connection:
        connection.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return connection.recv(100)[9:12]


def test_half_open_connections_are_closed_for_new_ones(start):
    port = start("--header-seconds", "60", "--idle-seconds", "60")
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(connect(port))
        for number in range(600):
            connection = stack.enter_context(connect(port))
            if number % 2:
                connection.sendall(b"GET /api/health HTTP/1.1\r\nHost: ")
            if number % 50 == 0:
                kept.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                answer = b""
                while not answer.endswith(b'"ok"}') and (block := kept.recv(1000)):
                    answer += block
                assert answer[9:12] == b"200"  # one that is used stays
                assert healthy(port) == b"200"
        assert [healthy(port) for _ in range(10)] == [b"200"] * 10


def test_a_header_has_a_time_limit_that_more_bytes_do_not_extend(start):
    port = start("--header-seconds", "1")
    with connect(port) as silent, connect(port) as slow:
        began = time.monotonic()
        with contextlib.suppress(OSError):
            for letter in b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 1000:
                slow.sendall(bytes([letter]))
                time.sleep(0.05)
        assert time.monotonic() - began < 15
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(10) == b""


def test_capacity_follows_the_descriptors(monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    assert limits.capacity(Settings()) == 128
    assert limits.capacity(Settings(connections=20)) == 20
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100_000, 100_000))
    assert limits.capacity(Settings()) == 512


class Fake:
    def __init__(self, connections, address, cycle=None):
        self.address, self.cycle, self.dropped = address, cycle, False
        self.connections = connections
        connections.count += 1
        connections.waiting[self] = None

    def drop(self):
        self.dropped = True
        self.connections.count -= 1
        del self.connections.waiting[self]


def test_the_client_with_the_most_connections_gives_way():
    connections = Connections(Settings(connections=8))
    many = [Fake(connections, "10.0.0.1", cycle="one" if number == 0 else None) for number in range(6)]
    few = [Fake(connections, "10.0.0.2") for _ in range(2)]
    assert connections.make_room()
    assert not any(fake.dropped for fake in (*many, *few))
    Fake(connections, "10.0.0.3")
    assert connections.make_room()
    assert [fake.dropped for fake in many] == [False, True, False, False, False, False]  # the first was of use once
    assert not any(fake.dropped for fake in few)
    connections.waiting.clear()
    connections.count = 9
    assert not connections.make_room()  # all are at work


class TestBodies:
    async def occupy(self, slots, client, ended):
        try:
            async with slots.receive(client):
                await asyncio.sleep(30)
        except Problem as problem:
            ended.append((client, problem.status))

    def test_a_slow_upload_gives_way_to_a_new_one_of_its_client(self, monkeypatch):
        monkeypatch.setattr(limits, "GRACE_SECONDS", 0.05)

        async def run():
            slots, ended = BodySlots(total=4, per_client=2, seconds=30), []
            tasks = [asyncio.create_task(self.occupy(slots, "a", ended)) for _ in range(2)]
            await asyncio.sleep(0.01)
            with pytest.raises(Problem, match="Too many uploads"):  # they may yet be fast
                async with slots.receive("a"):
                    pass
            async with slots.receive("b"):
                pass
            await asyncio.sleep(0.1)
            async with slots.receive("a"):
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return ended

        assert asyncio.run(run()) == [("a", 408)]

    def test_every_body_has_a_time_limit(self):
        async def run():
            slots, ended = BodySlots(total=4, per_client=2, seconds=0.02), []
            await self.occupy(slots, "a", ended)
            return ended

        assert asyncio.run(run()) == [("a", 408)]
