"""Where indexes are stored: a folder (SQLite and memory-mapped codes), PostgreSQL or Milvus, behind one `Store` protocol."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING

from dcmh.errors import ParameterError
from dcmh.stores.address import Address, is_address, parse

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher
    from dcmh.stores.base import Store
    from dcmh.stores.server import ServerStore

__all__ = ["build_store", "check_upgrade", "connect", "model_of", "open_store"]


def open_store(where: Path | str | Address, model: Path | None = None) -> Store:
    """Open the store of an index: a folder, or an address of PostgreSQL or Milvus.

    `model` is needed once for an address whose model this machine does not have. A model other than the one that the index was
    built with is refused.
    """
    if is_address(where):
        address = parse(where)
        return _engine(address).open(address, model)
    from dcmh.stores.local.store import LocalStore

    return LocalStore.open(Path(str(where)), model)


def build_store(
    where: Path | str | Address,
    model: Hasher | Path,
    *,
    rebuild: bool = False,
    upgrade: bool = False,
    report: str | None = None,
    codes: str | None = None,
) -> AbstractContextManager[Store]:
    """Inside the block: the store of an index, created where there is none, with this process as its only writer.

    Parameters
    ----------
    rebuild
        Start with an empty index even if there is one, also of another model.
    upgrade
        With a model other than that of the index, which stays as it is inside the block: start with its items, without
        codes.
    report
        What was measured of a model in memory, as JSON, to keep with it.
    codes
        "each" or "joint", see `SearchIndex.build`. An index with other codes is refused.
    """
    if is_address(where):
        address = parse(where)
        if upgrade:
            check_upgrade(address)
        return _engine(address).building(address, model, rebuild=rebuild, report=report, codes=codes)
    from dcmh.stores.local.store import LocalStore

    folder = Path(str(where))
    return LocalStore.building(folder, model, rebuild=rebuild, upgrade=upgrade, report=report, codes=codes)


def check_upgrade(where: Path | str | Address) -> None:
    """Refuse to upgrade a collection on a server."""
    if is_address(where):
        raise ParameterError(
            "A collection on a server cannot be upgraded in place.",
            hint=f"Index the data with the new model into another collection beside {parse(where)}, then use that one.",
        )


def model_of(where: Path | str | Address) -> Path | None:
    """The folder of the model of an index; None where there is no index yet. Anything else in its place is an error."""
    if is_address(where):
        with closing(connect(parse(where))) as store:
            about = store.read_about()
            return store.find_model(about["fingerprint"]) if about else None
    from dcmh.stores.local import layout

    folder = Path(str(where))
    layout.check_target(folder)
    return folder / layout.MODEL if layout.is_index(folder) else None


def connect(address: Address) -> ServerStore:
    """The store of a collection that may not exist yet. Nothing is read or created."""
    return _engine(address)(address)


def _engine(address: Address) -> type[ServerStore]:
    if address.engine == "postgres":
        from dcmh.stores.postgres.store import PostgresStore

        return PostgresStore
    from dcmh.stores.milvus.store import MilvusStore

    return MilvusStore
