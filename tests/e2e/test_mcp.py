"""dcmh mcp: the tools, as the client of the package mcp calls them."""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys

import anyio
import pytest
from commands import SRC
from mcp import Client, StdioServerParameters
from PIL import Image

from dcmh.cli import main
from dcmh.cli.mcp import Tools, server
from dcmh.search import SearchIndex
from toy_photos import write_photos


@pytest.fixture(scope="module")
def place(tmp_path_factory, toy_model):
    folder = tmp_path_factory.mktemp("mcp")
    write_photos(folder / "photos")
    assert main(["index", str(folder / "photos"), "--model", str(toy_model), "--out", str(folder / "photos.dcmh")]) == 0
    return folder


@pytest.fixture
def call(place):
    """Call a tool over the protocol in memory; returns the result."""
    tools = Tools([place / "photos.dcmh"])
    yield lambda name, **arguments: ask(server(tools), name, **arguments)
    tools.close()


def ask(target, name, **arguments):
    async def run():
        async with Client(target) as client:
            return await client.call_tool(name, arguments)

    return anyio.run(run)


def test_the_tools_are_listed_as_read_only(place):
    async def run():
        async with Client(server(tools)) as client:
            return (await client.list_tools()).tools

    tools = Tools([place / "photos.dcmh"])
    listed = anyio.run(run)
    tools.close()
    assert {tool.name for tool in listed} == {"search", "similar", "describe", "collections"}
    assert all(tool.annotations.read_only_hint and tool.description for tool in listed)
    (search,) = [tool for tool in listed if tool.name == "search"]
    assert search.input_schema["required"] == ["text"]


def test_search_and_similar_answer_as_the_index_does(call, place):
    with SearchIndex.open(place / "photos.dcmh") as index:
        for found, expected in (
            (call("search", text="sunny noon", k=3), index.search(text="sunny noon", k=3)),
            (call("similar", item=5, k=4), index.similar(5, k=4)),
        ):
            assert not found.is_error
            assert found.structured_content["hits"] == expected.to_json()["hits"]
            assert json.loads(found.content[0].text)["searched"] == 40


def test_describe_shows_the_picture(call, place):
    about, picture = call("describe", item=7).content
    record = json.loads(about.text)
    assert (record["id"], record["name"], record["path"]) == (7, "006.png", str(place / "photos" / "006.png"))
    assert record["text"]
    assert record["labels"]
    assert picture.mime_type == "image/jpeg"
    with Image.open(io.BytesIO(base64.b64decode(picture.data))) as shown, Image.open(record["path"]) as original:
        assert shown.size == original.size
    assert len(call("describe", item=7, picture=False).content) == 1


def test_errors_say_what_to_do(call):
    for arguments, message in (
        (("describe", {"item": 4000}), "There is no item 4000"),
        (("similar", {"item": 4000}), "There is no item 4000"),
        (("search", {"text": ""}), "empty"),
        (("search", {"text": "noon", "k": 0}), "k must be"),
        (("search", {"text": "noon", "collection": "other"}), "There is no collection other."),
    ):
        name, given = arguments
        answer = call(name, **given)
        assert answer.is_error
        assert message in answer.content[0].text, answer.content


def test_several_collections_and_changes_by_others(place, tmp_path):
    other = tmp_path / "other.dcmh"
    shutil.copytree(place / "photos.dcmh", other)
    tools = Tools([place / "photos.dcmh", other])
    try:
        assert "Which collection?" in ask(server(tools), "search", text="noon").content[0].text
        with SearchIndex.open(other) as index:
            index.remove([1, 2])
        listed = ask(server(tools), "collections").structured_content["result"]
        assert [(each["name"], each["items"]) for each in listed] == [
            (str(place / "photos.dcmh"), 40),
            (str(other), 38),
        ]
        assert ask(server(tools), "search", text="noon", collection=str(other)).structured_content["searched"] == 38
        shutil.move(other, tmp_path / "old")
        shutil.copytree(place / "photos.dcmh", other)  # as dcmh index --rebuild replaces it
        assert tools.search("noon", str(other))["searched"] == 40
    finally:
        tools.close()


def test_a_missing_picture_does_not_hide_the_item(place, tmp_path, toy_model):
    photos = write_photos(tmp_path / "photos", 3)
    assert main(["index", str(photos), "--model", str(toy_model), "--out", str(tmp_path / "photos.dcmh")]) == 0
    (photos / "000.png").unlink()
    tools = Tools([tmp_path / "photos.dcmh"])
    record, message = tools.describe(1)
    tools.close()
    assert record["name"] == "000.png"
    assert message.startswith("The picture cannot be shown: ")


def test_the_command_speaks_over_stdin_and_stdout_as_its_configuration_says(cli, place, monkeypatch):
    monkeypatch.chdir(place)
    printed = cli("mcp", "photos.dcmh", "--json")
    assert printed.code == 0
    entry = json.loads(printed.out)["mcpServers"]["dcmh"]
    assert entry["command"] == sys.executable
    missing = cli("mcp", "NOTHERE", "--json")
    assert (missing.code, missing.out) == (1, "")
    assert missing.last.startswith("There is no index NOTHERE")
    started = StdioServerParameters(**entry, env={"PYTHONPATH": str(SRC)})
    found = ask(started, "search", text="sunny noon", k=2)
    assert len(found.structured_content["hits"]) == 2


def test_without_the_package_the_message_says_what_to_install(cli, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    answer = cli("mcp", place / "photos.dcmh")
    assert answer.code == 1
    assert answer.last == 'dcmh mcp needs the package mcp. Install: pip install "dcmh[mcp]"'
