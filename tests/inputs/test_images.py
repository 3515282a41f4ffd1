"""Pictures: every colour mode, orientation and damage a folder of photos can hold."""

import io
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from dcmh.data.columns import Images
from dcmh.errors import DataError, ImageError, ParameterError
from dcmh.inputs import images

SIZE = 32


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 255 / height, columns * 255 / width, (rows + columns) % 256], axis=2).astype(np.uint8)


def encoded(picture: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that says how large it is, and holds no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def test_the_right_size_is_unchanged_bit_for_bit(tmp_path):
    pixels = noise(SIZE, SIZE)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for source in (pixels, tmp_path / "a.png", str(tmp_path / "a.png"), (tmp_path / "a.png").read_bytes()):
        decoded = images.decode(source, SIZE)
        np.testing.assert_array_equal(decoded, pixels)
        assert decoded.dtype == np.uint8
        assert decoded.flags.writeable


@pytest.mark.parametrize(("height", "width"), [(64, 96), (97, 64), (33, 400), (10, 5), (1, 1), (32, 40)])
def test_shorter_side_then_middle(height, width):
    picture = Image.fromarray(smooth(height, width))
    scale = SIZE / min(height, width)
    resized = picture.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)
    left, top = (resized.width - SIZE) // 2, (resized.height - SIZE) // 2
    expected = np.asarray(resized.crop((left, top, left + SIZE, top + SIZE))).astype(int)
    found = images.decode(smooth(height, width), SIZE).astype(int)
    assert found.shape == (SIZE, SIZE, 3)
    assert abs(found - expected)[..., :2].mean() < 8  # the two differ by less than a pixel of the source


def test_large_jpegs_look_the_same_when_decoded_small():
    photo = Image.fromarray(smooth(800, 1200))
    jpeg = encoded(photo, "JPEG", quality=95)
    fast = images.decode(jpeg, SIZE).astype(int)
    whole = images.decode(np.asarray(Image.open(io.BytesIO(jpeg))), SIZE).astype(int)
    assert abs(fast - whole).mean() < 3


@pytest.mark.parametrize("form", ["AVIF", "HEIF"])
def test_avif_and_heic(form, tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn, which these formats also store outside of the EXIF data
    photo = Image.fromarray(smooth(48, 64))
    data = encoded(photo, form, quality=95)
    (tmp_path / "a.jpg").write_bytes(data)
    expected = images.decode(smooth(48, 64), SIZE).astype(int)
    for source in (data, tmp_path / "a.jpg"):
        assert images.inspect(source) == (form, 48 * 64)
        assert abs(images.decode(source, SIZE) - expected)[..., :2].mean() < 4
    with Image.open(io.BytesIO(images.thumbnail(data, 32))) as small:
        assert (small.format, small.size) == ("JPEG", (32, 24))
    upright = images.decode(encoded(photo, form, quality=95, exif=turned.tobytes()), SIZE)
    assert abs(upright - np.rot90(expected, -1))[..., :2].mean() < 4
    for damaged in (data[:100], data[: len(data) // 2], data[:40] + b"\xff" * 40 + data[80:]):
        with pytest.raises(ImageError):
            images.decode(damaged, SIZE)


@pytest.mark.parametrize("form", ["AVIF", "HEIF"])
def test_the_limit_holds_for_avif_and_heic_before_they_are_decoded(form, monkeypatch):
    data = encoded(Image.new("RGB", (1500, 1400)), form)
    monkeypatch.setattr(images, "MAX_MEGAPIXELS", 2)
    with pytest.raises(ImageError, match="2 megapixels, more than the limit of 2"):
        images.decode(data, SIZE)


def test_heic_without_the_extra(monkeypatch):
    monkeypatch.setattr(images, "FORMATS", images.FORMATS[:-1])
    with pytest.raises(ImageError, match=r'a HEIC file, which needs: pip install "dcmh\[heic\]"'):
        images.decode(encoded(Image.new("RGB", (8, 8)), "HEIF"), SIZE)


def test_pil_images(tmp_path):
    """They count as what their file holds: upright, on white, and with the same limits."""
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(smooth(40, 64)).save(tmp_path / "a.png", exif=turned)
    with Image.open(tmp_path / "a.png") as picture:
        np.testing.assert_array_equal(images.decode(picture, SIZE), images.decode(tmp_path / "a.png", SIZE))
        assert images.thumbnail(picture, 16) == images.thumbnail(tmp_path / "a.png", 16)
        assert picture.size == (64, 40)  # it is left as it was
    clear = Image.new("RGBA", (SIZE, SIZE), (0, 0, 0, 0))
    assert (images.decode(clear, SIZE) == 255).all()
    column = Images([clear, None])
    assert column.observed.tolist() == [True, False]
    assert column.path(0) is None
    assert images.unreadable(column) == []
    assert images.content_hash(clear) != images.content_hash(Image.new("RGBA", (SIZE, SIZE)).convert("RGB"))
    (tmp_path / "b.jpg").write_bytes(encoded(Image.fromarray(noise(64, 64)), "JPEG")[:1000])
    with Image.open(tmp_path / "b.jpg") as picture, pytest.raises(ImageError, match="truncated"):
        images.decode(picture, SIZE)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    jpeg = encoded(Image.fromarray(smooth(48, 64)), "JPEG", quality=95, exif=exif)
    turned = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(jpeg))))
    np.testing.assert_array_equal(images.decode(jpeg, SIZE), images.decode(turned, SIZE))


