"""Servers that are away or refuse: one sentence, exit code 1, and no password in it."""

from __future__ import annotations

import socket

import pytest
import servers

from dcmh.cli import main

SECRET = "hunter2-is-secret"


@pytest.fixture
def cli(capsys, caplog):
    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert SECRET not in said.out + said.err + caplog.text
        assert "Traceback" not in said.err
        return code, said.err.strip()

    return run


@pytest.mark.parametrize("scheme", ["postgresql", "milvus"])
def test_a_server_that_is_away(cli, scheme):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    path = "db?collection=a&patience=1" if scheme == "postgresql" else "a?patience=1"
    code, said = cli("search", f"{scheme}://ann:{SECRET}@127.0.0.1:{port}/{path}", "dog")
    assert code == 1
    assert said.splitlines()[-1].startswith(f"{scheme}://ann@127.0.0.1:{port}/")
    assert "does not respond (tried for 1 s)" in said
    assert len(said.splitlines()) == 1


def test_a_wrong_password_is_not_tried_again(cli, postgres, monkeypatch):
    code, said = cli("search", postgres.address(password=SECRET), "dog")
    assert code == 1
    assert "refuses the user dcmh: password authentication failed" in said
    assert said.endswith("Set PGPASSWORD or use ~/.pgpass.")
    monkeypatch.setenv("PGPASSWORD", SECRET)
    code, said = cli("info", postgres.address().replace(f":{postgres.password}@", "@"))
    assert (code, "refuses the user dcmh" in said) == (1, True)


def test_the_password_may_come_from_the_environment(cli, postgres, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    code, said = cli("search", postgres.address().replace(f":{postgres.password}@", "@"), "dog")
    assert code == 1
    assert "There is no index postgresql://dcmh@127.0.0.1" in said  # so it was let in
    assert postgres.password not in said


def test_another_database(cli, postgres):
    code, said = cli("info", postgres.address("nowhere"))
    assert code == 1
    assert 'database "nowhere" does not exist' in said


def test_there_is_no_such_index(cli, engine):
    code, said = cli("search", engine.address(collection="nothing"), "dog")
    assert code == 1
    assert "There is no index" in said
    assert "dcmh index DATA --model MODEL --out" in said


def test_milvus_asks_for_a_password(cli, tmp_path, monkeypatch):
    server = servers.Milvus(tmp_path, password=True, ticks=50)
    server.start()
    try:
        where = server.address("a").replace("milvus://", f"milvus://root:{SECRET}@")
        code, said = cli("search", where, "dog")
        assert code == 1
        assert "refuses the user root" in said
        monkeypatch.setenv("MILVUS_USER", "root")
        monkeypatch.setenv("MILVUS_PASSWORD", "Milvus")  # as it comes
        code, said = cli("search", server.address("a"), "dog")
        assert (code, "There is no index" in said) == (1, True)
    finally:
        server.stop()
