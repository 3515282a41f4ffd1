"""CNN-F: the paper's table, the right normalisation, and MatConvNet's file in both layouts."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.io import savemat

import dcmh
from dcmh.data.benchmarks.toy import toy
from dcmh.errors import ModelError, ModelMismatch, ParameterError
from dcmh.methods.dcmh import DCMH
from dcmh.networks import cnnf
from dcmh.networks.cnnf import CNNF
from dcmh.networks.cnnf_layers import blocks, relu_lrn

SHAPES = {  # height x width x in x out, as MatConvNet keeps kernels
    "conv1": (11, 11, 3, 64),
    "conv2": (5, 5, 64, 256),
    "conv3": (3, 3, 256, 256),
    "conv4": (3, 3, 256, 256),
    "conv5": (3, 3, 256, 256),
    "fc6": (6, 6, 256, 4096),
    "fc7": (1, 1, 4096, 4096),
}


def weights_file(path, *, new: bool, shapes=SHAPES, mean=None, change=None, bias=None):
    """A miniature of the real file: mostly zero kernels with a few known entries, so that it compresses well."""
    layers = np.empty(len(shapes), object)
    for i, (name, shape) in enumerate(shapes.items()):
        kernel = np.zeros(shape, np.float32)
        kernel[0, -1, 0, 1] = 2 + i  # first row, last column, first input, second output
        if change and name in change:
            change[name](kernel)
        biases = np.arange(shape[3], dtype=np.float32) if bias is None else bias
        layer = {"name": name, "type": "conv"}
        if new:
            both = np.empty(2, object)
            both[0], both[1] = kernel, biases
            layer["weights"] = both
        else:
            layer |= {"filters": kernel, "biases": biases}
        layers[i] = layer
    if mean is None:
        mean = np.zeros((224, 224, 3), np.float32)
        mean[0, 1, 2] = 9  # row 0, column 1, blue
    normalization = {"averageImage": mean}
    content = {"layers": layers}
    content |= {"meta": {"normalization": normalization}} if new else {"normalization": normalization}
    savemat(path, content, do_compression=True)


@pytest.mark.parametrize("new", [False, True])
def test_both_layouts_load_with_axes_in_place(tmp_path, new):
    weights_file(tmp_path / "imagenet-vgg-f.mat", new=new)
    network = cnnf.load_matconvnet(CNNF(), tmp_path / "imagenet-vgg-f.mat")
    for i, name in enumerate(("conv1", "conv2", "conv3", "conv4", "conv5", "full6", "full7")):
        weight = getattr(network, name).weight
        assert weight[1, 0, 0, -1] == 2 + i  # output 1, input 0, first row, last column
        assert weight.count_nonzero() == 1
        assert getattr(network, name).bias[:3].tolist() == [0, 1, 2]
    assert network.mean[2, 0, 1] == 9
    assert network.mean.sum() == 9


def test_shapes_are_the_papers_table():
    network = CNNF().eval()
    seen = {}
    for name, module in network.named_children():
        module.register_forward_hook(lambda _m, _i, out, name=name: seen.update({name: tuple(out.shape[1:])}))
    with torch.inference_mode():
        out = network(torch.zeros(1, 3, 224, 224))
    assert out.shape == (1, 4096)
    assert seen["conv1"] == (64, 54, 54)
    assert seen["conv2"] == (256, 27, 27)
    assert seen["conv3"] == seen["conv4"] == seen["conv5"] == (256, 13, 13)
    assert seen["full6"] == seen["full7"] == (4096,)


def test_local_response_normalisation_is_matconvnets():
    """y_k = x_k / (2 + 1e-4 * sum of x^2 over five neighbouring channels)^0.75, from its definition."""
    x = torch.rand(1, 8, 2, 2, dtype=torch.float64) * 100
    expected = torch.empty_like(x)
    for channel in range(8):
        near = x[:, max(0, channel - 2) : channel + 3].square().sum(1)
        expected[:, channel] = x[:, channel] / (2 + 1e-4 * near) ** 0.75
    assert torch.allclose(relu_lrn(x, torch.zeros(8, dtype=x.dtype)), expected)


def test_a_mean_colour_is_taken_for_the_whole_image(tmp_path):
    mean = cnnf._mean_image(np.array([1.0, 2.0, 3.0], np.float32), tmp_path / "f.mat")
    assert mean.shape == (3, 224, 224)
    assert mean[:, 5, 7].tolist() == [1, 2, 3]


def test_wrong_files_are_refused(tmp_path):
    with pytest.raises(ModelError, match="no file"):
        cnnf.load_matconvnet(CNNF(), tmp_path / "none.mat")
    (tmp_path / "text.mat").write_text("hello")
    with pytest.raises(ModelError, match="not a MatConvNet file"):
        cnnf.load_matconvnet(CNNF(), tmp_path / "text.mat")
    first = {"conv1": SHAPES["conv1"]}
    weights_file(tmp_path / "other.mat", new=True, shapes=first | {"conv2": (5, 5, 48, 256)})
    with pytest.raises(ModelError, match="conv2 has kernels"):
        cnnf.load_matconvnet(CNNF(), tmp_path / "other.mat")
    short = dict(list(SHAPES.items())[:3])
    weights_file(tmp_path / "short.mat", new=False, shapes=short)
    with pytest.raises(ModelError, match="no layer conv4"):
        cnnf.load_matconvnet(CNNF(), tmp_path / "short.mat")


@pytest.mark.parametrize("new", [False, True])
def test_known_kernels_see_the_pixels_they_name(tmp_path, new):
    """Kernels that each copy one pixel of one colour: row, column and colour come out where MATLAB has them."""
    picks = {0: (2, 5, 0), 1: (10, 0, 1), 2: (0, 7, 2)}  # output: row, column, colour

    def conv1(kernel):
        kernel[:] = 0
        for output, place in picks.items():
            kernel[(*place, output)] = 1

    mean = np.zeros((224, 224, 3), np.float32)
    mean[6, 9, 0] = 100  # row 6, column 9, red
    weights_file(
        tmp_path / "f.mat", new=new, mean=mean, shapes={"conv1": SHAPES["conv1"]}, change={"conv1": conv1}, bias=0
    )
    network = CNNF()
    layers, found = cnnf._read(tmp_path / "f.mat")
    kernel, _ = layers["conv1"]
    with torch.no_grad():
        network.conv1.weight.copy_(cnnf._as_weight(kernel))
        network.conv1.bias.zero_()
        network.mean.copy_(cnnf._mean_image(found, tmp_path / "f.mat"))
        photo = torch.arange(224 * 224 * 3, dtype=torch.float32).reshape(224, 224, 3)  # (row, column, colour)
        seen = network.conv1(photo.permute(2, 0, 1)[None], network.mean)[0]
    for output, (row, column, colour) in picks.items():
        expected = photo.numpy()[row : row + 4 * 54 : 4, column : column + 4 * 54 : 4, colour].copy()
        if output == 0:
            expected[1, 1] -= 100  # the pixel in row 6 and column 9
        np.testing.assert_allclose(seen[output].numpy(), expected, rtol=1e-6)


def test_damaged_files_are_refused(tmp_path):
    def nan(kernel):
        kernel[0, 0, 0, 0] = np.nan

    weights_file(tmp_path / "nan.mat", new=True, shapes={"conv1": SHAPES["conv1"]}, change={"conv1": nan})
    with pytest.raises(ModelError, match=r"nan.mat: layer conv1 holds NaN or infinity. Download it again."):
        cnnf.load_matconvnet(CNNF(), tmp_path / "nan.mat")
    weights_file(tmp_path / "bias.mat", new=False, shapes={"conv1": SHAPES["conv1"]}, bias=np.zeros(63, np.float32))
    with pytest.raises(ModelError, match=r"bias.mat: layer conv1 has 63 biases for 64 kernels"):
        cnnf.load_matconvnet(CNNF(), tmp_path / "bias.mat")
    whole = (tmp_path / "bias.mat").read_bytes()
    (tmp_path / "cut.mat").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        ModelError, match=r"cut.mat is not a MatConvNet file of CNN-F weights \(.*Give imagenet-vgg-f.mat"
    ):
        cnnf.load_matconvnet(CNNF(), tmp_path / "cut.mat")
    for mean, says in ((np.full((224, 224, 3), 300.0), "not within 0 to 255"), (np.zeros((3, 224, 224)), "has shape")):
        with pytest.raises(ModelError, match=says):
            cnnf._mean_image(mean, tmp_path / "f.mat")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "imagenet-vgg-f.mat"
    weights_file(path, new=True)
    return path


@pytest.mark.slow
def test_the_papers_system_runs_on_pixels(tmp_path, weights):
    """CNN-F, literal recipe, raw pixels: one iteration, saved and loaded. The weights are the miniature's."""
    data = toy(n=8, size=32)
    model = DCMH(bits=8, recipe="paper", network="cnn-f", weights=weights, finetune=True, epochs=1, batch_size=8)
    model.fit(data).save(tmp_path / "model")
    kept = load_file(tmp_path / "model/weights.safetensors")["image.backbone.mean"]
    assert (kept[2, 0, 1], kept.sum()) == (9, 9)  # the mean image, which new pictures will be seen through
    loaded = dcmh.load(tmp_path / "model")
    assert (loaded.encode(image=data.image) == model.encode(image=data.image)).all()


