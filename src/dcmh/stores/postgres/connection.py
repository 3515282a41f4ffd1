"""Connections to PostgreSQL: pooled, with retries, and with errors that say what to do."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dcmh.errors import BusyError, EngineError, needs
from dcmh.stores.address import Address
from dcmh.util.retry import QUERY_PATIENCE, retry

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

CONNECT_SECONDS = 5
ANSWER_SECONDS = 120  # of one statement; more where a statement is known to be long
LOCK_SECONDS = 30
LOCK_GRACE_SECONDS = 2.0  # a process that just ended may hold an advisory lock for a moment longer
BUILD_SECONDS = 24 * 3600  # building an index over 10^9 rows
MAX_IDLE = 8  # connections in the pool
SETTINGS_ERRORS = ("certificate", "sslmode")  # words of libpq about settings: a retry will not help
# Messages of a server that refuses a connection now and will accept it soon.
STARTUP_ERRORS = ("starting up", "shutting down", "recovery", "not yet accepting", "too many", "connection slots")


class Postgres:
    """A database on a PostgreSQL server. Threads may share it. Nothing is contacted before the first piece of work."""

    def __init__(self, address: Address) -> None:
        with needs("PostgreSQL needs psycopg", "dcmh[postgres]"):
            import psycopg
        self._psycopg = psycopg
        self.address = address
        self._idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def work(
        self,
        task: Callable[[psycopg.Connection[Any]], T],
        *,
        patience: float = QUERY_PATIENCE,
        seconds: int = ANSWER_SECONDS,
        transaction: bool = True,
    ) -> T:
        """Run a task in one transaction. It must be idempotent: when a connection breaks, it is unknown whether the
        transaction was committed.

        Parameters
        ----------
        patience
            For how many seconds to wait for an unreachable server; the address takes precedence.
        seconds
            How long one statement may take.
        transaction
            False for a single statement that only reads: it runs without BEGIN and COMMIT.
        """
        patience = self.address.patience if self.address.patience is not None else patience
        try:
            return retry(lambda _: self._once(task, seconds, transaction), patience, self._is_transient)
        except self._psycopg.Error as error:
            raise self._explained(error, patience) from None

    def rows(self, query: Any, values: Sequence[Any] = (), **options: Any) -> list[Any]:
        """The rows that a query returns."""
        return self.work(lambda connection: connection.execute(query, values).fetchall(), transaction=False, **options)

    def connect(self) -> psycopg.Connection[Any]:
        """A new connection, which the caller closes."""
        where = self.address
        settings: dict[str, Any] = {
            name: where.options[name] for name in ("sslmode", "sslrootcert") if name in where.options
        }
        return self._psycopg.connect(
            host=where.host,
            port=where.port,
            dbname=where.database,
            user=where.user,
            password=where.password,
            connect_timeout=CONNECT_SECONDS,
            application_name="dcmh",
            options=f"-c lock_timeout={LOCK_SECONDS}s -c statement_timeout={ANSWER_SECONDS}s",
            keepalives_idle=30,
            tcp_user_timeout=60_000,  # a server that vanished without closing the connection
            autocommit=True,
            prepare_threshold=None,  # a plan made for other values may be a bad one
            **settings,
        )

    def _once(self, task: Callable[[psycopg.Connection[Any]], T], seconds: int, transaction: bool) -> T:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self.connect()
        try:
            with connection.transaction() if transaction else contextlib.nullcontext():
                if seconds != ANSWER_SECONDS:
                    connection.execute(f"SET LOCAL statement_timeout = '{int(seconds)}s'")
                result = task(connection)
        finally:
            self._release(connection)
        return result

    def _release(self, connection: psycopg.Connection[Any]) -> None:
        """Return a connection to the pool, unless it is in a transaction or the pool is full."""
        if connection.info.transaction_status == self._psycopg.pq.TransactionStatus.IDLE:
            with self._lock:
                if len(self._idle) < MAX_IDLE:
                    self._idle.append(connection)
                    return
        connection.close()

    def _is_transient(self, error: Exception) -> bool:
        """Whether a retry may succeed: the server is unreachable, starting, or closing this connection."""
        if not isinstance(error, self._psycopg.OperationalError):
            return False
        if error.sqlstate is None:  # from the connection itself; a server that answers and refuses says FATAL
            refused = "FATAL" in str(error) or any(word in str(error) for word in SETTINGS_ERRORS)
            return not refused or any(word in str(error) for word in STARTUP_ERRORS)
        return error.sqlstate[:2] == "08" or error.sqlstate in ("57P01", "57P02", "57P03", "53300", "40001", "40P01")

    def _explained(self, error: psycopg.Error, patience: float) -> Exception:
        where, message, state = self.address, self.address.scrub(str(error)), error.sqlstate or ""
        if "password" in message or "authentication" in message or state[:2] == "28":
            return EngineError(
                f"{where} refuses the user {where.user or 'of this account'}: {_reason(message)}.",
                hint="Set PGPASSWORD or use ~/.pgpass.",
            )
        if state == "57014":
            return EngineError(
                f"{where} took too long to respond, so the statement was cancelled.", hint="Is it overloaded?"
            )
        if state == "55P03":
            return BusyError(f"Another process is changing {where}.", hint="Wait for it, then try again.")
        if state == "42501":
            return EngineError(
                f"{where} does not allow that: {_reason(message)}.",
                hint="Ask for the privilege, or connect as another user.",
            )
        if state[:2] == "53":
            return EngineError(
                f"{where} is out of space: {_reason(message)}.", hint="Free space on the server, then try again."
            )
        if self._is_transient(error):
            return EngineError(
                f"{where} does not respond (tried for {patience:.0f} s): {_reason(message)}.",
                hint="Is the server running there?",
            )
        return EngineError(f"{where}: {_reason(message)}.")


def _reason(message: str) -> str:
    """The last part of libpq's message, which is the reason."""
    for mark in ("FATAL: ", "failed: ", "ERROR: "):
        message = message.rpartition(mark)[2]
    return message.strip().rstrip(".").partition(" Is the server running")[0][:300]


@contextlib.contextmanager
def advisory_lock(server: Postgres, name: str, what: str) -> Any:
    """Inside the block no other process holds the lock of this name in the database."""
    connection = server.work(lambda _: server.connect())
    end = time.monotonic() + LOCK_GRACE_SECONDS
    query = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
    try:
        while not connection.execute(query, (name,)).fetchall()[0][0]:
            if time.monotonic() > end:
                raise BusyError(f"Another process is writing {what}.", hint="Wait for it, then try again.")
            time.sleep(0.05)
        yield
        with contextlib.suppress(server._psycopg.Error):  # the server went away meanwhile, and the lock with it
            connection.execute("SELECT pg_advisory_unlock_all()")
    finally:
        connection.close()
