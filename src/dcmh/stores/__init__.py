"""The catalogue of an index on a server: items, texts, paths and labels beside the codes; and models kept at home."""

from __future__ import annotations

from dcmh.stores.address import Address
from dcmh.stores.base import RemoteCatalogue

__all__ = ["RemoteCatalogue", "connect"]


def connect(address: Address) -> RemoteCatalogue:
    """The catalogue of a collection, which need not exist yet."""
    if address.engine == "postgres":
        from dcmh.stores.postgres.catalogue import PostgresCatalogue

        return PostgresCatalogue(address)
    from dcmh.stores.milvus.catalogue import MilvusCatalogue

    return MilvusCatalogue(address)
