"""Decoding in processes that end when a picture exceeds its limits."""

from __future__ import annotations

import io
import os
import signal
import threading

import numpy as np
import pytest
from PIL import Image

from dcmh.errors import ImageError
from dcmh.inputs import images, sandbox
from dcmh.inputs.sandbox import Sandbox

pytestmark = pytest.mark.skipif(not sandbox.can_run(), reason="needs POSIX")


def picture(form="JPEG", size=(300, 200), seed=0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def deep(side=3000) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint16)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def make():
    made = []

    def start(processes=1, seconds=20.0, megabytes=500):
        made.append(Sandbox(processes, seconds, megabytes))
        made[-1].start()
        return made[-1]

    yield start
    for box in made:
        box.close()


def process_of(box):
    """The id of the only process."""
    with box.open(b"x") as opened:
        return opened._process._process.pid


def test_results_are_those_without_it(make, tmp_path):
    box = make()
    for form in ("JPEG", "PNG", "GIF", "AVIF", "HEIF"):
        data = picture(form)
        (tmp_path / "a").write_bytes(data)
        for source in (data, tmp_path / "a"):
            with box.open(source) as opened:
                assert opened.inspect() == images.inspect(source)
                np.testing.assert_array_equal(opened.decode(64), images.decode(source, 64))
                assert opened.thumbnail(50) == images.thumbnail(source, 50)


@pytest.mark.parametrize("data", [b"", b"nonsense", picture()[:500]])
def test_errors_are_those_without_it_and_keep_the_process(make, data):
    box = make()
    before = process_of(box)
    with box.open(data) as opened, pytest.raises(ImageError) as caught:
        opened.decode(64)
    with pytest.raises(ImageError) as directly:
        images.decode(data, 64)
    assert str(caught.value) == str(directly.value)
    assert process_of(box) == before


@pytest.mark.parametrize(
    ("limits", "message"),
    [({"seconds": 0.02}, "takes longer than 0.02 s"), ({"megabytes": 20}, "takes more than 20 MB")],
)
def test_a_picture_beyond_the_limits_ends_its_process_only(make, limits, message):
    box = make(**limits)
    before = process_of(box)
    with box.open(deep()) as opened, pytest.raises(ImageError, match=message):
        opened.decode(64)
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    box.seconds = 20.0
    with box.open(picture()) as opened:
        assert opened.decode(64).shape == (64, 64, 3)


@pytest.mark.parametrize("form", ["AVIF", "HEIF"])
def test_the_memory_of_avif_and_heic_is_limited(make, form):
    file = io.BytesIO()
    Image.new("RGB", (1600, 1400)).save(file, form)
    with make(megabytes=8).open(file.getvalue()) as opened, pytest.raises(ImageError, match="takes more than 8 MB"):
        opened.decode(64)


def test_a_crash_of_the_decoder_is_an_error_of_the_picture(make):
    box = make()
    with box.open(picture()) as opened:
        os.kill(opened._process._process.pid, signal.SIGSEGV)
        with pytest.raises(ImageError, match="the decoder has crashed"):
            opened.decode(64)
    with box.open(picture()) as opened:
        assert opened.decode(64).shape == (64, 64, 3)


def test_several_threads(make):
    box = make(processes=2)
    failures = []

    def work(seed):
        for number in range(3):
            data = picture(seed=10 * seed + number)
            with box.open(data) as opened:
                if not np.array_equal(opened.decode(32), images.decode(data, 32)):
                    failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_process_ends_with_its_input(make):
    box = make()
    with box.open(b"x") as opened:
        process = opened._process._process
    process.stdin.close()
    assert process.wait(10) == 0
