"""What the heads of a vision model do on an image, with its patches told apart."""

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from headwise.errors import ModelError
from headwise.inspection.capture.quiet_passes import Inputs
from headwise.inspection.capture.readers import open_reader
from headwise.inspection.capture.reading import Batch, ShownTokens, read_stacks
from headwise.inspection.detail import NO_DETAIL, Detail
from headwise.inspection.images.patches import PatchPlaces, find_patches, image_in
from headwise.inspection.results import Inspection, PatchGrid
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.integrations.transformers_attention import is_transformers_model
from headwise.png import write_png

MAX_MAP_TOKENS = 1024  # a map is a square of bytes: 1 MiB a head at this length
TOP_KEYS = 16  # of each query, kept where maps do not cover all patches
OVERVIEW_CELLS = 64  # on a side of the maps that are kept then, for a glance
MAX_PICTURE = 768  # pixels along a side of the picture that a result keeps
PIXELS = "pixel_values"


def inspect_image(
    model: nn.Module,
    inputs: Inputs,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    stack: str | None = None,
    max_map_tokens: int = MAX_MAP_TOKENS,
    max_top_keys: int = TOP_KEYS * 4 * MAX_MAP_TOKENS,
    notes: Sequence[str] = (),
    detail: Detail = NO_DETAIL,
) -> Inspection:
    """Measure what every head of a vision model does on an image.

    Patches are found by running the model (`find_patches`). Where they cannot be told apart the statistics come all the
    same, and a note says why there is no grid.

    Args:
        model: a model that reads one image, of Hugging Face or any other whose attention can be read; of a model of
            images and text the part that reads images is taken.
        inputs: of a forward pass, with one tensor (B, channels, height, width), as the model takes it. Statistics are
            averaged over all images; maps and the picture are of the first.
        mean, std: numbers per channel by which the pixels were normalised, `(pixel - mean) / std` with pixels from 0 to
            1, so that the picture can be shown as it was. Default: the picture is scaled from its darkest to its
            brightest number.
        stack: name of the stack of layers, where the model has several.
        max_map_tokens: most tokens of which maps are kept; of an image of more the heaviest keys of each query are, 16
            at most, and maps of tiles.
        max_top_keys: how many of these are kept of each head, of all queries together.
        notes: what a reader must know already.
        detail: what is taken beside statistics that cost little.

    Raises:
        ModelError: the attention cannot be read; its layers attend in windows or at several scales; no image.
    """
    part = vision_part(model)
    notes = [*notes]
    if part is not model:
        notes.append(f"Of {type(model).__name__} the part that reads images was looked at, {type(part).__name__}.")
    found = image_in(inputs)
    if found is None:
        raise ModelError("inputs must hold one tensor of images, (batch, channels, height, width); they do not")
    _, images = found
    if len(images) > 1:
        notes.append(f"Maps and the picture are of the first of {len(images)} images.")
    reader = open_reader(part, inputs, stack=stack)
    places: PatchPlaces | None = None
    try:
        places = find_patches(part, reader, inputs)
        num_tokens, labels = places.num_tokens, places.labels()
    except ModelError as reason:
        num_tokens = _num_tokens(reader, inputs, len(images), reason)
        labels = tuple(map(str, range(num_tokens)))
        notes.append(f"Tokens are not laid over the image: {reason}.")
    if places is not None:
        notes += _notes_on_grid(places)
        if max_map_tokens and num_tokens > max_map_tokens:
            # part of a map would be a picture of the upper patches alone
            max_map_tokens = 0
            room = max(1, min(TOP_KEYS, max_top_keys // num_tokens))
            cells = detail.overview_cells or OVERVIEW_CELLS
            detail = replace(detail, top_keys=detail.top_keys or room, overview_cells=cells)
            notes.append(f"Of the {num_tokens} tokens each query's {detail.top_keys} heaviest keys are kept, not maps.")
    real = torch.ones(len(images), num_tokens, dtype=torch.bool)
    kinds = TokenKinds(real, torch.zeros_like(real), None if places is None else places.grid())
    (inspection,) = read_stacks(
        reader.reader,
        [Batch(inputs, {reader.stack.name: kinds})],
        {reader.stack.name: ShownTokens(tokens=labels)},
        shown=0,
        max_map_tokens=max_map_tokens,
        notes=notes,
        detail=detail,
    ).values()
    if places is None:
        return inspection
    picture = to_picture(images[0, :, : places.height, : places.width], mean=mean, std=std)
    return replace(
        inspection,
        patches=PatchGrid(rows=places.rows, columns=places.columns, first=places.first, picture=to_png(picture)),
    )


def vision_part(model: nn.Module) -> nn.Module:
    """Return the part of a Hugging Face model that reads images alone; any other model is returned as it is.

    Raises:
        ModelError: it has several such parts, or none.
    """
    if reads_images_alone(model):
        return model
    parts: list[nn.Module] = []
    for part in model.modules():
        inside = any(part is inner for outer in parts for inner in outer.modules())
        if part is not model and is_transformers_model(part) and not inside and reads_images_alone(part):
            parts.append(part)
    if len(parts) != 1:
        names = ", ".join(type(part).__name__ for part in parts) or "none"
        raise ModelError(
            f"an image is read by a model of images, or by one that holds one such part; {type(model).__name__} holds "
            f"{names}: give the part"
        )
    return parts[0]


def reads_images_alone(model: Any) -> bool:
    """Tell whether a Hugging Face model reads images and nothing else; of any other module it is taken to be so."""
    if not is_transformers_model(model):
        return True
    reads = signature(model.forward).parameters
    return model.main_input_name == PIXELS and PIXELS in reads and "input_ids" not in reads and not _writes(model)


def _writes(model: Any) -> bool:
    """Tell whether a model turns images into text: the encoder is another part then."""
    return bool(model.config.is_encoder_decoder) and "decoder_input_ids" in signature(model.forward).parameters


def to_picture(
    pixels: Float[Tensor, "channels height width"],
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> UInt8[Tensor, "rows columns 3"]:
    """Turn what a model reads back into colours of 8 bits.

    Args:
        pixels: one channel is shown as grey, three as red, green and blue, others as the grey of their mean.
        mean, std: as of `inspect_image`.
    """
    pixels = pixels.detach().float().cpu()
    if len(pixels) not in (1, 3):
        pixels, mean, std = pixels.mean(dim=0, keepdim=True), None, None
    if mean is not None and std is not None:
        pixels = pixels * torch.tensor(std).view(-1, 1, 1) + torch.tensor(mean).view(-1, 1, 1)
    else:
        low, high = pixels.min(), pixels.max()
        pixels = (pixels - low) / (high - low).clamp(min=torch.finfo(torch.float32).tiny)
    largest = max(pixels.shape[1:])
    if largest > MAX_PICTURE:
        size = [max(1, side * MAX_PICTURE // largest) for side in pixels.shape[1:]]
        pixels = nn.functional.interpolate(pixels[None], size=size, mode="area")[0]
    picture: Tensor = (pixels.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
    return picture.expand(3, -1, -1).permute(1, 2, 0).contiguous()


def to_png(picture: UInt8[Tensor, "rows columns 3"]) -> bytes:
    """Return a picture as the bytes of a PNG."""
    return write_png([bytes(row.flatten().tolist()) for row in picture], in_colour=True)


def _num_tokens(reader: Any, inputs: Inputs, num_images: int, reason: ModelError) -> int:
    """Return how many tokens all layers read.

    Raises:
        ModelError: they read different ones; the error is why there are no patches.
    """
    shapes: list[tuple[int, int, int, int]] = []
    reader.read(inputs, lambda _, layer: shapes.append(layer.shape))
    lengths = {length for _, _, *lengths in shapes for length in lengths}
    if len(lengths) > 1 or any(shape[0] != num_images for shape in shapes):
        raise reason
    return lengths.pop()


def _notes_on_grid(places: PatchPlaces) -> list[str]:
    grid = places.grid()[places.first : places.first + places.num_patches].double()
    far = torch.cdist(grid, grid).mean().item()
    return [
        f"The image is {places.rows} x {places.columns} patches, row by row. Weights that are all alike lie {far:.1f} "
        "patches away on average (patch distance); distance in tokens, near mass and block mass follow the row: the "
        f"patch below is {places.columns} tokens away."
    ]
