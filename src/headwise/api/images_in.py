"""An image as a model reads it, and what the heads do on it: from a file or an image in hand to an Inspection."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from math import isqrt
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from headwise.api.example import beside
from headwise.api.page_budget import CHARS_PER_KEY, TOP_KEY_CHARS, count_heads
from headwise.errors import HeadwiseError, ModelError, describe
from headwise.inspection.detail import NO_DETAIL, Detail
from headwise.inspection.images.inspect_image import MAX_MAP_TOKENS, PIXELS, inspect_image, vision_part
from headwise.inspection.results import Inspection
from headwise.integrations.transformers_attention import is_transformers_model
from headwise.loading.images import read_image
from headwise.loading.module import LoadedModule
from headwise.loading.pixels import FILE, read_recipe
from headwise.nn.vision import PatchEncoder
from headwise.results import BYTES_PER_MIB

# all maps of a page together: 209 tokens of 144 heads, so that the 197 of a ViT of 12 layers are all there
IMAGE_MAP_BYTES = 6 * BYTES_PER_MIB
MAX_FREE_SIDE = 512  # pixels to which the longer side of an image is brought where a model reads any size
NOT_TOLD = (
    f"The model comes without a {FILE}: the image was stretched to what it reads and its pixels run from -1 to 1, "
    "which may not be what it was trained with."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedImage:
    """An image as a model reads it.

    Args:
        inputs: keyword arguments of the forward pass.
        mean, std: by which its pixels were normalised; None = not known.
        notes: what a reader must know.
    """

    inputs: dict[str, Float[Tensor, "1 channels height width"]]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    notes: tuple[str, ...] = ()


def look_at_image(
    loaded: LoadedModule,
    image: Any,
    *,
    processor: Callable[..., Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    map_tokens: int | None = None,
    stack: str | None = None,
    detail: Detail = NO_DETAIL,
    num_parts: int = 1,
) -> Inspection:
    """Look at the heads of a model on an image.

    Args:
        loaded: the model.
        image: as of `read_image`: a file, a tensor or array of bytes, an image of Pillow.
        processor: what makes pixels of an image, called as `processor(images=image, return_tensors="pt")`: an image
            processor of transformers. Default: what the checkpoint's preprocessor_config.json says.
        folder: of the checkpoint.
        map_tokens: most tokens of which maps are kept. Default: as many as let a page stay small.
        stack: of layers, where the model has several.
        detail: what is read beside the statistics that cost little.
        num_parts: how often a page shows as many heads.

    Raises:
        HeadwiseError: the image cannot be read, or the model reads none; its attention cannot be read.
    """
    prepared = prepare_image(loaded.module, image, processor=processor, folder=folder)
    return look_at_pixels(
        loaded,
        beside(loaded.module, prepared.inputs),
        mean=prepared.mean,
        std=prepared.std,
        map_tokens=map_tokens,
        stack=stack,
        notes=prepared.notes,
        detail=detail,
        num_parts=num_parts,
    )


def look_at_pixels(
    loaded: LoadedModule,
    inputs: Mapping[str, Any],
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    map_tokens: int | None = None,
    stack: str | None = None,
    notes: Sequence[str] = (),
    detail: Detail = NO_DETAIL,
    num_parts: int = 1,
) -> Inspection:
    """Look at the heads of a model on images that it can read as they are.

    Args:
        loaded: the model.
        inputs, mean, std, notes: as of `inspect_image`.
        map_tokens, stack, detail, num_parts: as of `look_at_image`.

    Raises:
        HeadwiseError: the attention cannot be read.
    """
    num_heads = count_heads(loaded) * num_parts
    covered = min(MAX_MAP_TOKENS, max(1, isqrt(IMAGE_MAP_BYTES // num_heads)))
    return inspect_image(
        loaded.module,
        inputs,
        mean=mean,
        std=std,
        stack=stack,
        max_map_tokens=covered if map_tokens is None else map_tokens,
        max_top_keys=TOP_KEY_CHARS // (CHARS_PER_KEY * num_heads),
        notes=notes,
        detail=detail,
    )


def prepare_image(
    model: nn.Module,
    image: Any,
    *,
    processor: Callable[..., Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> PreparedImage:
    """Make of an image what a model reads; arguments as of `look_at_image`.

    Raises:
        HeadwiseError: the image cannot be read, or the model reads none.
    """
    picture = read_image(image)
    if processor is not None:
        return _processed(picture, processor)
    place = Path(folder) if folder is not None and Path(folder).is_dir() else None
    recipe = read_recipe(place, *_sides(model, picture))
    sees_bytes = recipe.factor is not None and abs(recipe.factor - 1 / 255) < 1e-4  # pixels run from 0 to 1
    return PreparedImage(
        inputs={_name_of_image(model): recipe.apply(picture)},
        mean=(recipe.mean or (0.0,) * 3) if sees_bytes else None,
        std=(recipe.std or (1.0,) * 3) if sees_bytes else None,
        notes=() if recipe.is_told else (NOT_TOLD,),
    )


def _processed(picture: Tensor, processor: Callable[..., Any]) -> PreparedImage:
    """Let a processor of transformers, or one that is called alike, make the pixels."""
    try:
        pixels = processor(images=picture, return_tensors="pt")[PIXELS]
    except HeadwiseError:
        raise
    except Exception as error:
        raise ModelError(
            f'processor must make pixels, processor(images=image, return_tensors="pt")["{PIXELS}"]; it raised '
            f"{describe(error)}"
        ) from error
    if not isinstance(pixels, Tensor) or pixels.dim() != 4:
        shape = tuple(pixels.shape) if isinstance(pixels, Tensor) else type(pixels).__name__
        raise ModelError(f"processor must make pixels (batch, channels, height, width); got {shape}")
    own = getattr(processor, "image_processor", processor)
    known = getattr(own, "do_normalize", False) and getattr(own, "rescale_factor", 1 / 255) == 1 / 255
    mean, std = getattr(own, "image_mean", None), getattr(own, "image_std", None)
    is_known = bool(known) and isinstance(mean, Sequence) and isinstance(std, Sequence)
    return PreparedImage(
        inputs={PIXELS: pixels},
        mean=tuple(mean) if is_known else None,  # type: ignore[arg-type]
        std=tuple(std) if is_known else None,  # type: ignore[arg-type]
    )


def _name_of_image(model: nn.Module) -> str:
    if is_transformers_model(model):
        return PIXELS
    name = next(iter(signature(model.forward).parameters), None)
    if name is None:
        raise ModelError(f"{type(model).__name__} takes no image: its forward has no parameter")
    return name


def _sides(model: nn.Module, picture: Tensor) -> tuple[int, int]:
    """Return height and width of what a model reads: its config's, or the image's own, made smaller if need be."""
    if is_transformers_model(model):
        size: Any = getattr(vision_part(model).config, "image_size", None)
        sides = (size, size) if isinstance(size, int) else size
        if isinstance(sides, list | tuple) and len(sides) == 2 and all(isinstance(side, int) for side in sides):
            return sides[0], sides[1]
    elif not isinstance(model, PatchEncoder) and not _reads_colours(model):
        raise ModelError(
            f"an image has 3 channels, and {type(model).__name__} reads maps of others: give them as inputs"
        )
    height, width = picture.shape[1:]
    share = min(1.0, MAX_FREE_SIDE / max(height, width))
    return max(1, round(height * share)), max(1, round(width * share))


def _reads_colours(model: nn.Module) -> bool:
    """Tell whether the first convolution of a model, by its order of definition, takes three channels."""
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d)), None)
    return first is None or first.in_channels == 3
