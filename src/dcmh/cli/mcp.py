"""dcmh mcp: an index as tools for language models (Model Context Protocol), over stdin and stdout."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh import __version__
from dcmh.cli import console
from dcmh.cli.options import ServerModel, Switch
from dcmh.errors import DCMHError, ImageError, ParameterError, needs
from dcmh.stores.address import is_address

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from dcmh.search import SearchIndex

MAX_HITS = 100  # per call
PICTURE_SIZE = 512  # pixels of the longer side
INSTRUCTIONS = (
    "Search collections of pictures and texts by words in any of 16 languages, or by similarity to an item. "
    "Items have numeric ids; `describe` shows an item's picture. Nothing can be changed."
)


def mcp(index: str, /, *more: str, model: ServerModel = None, json: Switch = False) -> int:
    """Offer an index to language models as tools of the Model Context Protocol, over stdin and stdout.

    The tools are search, similar, describe and collections. None of them changes anything or reads other files.

    Parameters
    ----------
    index
        The folder that dcmh index wrote, or the address of a collection.
    more
        More of them.
    json
        Print the entry for the configuration file of an MCP client as JSON, and exit.
    """
    from dcmh.search import SearchIndex

    indexes = [index, *more]
    if json:
        for each in indexes:
            if not is_address(each):
                SearchIndex.open(each, model=model).close()  # it must be one
        places = [each if is_address(each) else os.path.abspath(each) for each in indexes]
        options = [] if model is None else ["--model", os.path.abspath(model)]
        entry = {"command": sys.executable, "args": ["-m", "dcmh", "mcp", *places, *options]}
        console.result_json({"mcpServers": {"dcmh": entry}})
        return 0
    with contextlib.closing(Tools(indexes, model)) as tools:
        server(tools).run()
    return 0


class Tools:
    """The tools, one method each. Every call sees what other processes have changed before it."""

    def __init__(self, indexes: Sequence[str | Path], model: Path | None = None) -> None:
        from dcmh.search import SearchIndex

        self._lock = threading.Lock()  # calls come from several threads
        self._indexes: dict[str, SearchIndex] = {}
        for each in indexes:
            index = SearchIndex.open(each, model=model)
            self._indexes[index.place] = index

    def close(self) -> None:
        """Close the indexes."""
        for index in self._indexes.values():
            index.close()

    def collections(self) -> list[dict[str, Any]]:
        """List the collections: name, number of items, codes by modality, and whether the precision of hits was measured."""
        with self._lock:
            return [self._describe(self._current(name)) for name in self._indexes]

    def search(
        self, text: str, collection: str | None = None, k: int = 10, at_least: float | None = None
    ) -> dict[str, Any]:
        """Find the items that words describe, best first.

        Hits are ordered by score. k is the maximum number of hits, up to 100. at_least, from 0 to 1, leaves out hits whose
        measured precision is lower, where it was measured. collection is needed where there are several.
        """
        with self._lock:
            return self._current(collection).search(text=text, k=min(k, MAX_HITS), at_least=at_least).to_json()

    def similar(self, item: int, collection: str | None = None, k: int = 10) -> dict[str, Any]:
        """Find the items that are most similar to an item, which is given by its id."""
        with self._lock:
            return self._current(collection).similar(item, k=min(k, MAX_HITS)).to_json()

    def describe(self, item: int, collection: str | None = None, picture: bool = True) -> list[Any]:
        """Show an item: its name, path, text and labels, and a reduced copy of its picture, unless picture is false."""
        from mcp.server.mcpserver import Image

        from dcmh.inputs import images

        with self._lock:
            index = self._current(collection)
            found = index.item(item)
            path = index.path_of(found)
        record = {"id": found.id, "name": found.name, "path": path and str(path), "text": found.text}
        shown: list[Any] = [record | {"labels": found.labels}]
        if picture and path is not None:
            try:
                shown.append(Image(data=images.thumbnail(path, PICTURE_SIZE), format="jpeg"))
            except ImageError as error:
                shown.append(f"The picture cannot be shown: {error}.")
        return shown

    def _current(self, name: str | None) -> SearchIndex:
        """The index with a name, up to date; without a name, the only one."""
        names = list(self._indexes)
        if name is None and len(names) > 1:
            raise ParameterError(f"Which collection? There are {', '.join(names)}.", which="collection")
        key = names[0] if name is None else name
        if key not in self._indexes:
            raise ParameterError(f"There is no collection {key}.", which=key, hint=f"There are: {', '.join(names)}.")
        index = self._indexes[key]
        if index.replaced():
            self._indexes[key] = type(index).open(index.where)
            index.close()
        else:
            index.refresh()
        return self._indexes[key]

    def _describe(self, index: SearchIndex) -> dict[str, Any]:
        return {
            "name": index.place,
            "items": len(index),
            "codes": index.modalities,
            "bits": index.bits,
            "method": index.encoders.record["method"],
            "precision_measured": index.calibration.is_measured,
        }


def server(tools: Tools) -> MCPServer:
    """An MCP server with these tools; errors that the caller can fix are returned as their message."""
    with needs("dcmh mcp needs the package mcp", "dcmh[mcp]"):
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp_types import ToolAnnotations

    def explained(tool: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(tool)
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return tool(*arguments, **named)
            except DCMHError as error:
                raise ToolError(str(error)) from error

        return call

    offered = MCPServer("dcmh", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    read_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in (tools.search, tools.similar, tools.collections):
        offered.tool(annotations=read_only)(explained(tool))
    offered.tool(annotations=read_only, structured_output=False)(explained(tools.describe))  # it holds a picture
    return offered
