"""The stable recipe's two parts: hash layers learn on features first, then the image network's later layers with them."""

import numpy as np
import pytest
import torch
from torch import nn

import dcmh
from dcmh import networks
from dcmh.data import Dataset, Images
from dcmh.errors import DataError, ParameterError, TrainingStopped
from dcmh.methods.dcmh import DCMH, algorithm, finetuning
from dcmh.methods.dcmh.gpu import Pixels
from dcmh.methods.dcmh.recipes import Paper, Stable
from dcmh.networks import distributed
from dcmh.networks.hashing import PixelNetwork
from small_network import Small, photos, small

TUNED = Stable(64, 1.0, 1.0, 1e-3, 32, 0.4, finetune=True)
FROZEN = Stable(64, 1.0, 1.0, 1e-3, 32, 0.4)


def tuned(epochs=6, **settings):
    return DCMH(16, epochs=epochs, batch_size=16, hidden=32, finetune=True, device="cpu", **settings)


def weights_of(model):
    return {name: value.clone() for name, value in model.networks_["image"].backbone.state_dict().items()}


def test_the_first_part_is_the_frozen_recipe():
    assert (FROZEN.epochs(39), TUNED.epochs(39)) == (40, 60)
    assert (FROZEN.frozen_epochs(40), TUNED.frozen_epochs(60), TUNED.frozen_epochs(1)) == (40, 40, 0)
    for step in (0, 100, 40 * 39 - 1):
        assert TUNED.rate(step, 39, 60) == FROZEN.rate(step, 39, 40)
    for epoch in range(40):
        assert TUNED.gamma_share(epoch, 60) == FROZEN.gamma_share(epoch, 40)


def test_the_second_part_starts_from_a_lower_rate_with_gamma_in_full():
    rates = [TUNED.rate(step, 39, 60) for step in range(40 * 39, 60 * 39)]
    assert rates[0] < 0.01 * 1e-3  # a rise, as at the start
    assert max(rates) == pytest.approx(0.3e-3, rel=0.02)
    assert rates[-1] < 0.001 * 1e-3
    assert {TUNED.gamma_share(epoch, 60) for epoch in range(40, 60)} == {1.0}


def test_the_papers_networks_are_never_frozen():
    assert Paper(64, 1.0, 1.0).frozen_epochs(500) == 0


def test_the_image_network_is_frozen_and_then_learns(monkeypatch):
    monkeypatch.setattr(networks, "backbone", small)
    data = photos()
    first = small("")[0].state_dict()
    update_codes = algorithm.update_codes
    seen = []

    def watch(run):
        update_codes(run)
        weight = run.sides[0].network.backbone.conv.weight
        seen.append((run.epoch, torch.equal(weight, first["conv.weight"]), run.sides[0].features is not None))

    monkeypatch.setattr(algorithm, "update_codes", watch)
    tuned().fit(data, fine=0)
    assert [same for _, same, _ in seen] == [True] * 5 + [False] * 2  # before the run, and after each iteration
    assert [features for *_, features in seen] == [True] * 5 + [False] * 2


def test_a_run_stopped_in_either_part_goes_on_as_if_unbroken(tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "backbone", small)
    data = photos()
    unbroken = tuned().fit(data, fine=0)
    checkpoint = tmp_path / "run.checkpoint"
    for _ in range(5):  # stop after every iteration
        with pytest.raises(TrainingStopped):
            tuned().fit(data, checkpoint=checkpoint, stop=lambda: True, fine=0)
    resumed = tuned().fit(data, checkpoint=checkpoint, fine=0)
    for name, value in unbroken._state().items():
        assert np.array_equal(resumed._state()[name], value), name


