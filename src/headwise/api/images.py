"""`image` and `stride` of the verbs: which models take them, and what an image is to each, in words."""

from typing import Any

from headwise.config.model import ModelConfig
from headwise.config.vision_model import GrowingPatches, ImageConfig, MapPlaces, image_model
from headwise.errors import HeadwiseError

SQUARE = "{image:,} x {image:,} pixels"
PATCHES = "An image of {square} in patches of {step} is {side:,} x {side:,} = {tokens:,} tokens."
PLACES = (
    "An image of {square} at stride {step} is a feature map of {side:,} x {side:,} places = {tokens:,} tokens, with "
    "{channels:,} channels. The rest of the network is not reckoned."
)
AUTO = "Reckoned as with impl 'auto'; this module has {!r}."
USUAL_IMPLS = ("auto", "sdpa")
"""Implementations that a step with attention "sdpa" describes, where every token reads every other."""


def take_image(
    images: ImageConfig, name: str, *, image: int | None, stride: int | None, seq: int | None
) -> ModelConfig:
    """Describe a module of images at the size that was asked for.

    Args:
        images: its config.
        name: what to call it.
        image: pixels along one side.
        stride: of a C3TR's feature map.
        seq: must be None: the image says it.

    Raises:
        HeadwiseError: there is no image, a length beside it, or the image is no whole number of patches or strides.
    """
    if seq is not None:
        raise HeadwiseError(
            f"seq must be left out of {name}, whose tokens are the places of an image: give image alone; got {seq}"
        )
    if image is None:
        raise HeadwiseError(
            f"image must be given for {name}, which reads images of any size: pixels along one side, such as 640"
        )
    return image_model(images, image, stride=stride, name=name)


def require_no_image(name: str, config: ModelConfig | None, *, image: int | None, stride: int | None) -> None:
    """Raise HeadwiseError if an image is given for a model that reads none, or none of that size.

    Args:
        name: what to call the model.
        config: of the model, where it is read.
        image, stride: as they were given.
    """
    patches = config.patches if config is not None else None
    if stride is not None:
        raise HeadwiseError(f"stride must be left out of {name}, which is no C3TR; got {stride}")
    if image is None or (patches is not None and image == patches.image_size):
        return
    if patches is not None:
        raise HeadwiseError(f"image must be {patches.image_size}, the one size that {name} reads; got {image}")
    raise HeadwiseError(
        f"image must be left out of {name}, which is no PatchEncoder, C3TR or other model of images; got {image}"
    )


def note_on_image(config: ModelConfig | None) -> tuple[str, ...]:
    """Say what the image is to a model of images of any size; nothing of another one."""
    patches = config.patches if config is not None else None
    if not isinstance(patches, GrowingPatches):
        return ()
    note = PLACES if isinstance(patches, MapPlaces) else PATCHES
    return (
        note.format(
            square=SQUARE.format(image=patches.image_size),
            step=patches.patch_size,
            side=patches.places_per_side,
            tokens=patches.num_tokens,
            channels=patches.num_channels,
        ),
    )


def attention_of(module: Any) -> tuple[str, tuple[str, ...]]:
    """Return the attention of a workload that a module of images runs, and a note where it has another one."""
    impls = [part.impl for part in module.modules() if hasattr(part, "impl")]
    impl = impls[0] if impls else "auto"
    if impl == "reference":
        return "eager", ()
    return "sdpa", () if impl in USUAL_IMPLS else (AUTO.format(impl),)
