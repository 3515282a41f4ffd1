"""EfficientNet-Lite0 with its real ImageNet weights."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from dcmh.errors import ModelError, ParameterError
from dcmh.networks import efficientnet
from dcmh.networks.efficientnet import EfficientNetLite, SameConv2d


@pytest.fixture(scope="module")
def network():
    return efficientnet.load_imagenet(EfficientNetLite()).eval()


def probabilities(network, pixels):
    state = torch.load(efficientnet.imagenet_weights(), weights_only=True)
    with torch.inference_mode():
        features = network(torch.from_numpy(pixels).permute(2, 0, 1)[None].float())
        return (features @ state["_fc.weight"].T + state["_fc.bias"]).softmax(1)[0]


def test_weights_fill_every_layer(network):
    state = torch.load(efficientnet.imagenet_weights(), weights_only=True)
    assert set(network.state_dict()) == set(state) - {"_fc.weight", "_fc.bias"}


def test_pixels_are_read_as_the_weights_expect(network):
    """A drawn traffic light is one to the ImageNet classifier (class 920) when pixels are (p - 127) / 128."""
    picture = Image.new("RGB", (224, 224), (150, 190, 230))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((80, 20, 144, 190), fill=(20, 20, 20))
    for top, colour in ((30, (230, 30, 20)), (85, (240, 200, 20)), (140, (20, 200, 60))):
        draw.ellipse((90, top, 134, top + 44), fill=colour)
    assert probabilities(network, np.array(picture)).argmax() == 920


def test_strided_convolutions_pad_after_the_image():
    layer = SameConv2d(1, 1, 3, 2, bias=False)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0, 0, 0, 0] = 1  # copies the top left pixel of each window
        x = torch.arange(16.0).view(1, 1, 4, 4)
        assert layer(x)[0, 0].tolist() == [[0, 2], [8, 10]]  # windows start at the image's first pixel
        assert layer(torch.ones(1, 1, 5, 5)).shape == (1, 1, 3, 3)


def test_a_foreign_weights_file_is_refused(tmp_path):
    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(ModelError, match="does not hold EfficientNet-Lite0 weights"):
        efficientnet.load_imagenet(EfficientNetLite(), tmp_path / "other.pth")


def test_the_fused_network_gives_the_same_features(network):
    pixels = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)) * 255
    with torch.inference_mode():
        assert torch.allclose(efficientnet.fuse(network)(pixels), network(pixels), atol=1e-4)
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())  # the original is untouched


@pytest.fixture(scope="module")
def pixels():
    """Pictures with edges, so that a window that is off by one row is seen."""
    drawn = torch.rand(5, 3, 28, 28, generator=torch.Generator().manual_seed(1)) * 255
    return torch.nn.functional.interpolate(drawn, 224).round().contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("onednn", [True, False])
def test_the_encoder_gives_the_same_features(network, pixels, onednn, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)
    kept = pixels.clone()
    found = efficientnet.Encoder(network)(pixels)
    with torch.inference_mode():
        assert torch.allclose(found, network(pixels), atol=1e-4)
        assert not torch.allclose(found, network(pixels.flip(2, 3)), atol=1e-2)  # it is sensitive to orientation
    assert torch.equal(pixels, kept)


def test_the_encoder_gives_each_picture_the_same_bits_in_any_company(network, pixels):
    encoder = efficientnet.Encoder(network)
    whole = encoder(pixels)
    assert torch.equal(torch.cat([encoder(pixels[row : row + 1]) for row in range(5)]), whole)
    assert torch.equal(encoder(pixels.flip(0)).flip(0), whole)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(encoder(pixels), whole)
    finally:
        torch.set_num_threads(threads)


def test_the_encoder_takes_one_size_only(network):
    with pytest.raises(ParameterError, match="224 x 224"):
        efficientnet.Encoder(network)(torch.zeros(1, 3, 225, 225))


def test_lite2_is_wider_and_deeper_and_takes_larger_pictures():
    network = efficientnet.load_imagenet(EfficientNetLite(2)).eval()
    state = torch.load(efficientnet.imagenet_weights(2), weights_only=True)
    assert {name for name in state if not name.startswith("_fc")} == set(network.state_dict())
    pixels = torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(0)) * 255
    with torch.inference_mode():
        assert torch.allclose(efficientnet.Encoder(network)(pixels), network(pixels), atol=1e-4)
