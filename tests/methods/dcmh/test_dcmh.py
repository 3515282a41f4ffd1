"""DCMH: the algorithm's facts. The contract that all methods share is in test_all.py."""

import json

import numpy as np
import pytest
import torch

import dcmh
from dcmh.data import Dataset, Texts, Vectors
from dcmh.errors import (
    DamagedError,
    DataError,
    DeviceError,
    DivergedError,
    ModelError,
    NotFittedError,
    ParameterError,
    TrainingStopped,
)
from dcmh.inputs import images
from dcmh.inputs.features import to_batch
from dcmh.methods.dcmh import DCMH, objective, similarity
from dcmh.methods.dcmh.recipes import Paper, Stable
from training import equal_weights, started

FAST = {"hidden": 32, "epochs": 4, "batch_size": 32, "bits": 16, "device": "cpu"}
LONGER = {**FAST, "epochs": 20, "learning_rate": 0.01, "dropout": 0.1}


def pairs(n=160, seed=0, classes=4):
    rng = np.random.default_rng(seed)
    centre_x, centre_y = rng.normal(size=(classes, 12)), rng.normal(size=(classes, 9))
    which = rng.integers(0, classes, n)
    return Dataset.from_arrays(
        image=(centre_x[which] + 0.7 * rng.normal(size=(n, 12))).astype(np.float32),
        text=(centre_y[which] + 0.7 * rng.normal(size=(n, 9))).astype(np.float32),
        labels=np.eye(classes, dtype=np.uint8)[which],
    )


def test_it_learns():
    split = pairs(400).split(queries=80, seed=0)
    report = dcmh.evaluate(DCMH(**LONGER).fit(split.train), split)
    for direction in report.directions.values():
        assert direction.map["expected"] > 0.8 > 2 * report.chance


def test_same_seed_same_weights_other_seed_others():
    data = pairs()
    first, again, other = (DCMH(**FAST, seed=seed).fit(data) for seed in (3, 3, 4))
    assert equal_weights(first, again)
    assert not equal_weights(first, other)


def test_fit_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    DCMH(**FAST).fit(pairs())
    assert torch.equal(torch.rand(3), expected)


