"""The files around the code agree with each other: versions, checks, workflows, containers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import dcmh

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_pre_commit_runs_the_checks_of_make():
    (recipe,) = re.findall(r"^check: .*\n((?:\t.*\n)+)", read("Makefile"), re.MULTILINE)
    checks = re.findall(r"\$\(BIN\)/(ruff \w+|\w+)", recipe)
    (local,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in local["hooks"] if hook["language"] == "unsupported"]
    assert [entry.removesuffix(" --force-exclude") for entry in entries] == checks


def test_workflows_run_the_commands_of_ci():
    workflow = yaml.safe_load(read(".github/workflows/ci.yml"))
    job = workflow["jobs"]["test"]
    assert {len(values) for values in job["strategy"]["matrix"].values()} == {3}
    assert job["steps"][-1] == {"run": ".ci/run"}
    targets = set(re.findall(r"^(\w[\w-]*):", read("Makefile"), re.MULTILINE))
    for file in (".github/workflows/ci.yml", ".github/workflows/release.yml", ".ci/run"):
        used = set(re.findall(r"^(?:\s+- run: )?make ([\w-]+)", read(file), re.MULTILINE))
        assert used
        assert used <= targets, file


def test_extras_that_messages_and_pages_name_exist():
    extras = set(tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"])
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {
        extra
        for page in pages
        for listed in re.findall(r"(?:dcmh|'\.)\[([\w,]+)\]", page.read_text(encoding="utf-8"))
        for extra in listed.split(",")
    }
    assert {"serve", "demo", "bench", "mcp"} <= named
    assert named <= extras
    described = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", read("docs/install.md"), re.MULTILINE)))
    assert set(described) == extras


def test_one_version():
    assert yaml.safe_load(read("CITATION.cff"))["version"] == dcmh.__version__
    assert f"## [{dcmh.__version__}]" in read("CHANGELOG.md")


def test_containers_use_what_is_there():
    """The commands of compose.yaml are commands of dcmh, and the image has their extras."""
    from dcmh.cli import COMMANDS

    services = yaml.safe_load(read("compose.yaml"))["services"]
    commands = [service["command"] for service in services.values() if "command" in service]
    assert [command[0] for command in commands] == ["index", "serve"]
    assert all(command[0] in COMMANDS for command in commands)
    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", read("Dockerfile"))
    pyproject = read("pyproject.toml")
    assert all(re.search(rf"^{extra} = \[", pyproject, re.MULTILINE) for extra in extras.split(","))
    assert {"serve", "postgres"} <= set(extras.split(","))
