"""Signatures of pictures and of their copies."""

from __future__ import annotations

import numpy as np
from PIL import Image

from dcmh.inputs import images, signatures


def picture(seed: int) -> Image.Image:
    """A blurred random picture."""
    noise = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), np.uint8)
    return Image.fromarray(noise).resize((320, 320), Image.Resampling.BICUBIC)


def signature(photo: Image.Image) -> np.ndarray:
    return signatures.compute(images.decode(np.asarray(photo), 224)[None])[0]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(float), b.astype(float)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def test_copies_are_similar_and_others_are_not():
    photo = picture(0)
    code = signatures.codes(signature(photo)[None])[0]
    for copy in (photo.resize((160, 160)), photo.convert("L"), photo.crop((8, 4, 312, 308))):
        assert cosine(signature(photo), signature(copy)) > 0.77
        assert int(np.bitwise_count(code ^ signatures.codes(signature(copy)[None])[0])) <= 14
    assert cosine(signature(photo), signature(picture(1))) < 0.5


def test_a_mirrored_copy_has_other_signs():
    photo = picture(0)
    mirrored = signature(photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert cosine(signature(photo) * signatures.MIRRORED, mirrored) > 0.99
    codes = signatures.codes(np.stack([signature(photo), mirrored]))
    assert int(np.bitwise_count(codes[0] ^ codes[1] ^ signatures.MIRROR_MASK)) <= 1


def test_a_flat_picture_has_no_signature():
    assert not signature(Image.new("RGB", (64, 64), "red")).any()


def test_a_signature_does_not_depend_on_its_batch():
    photos = np.stack([images.decode(np.asarray(picture(seed)), 224) for seed in range(5)])
    together = signatures.compute(photos)
    assert all(np.array_equal(signatures.compute(photos[i : i + 1])[0], together[i]) for i in range(5))
