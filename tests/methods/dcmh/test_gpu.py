"""Training on a GPU, where there is one: recorded steps, streamed pictures and resumed runs give what a CPU gives."""

import numpy as np
import pytest
import torch

import dcmh
from dcmh import networks
from dcmh.errors import TrainingStopped
from dcmh.methods.dcmh import DCMH, gpu
from dcmh.networks import cnnf
from dcmh.util import device as devices
from small_network import photos, small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture(autouse=True)
def _small_network(monkeypatch):
    monkeypatch.setattr(networks, "backbone", small)
    monkeypatch.setattr(networks, "architecture", lambda name: small(name)[0])


def trained(device="cuda", *, epochs=5, **settings):
    """The paper's recipe on pixels: no dropout, whose random numbers differ between devices. Steps 4 and on are replayed."""
    chosen = {"recipe": "paper", "finetune": True, "batch_size": 8, "precision": "float32", **settings}
    return DCMH(16, epochs=epochs, device=device, **chosen)


def weights(model):
    return {name: np.asarray(value) for name, value in model._state().items()}


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    return all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("recipe", ["paper", "stable"])
def test_a_gpu_learns_what_a_cpu_does(recipe):
    data = photos()
    gpu, cpu = (trained(device, recipe=recipe, dropout=0.0).fit(data, fine=0) for device in ("cuda", "cpu"))
    for name, value in weights(cpu).items():
        assert apart(torch.from_numpy(weights(gpu)[name]), torch.from_numpy(value)) < 0.01, name
    near = 1e-3 if recipe == "paper" else 1e-2  # the ranking's slopes jump from bin to bin, which amplifies rounding
    for ours, theirs in zip(gpu.history_, cpu.history_, strict=True):
        assert ours["likelihood"] == pytest.approx(theirs["likelihood"], rel=near)


@pytest.mark.parametrize("kept", ["in memory", "nowhere"])
def test_streamed_pictures_are_those_on_the_gpu(monkeypatch, kept):
    data = photos()
    resident = weights(trained().fit(data, fine=0))
    monkeypatch.setattr(gpu, "PIXELS_ON_GPU", 0)
    if kept == "nowhere":
        monkeypatch.setattr(gpu, "PIXELS_IN_MEMORY", 0)
    assert same(weights(trained().fit(data, fine=0)), resident)


def test_streamed_batches_arrive_whole_and_in_order(monkeypatch):
    monkeypatch.setattr(gpu, "PIXELS_ON_GPU", 0)
    data = photos(64)
    column = gpu.Pixels(data["image"], torch.device("cuda"))
    for size in (8, 16):  # pinned memory made for one size does for another
        batches = list(torch.randperm(64).cuda().split(size))
        for batch, found in zip(batches, column.stream(batches), strict=True):
            torch.cuda._sleep(10_000_000)  # the network is slow: what waits in pinned memory must not be overwritten
            expected = np.stack([data["image"].source(row) for row in batch.tolist()])
            assert np.array_equal((found + 0).cpu().numpy(), expected)


def test_a_stopped_run_goes_on_as_if_unbroken(tmp_path):
    data = photos()
    settings = {"recipe": "stable", "hidden": 32, "epochs": 6}
    unbroken = trained(**settings).fit(data, fine=0)
    for _ in range(5):
        with pytest.raises(TrainingStopped):
            trained(**settings).fit(data, checkpoint=tmp_path / "run.checkpoint", stop=lambda: True, fine=0)
    resumed = trained(**settings).fit(data, checkpoint=tmp_path / "run.checkpoint", fine=0)
    for name, value in weights(unbroken).items():
        np.testing.assert_allclose(weights(resumed)[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_codes_made_on_a_cpu_are_those_of_the_gpu(tmp_path):
    data = photos()
    model = trained(precision="auto").fit(data, fine=0)
    model.save(tmp_path / "model")
    there = model.encode(image=data["image"])
    loaded = dcmh.load(tmp_path / "model")
    loaded.device = "cpu"
    assert np.mean(loaded.encode(image=data["image"]) == there) > 0.98


def test_cnnf_on_a_gpu_is_that_on_a_cpu():
    """Its fused kernels, in float32 and in bfloat16, against plain PyTorch: outputs and every gradient."""
    torch.manual_seed(0)
    cpu = cnnf.CNNF()
    for layer in cpu.children():
        torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        torch.nn.init.normal_(layer.bias, std=0.5)
    cpu.mean.fill_(120.0)
    photo = torch.randint(0, 256, (8, 224, 224, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    gpu = cnnf.CNNF().to("cuda", memory_format=torch.channels_last)
    gpu.load_state_dict(cpu.state_dict())
    expected = cpu(photo)
    expected.square().mean().backward()
    for dtype, near in ((None, 0.01), (torch.bfloat16, 0.05)):
        gpu.zero_grad()
        reduced = torch.autocast("cuda", dtype, enabled=dtype is not None)
        with devices.arithmetic("float32", torch.device("cuda")), reduced:
            found = gpu(photo.cuda())
        found.float().square().mean().backward()
        assert apart(found, expected) < near
        for (name, ours), theirs in zip(gpu.named_parameters(), cpu.parameters(), strict=True):
            # Where rounding makes two of a window's values equal, pooling sends the gradient to other pixels.
            limit = 6 * near if name == "conv1.weight" else near
            assert apart(ours.grad, theirs.grad) < limit, name


def apart(ours, theirs):
    """The distance between two tensors as a share of the second's length."""
    return float((ours.detach().float().cpu() - theirs.detach()).norm() / theirs.detach().norm())