def test_a_frozen_model_knows_its_weights(tmp_path, weights, monkeypatch):
    """The weights stay where they are; another file in their place is refused, and the same one elsewhere is found."""
    monkeypatch.setenv("DCMH_HOME", str(tmp_path / "home"))
    place = tmp_path / "imagenet-vgg-f.mat"
    shutil.copy(weights, place)
    data = toy(n=8, size=32)
    model = DCMH(bits=8, network="cnn-f", weights=place, epochs=1, hidden=8, batch_size=4).fit(data)
    model.save(tmp_path / "model")
    record = json.loads((tmp_path / "model/model.json").read_text())["modalities"]["image"]
    assert record["weights"] == str(place)
    assert len(record["weights_digest"]) == 32
    codes = model.encode(image=data.image)
    place.write_bytes(place.read_bytes() + b"\0")
    with pytest.raises(
        ModelMismatch, match=r"is not the file of cnn-f weights that the model was trained with \(digest"
    ):
        dcmh.load(tmp_path / "model").encode(image=data.image)
    place.unlink()
    with pytest.raises(
        ModelError, match=r"The cnn-f weights that the model was trained with, .*imagenet-vgg-f.mat, do not exist"
    ):
        dcmh.load(tmp_path / "model").encode(image=data.image)
    shutil.copy(weights, tmp_path / "home" / place.name)
    again = dcmh.load(tmp_path / "model")
    assert (again.encode(image=data.image) == codes).all()
    again.save(tmp_path / "copy")  # and says so
    assert (
        json.loads((tmp_path / "copy/model.json").read_text())["modalities"]["image"]["weights_digest"]
        == record["weights_digest"]
    )
    assert dcmh.load(tmp_path / "model").encode(text=data.text).shape == (8, 8)  # words need no image network


def test_weights_are_never_made_up():
    with pytest.raises(ParameterError, match="needs its ImageNet weights"):
        DCMH(bits=8, network="cnn-f").fit(toy(n=16))


def test_a_strided_convolution_is_one_over_blocks():
    """What conv1 does on a GPU: pixels of 4 x 4 blocks as channels, the kernel padded with zeros to whole blocks."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 24, 32, generator=generator, dtype=torch.float64)
    weight = torch.randn(5, 3, 11, 11, generator=generator, dtype=torch.float64)
    padded = torch.nn.functional.pad(weight, (0, 1, 0, 1))
    ours = torch.nn.functional.conv2d(blocks(x, 4), blocks(padded, 4))
    assert torch.allclose(ours, torch.nn.functional.conv2d(x, weight, stride=4))