def test_a_stopped_run_goes_on_as_if_unbroken(tmp_path):
    data = pairs()
    unbroken = DCMH(**FAST).fit(data)
    checkpoint = tmp_path / "run.checkpoint"
    for _ in range(3):  # stop after every iteration
        with pytest.raises(TrainingStopped, match="--resume"):
            DCMH(**FAST).fit(data, checkpoint=checkpoint, stop=lambda: True)
    resumed = DCMH(**FAST).fit(data, checkpoint=checkpoint)
    assert equal_weights(unbroken, resumed)
    assert [row["epoch"] for row in resumed.history_] == [1, 2, 3, 4]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    checkpoint = tmp_path / "run.checkpoint"
    with pytest.raises(TrainingStopped):
        DCMH(**FAST).fit(pairs(), checkpoint=checkpoint, stop=lambda: True)
    with pytest.raises(DataError, match=r"another run \(gamma 1.0, here 2.0; seed 0, here 3\)"):
        DCMH(**FAST, gamma=2.0, seed=3).fit(pairs(), checkpoint=checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(DataError, match="damaged"):
        DCMH(**FAST).fit(pairs(), checkpoint=checkpoint)


def test_a_damaged_checkpoint_is_named(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    checkpoint = tmp_path / "run.checkpoint"
    with pytest.raises(TrainingStopped):
        DCMH(**FAST).fit(pairs(), checkpoint=checkpoint, stop=lambda: True)
    with safe_open(checkpoint, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del metadata["checksum"]  # what follows has a checksum of its own, or none
    for record in (
        "{",
        "[" * 100_000,
        "[]",
        '{"epoch": 1}',
        '{"epoch": "1", "history": []}',
        '{"epoch": 99, "history": []}',
    ):
        save_file(tensors, checkpoint, metadata | {"record": record})
        with pytest.raises(DataError, match=r"The checkpoint .* is damaged \(.*\)\. Start over"):
            DCMH(**FAST).fit(pairs(), checkpoint=checkpoint)
    average = next(name for name in tensors if name.endswith("exp_avg"))
    for damaged in (tensors | {"B": tensors["B"][:3]}, {name: tensors[name] for name in tensors if name != average}):
        save_file(damaged, checkpoint, metadata)
        with pytest.raises(DataError, match=r"The checkpoint .* is damaged \(.*\)\. Start over"):
            DCMH(**FAST).fit(pairs(), checkpoint=checkpoint)


@pytest.mark.parametrize("recipe", ["stable", "paper"])
def test_a_training_that_diverges_is_stopped(recipe):
    settings = {"learning_rate": 1e10} if recipe == "stable" else {"gamma": 1e30, "eta": 1e30}
    model = DCMH(**FAST, recipe=recipe, **settings)
    with pytest.raises(DivergedError, match=r"Lower .*(learning_rate \(now 1e\+10\)|gamma \(now 1e\+30\))"):
        model.fit(pairs(), fine=0)
    with pytest.raises(NotFittedError):
        model.encode(image=pairs()["image"])


def literal_step(model, data):
    """One image step of the paper, by its gradient formula, on the state that `_start` gives."""
    run, batch = started(model, data), torch.arange(40)
    F, G = run.sides[0].outputs.clone(), run.sides[1].outputs
    fresh = run.sides[0].network(run.sides[0].inputs[batch])
    F[batch] = fresh.detach()
    labels = torch.from_numpy(run.labels).float()
    S = objective.similarity(labels, labels)
    whole = objective.gradient(F, G, run.B, S, gamma=model.gamma, eta=model.eta)
    fresh.backward(whole[batch] / (len(batch) * len(G)))
    return [parameter.grad.clone() for parameter in run.sides[0].network.parameters()]


def test_vectors_and_files_of_pairs_tell_runs_apart(tmp_path):
    first, second = pairs(seed=0), pairs(seed=0)
    second = Dataset({"image": Vectors(second["image"].values + 1), "text": second["text"]}, labels=second.labels)
    listed = tmp_path / "pairs.csv"
    listed.write_text("0,1,1\n")
    model = DCMH(**FAST, similarity=f"pairs:{listed}")
    seen = {
        DCMH(**FAST).identity(first.fingerprint()),
        DCMH(**FAST).identity(second.fingerprint()),
        model.identity(first.fingerprint()),
    }
    listed.write_text("0,2,1\n")
    assert len(seen | {model.identity(first.fingerprint())}) == 4
    checkpoint = tmp_path / "run.checkpoint"
    with pytest.raises(TrainingStopped):
        DCMH(**FAST).fit(first, checkpoint=checkpoint, stop=lambda: True)
    with pytest.raises(DataError, match=r"another run \(other data\)"):
        DCMH(**FAST).fit(second, checkpoint=checkpoint)


def test_a_fitted_model_keeps_nothing_of_the_training_items():
    model = DCMH(**FAST, similarity="pairing").fit(pairs())
    assert model._similarity is None
    assert "itself" in model.trained_on_["similarity"]


def test_paper_recipe_follows_the_papers_gradient():
    data = pairs()
    model = DCMH(bits=8, recipe="paper", validation=0.0, gamma=0.5, eta=0.2, device="cpu")
    expected = literal_step(model, data)
    run, batch = started(model, data), torch.arange(40)
    side = run.sides[0]
    outputs = side.forward(side.inputs[batch])
    side.store(batch, outputs.detach())
    loss, _ = model._recipe({}).loss(run, side, outputs, batch)
    loss.backward()
    found = [parameter.grad for parameter in run.sides[0].network.parameters()]
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-9)


def test_paper_recipe_is_the_papers_sum():
    """J over (batch x n): the likelihood and quantisation of the batch, the balance of all points."""
    data = pairs()
    model = DCMH(bits=8, recipe="paper", validation=0.0, gamma=0.5, eta=0.2, device="cpu", precision="float64")
    run, batch = started(model, data), torch.arange(40)
    (side, other), recipe = run.sides, model._recipe({})
    outputs = side.forward(side.inputs[batch])
    side.store(batch, outputs.detach())
    loss, terms = recipe.loss(run, side, outputs, batch)
    F, G, labels = side.outputs, other.outputs, torch.from_numpy(data.labels).double()
    likelihood = objective.likelihood(objective.theta(F[batch], G), objective.similarity(labels[batch], labels))
    quantisation, balance = objective.quantisation(run.B[batch], F[batch]), objective.balance(F)
    J = likelihood + 0.5 * quantisation + 0.2 * balance
    assert torch.isclose(loss * len(batch) * len(data), J, rtol=1e-12)
    means = likelihood / (40 * 160), quantisation / (40 * 8), balance / (160**2 * 8)
    assert torch.allclose(torch.stack(terms), torch.stack(means), rtol=1e-12)


def test_similarity_is_built_once(monkeypatch):
    built = []
    build = similarity.build
    monkeypatch.setattr(similarity, "build", lambda spec, train: built.append(spec) or build(spec, train))
    data = pairs()
    model = DCMH(**FAST, similarity="pairing")
    described = model.similarity_of(data).description
    model.fit(data)
    assert built == ["pairing"]
    assert model.trained_on_["similarity"] == described


def test_paper_recipe_uses_the_authors_rates():
    recipe = Paper(bits=16, gamma=1.0, eta=1.0)
    assert recipe.rate(0, 39, 500) == pytest.approx(10**-1.5)
    assert recipe.rate(500 * 39 - 1, 39, 500) == pytest.approx(10**-3)
    assert recipe.epochs(39) == 500


@pytest.mark.parametrize("bits", [16, 64, 256])
def test_stable_recipe_starts_theta_at_unit_variance(bits):
    model = DCMH(bits=bits, hidden=64, dropout=0.0, device="cpu")
    run = started(model, pairs(400))
    F, G = run.sides[0].outputs[run.sides[0].rows], run.sides[1].outputs[run.sides[1].rows]
    assert 0.5 < (objective.theta(F, G.flip(0)) * model._recipe({}).scale).std() < 2


def test_codes_of_the_run_are_the_sign_of_the_sum():
    run = started(DCMH(**FAST), pairs())
    F, G = run.sides[0].outputs, run.sides[1].outputs
    assert torch.equal(run.B, torch.where(F + G >= 0, 1.0, -1.0))


def test_items_that_lack_a_modality_take_part():
    whole = pairs(300)
    rng = np.random.default_rng(0)
    lacks = rng.permutation(300)
    image, text = np.ones(300, bool), np.ones(300, bool)
    image[lacks[:60]], text[lacks[60:120]] = False, False
    data = Dataset(
        {"image": Vectors(whole["image"].values, observed=image), "text": Vectors(whole["text"].values, observed=text)},
        labels=whole.labels,
    )
    run = started(DCMH(**FAST, validation=0.0), data)
    assert len(run.sides[0].rows) == 240
    assert not run.sides[0].outputs[~torch.from_numpy(image)].any()
    split = pairs(400, seed=0).split(queries=100)
    model = DCMH(**LONGER).fit(data)
    assert dcmh.evaluate(model, split)["image_to_text"].map["expected"] > 2 * split_chance(split)


def split_chance(split):
    return (split.query.labels @ split.database.labels.T > 0).mean()


def test_three_modalities():
    data = pairs(300)
    third = np.random.default_rng(1).normal(size=(9, 7)).astype(np.float32)
    data = Dataset({**data.columns, "sound": Vectors(data["text"].values @ third)}, labels=data.labels)
    split = data.split(queries=60)
    report = dcmh.evaluate(DCMH(**LONGER).fit(split.train), split)
    assert len(report.directions) == 6
    assert min(direction.map["expected"] for direction in report.directions.values()) > 2 * report.chance


def test_joint_codes_are_the_sign_of_summed_outputs():
    data = pairs()
    model = DCMH(**FAST).fit(data)
    total = model.outputs(image=data.image) + model.outputs(text=data.text)
    assert np.array_equal(model.encode(image=data.image, text=data.text), dcmh.codes.sign(total))


def test_codes_do_not_depend_on_the_batch():
    data = pairs()
    model = DCMH(**FAST).fit(data)
    whole = model.encode(image=data.image)
    parts = np.concatenate([model.encode(image=data.image.values[i : i + 7]) for i in range(0, 160, 7)])
    borderline = np.abs(model.outputs(image=data.image)) < 1e-5  # where float noise may decide
    assert ((whole != parts) <= borderline).all()


def test_held_out_items_are_not_trained_on():
    run = started(DCMH(**FAST, validation=0.25), pairs())
    assert len(run.held_out) == 40
    for side in run.sides:
        assert not set(side.rows.tolist()) & set(run.held_out.tolist())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 0}, "1 to 1024"),
        ({"bits": 1025}, "1 to 1024"),
        ({"recipe": "quick"}, "'stable' or 'paper'"),
        ({"network": "resnet"}, "efficientnet-lite0"),
        ({"gamma": -1.0}, "gamma"),
        ({"gamma": float("nan")}, "gamma"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs"),
        ({"batch_size": 1}, "batch_size"),
        ({"hidden": -3}, "hidden"),
        ({"gamma": "a"}, "gamma"),
        ({"dropout": 1.0}, "dropout"),
        ({"seed": -1}, "seed"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ParameterError, match=message):
        DCMH(**settings)


def test_numbers_of_numpy_will_do():
    settings = {
        "epochs": np.int64(2),
        "hidden": np.int32(8),
        "learning_rate": np.float32(1e-3),
        "dropout": np.float64(0.999),
    }
    model = DCMH(**{**FAST, **settings}).fit(pairs())
    assert len(model.history_) == 2


def test_fit_takes_the_training_items_not_the_split():
    with pytest.raises(ParameterError, match=r"not a Split\. For a split, pass its \.train\."):
        DCMH(**FAST).fit(pairs().split(queries=20, seed=0))


def test_a_model_goes_to_a_machine_without_the_device_it_learned_on(tmp_path):
    data = pairs()
    model = DCMH(**FAST).fit(data)
    model.save(tmp_path / "model")
    record = json.loads((tmp_path / "model/model.json").read_text())
    assert "device" not in record["parameters"]
    record["parameters"]["device"] = "cuda:7"  # as older models have it
    (tmp_path / "model/model.json").write_text(json.dumps(record))
    (tmp_path / "model/checksums.json").unlink()
    assert np.array_equal(dcmh.load(tmp_path / "model").encode(image=data["image"]), model.encode(image=data["image"]))


def test_a_changed_vocabulary_is_seen(tmp_path):
    texts = [f"{('red', 'blue')[i % 2]} thing number {i % 5}" for i in range(40)]
    data = Dataset(
        {"image": Vectors(np.eye(40, 8, dtype=np.float32)), "text": Texts(texts)}, labels=np.eye(2)[np.arange(40) % 2]
    )
    DCMH(**FAST).fit(data).save(tmp_path / "model")
    file = tmp_path / "model/text.vocabulary.txt"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]) + "\n")
    with pytest.raises(DamagedError, match=r"text\.vocabulary\.txt is damaged: it does not match its checksum"):
        dcmh.load(tmp_path / "model")
    (tmp_path / "model/checksums.json").unlink()  # as in models of older versions
    with pytest.raises(ModelError, match="was changed"):
        dcmh.load(tmp_path / "model")


