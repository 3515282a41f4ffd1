"""The connection to Milvus: one client, with retries, and with errors that say what to do."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dcmh.errors import EngineError, needs
from dcmh.stores.address import Address
from dcmh.util.retry import QUERY_PATIENCE, retry

if TYPE_CHECKING:
    from pymilvus import MilvusClient

T = TypeVar("T")

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
BUILD_SECONDS = 24 * 3600.0
MAX_ROWS = 16_384  # maximum number of rows that one search or query returns
BATCH = 5_000  # rows in an insert: more time out


class Milvus:
    """A Milvus server. Threads may share it. Nothing is contacted before the first call."""

    def __init__(self, address: Address) -> None:
        with needs("Milvus needs pymilvus", "dcmh[milvus]"):
            import grpc
            import pymilvus
        # It logs every failed attempt with a traceback; the final error says it all.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self._errors = (pymilvus.MilvusException, grpc.RpcError, grpc.FutureTimeoutError)
        self.address = address
        self._client: MilvusClient | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the client. The next call connects again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def call(self, work: Callable[[Any, int], T], *, patience: float = QUERY_PATIENCE) -> T:
        """Return `work(client, attempt)`. It must be idempotent: a call that failed may have arrived."""
        patience = self.address.patience if self.address.patience is not None else patience

        def once(attempt: int) -> T:
            if attempt:
                self.close()  # a disconnected client may not recover
            return work(self._connected(), attempt)

        try:
            return retry(once, patience, self._is_transient)
        except self._errors as error:
            raise self._explained(error, patience) from None

    def _connected(self) -> MilvusClient:
        from pymilvus import MilvusClient

        with self._lock:
            if self._client is None:
                where = self.address
                scheme = "https" if where.options.get("tls") == "true" else "http"
                host = f"[{where.host}]" if ":" in where.host else where.host
                self._client = MilvusClient(
                    f"{scheme}://{host}:{where.port}",
                    user=where.user or os.environ.get("MILVUS_USER", ""),
                    password=where.password or os.environ.get("MILVUS_PASSWORD", ""),
                    token=os.environ.get("MILVUS_TOKEN", "") if where.user is None else "",
                    db_name=where.database,
                    timeout=CONNECT_SECONDS,
                )
            return self._client

    def _is_transient(self, error: Exception) -> bool:
        """Whether a retry may succeed: the server is unreachable or not ready."""
        if not isinstance(error, self._errors) or _is_refusal(error):
            return False
        message = str(error).lower()
        words = ("unavailable", "connect", "deadline", "not ready", "not loaded", "timeout", "closed", "no available")
        return any(word in message for word in (*words, "channel", "node offline"))

    def _explained(self, error: Exception, patience: float) -> EngineError:
        where = self.address
        message = where.scrub(str(getattr(error, "message", "") or error))[:300].rstrip(".")
        if _is_refusal(error):
            who = where.user or os.environ.get("MILVUS_USER") or "nobody"
            return EngineError(
                f"{where} refuses the user {who}: wrong name or password, or none.",
                hint="Set MILVUS_USER and MILVUS_PASSWORD, or MILVUS_TOKEN.",
            )
        if self._is_transient(error):
            return EngineError(
                f"{where} does not respond (tried for {patience:.0f} s): {message}.",
                hint="Is the server running there?",
            )
        return EngineError(f"{where}: {message}.")


def _is_refusal(error: BaseException | None) -> bool:
    """Whether the server refused the user or password. The first error of pymilvus does not say so, its causes do."""
    for _ in range(10):  # pymilvus also raises an error from itself, so the chain may never end
        if error is None:
            break
        message = str(error).lower()
        if any(word in message for word in ("unauthenticated", "auth check", "credential", "permission")):
            return True
        error = error.__cause__ or error.__context__
    return False
