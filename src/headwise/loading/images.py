"""A user's image: a file, a tensor, an array or an image in hand, as bytes of red, green and blue."""

import os
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from headwise.errors import HeadwiseError, MissingExtraError, ModelError, describe
from headwise.loading.files import read_whole
from headwise.png import PNG_START, read_png

MAX_IMAGE_BYTES = 64 * 2**20
KINDS = "a file, a tensor or array of bytes, (3, height, width) or (height, width, 3), or an image of Pillow"


def read_image(image: Any) -> UInt8[Tensor, "3 height width"]:
    """Return an image as bytes; greys get three channels, transparency is left out.

    Plain PNG files are read here. JPEG, WebP and all else that Pillow reads need Pillow.

    Args:
        image: path of a file; a tensor or array of bytes, (3, height, width), (1, height, width), (height, width, 3) or
            (height, width); an image of Pillow.

    Raises:
        ModelError: it cannot be read, or is something else.
        MissingExtraError: Pillow is needed and not installed.
    """
    if isinstance(image, str | os.PathLike):
        return _read_file(Path(image))
    if hasattr(image, "convert") and hasattr(image, "tobytes"):  # an image of Pillow
        return _from_pillow(image)
    try:
        pixels = torch.as_tensor(image)
    except (TypeError, ValueError, RuntimeError):
        raise ModelError(f"image must be {KINDS}; got {type(image).__name__}") from None
    if pixels.dim() == 2:
        pixels = pixels.unsqueeze(0)
    elif pixels.dim() == 3 and pixels.shape[0] not in (1, 3):
        pixels = pixels.permute(2, 0, 1)
    if pixels.dtype != torch.uint8 or pixels.dim() != 3 or pixels.shape[0] not in (1, 3) or 0 in pixels.shape:
        raise ModelError(
            f"image must be {KINDS}; got numbers of {str(pixels.dtype).removeprefix('torch.')}, "
            f"{tuple(torch.as_tensor(image).shape)}: what a model reads already goes into inputs"
        )
    return pixels.cpu().expand(3, -1, -1).contiguous()


def _read_file(path: Path) -> Tensor:
    content = read_whole(path, what="an image", max_bytes=MAX_IMAGE_BYTES, error=ModelError)
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        return _read_plain(path, content)
    try:
        with Image.open(path) as opened:
            return _from_pillow(opened)
    except Exception as error:  # a damaged file may raise anything
        raise ModelError(f"the image {path} cannot be read: {describe(error)}") from error


def _read_plain(path: Path, content: bytes) -> Tensor:
    if not content.startswith(PNG_START):
        raise MissingExtraError("pillow", "images")
    try:
        pixels = read_png(content)
    except HeadwiseError as error:
        raise ModelError(f"the image {path} cannot be read: {error}") from None
    if pixels is None:
        raise MissingExtraError("pillow", "images")
    flat = torch.frombuffer(bytearray(pixels.values), dtype=torch.uint8)
    return flat.view(pixels.height, pixels.width, 3).permute(2, 0, 1).contiguous()


def _from_pillow(image: Any) -> Tensor:
    """Return an image of Pillow, turned as its camera says."""
    from PIL import ImageOps

    plain = ImageOps.exif_transpose(image).convert("RGB")
    flat = torch.frombuffer(bytearray(plain.tobytes()), dtype=torch.uint8)
    return flat.view(plain.height, plain.width, 3).permute(2, 0, 1).contiguous()
