"""CNN-F: the paper's table, the right normalisation, and MatConvNet's file in both layouts."""

import numpy as np
import pytest
import torch
from scipy.io import savemat

import dcmh
from dcmh.data.toy import toy
from dcmh.errors import ModelError, ParameterError
from dcmh.methods.dcmh import DCMH
from dcmh.networks import cnnf
from dcmh.networks.cnnf import CNNF

SHAPES = {  # height x width x in x out, as MatConvNet keeps kernels
    "conv1": (11, 11, 3, 64),
    "conv2": (5, 5, 64, 256),
    "conv3": (3, 3, 256, 256),
    "conv4": (3, 3, 256, 256),
    "conv5": (3, 3, 256, 256),
    "fc6": (6, 6, 256, 4096),
    "fc7": (1, 1, 4096, 4096),
}


def weights_file(path, *, new: bool, shapes=SHAPES, mean=None):
    """A miniature of the real file: mostly zero kernels with a few known entries, so that it compresses well."""
    layers = np.empty(len(shapes), object)
    for i, (name, shape) in enumerate(shapes.items()):
        kernel = np.zeros(shape, np.float32)
        kernel[0, -1, 0, 1] = 2 + i  # first row, last column, first input, second output
        bias = np.arange(shape[3], dtype=np.float32)
        layer = {"name": name, "type": "conv"}
        if new:
            both = np.empty(2, object)
            both[0], both[1] = kernel, bias
            layer["weights"] = both
        else:
            layer |= {"filters": kernel, "biases": bias}
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
    assert seen["full6"] == seen["full7"] == (4096, 1, 1)


def test_local_response_normalisation_is_matconvnets():
    """y_k = x_k / (2 + 1e-4 * sum of x^2 over five neighbouring channels)^0.75, from its definition."""
    x = torch.rand(1, 8, 2, 2, dtype=torch.float64) * 100
    expected = torch.empty_like(x)
    for channel in range(8):
        near = x[:, max(0, channel - 2) : channel + 3].square().sum(1)
        expected[:, channel] = x[:, channel] / (2 + 1e-4 * near) ** 0.75
    assert torch.allclose(torch.nn.functional.local_response_norm(x, **cnnf.LRN), expected)


def test_a_mean_colour_is_taken_for_the_whole_image(tmp_path):
    weights_file(tmp_path / "f.mat", new=True, mean=np.array([1.0, 2.0, 3.0], np.float32))
    network = cnnf.load_matconvnet(CNNF(), tmp_path / "f.mat")
    assert network.mean[:, 5, 7].tolist() == [1, 2, 3]


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


def test_the_papers_system_runs_on_pixels(tmp_path):
    """CNN-F, literal recipe, raw pixels: one iteration, saved and loaded. The weights are the miniature's."""
    weights_file(tmp_path / "f.mat", new=True)
    data = toy(n=16, size=32)
    model = DCMH(
        bits=8, recipe="paper", network="cnn-f", weights=tmp_path / "f.mat", finetune=True, epochs=1, batch_size=8
    )
    model.fit(data).save(tmp_path / "model")
    assert (dcmh.load(tmp_path / "model").encode(image=data.image) == model.encode(image=data.image)).all()


def test_weights_are_never_made_up():
    with pytest.raises(ParameterError, match="needs its ImageNet weights"):
        DCMH(bits=8, network="cnn-f").fit(toy(n=16))
