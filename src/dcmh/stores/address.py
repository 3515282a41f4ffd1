"""Addresses of collections on a server, and how to print them without their password.

    postgresql://user@host:5432/database?collection=photos
    milvus://host:19530/photos            or milvus://user@host/database/photos

A password may follow the user's name, but other users of a machine can see command lines: prefer PGPASSWORD or ~/.pgpass for
PostgreSQL, and MILVUS_USER with MILVUS_PASSWORD, or MILVUS_TOKEN, for Milvus.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from dcmh.errors import ParameterError

ENGINES = {"postgresql": "postgres", "postgres": "postgres", "milvus": "milvus"}
PORTS = {"postgres": 5432, "milvus": 19530}
APPROXIMATE = {"postgres": "hnsw", "milvus": "ivf"}
SSLMODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
CONSISTENCY = ("strong", "session", "bounded", "eventually")
# Options after the question mark: ours, and those that are passed to libpq.
OPTIONS = {
    "postgres": (("collection", "approximate", "effort", "patience"), ("host", "port", "sslmode", "sslrootcert")),
    "milvus": (("approximate", "effort", "patience", "consistency", "tls"), ()),
}
EXAMPLES = {"postgres": "postgresql://user@host/database?collection=photos", "milvus": "milvus://host:19530/photos"}

_COLLECTION = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_SECRET = re.compile(r"([a-z]+://[^/@:]*):.*@", re.DOTALL)


@dataclass(frozen=True)
class Address:
    """The address of a collection. `str` leaves the password out."""

    engine: str  # "postgres" or "milvus"
    host: str
    port: int
    collection: str
    database: str = ""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        user = "" if self.user is None else f"{quote(self.user, safe='')}@"
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == PORTS[self.engine] else f":{self.port}"
        options = {name: value for name, value in self.options.items() if name != "patience"}
        if self.engine == "postgres":
            socket = {"host": self.host} if "/" in self.host else {}
            query = urlencode({**socket, "collection": self.collection, **options}, safe="/")
            return f"postgresql://{user}{'' if socket else host + port}/{quote(self.database)}?{query}"
        path = f"{quote(self.database)}/{self.collection}" if self.database else self.collection
        return f"milvus://{user}{host}{port}/{path}{'?' if options else ''}{urlencode(options)}"

    @property
    def identity(self) -> str:
        """The same for all spellings of the address of one collection."""
        return f"{self.engine} {self.host} {self.port} {self.database} {self.collection}"

    @property
    def approximate(self) -> bool:
        """Whether searches may miss hits, in return for speed."""
        return "approximate" in self.options

    @property
    def patience(self) -> float | None:
        """For how many seconds to wait for an unreachable server; None: the caller's default."""
        return float(self.options["patience"]) if "patience" in self.options else None

    @property
    def effort(self) -> int | None:
        """How thorough an approximate search is: ef_search of HNSW, nprobe of IVF."""
        return int(self.options["effort"]) if "effort" in self.options else None

    def scrub(self, text: str) -> str:
        """The text of an error of the server, without the password."""
        scrubbed = " ".join(text.split())
        for secret in {self.password, quote(self.password or "", safe=""), os.environ.get("PGPASSWORD")}:
            if secret:
                scrubbed = scrubbed.replace(secret, "***")
        for name in ("MILVUS_PASSWORD", "MILVUS_TOKEN"):
            if os.environ.get(name):
                scrubbed = scrubbed.replace(os.environ[name], "***")
        return scrubbed


def is_address(place: Path | str | Address) -> bool:
    """Whether this names a collection on a server rather than a folder."""
    if isinstance(place, Address):
        return True
    # A Path turns // into /. Such an address is still recognised, so that `parse` can explain what is wrong.
    scheme, _, rest = str(place).partition(":")
    return scheme in ENGINES and rest.startswith("/")


def hide_secrets(word: str) -> str:
    """A word of a command line; if it is an address, without its password."""
    return _SECRET.sub(r"\1@", word)


def parse(address: Path | str | Address) -> Address:
    """Parse an address. Errors say what is wrong, and never contain the password."""
    if isinstance(address, Address):
        return address
    text = str(address)
    scheme, _, rest = text.partition("://")
    if scheme not in ENGINES or not rest:
        raise ParameterError(
            f"{_shown(text)} is not an address.", hint=f"Write for example {' or '.join(EXAMPLES.values())}."
        )
    engine = ENGINES[scheme]
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise ParameterError(
            f"The host or port of this {scheme} address cannot be read.", hint=_example(engine)
        ) from None
    options = _options(parts, engine, text)
    database, collection = _named(parts, engine, options, text)
    return Address(
        engine,
        options.pop("host", host) or "127.0.0.1",
        int(options.pop("port", port or PORTS[engine])),
        collection,
        database,
        None if not parts.username else unquote(parts.username),
        None if not parts.password else unquote(parts.password),
        options,
    )


def _options(parts: SplitResult, engine: str, text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ParameterError(f"{_shown(text)}: what follows ? cannot be read.", hint=_example(engine)) from None
    ours, others = OPTIONS[engine]
    options = dict(pairs)
    for name in options:
        if name not in (*ours, *others):
            raise ParameterError(
                f"{_shown(text)}: there is no option {name!r}.", hint=f"{engine} takes: {', '.join((*ours, *others))}."
            )
    if len(options) < len(pairs):
        raise ParameterError(f"{_shown(text)}: an option is given twice.", hint="Give it once.")
    _check("approximate", options, lambda value: value == APPROXIMATE[engine], f"it can be {APPROXIMATE[engine]}")
    _check("effort", options, lambda value: value.isdigit() and int(value) > 0, "it is a whole number of at least 1")
    _check("sslmode", options, lambda value: value in SSLMODES, f"it can be {', '.join(SSLMODES)}")
    _check("port", options, str.isdigit, "it is a number")
    _check("patience", options, re.compile(r"\d+(\.\d+)?").fullmatch, "it is a number of seconds")
    _check("consistency", options, lambda value: value in CONSISTENCY, f"it can be {', '.join(CONSISTENCY)}")
    _check("tls", options, lambda value: value in ("true", "false"), "it is true or false")
    return options


def _named(parts: SplitResult, engine: str, options: dict[str, str], text: str) -> tuple[str, str]:
    """The database and the collection."""
    names = [unquote(name) for name in parts.path.split("/")[1:]]
    if engine == "postgres":
        collection = options.pop("collection", "")
        database = names[0] if len(names) == 1 else ""
        if not database or len(names) > 1:
            raise ParameterError(f"{_shown(text)} names no database.", hint=_example(engine))
    else:
        if not 1 <= len(names) <= 2 or not all(names):
            raise ParameterError(f"{_shown(text)} names no collection.", hint=_example(engine))
        database, collection = names[0] if len(names) == 2 else "", names[-1]
    if not collection:
        raise ParameterError(f"{_shown(text)} names no collection.", hint=_example(engine))
    if not _COLLECTION.fullmatch(collection):
        raise ParameterError(
            f"{collection!r} cannot name a collection: it takes up to 40 letters a-z, digits and _, a letter first."
        )
    return database, collection


def _check(name: str, options: dict[str, str], holds: object, rule: str) -> None:
    if name in options and not holds(options[name]):  # type: ignore[operator]
        raise ParameterError(f"{name}={options[name]} is not valid: {rule}.")


def _example(engine: str) -> str:
    return f"Write for example {EXAMPLES[engine]}."


def _shown(text: str) -> str:
    """The given address without its password and without options, which may hold a secret as well."""
    return hide_secrets(text).partition("?")[0]
