"""How an image becomes what a model reads: resized, cut, scaled, normalised, as a checkpoint's own file says."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from headwise.errors import ModelError
from headwise.loading.config import read_json

FILE = "preprocessor_config.json"
RESAMPLING = {0: "nearest-exact", 2: "bilinear", 3: "bicubic"}  # numbers of Pillow, as such files have them


@dataclass(frozen=True, kw_only=True)
class PixelRecipe:
    """What is done to an image before a model reads it.

    Args:
        height, width: pixels that the model reads; 0 = those of the image.
        shortest_edge: pixels of the shorter side, from whose middle height and width are then cut. Default: the whole
            image is stretched to height and width.
        resampling: how pixels in between are made: "bilinear", "bicubic" or "nearest-exact", without steps.
        factor: what bytes are multiplied by; None = they are not.
        mean, std: per channel, `(pixel - mean) / std`; None = pixels stay as they are.
        is_told: whether a file of the checkpoint says so.

    Source: transformers 5.24, image processors of ViT and CLIP (order of the steps, names).
    """

    height: int
    width: int
    shortest_edge: int | None = None
    resampling: str = "bilinear"
    factor: float | None = 1 / 255
    mean: tuple[float, ...] | None = (0.5, 0.5, 0.5)
    std: tuple[float, ...] | None = (0.5, 0.5, 0.5)
    is_told: bool = False

    def apply(self, image: UInt8[Tensor, "3 height width"]) -> Float[Tensor, "1 3 rows columns"]:
        """Make what the model reads.

        Raises:
            ModelError: the middle that is cut is larger than the image that it is cut from.
        """
        pixels = image.float().unsqueeze(0)
        height, width = self.height or image.shape[1], self.width or image.shape[2]
        if self.shortest_edge is None:
            pixels = self._resize(pixels, height, width)
        else:
            shorter = min(pixels.shape[2:])
            sides = [self.shortest_edge * side // shorter for side in pixels.shape[2:]]
            if sides[0] < height or sides[1] < width:
                raise ModelError(
                    f"an image must be at least as large as the {height} x {width} pixels cut from its middle; "
                    f"with its shorter side resized to {self.shortest_edge} it is {sides[0]} x {sides[1]}"
                )
            pixels = self._resize(pixels, *sides)
            top, left = (sides[0] - height) // 2, (sides[1] - width) // 2
            pixels = pixels[:, :, top : top + height, left : left + width]
        if self.factor is not None:
            pixels = pixels * self.factor
        if self.mean is not None and self.std is not None:
            mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))
            pixels = (pixels - mean) / std
        return pixels

    def _resize(self, pixels: Tensor, height: int, width: int) -> Tensor:
        if tuple(pixels.shape[2:]) == (height, width):
            return pixels
        smooth = self.resampling != "nearest-exact"
        resized = torch.nn.functional.interpolate(pixels, size=(height, width), mode=self.resampling, antialias=smooth)
        # as bytes again: so do the image processors that models were made with; bicubic steps over the ends
        return resized.round().clamp(0, 255)


def read_recipe(folder: Path | None, height: int, width: int) -> PixelRecipe:
    """Read the preprocessor_config.json of a checkpoint.

    Args:
        folder: of the checkpoint. Where it is None or has no such file, the image is stretched to height and width and
            its pixels run from -1 to 1.
        height, width: pixels that the model is made for; 0 = any.

    Raises:
        ModelError: the file asks for what is not done here.
    """
    path = None if folder is None else folder / FILE
    if path is None or not path.is_file():
        return PixelRecipe(height=height, width=width)
    told = read_json(path)
    if not isinstance(told, Mapping):
        _refuse(path, "an object", told)
    resampling = told.get("resample", 2)
    if resampling not in RESAMPLING:
        _refuse(path, f"resample one of {', '.join(map(str, RESAMPLING))}", resampling)
    cut = bool(told.get("do_center_crop", False))
    height, width, shortest_edge = _sizes(path, told, cut=cut, own=(height, width))
    normalizes = told.get("do_normalize", True)
    factor = told.get("rescale_factor", 1 / 255) if told.get("do_rescale", True) else None
    return PixelRecipe(
        height=height,
        width=width,
        shortest_edge=shortest_edge,
        resampling=RESAMPLING[resampling],
        factor=None if factor is None else _numbers(path, "rescale_factor", factor, 1)[0],
        mean=_numbers(path, "image_mean", told.get("image_mean", 0.5), 3) if normalizes else None,
        std=_numbers(path, "image_std", told.get("image_std", 0.5), 3) if normalizes else None,
        is_told=True,
    )


def _sizes(path: Path, told: Mapping[str, Any], *, cut: bool, own: tuple[int, int]) -> tuple[int, int, int | None]:
    """Return height, width and shortest edge; without resizing the model's own size."""
    if not told.get("do_resize", True):
        return *own, None
    size = told.get("size", own[0])
    if isinstance(size, int):
        size = {"shortest_edge": size} if cut else {"height": size, "width": size}
    if not isinstance(size, Mapping) or not ({"height", "width"} <= set(size) or "shortest_edge" in size):
        _refuse(path, "size with height and width, or with shortest_edge", size)
    if "shortest_edge" not in size:
        return _side(path, size["height"]), _side(path, size["width"]), None
    edge = _side(path, size["shortest_edge"])
    crop = told.get("crop_size", edge) if cut else edge
    crop = crop if isinstance(crop, Mapping) else {"height": crop, "width": crop}
    return _side(path, crop.get("height")), _side(path, crop.get("width")), edge


def _side(path: Path, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 2**13:
        _refuse(path, "sides from 1 to 8192 pixels", value)
    return value


def _numbers(path: Path, name: str, value: object, count: int) -> tuple[float, ...]:
    values: list[Any] = value if isinstance(value, list) else [value] * count
    if len(values) != count or not all(isinstance(each, int | float) and isfinite(each) for each in values):
        _refuse(path, f"{name} of {count} numbers", value)
    if name == "image_std" and 0 in values:
        _refuse(path, "image_std of numbers other than 0", value)
    return tuple(float(each) for each in values)


def _refuse(path: Path, what: str, value: object) -> NoReturn:
    raise ModelError(f"{path} must have {what}; got {value!r:.60}: give the image's pixels as inputs")
