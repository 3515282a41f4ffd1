"""Benchmarks by the commands: fetched from a server on this machine, checked, benched as the paper's tables, reported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import SRC

import dcmh
import miniatures
from dcmh.cli import console
from dcmh.data.benchmarks import sources
from mirror import mirror

PAPER = Path(__file__).parents[2] / "configs" / "paper"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DCMH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A mirror that has the miniature's two zips; the table of sources points to it."""
    miniatures.mirflickr_zips(tmp_path / "origin")
    with mirror() as made:
        archives = []
        for archive in sources.SOURCES["mirflickr25k"].archives:
            made.files[f"/{archive.name}"] = (tmp_path / "origin" / archive.name).read_bytes()
            urls = (made.url(f"/gone/{archive.name}"), made.url(f"/{archive.name}"))
            made.plans[f"/gone/{archive.name}"] = ["status 404"]
            archives.append(sources.Archive(archive.name, urls, archive.unpacks_to))
        source = sources.Source("Mini", "a miniature", "ours", "here", tuple(archives))
        monkeypatch.setitem(sources.SOURCES, "mirflickr25k", source)
        yield made


def test_get_check_and_load(cli, home, server, monkeypatch):
    miniatures.expect_mirflickr(monkeypatch)
    listed = {row["name"]: row["state"] for row in json.loads(cli("data", "--json").out)}
    assert listed["mirflickr25k"] == "not downloaded: dcmh data get mirflickr25k"
    assert server.seen == []  # nothing is fetched that was not asked for
    answer = cli("data", "get", "mirflickr25k")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[1].split() == [
        "mirflickr25k.zip",
        "downloaded",
        "none",
        "published;",
        "recorded",
        "now",
        "121",
    ]
    assert "the server answered 404." in answer.err
    assert answer.last == "Next: dcmh data check mirflickr25k"
    answer = cli("data", "check", "mirflickr25k")
    assert answer.code == 0, answer.out
    assert answer.last == f"mirflickr25k in {home}/mirflickr25k is complete. Next: dcmh train mirflickr25k"
    again = json.loads(cli("data", "get", "mirflickr25k", "--json").out)
    assert [one["state"] for one in again["archives"]] == ["was there", "was there"]
    assert len(dcmh.load_dataset("mirflickr25k")) == 38
    assert f"in {home}/mirflickr25k" in cli("data").out
    described = json.loads(cli("data", "mirflickr25k", "--json").out)
    assert described["items"] == 38
    assert described["source"]["licence"] == "ours"
    assert described["modalities"]["text"] == {"kind": "vector", "observed": 38, "features": 185}


def test_check_names_what_is_missing_and_fails(cli, home, server):
    assert cli("data", "get", "mirflickr25k").code == 0
    (home / "mirflickr25k/mirflickr25k.zip").unlink()
    (home / "mirflickr25k/mirflickr/im12.jpg").unlink()
    answer = cli("data", "check", "mirflickr25k", "--json")
    found = {finding["what"]: finding for finding in json.loads(answer.out)["findings"]}
    assert answer.code == 1
    assert found["photos"]["detail"] == "39 of 25,000; missing: im12.jpg, im41.jpg … im25000.jpg"
    assert (
        "is not complete: photos, tags, words, annotated photos, points. Get what is missing: dcmh data get mirflickr25k"
        in answer.last
    )
    assert cli("data", "get", "mirflickr25k").code == 0
    assert (home / "mirflickr25k/mirflickr/im12.jpg").is_file()


def test_interrupted_and_run_again(cli, home, server, monkeypatch):
    update = console.Bar.update

    def interrupt(self, done, total, *rest, **more):
        monkeypatch.setattr(console.Bar, "update", update)
        raise KeyboardInterrupt

    monkeypatch.setattr(console.Bar, "update", interrupt)
    answer = cli("data", "get", "mirflickr25k")
    assert answer.code == 130
    assert answer.last == "Stopped. Complete files are kept. Continue: dcmh data get mirflickr25k"
    assert list((home / "mirflickr25k").iterdir()) == []
    assert cli("data", "get", "mirflickr25k").code == 0


def test_a_corrupted_archive_is_refused(cli, home, server):
    assert cli("data", "get", "mirflickr25k").code == 0
    archive = home / "mirflickr25k/mirflickr25k_annotations_v080.zip"
    archive.unlink()
    server.files[f"/{archive.name}"] = server.files[f"/{archive.name}"][:-1] + b"!"
    answer = cli("data", "get", "mirflickr25k")
    assert answer.code == 1
    assert "another checksum than the first time" in answer.last
    assert not archive.exists()
    assert not list(archive.parent.glob("*.part*"))