def test_modes_become_rgb():
    grey = np.full((SIZE, SIZE), 100, np.uint8)
    checks = {
        "L": (Image.fromarray(grey), [100, 100, 100]),
        "1": (Image.fromarray(grey > 0), [255, 255, 255]),
        "RGBA": (Image.new("RGBA", (SIZE, SIZE), (200, 0, 0, 0)), [255, 255, 255]),
        "half": (Image.new("RGBA", (SIZE, SIZE), (0, 0, 0, 128)), [127, 127, 127]),
        "LA": (Image.new("LA", (SIZE, SIZE), (0, 0)), [255, 255, 255]),
        "I;16": (Image.fromarray(np.full((SIZE, SIZE), 25700, np.uint16)), [100, 100, 100]),
    }
    for name, (picture, expected) in checks.items():
        decoded = images.decode(encoded(picture, "PNG"), SIZE)
        assert decoded[5, 5].tolist() == expected, name
    for name, picture in {
        "I": Image.fromarray(np.full((SIZE, SIZE), 25700, np.int32)),
        "F": Image.fromarray(np.full((SIZE, SIZE), 100 / 255, np.float32)),
    }.items():
        assert images.decode(encoded(picture, "TIFF"), SIZE)[5, 5].tolist() == [100, 100, 100], name
    cmyk = encoded(Image.new("CMYK", (SIZE, SIZE), (0, 255, 255, 0)), "JPEG", quality=95)
    red, green, blue = images.decode(cmyk, SIZE)[5, 5]
    assert red > 240
    assert max(green, blue) < 15
    assert images.decode(grey, SIZE)[5, 5].tolist() == [100, 100, 100]