class OfAScript(DCMH):
    """A method that is installed nowhere."""


def test_the_class_reads_back_what_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(OfAScript, "__module__", "__main__")
    data = pairs()
    model = OfAScript(**FAST).fit(data)
    model.save(tmp_path / "model")
    with pytest.raises(ModelError, match="'ofascript', which is not installed"):
        dcmh.load(tmp_path / "model")
    again = dcmh.load(tmp_path / "model", method=OfAScript)
    assert np.array_equal(again.encode(image=data["image"]), model.encode(image=data["image"]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_said():
    with pytest.raises(DeviceError, match="no CUDA device"):
        DCMH(**{**FAST, "device": "cuda"}).fit(pairs())


def test_data_without_labels_or_with_one_label_is_refused():
    data = pairs()
    with pytest.raises(DataError, match="learns from labels"):
        DCMH(**FAST).fit(Dataset(data.columns))
    with pytest.raises(DataError, match="Only 1 label"):
        DCMH(**FAST).fit(Dataset(data.columns, labels=np.ones((160, 1), np.uint8)))


def test_words_and_numbers_mix(tmp_path):
    data = pairs()
    words = ["red cat", "blue dog", "green bird", "grey fish"]
    texts = [words[i] + (" runs" if row % 2 else "") for row, i in enumerate(data.labels.argmax(1))]
    data = Dataset({"image": data["image"], "text": Texts(texts)}, labels=data.labels)
    model = DCMH(**FAST).fit(data)
    model.save(tmp_path / "model")
    again = dcmh.load(tmp_path / "model")
    assert np.array_equal(
        again.encode(text=["blue dog runs", "red cat"]), model.encode(text=["blue dog runs", "red cat"])
    )
    assert "dog" in (tmp_path / "model" / "text.vocabulary.txt").read_text()


def test_model_folder_says_how_it_was_made_and_damage_is_seen(tmp_path):
    folder = tmp_path / "model"
    DCMH(**FAST).fit(pairs()).save(folder)
    text = (folder / "model.json").read_text()
    record = json.loads(text)
    assert record["method"] == "dcmh"
    assert record["parameters"]["hidden"] == 32
    assert record["trained_on"]["items"] == 160
    assert len((folder / "history.jsonl").read_text().splitlines()) == 4
    newer = {**record, "format": 99}
    (folder / "model.json").write_text(json.dumps(newer))
    with pytest.raises(ModelError, match="format 99"):
        dcmh.load(folder)
    (folder / "model.json").write_text(text)
    weights = (folder / "weights.safetensors").read_bytes()
    (folder / "weights.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(ModelError, match="damaged"):
        dcmh.load(folder)
    (folder / "weights.safetensors").write_bytes(weights[:50])
    with pytest.raises(ModelError, match="missing or damaged"):
        dcmh.load(folder)
    (folder / "model.json").write_text("{")
    with pytest.raises(ModelError, match="damaged"):
        dcmh.load(folder)


def test_a_folder_that_is_no_model_is_neither_read_nor_overwritten(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"")
    with pytest.raises(ModelError, match="did you mean dcmh train"):
        dcmh.load(tmp_path / "photos")
    with pytest.raises(ModelError, match="There is no model"):
        dcmh.load(tmp_path / "nothing")
    model = DCMH(**FAST).fit(pairs())
    with pytest.raises(ModelError, match="not overwritten"):
        model.save(tmp_path / "photos")
    assert (tmp_path / "photos" / "a.jpg").exists()
    model.save(tmp_path / "model")
    model.save(tmp_path / "model")  # a model may be replaced
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


@pytest.mark.slow
def test_fine_tuning_runs_on_pixels_and_survives_saving(tmp_path):
    from dcmh.data.benchmarks.toy import toy

    data = toy(n=48, size=32)
    model = DCMH(bits=8, epochs=1, hidden=16, batch_size=16, finetune=True, device="cpu").fit(data)
    codes = model.encode(image=data.image)
    model.save(tmp_path / "model")
    loaded = dcmh.load(tmp_path / "model")
    loaded.device = "cpu"  # as the other
    assert np.array_equal(loaded.encode(image=data.image), codes)
    network = model.networks_["image"]
    assert network.encoder, "on a CPU by the fast encoder"
    pixels = to_batch(np.stack([images.decode(data.image.source(row), 224) for row in range(6)]), torch.device("cpu"))
    with torch.inference_mode():
        plain = network(pixels).numpy()
    np.testing.assert_allclose(model.outputs(image=data.image)[:6], plain, atol=1e-3 * np.abs(plain).max())


def test_constants_are_those_the_documentation_names():
    assert (Stable.QUANTISATION, Stable.BALANCE, Stable.SMOOTHING) == (0.3, 0.05, 0.02)
    assert (Stable.SHIFT, Stable.INTRA_MODAL, Stable.TUNING, Stable.BACKBONE) == (1.0, 0.03, 0.3, 1.0)


def test_the_first_bits_of_nested_codes_are_codes(tmp_path):
    split = pairs(400).split(queries=80, seed=0)
    settings = LONGER | {"bits": 64, "nested": True}
    model = DCMH(**settings).fit(split.train)
    for bits in (16, 32):
        short = model.shortened(bits)
        assert np.array_equal(short.encode(image=split.query.image), model.encode(image=split.query.image)[:, :bits])
        report = dcmh.evaluate(short, split)
        assert all(direction.map["expected"] > 0.8 for direction in report.directions.values())
    short.save(tmp_path / "short")
    again = dcmh.load(tmp_path / "short")
    assert again.bits == 32
    assert np.array_equal(again.encode(text=split.query.text), model.encode(text=split.query.text)[:, :32])
    assert again.shortened(16).bits == 16


def test_codes_that_are_not_nested_are_not_shortened():
    model = DCMH(**FAST | {"bits": 32, "nested": False}).fit(pairs())
    with pytest.raises(ParameterError, match="codes of 32 bits, not of 16"):
        model.shortened(16)
    with pytest.raises(ParameterError, match="paper's recipe"):
        DCMH(recipe="paper", nested=True)


def test_codes_are_nested_where_items_are_similar_by_labels_or_folders():
    assert DCMH(bits=128)._recipe({}).prefixes == (16, 32, 64)
    assert DCMH(bits=40, similarity="folders")._recipe({}).prefixes == (16, 32)
    assert DCMH(similarity="pairing", nested=True)._recipe({}).prefixes == (16, 32)
    assert DCMH(quality="good", nested=True)._recipe({}).prefixes == (16, 32)
    for model in (
        DCMH(bits=16),
        DCMH(nested=False),
        DCMH(quality="good"),
        DCMH(similarity="pairing"),
        DCMH(similarity="tags"),
    ):
        assert model._recipe({}).prefixes == ()
    with pytest.raises(ParameterError, match="codes of 64 bits, not of 32"):
        DCMH(recipe="paper").shortened(32)


def test_a_quarter_of_a_nested_loss_is_that_of_the_prefixes(monkeypatch):
    monkeypatch.setattr(
        Stable, "_loss", lambda *arguments: (torch.tensor(float(arguments[-1])), {})
    )  # the number of bits
    loss, _ = DCMH(bits=64)._recipe({}).loss(None, None, torch.zeros(8, 64), torch.arange(8))
    assert loss == 0.75 * 64 + 0.25 * (16 + 32) / 2
    loss, _ = DCMH(bits=64, nested=False)._recipe({}).loss(None, None, torch.zeros(8, 64), torch.arange(8))
    assert loss == 64


def test_codes_of_a_model_that_does_not_know_the_setting_are_not_nested(tmp_path):
    DCMH(**FAST | {"bits": 32}).fit(pairs()).save(tmp_path / "model")
    assert dcmh.load(tmp_path / "model").shortened(16).bits == 16
    record = json.loads((tmp_path / "model/model.json").read_text())
    del record["parameters"]["nested"]  # as in version 0.1
    with pytest.raises(ParameterError, match="codes of 32 bits, not of 16"):
        DCMH.from_folder(tmp_path / "model", record).shortened(16)
