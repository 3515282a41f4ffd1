"""Bench files, the runs they stand for, and what a run writes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dcmh
from dcmh.errors import DataError, MissingExtra, ParameterError
from dcmh.experiments import bench

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = """
data = "mini.mat"
features = ["given"]
bits = [4, 8]
seeds = [0, 1]

[methods.ridge]
[methods.cca]
ridge = 1
"""


@pytest.fixture
def folder(tmp_path):
    """mini.mat: two views of four classes, 4 and 12 features, split as given; and a bench of it."""
    from scipy.io import savemat

    generator = np.random.default_rng(0)
    classes = np.arange(120) % 4
    image = np.eye(4)[classes] + generator.normal(0, 0.3, (120, 4))
    text = generator.normal(0, 1, (4, 12))[classes] + generator.normal(0, 0.5, (120, 12))
    parts = {"tr": slice(0, 90), "te": slice(90, 120)}
    arrays = {
        f"{name}_{part}": values[rows]
        for part, rows in parts.items()
        for name, values in (("I", image), ("T", text), ("L", classes[:, None] + 1))
    }
    savemat(tmp_path / "mini.mat", arrays)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def change(folder, old, new):
    assert old in SMALL
    (folder / "changed.toml").write_text(SMALL.replace(old, new, 1))
    return bench.read(folder / "changed.toml")


def run(folder, config=None, **options):
    config = config or bench.read(folder / "small.toml")
    tasks = [task for task in bench.plan(config) if bench.done(task, folder / "results") is None]
    return list(bench.run(bench.Workbench(config, "cpu"), tasks, folder / "results", **options))


@pytest.mark.parametrize("file", sorted(CONFIGS.rglob("*.toml")), ids=lambda file: file.stem)
def test_every_bench_that_comes_with_us_can_be_planned(file):
    config = bench.read(file)
    tasks = bench.plan(config)
    assert len({task.path for task in tasks}) == len(tasks) > 0
    assert all(task.build("cpu").bits == task.bits for task in tasks)


def test_the_papers_tables_and_figures_each_have_a_bench():
    said = " ".join(file.read_text() for file in (CONFIGS / "paper").glob("*.toml"))
    for label in (
        *("table:mir_map_ori", "table:nus_map_ori", "table:mir_map_vgg", "table:nus_map_vgg", "table:mir_pr_vgg"),
        *("fig:mir_nus_pr_ori", "fig:mir_nus_pr_vgg", "fig:mir_two_pr_ori", "fig:mir_two_pr_vgg", "fig:HyperParameter"),
    ):
        assert label in said
    config = bench.read(CONFIGS / "paper" / "mir_map_ori.toml")
    assert (config.split.queries, config.split.train) == (2000, 5000)
    assert [entry.label for entry in config.methods] == ["dcmh", "seph", "stmh", "scm", "cmfh", "cca"]
    assert config.methods[0].settings["recipe"] == "paper"


def test_the_path_of_a_result_is_made_of_its_settings(folder):
    paths = [str(task.path) for task in bench.plan(bench.read(folder / "small.toml"))]
    assert len(paths) == 8
    assert paths[0] == "mini/given/given/ridge/default/4/0.json"
    assert paths[-1] == "mini/given/given/cca/ridge=1/8/1.json"


def test_settings_that_are_the_methods_own_make_no_other_path(folder):
    config = change(folder, "[methods.ridge]", "[methods.ridge]\nridge = 0.1")
    assert str(bench.plan(config)[0].path) == "mini/given/given/ridge/default/4/0.json"


def test_split_and_rank_limit_are_part_of_the_path(folder):
    config = change(folder, "[methods.ridge]", "k = 5\n[split]\nqueries = 20\ntrain = 50\nseed = 3\n[methods.ridge]")
    assert bench.plan(config)[0].path.parts[:2] == ("mini", "queries20-train50-seed3-k5")


def test_a_grid_changes_one_setting_at_a_time(folder):
    grid = "[methods.dcmh]\nepochs = 2\n[methods.dcmh.grid]\ngamma = [0.5, 1]\neta = [2]\n[methods.ridge]"
    tasks = bench.plan(change(folder, "[methods.ridge]", grid), only=["dcmh"], bits=[8], seeds=1)
    assert [task.varied for task in tasks] == [{}, {"gamma": 0.5}, {"eta": 2.0}]
    assert [task.path.parts[4] for task in tasks] == ["epochs=2", "epochs=2,gamma=0.5", "epochs=2,eta=2"]


def test_a_method_with_a_network_of_its_own_takes_the_one_of_the_features(folder):
    (folder / "weights.mat").write_bytes(b"")
    more = 'weights = "weights.mat"\n[methods.dcmh]\nfeatures = ["cnn", "cnn-f"]\n[methods.ridge]'
    tasks = bench.plan(change(folder, "[methods.ridge]", more), only=["dcmh"], bits=[8], seeds=1)
    assert tasks[0].path.parts[2:5] == ("cnn", "dcmh", "default")
    assert tasks[1].path.parts[2:5] == ("cnn-f", "dcmh", "network=cnn-f,weights=weights.mat")
    assert tasks[1].build("cpu").weights == str(folder.resolve() / "weights.mat")


def test_a_corner_of_the_bench(folder):
    config = bench.read(folder / "small.toml")
    tasks = bench.plan(config, only=["cca"], bits=[8], seeds=1)
    assert [(task.label, task.bits, task.seed) for task in tasks] == [("cca", 8, 0)]
    with pytest.raises(ParameterError, match=r"--only ccaa is not in the bench\. Its methods: cca, ridge"):
        bench.plan(config, only=["ccaa"])
    with pytest.raises(ParameterError, match=r"--bits 64 is not in the bench\. Its lengths: 4, 8"):
        bench.plan(config, bits=[64])


def test_how_many_runs(folder):
    config = bench.read(folder / "small.toml")
    assert bench.summary(bench.plan(config), 3) == ("2 methods × 2 code lengths × 2 seeds = 8 runs; 3 done, 5 to do.")
    config = change(folder, '["given"]', '["cnn", "sift"]')
    assert bench.summary(bench.plan(config), 0).startswith("2 methods × 2 feature sets × 2 code lengths × 2 seeds = 16")
    config = change(folder, "[methods.ridge]", "[methods.ridge]\n[methods.ridge.grid]\nridge = [1, 2]")
    assert bench.summary(bench.plan(config), 0).startswith("4 settings of 2 methods × 2 code lengths × 2 seeds = 16")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("bits = [4, 8]", "", "bits is missing. Give a list of whole numbers"),
        ("bits = [4, 8]", "bits = [0]", "bits must be a whole number of at least 1, not 0"),
        ("seeds", "seed", "the bench has no setting 'seed'. Did you mean 'seeds'?"),
        ('data = "mini.mat"', "", "data is missing"),
        ('["given"]', '["surf"]', "no features 'surf'. There are: pixels, cnn, cnn-f, sift, given"),
        ("[methods.ridge]", "[methods.rigde]", "No hashing method 'rigde'. Did you mean 'ridge'?"),
        ("ridge = 1", "rigde = 1", "[methods.cca] has no setting 'rigde'. Did you mean 'ridge'?"),
        ("ridge = 1", "ridge = -1", "ridge must be a number of at least 0, not -1"),
        ("[methods.ridge]", "[split]\ntrain = 3\n[methods.ridge]", "[split] needs queries"),
        ("[methods.ridge]", 'ties = "even"\n[methods.ridge]', "ties must be one of stable, expected, best, worst"),
        ('data = "mini.mat"', 'data = "mini.mat"\nname = "../up"', "'../up' cannot name a folder of results"),
        ("[methods.ridge]", "[methods.ridge.grid]\nridge = 1", "ridge must be a list of values, such as [0.5, 1, 2]"),
        ("[4, 8]", "[4, 8", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_bench_is_said_with_its_file(folder, old, new, said):
    with pytest.raises(ParameterError, match=re.escape(said)) as error:
        change(folder, old, new)
    assert str(error.value).startswith(str(folder / "changed.toml"))


def test_a_run_writes_what_it_measured_and_how(folder):
    records = run(folder)
    assert len(records) == 8
    record = json.loads((folder / "results/mini/given/given/ridge/default/8/1.json").read_text())
    assert record == next(r for r in records if (r["method"], r["bits"], r["seed"]) == ("ridge", 8, 1))
    assert record["title"] == "Ridge"
    assert record["parameters"] == {"bits": 8, "seed": 1, "ridge": 0.1}
    assert record["split"] == {"folder": "given", "seed": None, "queries": 30, "database": 90, "train": 90}
    assert record["report"]["image_to_text"]["map"]["stable"] > 2 * record["report"]["chance"]
    assert len(record["report"]["text_to_image"]["lookup"]) == 9
    assert set(record["seconds"]) == {"training", "encoding"}
    assert {"dcmh", "python", "numpy", "torch"} <= set(record["versions"])
    assert record["device"] == "cpu"
    assert "commit" in record


def test_a_method_that_refuses_is_a_result(folder):
    refused = [record for record in run(folder) if "error" in record]
    assert [(record["method"], record["bits"]) for record in refused] == [("cca", 8), ("cca", 8)]
    assert "so 8 bits are too many" in refused[0]["error"]
    assert "report" not in refused[0]
    assert run(folder) == []  # it is not tried again


def test_a_result_of_other_settings_is_run_again(folder):
    run(folder)
    file = folder / "results/mini/given/given/ridge/default/8/1.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"parameters": record["parameters"] | {"ridge": 7}}))
    assert [(r["method"], r["bits"], r["seed"]) for r in run(folder)] == [("ridge", 8, 1)]
    assert json.loads(file.read_text())["parameters"]["ridge"] == 0.1
    file.write_text("{")  # nor is a damaged one kept
    assert len(run(folder)) == 1


def test_without_a_seed_of_the_split_every_run_draws_its_own(folder):
    config = change(folder, "[methods.ridge]", "[split]\nqueries = 20\n[methods.ridge]")
    workbench = bench.Workbench(config, "cpu")
    first, other, same = (workbench.split(task, task.build()) for task in bench.plan(config)[:3])
    assert first.query.ids != other.query.ids
    assert same is first


def test_the_time_left_is_guessed_from_runs_of_the_same_method(folder):
    tasks = bench.plan(bench.read(folder / "small.toml"))
    pace = bench.Pace()
    assert pace.left(tasks, folder) is None
    pace.note({"label": "ridge", "features": "given", "seconds": {"training": 1.0, "encoding": 1.0}})
    assert pace.left(tasks, folder) == 16.0
    pace.note({"label": "cca", "features": "given", "seconds": {"training": 10.0}})
    assert pace.left(tasks, folder) == 4 * 2 + 4 * 10


def test_features_that_are_not_there_are_said(folder):
    for said in ("given", "cnn-f"):
        text = f'data = "toy"\nfeatures = ["{said}"]\nbits = 8\nseeds = 0\n[split]\nqueries = 20\n[methods.ridge]\n'
        (folder / "toy.toml").write_text(text)
        why = "toy holds pictures, not vectors" if said == "given" else "The features cnn-f need MatConvNet's"
        with pytest.raises(DataError, match=why):
            run(folder, bench.read(folder / "toy.toml"))


def test_vectors_of_the_data_are_used_as_they_are_under_any_name(folder):
    config = change(folder, '["given"]', '["sift"]')
    tasks = bench.plan(config)
    workbench = bench.Workbench(config, "cpu")
    assert workbench.notes(tasks)[-1] == (
        "mini comes with vectors (image, text): they are used as they are, under the name sift."
    )
    assert workbench.split(tasks[0], tasks[0].build()).train.image.values.shape == (90, 4)


def test_a_missing_extra_is_no_result(folder, monkeypatch):
    def refuse(*_):
        raise MissingExtra("SciPy is missing")

    monkeypatch.setattr("dcmh.methods.ridge.Ridge._fit", refuse)
    with pytest.raises(MissingExtra):
        run(folder)
    assert not (folder / "results").exists()


def test_a_result_names_the_commit_of_the_whole_package():
    from dcmh.experiments.bench import work

    package = Path(dcmh.__file__).parent
    git = ["git", "-C", str(package), "log", "-1", "--format=%H", "--", "."]
    found = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    assert (work._commit() or "").removesuffix("+") == found
