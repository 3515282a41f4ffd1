"""Addresses: what they may be, and that their password is never said."""

from __future__ import annotations

import pytest

from dcmh.cli import console
from dcmh.errors import ParameterError
from dcmh.stores.address import Address, hide_secrets, is_address, parse


def test_the_parts():
    found = parse("postgresql://ann:p%40ss@db.example:6000/media?collection=photos&sslmode=require&patience=3")
    assert (found.engine, found.host, found.port, found.database) == ("postgres", "db.example", 6000, "media")
    assert (found.user, found.password, found.collection) == ("ann", "p@ss", "photos")
    assert (found.patience, found.effort, found.approximate) == (3.0, None, False)
    assert str(found) == "postgresql://ann@db.example:6000/media?collection=photos&sslmode=require"
    assert "p@ss" not in repr(found)
    found = parse("milvus://cluster/photos?approximate=ivf&effort=32")
    assert (found.engine, found.host, found.port, found.database) == ("milvus", "cluster", 19530, "")
    assert (found.effort, found.approximate) == (32, True)
    assert parse(str(found)) == found
    found = parse("milvus://[::1]:7/media/photos")
    assert (found.host, found.port, found.database, str(found)) == ("::1", 7, "media", "milvus://[::1]:7/media/photos")
    found = parse("postgres://ann@/media?host=/run/pg&collection=a")
    assert (found.host, str(found)) == ("/run/pg", "postgresql://ann@/media?host=/run/pg&collection=a")


def test_what_is_an_address():
    assert is_address("milvus://host/a")
    assert is_address("postgresql:/one/slash")  # to be refused with a sentence, not taken for a folder
    assert is_address(parse("milvus://host/a"))
    assert not is_address("photos.dcmh")
    assert not is_address("http://host/a")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("postgresql:/user@host/db", "is not an address"),
        ("postgresql://user:secret@host/db", "names no collection"),
        ("postgresql://user:secret@host?collection=a", "names no database"),
        ("postgresql://user:secret@host/db/more?collection=a", "names no database"),
        ("milvus://user:secret@host", "names no collection"),
        ("milvus://user:secret@host/a/b/c", "names no collection"),
        ("milvus://host/drop table;", "cannot name a collection"),
        ("postgresql://host/db?collection=a%22b", "cannot name a collection"),
        ("milvus://host/9lives", "cannot name a collection"),
        ("milvus://user:secret@host:port/a", "host or port"),
        ("milvus://user:secret", "host or port"),
        ("milvus://user:se/cret@host/a", "host or port"),
        ("milvus://host/a?colour=red", "no option 'colour'"),
        ("milvus://host/a?approximate=hnsw", "it can be ivf"),
        ("postgresql://host/db?collection=a&sslmode=always", "sslmode=always is not valid: it can be disable, allow"),
        ("postgresql://host/db?collection=a&effort=0", "at least 1"),
        ("postgresql://host/db?collection=a&collection=b", "given twice"),
        ("milvus://host/a?consistency=sometimes", "strong, session, bounded, eventually"),
    ],
)
def test_refusals_name_what_is_wrong(address, says):
    with pytest.raises(ParameterError, match=says) as error:
        parse(address)
    assert "secret" not in str(error.value)
    assert "cret" not in str(error.value).replace("secret", "")


def test_secrets_are_hidden(monkeypatch):
    assert hide_secrets("postgresql://ann:top secret@host/db?collection=a") == "postgresql://ann@host/db?collection=a"
    assert hide_secrets("photos.dcmh") == "photos.dcmh"
    console.set_up(["search", "milvus://ann:hunter2@host/a", "dog"])
    assert console.command("--json") == "dcmh search milvus://ann@host/a dog --json"
    monkeypatch.setenv("MILVUS_TOKEN", "tok")
    said = Address("milvus", "h", 1, "c", user="u", password="p w").scrub("with p w or p%20w\nor tok it failed")
    assert said == "with *** or *** or *** it failed"