def test_what_is_said_of_a_benchmark_that_is_not_here(cli, home):
    answer = cli("data", "nuswide")
    assert answer.code == 0
    said = answer.out
    for word in ("licence", "186,577", "Groundtruth.zip", "no checksum published", "unrar", "ask the publishers"):
        assert word in said
    assert answer.last == "It is not downloaded. Next: dcmh data get nuswide"
    assert cli("train", "nuswide").last.startswith(
        f"nuswide is not in {home}/nuswide. Get it: dcmh data get nuswide, or put"
    )
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("get",), 2, "dcmh data get needs a name, such as: dcmh data get mirflickr25k."),
        (
            ("check", "toy"),
            1,
            "Only these can be downloaded and verified: mirflickr25k, nuswide, nuswide21; not 'toy'.",
        ),
        (("get", "photos/"), 1, "Only these can be downloaded and verified"),
        (("toy", "openmoji"), 2, "Two names, toy and openmoji. Give one name, or get or check and one name."),
    ],
)
def test_wrong_usage(cli, home, arguments, code, says):
    answer = cli("data", *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert says in answer.last


def small(name: str, data: str, changes: dict[str, str]) -> str:
    """One of the paper's benches on a miniature: the same file with smaller numbers and two quick methods."""
    text = (PAPER / f"{name}.toml").read_text(encoding="utf-8").partition("[methods.")[0]
    usual = {
        "train = 5000": "train = 20",
        "[16, 32, 64]": "[16]",
        "[0, 1, 2, 3, 4]": "[0]",
        'weights = "imagenet-vgg-f.mat"': "#",
    }
    for old, new in (usual | changes).items():
        assert old in text, old
        text = text.replace(old, new)
    official_name = data.partition(":")[0]
    assert f'data = "{official_name}"' in text
    text = text.replace(f'data = "{official_name}"', f'data = "{data}"')
    return text + '[methods.dcmh]\nfeatures = ["pixels"]\nrecipe = "paper"\nepochs = 1\n[methods.cca]\n'


def test_the_papers_bench_of_mirflickr(cli, tmp_path):
    miniatures.mirflickr_zips(tmp_path / "release")
    changes = {"queries = 2000": "queries = 8", "sift-512": "sift-16"}
    (tmp_path / "mir.toml").write_text(small("mir_map_ori", "mirflickr25k:release", changes))
    answer = cli("bench", "mir.toml", "--device", "cpu")
    assert answer.code == 0, answer.err
    assert "mirflickr25k: 38 of 40 photos have one of the 185 words" in answer.err
    assert len(list((tmp_path / "results/mirflickr25k").rglob("0.json"))) == 2
    report = cli("report", "results/mirflickr25k", "--against", "paper")
    assert report.code == 0, report.err
    assert "0.7127" in report.out
    assert "The paper has 2,000 queries and 5,000 training items; these runs have 8 and 20." in report.out


@pytest.mark.parametrize("photos", [False, True])
def test_the_papers_bench_of_nuswide(cli, tmp_path, photos):
    """The hand-crafted features are the 500 visual words of the release, with and without the photos."""
    miniatures.nuswide(tmp_path / "release", photos=photos)
    (tmp_path / "nus.toml").write_text(small("nus_map_ori", "nuswide:release", {"queries = 1866": "queries = 8"}))
    only = () if photos else ("--only", "cca")
    answer = cli("bench", "nus.toml", "--device", "cpu", *only)
    assert answer.code == 0, answer.err
    said = (
        "is the bags of visual words that the images came with"
        if photos
        else "they are used as they are, under the name"
    )
    assert said in answer.err
    results = list((tmp_path / "results/nuswide").rglob("0.json"))
    assert any("sift-500" in path.parts and "cca" in path.parts for path in results)
    report = cli("report", "results/nuswide", "--against", "paper")
    assert report.code == 0, report.err
    assert re.search(r"\| · paper +\|", report.out)


def test_a_model_is_found_its_data_again(cli, tmp_path):
    """The folder behind a name is part of what a model remembers."""
    miniatures.mirflickr(tmp_path / "release")
    settings = ("--epochs", "1", "--hidden", "8", "--bits", "8", "--device", "cpu", "--queries", "8")
    assert cli("train", "mirflickr25k:release", "--text", "words", *settings, "--out", "m").code == 0
    assert json.loads((tmp_path / "m/run.json").read_text())["data"]["data"] == f"mirflickr25k:{tmp_path}/release"
    answer = cli("evaluate", "m", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["queries"] == 8


MEMORY = """
import resource, sys
import dcmh
from dcmh.methods.dcmh import gpu

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

gpu.PIXELS_IN_MEMORY = 0  # as if the decoded pictures did not fit either
settings = {"bits": 8, "epochs": 1, "hidden": 8, "batch_size": 4, "device": "cpu", "validation": 0.0}

def work(data):
    few = data.take([7, 3, 1, 5])
    dcmh.DCMH(finetune=True, **settings).fit(few).encode(image=few.image)
    return len(dcmh.DCMH(**settings).fit(data.take(range(0, len(data), 2))).encode(image=data.image))

data = dcmh.load_dataset(sys.argv[1])
work(data.take(range(8)))  # what networks, threads and batches take
before = peak()
print(work(data), peak() - before)
"""


@pytest.mark.slow
def test_pictures_that_exceed_the_memory_bound(tmp_path):
    """381 MiB of pictures in one HDF5 file: training and encoding 64 takes about what it takes for 8 of them."""
    n, height, width = 64, 1500, 1389
    with h5py.File(tmp_path / "big.mat", "w") as file:
        made = file.create_dataset(
            "images", (n, 3, width, height), np.uint8, chunks=(1, 3, 100, height), compression="lzf"
        )
        for row in range(n):  # chunks that are not written are zeros and take no room on the disk
            made[row, :, :100, :] = row
        file["YAll"] = np.random.default_rng(0).integers(0, 2, (20, n)).astype(np.uint8)
        file["LAll"] = np.eye(4, dtype=np.uint8)[np.arange(n) % 4].T
    environment = {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "DCMH_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "big.mat")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    codes, grown = map(int, done.stdout.split())
    assert codes == n
    assert n * height * width * 3 >> 20 == 381
    assert grown < 120, f"{grown} MiB"