def test_a_palette_with_transparency_lies_on_white():
    picture = Image.new("P", (SIZE, SIZE), 0)
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.paste(1, (0, 0, SIZE, SIZE // 2))
    png = encoded(picture, "PNG", transparency=0)
    decoded = images.decode(png, SIZE)
    assert decoded[1, 1].tolist() == [0, 0, 255]
    assert decoded[-1, -1].tolist() == [255, 255, 255]
    gif = encoded(picture, "GIF", transparency=0)
    assert images.decode(gif, SIZE)[-1, -1].tolist() == [255, 255, 255]


def bad_files(folder):
    """Every kind of file that a folder of photos should not hold, and why each fails."""
    jpeg = encoded(Image.fromarray(noise(300, 300)), "JPEG", quality=90)
    png = encoded(Image.fromarray(noise(100, 100)), "PNG")
    (folder / "directory.jpg").mkdir()
    contents = {
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "cut.png": png[: len(png) // 2],
        "empty.jpg": b"",
        "letter.jpg": b"Dear Sir or Madam",
        "huge.png": png_header(20_000, 12_000),
        "large.png": png_header(12_000, 10_000),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {
        "cut.jpg": f"truncated after {len(jpeg) // 2 / 1000:.0f} kB",
        "cut.png": f"truncated after {len(png) // 2 / 1000:.0f} kB",
        "empty.jpg": "empty file",
        "letter.jpg": "not an image",
        "huge.png": "240 megapixels, more than the limit of 100",
        "large.png": "120 megapixels, more than the limit of 100",
        "directory.jpg": "is a folder",
        "gone.jpg": "does not exist",
    }


def test_each_failure_has_its_reason(tmp_path):
    for name, reason in bad_files(tmp_path).items():
        with pytest.raises(ImageError) as caught:
            images.decode(tmp_path / name, SIZE)
        assert str(caught.value) == reason, name
        assert isinstance(caught.value, DataError)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_the_limit_is_our_own_not_pillows(tmp_path):
    (tmp_path / "large.png").write_bytes(png_header(12_000, 10_000))
    with pytest.raises(ImageError, match="120 megapixels, more than the limit of 100"):
        images.decode(tmp_path / "large.png", SIZE)


def test_damage_inside_is_an_image_error_whatever_pillow_raises():
    generator = np.random.default_rng(0)
    picture = Image.fromarray(noise(40, 40))
    sound = [encoded(picture, form) for form in ("PNG", "GIF", "TIFF", "BMP", "WEBP")]
    reasons = []
    for content in sound * 30:
        damaged = bytearray(content)
        for place in generator.integers(8, len(content), 6):
            damaged[place] ^= int(generator.integers(1, 256))
        try:
            images.decode(bytes(damaged[: generator.integers(20, len(damaged))]), SIZE)
        except ImageError as error:
            reasons.append(str(error))
    assert len(reasons) > 20
    assert all(0 < len(reason) < 200 for reason in reasons)


def test_a_png_named_jpg_and_odd_names_are_fine(tmp_path):
    for name in ("png inside.jpg", "naïve 写真 🎃.jpg"):
        (tmp_path / name).write_bytes(encoded(Image.fromarray(noise(SIZE, SIZE)), "PNG"))
        np.testing.assert_array_equal(images.decode(tmp_path / name, SIZE), noise(SIZE, SIZE))


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4, 3)), np.zeros((4, 4, 2), np.uint8), np.zeros(4, np.uint8), np.zeros((0, 4, 3), np.uint8)]
)
def test_arrays_that_are_no_pictures(array):
    with pytest.raises(ImageError, match="expected uint8"):
        images.decode(array, SIZE)


def test_a_size_below_one_is_refused():
    with pytest.raises(ParameterError, match="at least 1 pixel"):
        images.decode(noise(4, 4), 0)


def test_content_hash_tells_contents_apart(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"one")
    (tmp_path / "b.bin").write_bytes(b"one")
    (tmp_path / "c.bin").write_bytes(b"two")
    one, again, other = (images.content_hash(tmp_path / name) for name in ("a.bin", "b.bin", "c.bin"))
    assert one == again == images.content_hash(b"one") != other
    assert len(one) == 16
    flat, tall = noise(4, 9), noise(4, 9).reshape(9, 4, 3)
    assert images.content_hash(flat) == images.content_hash(flat.copy()) != images.content_hash(tall)
    with pytest.raises(ImageError, match="does not exist"):
        images.content_hash(tmp_path / "none")


def test_unreadable_finds_the_bad_ones_and_reports_progress(tmp_path):
    reasons = bad_files(tmp_path)
    Image.fromarray(noise(50, 50)).save(tmp_path / "good.jpg")
    values = ["good.jpg", *reasons, None, noise(9, 9), np.zeros((2, 2), np.float32)]
    seen = []
    column = Images(values, root=tmp_path)
    failed = dict(images.unreadable(column, workers=2, progress=lambda done, total: seen.append((done, total))))
    assert {values[row]: reason for row, reason in failed.items() if isinstance(values[row], str)} == reasons
    assert len(failed) == len(reasons) + 1
    assert seen == [(done, len(values)) for done in range(1, len(values) + 1)]


