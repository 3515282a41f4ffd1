"""dcmh serve: a search page and an HTTP API for an index."""

from __future__ import annotations

import contextlib
import json as json_lines
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dcmh.cli import console
from dcmh.cli.options import Repeatable, Switch
from dcmh.errors import ParameterError


def serve(
    index: str,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    lazy: Switch = False,
    read_only: Switch = False,
    token_file: Path | None = None,
    allow_host: Repeatable = None,
    rate: float = 500.0,
    connections: int = 512,
    header_seconds: float = 10.0,
    idle_seconds: float = 5.0,
    upload_seconds: float = 60.0,
    uploads_per_client: int = 16,
    decode_seconds: float = 10.0,
    decode_megabytes: int = 1000,
    log: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    json: Switch = False,
) -> int:
    """Serve a search page and an HTTP API for an index, until Ctrl-C.

    Parameters
    ----------
    index
        The folder that dcmh index wrote.
    host
        Address to listen at. With 127.0.0.1 only this machine can reach the server.
    port
        Port to listen at; 0 chooses a free one.
    workers
        Number of processes. They share the index in memory.
    lazy
        Load the image network with the first picture, which makes other queries wait for a moment, not at the start.
    read_only
        Refuse all changes, even with the token.
    token_file
        Accept changes from clients that send the token in this file.
    allow_host
        A host name that requests may be for, such as that of a reverse proxy; may be repeated.
    rate
        Maximum number of requests per second and client, in each worker; 0 is no limit. A picture counts as ten.
    connections
        Maximum number of connections to each worker. Beyond it, those that wait for a request are closed.
    header_seconds
        Maximum time for a client to send the header of a request.
    idle_seconds
        How long a connection is kept without a request.
    upload_seconds
        Maximum time for the body of a request to arrive.
    uploads_per_client
        Maximum number of uploads that one client sends at the same time to each worker.
    decode_seconds
        Maximum time for decoding a picture.
    decode_megabytes
        Maximum memory for decoding a picture.
    log
        File for the access log; - for stderr, none to turn it off. Default: stderr, unless it is a terminal.
    json
        Print the address as one line of JSON.
    """
    from dcmh.service import Settings, server

    if log is None:
        log = "none" if sys.stderr.isatty() else "-"
    if workers < 1:
        raise ParameterError(f"--workers must be at least 1, not {workers}.")
    with contextlib.ExitStack() as stack:
        settings = Settings(
            token_file=None if token_file is None else str(token_file.absolute()),
            preload=not lazy,
            read_only=read_only,
            hosts=tuple(name.lower() for name in allow_host or ()),
            rate=rate,
            connections=connections,
            header_seconds=header_seconds,
            idle_seconds=idle_seconds,
            upload_seconds=upload_seconds,
            uploads_per_client=uploads_per_client,
            decode_seconds=decode_seconds,
            decode_megabytes=decode_megabytes,
            access_log=None if log == "none" else log,
            parent=os.getpid() if workers > 1 else None,
        )
        listener = stack.enter_context(server.listen(index, host, port))
        ready = server.prepare(index, settings, workers)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        _announce(index, ready.items, address, json=json)
        if not server.is_loopback(host):
            console.say(
                f"Everyone who can reach {host} can see every item. The server has no login; put a proxy with one in front."
            )
        ready.run(listener)
    console.say("Stopped.")
    return 0


def _announce(index: str, items: int, address: str, *, json: bool) -> None:
    if json:
        record = {"index": index, "items": items, "address": address, "process": os.getpid()}
        console.result(json_lines.dumps(record))
        console.flush()
    else:
        console.say(f"{index}: {items:,} items · {address}  (Ctrl-C to stop)")