def test_only_later_layers_of_efficientnet_learn():
    network = networks.backbone("efficientnet-lite0")[0]
    before = {name: value.clone() for name, value in network.named_parameters()}
    model = tuned(epochs=1).fit(photos(16), fine=0)
    after = weights_of(model)
    moved = {name for name, value in before.items() if not torch.equal(after[name], value)}
    late = {name for name in before if not name.startswith(("_conv_stem", "_bn0"))}
    late -= {name for name in late if name.startswith(tuple(f"_blocks.{i}." for i in range(network.late)))}
    assert moved == late
    statistics = {name for name in after if "running" in name}
    untouched = network.state_dict()
    assert all(torch.equal(after[name], untouched[name]) for name in statistics)


def test_rows_without_a_picture_have_no_features(monkeypatch):
    monkeypatch.setattr(networks, "backbone", small)
    data = photos()
    torch.manual_seed(0)
    column = Images([None if row < 4 else data["image"].source(row) for row in range(len(data))])
    network = PixelNetwork(Small(), nn.Linear(10, 16))
    features = Pixels(column, torch.device("cpu")).features(network)
    assert (features[:4] == 0).all()
    assert (features[4:] != 0).any(dim=1).all()
    tuned(epochs=3).fit(Dataset({"image": column, "text": data["text"]}, labels=data.labels), fine=0)


def test_batches_that_do_not_divide_are_refused_before_the_run(monkeypatch):
    monkeypatch.setattr(networks, "backbone", small)
    monkeypatch.setattr(distributed, "world", lambda: 5)
    seen = []
    with pytest.raises(ParameterError, match="does not divide among 5 processes"):
        tuned().fit(photos(), progress=seen.append, fine=0)
    assert not seen


def test_the_best_quality_tunes_the_image_network_to_the_labels_first(monkeypatch):
    monkeypatch.setattr(networks, "backbone", small)
    first = small("")[0].state_dict()
    seen = []
    update_codes = algorithm.update_codes
    watched = lambda run: (update_codes(run), seen.append(run.sides[0].network.backbone.conv.weight.clone()))  # noqa: E731
    monkeypatch.setattr(algorithm, "update_codes", watched)
    model = DCMH(16, epochs=2, batch_size=16, hidden=32, quality="best", device="cpu").fit(photos(), fine=0)
    assert not torch.equal(seen[0], first["conv.weight"])  # tuned before the hash layers learn
    assert torch.equal(seen[0], seen[-1])
    assert torch.equal(weights_of(model)["conv.weight"], seen[0])


def test_a_saved_model_of_the_best_quality_takes_pictures_of_the_size_it_learned_from(monkeypatch, tmp_path):
    monkeypatch.setattr(finetuning, "EPOCHS", 1)
    monkeypatch.setattr(finetuning, "SIZE", 64)
    data = photos(16)
    model = DCMH(16, epochs=1, batch_size=8, hidden=8, quality="best", device="cpu").fit(data, fine=0)
    model.save(tmp_path / "model")
    monkeypatch.setattr(finetuning, "SIZE", 96)
    loaded = dcmh.load(tmp_path / "model")
    assert loaded.networks_["image"].size == model.networks_["image"].size == 64
    np.testing.assert_array_equal(loaded.outputs(image=data["image"]), model.outputs(image=data["image"]))


def test_varied_pictures_are_pictures():
    drawn = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    varied = finetuning.varied(drawn)
    assert varied.shape == drawn.shape
    assert 0 <= varied.min() < varied.max() <= 255
    assert not torch.equal(varied, drawn.float())


def test_each_quality_has_its_image_network():
    assert [DCMH(quality=quality)._image_network for quality in ("fast", "good")] == [
        "efficientnet-lite0",
        "efficientnet-lite2",
    ]
    assert DCMH(quality="good", network="efficientnet-lite0")._image_network == "efficientnet-lite0"
    for wrong in ({"quality": "fine"}, {"quality": "best", "recipe": "paper"}, {"quality": "best", "finetune": True}):
        with pytest.raises(ParameterError, match="quality"):
            DCMH(**wrong)
    data = photos(16)
    with pytest.raises(DataError, match="learns from labels"):
        DCMH(quality="best", similarity="pairing").fit(Dataset(data.columns))