class TestLimits:
    @pytest.mark.parametrize("progressive", [False, True])
    def test_scans(self, tmp_path, progressive):
        jpeg = encoded(Image.fromarray(smooth(64, 48)), "JPEG", progressive=progressive)
        start, end = jpeg.rindex(b"\xff\xda"), jpeg.rindex(b"\xff\xd9")
        before = jpeg.count(b"\xff\xda") - 1
        for scans in (1, images.MAX_SCANS - before, images.MAX_SCANS - before + 1, 3000):
            (tmp_path / "a.jpg").write_bytes(jpeg[:start] + scans * jpeg[start:end] + jpeg[end:])
            for source in (tmp_path / "a.jpg", (tmp_path / "a.jpg").read_bytes()):
                if scans + before > images.MAX_SCANS:
                    with pytest.raises(ImageError, match="scans, more than the limit of 64"):
                        images.decode(source, SIZE)
                    with pytest.raises(ImageError, match="scans, more than the limit of 64"):
                        images.thumbnail(source, SIZE)
                else:
                    assert images.count_scans(source) == scans + before
                    if progressive or scans == 1:  # libjpeg refuses the others itself
                        assert images.decode(source, SIZE).shape == (SIZE, SIZE, 3)

    def test_markers_in_metadata_are_not_scans(self):
        comment = b"\xff\xda" * 1000 + bytes(2)
        data = encoded(Image.fromarray(smooth(64, 48)), "JPEG", comment=comment)
        assert data.count(b"\xff\xda") > 1000
        assert images.count_scans(data) == 1
        assert images.decode(data, SIZE).shape == (SIZE, SIZE, 3)

    @pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
    @pytest.mark.parametrize("mode", ["I;16", "LA"])
    def test_memory(self, tmp_path, mode):
        """Conversion takes little more than the picture itself."""
        if mode == "I;16":
            Image.fromarray(np.zeros((7000, 7000), np.uint16)).save(tmp_path / "a.png")
        else:
            Image.new(mode, (7000, 7000)).save(tmp_path / "a.png")
        code = (
            "import re, sys; from dcmh.inputs import images; images.decode(sys.argv[1], 224);"
            "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"  # ru_maxrss includes the parent's
        )
        command = [sys.executable, "-c", code, str(tmp_path / "a.png")]
        kilobytes = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert kilobytes < 600_000


class TestStrips:
    """Converting strip by strip gives the same values as converting everything at once."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(images, "STRIP", 150)

    def test_transparency(self):
        noisy = Image.fromarray(np.dstack([noise(41, 37), noise(41, 37, 1)[:, :, 0]]))
        palette = noisy.convert("RGB").quantize(32)
        palette.info["transparency"] = 3
        key = noisy.convert("RGB")
        key.info["transparency"] = key.getpixel((5, 5))
        for picture in (noisy, noisy.convert("LA"), palette, key):
            white = Image.new("RGBA", picture.size, "white")
            whole = Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
            np.testing.assert_array_equal(np.asarray(images._to_rgb(picture)), np.asarray(whole))

    @pytest.mark.parametrize("top", [1.0, 200.0, 65535.0])
    @pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
    def test_deep_values(self, dtype, top):
        values = (np.random.default_rng(0).random((41, 37)) * top).astype(dtype)
        values[3, 4] = top
        picture = Image.fromarray(values)
        expected = values.astype(np.float64)
        if dtype == np.uint16 or top > 255:
            expected = expected / 257
        elif dtype == np.float32 and top <= 1:
            expected = expected * 255
        expected = np.clip(np.rint(expected), 0, 255).astype(np.uint8)
        np.testing.assert_array_equal(np.asarray(images._to_rgb(picture))[:, :, 0], expected)
