"""Real commands: in this process for the many, in their own for a few."""

from __future__ import annotations

import pytest
import torch
from commands import QUICK, Answer

from dcmh.cli import main
from toy_photos import write_photos


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Run a command in this process and in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Answer:
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos")


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory):
    """A model of the toy data, made by the command."""
    folder = tmp_path_factory.mktemp("models") / "toy.model"
    assert main(["train", "toy", *QUICK, "--out", str(folder)]) == 0
    return folder
