"""How a pre-trained encoder takes pictures, from its own preprocessor_config.json (or processor_config.json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import EncoderError
from dcmh.inputs.images import STRETCH, Framing
from dcmh.util.formats import parse_object, readable

FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class Preprocessing:
    """Frame, then (pixels * scale - mean) / deviation for each channel."""

    framing: Framing
    scale: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def read(cls, folder: Path) -> Preprocessing:
        """From the files of an encoder."""
        file = next((folder / name for name in FILES if (folder / name).is_file()), None)
        if file is None:
            raise EncoderError(
                f"{folder} does not say how its encoder takes pictures: there is no {FILES[0]}.",
                which=folder,
                hint="Copy that file as well.",
            )
        with readable(file, EncoderError, hint="Copy the folder again."):
            settings = parse_object(file.read_bytes())
            return cls.of(settings.get("image_processor", settings), file)

    @classmethod
    def of(cls, settings: Mapping[str, Any], file: Path) -> Preprocessing:
        """From the settings that transformers writes; unsupported ones are an error."""
        if not settings.get("do_resize", True) or settings.get("do_pad"):
            raise _not_square(file)
        resample = int(settings.get("resample", 3))
        size = settings["size"]
        size = {"shortest_edge": size} if isinstance(size, int) else size
        crop = settings.get("crop_size") if settings.get("do_center_crop") else None
        sides = {crop} if isinstance(crop, int) else {(crop or size).get("height"), (crop or size).get("width")}
        side = next(iter(sides))
        if len(sides) != 1 or not isinstance(side, int):
            raise _not_square(file)
        if "shortest_edge" in size:
            framing = Framing(side, int(size["shortest_edge"]), resample)
        elif size.get("height") == size.get("width") == side:
            framing = Framing(side, STRETCH, resample)
        else:
            raise _not_square(file)
        scale = float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 1.0
        normal = settings.get("do_normalize", True)
        mean, deviation = (settings["image_mean"], settings["image_std"]) if normal else ((0.0,) * 3, (1.0,) * 3)
        return cls(framing, scale, tuple(map(float, mean)), tuple(map(float, deviation)))

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The input of the encoder, (n, 3, size, size), from framed pictures (n, size, size, 3)."""
        values = pixels.astype(np.float32) * np.float32(self.scale)
        normalised = (values - np.array(self.mean, np.float32)) / np.array(self.deviation, np.float32)
        return np.ascontiguousarray(normalised.transpose(0, 3, 1, 2), np.float32)

    def record(self) -> dict[str, Any]:
        """The entry in a model folder."""
        return {
            "framing": list(map(int, self.framing)),
            "scale": self.scale,
            "mean": list(self.mean),
            "deviation": list(self.deviation),
        }


def _not_square(file: Path) -> EncoderError:
    return EncoderError(
        f"{file} describes pictures that are not resized to a square of fixed size.",
        which=file,
        hint="Only encoders of such pictures are supported.",
    )
