"""The wheel and the source archive: complete, and usable in an environment that has never seen the checkout."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import dcmh
from toy_photos import write_photos

ROOT = Path(__file__).parents[1]
DATA = (".html", ".js", ".css", ".svg", ".json", ".jsonl", ".txt", ".toml", ".safetensors", ".crc32", ".typed")

pytestmark = pytest.mark.slow


def build(source: Path, out: Path, *targets: str) -> None:
    arguments = [word for target in targets for word in ("-t", target)]
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", out, *arguments], cwd=source, check=True)


def package_files(folder: Path) -> set[str]:
    """The files of the package, byte code aside."""
    files = {path for path in (folder / "src").rglob("*") if path.is_file() and path.suffix in (".py", *DATA)}
    return {path.relative_to(folder / "src").as_posix() for path in files}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel and the source archive."""
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out, "sdist", "wheel")
    return out


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    """Python in a fresh environment: the wheel installed without its dependencies, which are those of the tests."""
    folder = tmp_path_factory.mktemp("fresh") / "env"
    venv.create(folder, with_pip=True)
    program = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    (wheel,) = built.glob("*.whl")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    install = [program, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, env=clean)
    place = subprocess.check_output(
        [program, "-c", "import site; print(site.getsitepackages()[0])"], env=clean, text=True
    )
    # A path in a .pth file: .pth files in there, such as that of an editable dcmh, are not read.
    (Path(place.strip()) / "dependencies.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")

    def run(*arguments: object, cwd: Path) -> str:
        done = subprocess.run([program, *map(str, arguments)], cwd=cwd, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_every_file_of_the_package(built):
    (wheel,) = built.glob(f"dcmh-{dcmh.__version__}-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == package_files(ROOT)
    assert wheel.stat().st_size < 20e6


def test_the_source_archive_builds_the_same_wheel(built, tmp_path):
    (archive,) = built.glob(f"dcmh-{dcmh.__version__}.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert {"LICENSE", "README.md", "CHANGELOG.md", "docs", "examples", "tests", "Makefile"} <= set(os.listdir(source))
    build(source, tmp_path / "again", "wheel")
    (first,), (again,) = built.glob("*.whl"), (tmp_path / "again").glob("*.whl")
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(again) as other:
        assert {file.filename: file.CRC for file in one.infolist()} == {
            file.filename: file.CRC for file in other.infolist()
        }


def test_a_fresh_environment_finds_page_starter_model_and_demo(python, tmp_path):
    write_photos(tmp_path / "photos", 5)
    (tmp_path / "photos" / "captions.csv").unlink()
    assert python("-m", "dcmh", "--version", cwd=tmp_path).strip() == dcmh.__version__
    where = python("-c", "import dcmh; print(dcmh.__file__)", cwd=tmp_path)
    assert str(ROOT) not in where
    python("-m", "dcmh", "index", "photos", cwd=tmp_path)  # the starter model
    assert len(python("-m", "dcmh", "search", "photos.dcmh", "snow", "--paths", cwd=tmp_path).splitlines()) == 5
    code = """
import dcmh
from starlette.testclient import TestClient
with TestClient(dcmh.service.create_app("photos.dcmh")) as client:
    assert "<title>" in client.get("/").text
    for name in ("app.js", "style.css", "icon.svg"):
        assert client.get(f"/page/{name}").status_code == 200, name
print(len(dcmh.load_dataset("openmoji")))
"""
    assert python("-c", code, cwd=tmp_path).strip() == "1914"
