"""Which tokens of a model are which patches of the image that it reads: measured on the model, never assumed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.errors import ModelError
from headwise.inspection.capture.quiet_passes import Inputs
from headwise.inspection.capture.readers import Reader
from headwise.integrations.layer_weights import LayerWeights
from headwise.integrations.transformers_attention import is_transformers_model
from headwise.nn.c3tr import PlainTransformerStage
from headwise.nn.vision import TransformerStage

SEED = 0
ROUNDING = 1e-3  # of the largest change of a token: below it a token is what it was
# what models call the vectors that they put beside the patches, and what we call the tokens
NAMED = {
    "cls_token": "[CLS]",
    "class_embedding": "[CLS]",
    "distillation_token": "[DIST]",
    "register_tokens": "register",
    "detection_tokens": "detection",
}


@dataclass(frozen=True, kw_only=True)
class PatchPlaces:
    """Where the patches of an image stand among a model's tokens.

    Args:
        rows, columns: patches down and across.
        first: number of the first token that is a patch; the others follow it, row by row.
        num_tokens: of all tokens.
        height, width: pixels that the patches cover, from the top left; what lies beyond is not read.
        names: of the tokens that are no patches, in their order; empty where they could not be told apart.
    """

    rows: int
    columns: int
    first: int
    num_tokens: int
    height: int
    width: int
    names: tuple[str, ...] = ()

    @property
    def num_patches(self) -> int:
        """Number of tokens that are patches."""
        return self.rows * self.columns

    def labels(self) -> tuple[str, ...]:
        """Return a word for each token: "r3 c5" is the patch in row 3 and column 5, both from 0."""
        patches = [f"r{row} c{column}" for row in range(self.rows) for column in range(self.columns)]
        num_others = self.num_tokens - self.num_patches
        others = list(self.names) if len(self.names) == num_others else [f"extra {i}" for i in range(num_others)]
        return (*others[: self.first], *patches, *others[self.first :])

    def grid(self) -> Int[Tensor, "num_tokens 2"]:
        """Return row and column of every token; -1 and -1 of those that are no patches."""
        places = torch.full((self.num_tokens, 2), -1)
        patches = torch.arange(self.num_patches)
        places[self.first : self.first + self.num_patches, 0] = patches // self.columns
        places[self.first : self.first + self.num_patches, 1] = patches % self.columns
        return places


def image_in(inputs: Inputs) -> tuple[str | int, Float[Tensor, "batch channels height width"]] | None:
    """Return the name (or place) and the tensor of the images among a model's inputs; None: there are none, or many."""
    named: list[tuple[str | int, Any]] = list(inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs))
    images = [(name, each) for name, each in named if isinstance(each, Tensor) and each.dim() == 4]
    images = [(name, each) for name, each in images if each.is_floating_point() and 0 not in each.shape]
    return images[0] if len(images) == 1 else None


def find_patches(model: nn.Module, reader: Reader, inputs: Inputs) -> PatchPlaces:
    """Find which token is which patch, by running the model on an image and on copies with one patch changed.

    How many patches there are is what the convolution that reads the image puts out, or the map that headwise's own
    stage of blocks takes. Which token is a patch is then seen on the tokens that go into the first layer: of a copy of
    the image in which one patch is changed, one token changes. The first patch, its neighbours and the last are tried.

    Args:
        model: a model that reads images.
        reader: the way to its attention.
        inputs: of a forward pass; the first image counts.

    Raises:
        ModelError: there is no such convolution, a layer does not read all patches (windows, several scales), or a
            patch changes another token than its own (overlapping or shuffled patches).
    """
    found = image_in(inputs)
    if found is None:
        raise ModelError("patches are laid over one image; the inputs hold none, or several")
    name, images = found
    image = images[:1]
    shapes: list[tuple[int, int, int, int]] = []
    with _maps(model, image.shape) as maps:
        reader.read(with_images(inputs, name, image), lambda _, layer: shapes.append(layer.shape))
    num_tokens = shapes[0][2]
    _require_whole(model, shapes)
    if maps.stage is not None and num_tokens == maps.stage[0] * maps.stage[1]:
        rows, columns = maps.stage
        height, width = _covered(image, maps.conv, rows, columns)
        return PatchPlaces(rows=rows, columns=columns, first=0, num_tokens=num_tokens, height=height, width=width)
    if maps.conv is None:
        raise ModelError(f"{type(model).__name__} reads its image by no convolution, so its patches are not known")
    rows, columns = maps.conv.rows, maps.conv.columns
    if num_tokens < rows * columns:
        raise ModelError(
            f"{type(model).__name__} attends to {num_tokens} tokens, fewer than the {rows} x {columns} patches"
        )
    height, width = _covered(image, maps.conv, rows, columns)
    first = _first_patch(model, reader, inputs, maps.conv, num_tokens)
    names = _names_beside(model, num_tokens - rows * columns)
    return PatchPlaces(
        rows=rows, columns=columns, first=first, num_tokens=num_tokens, height=height, width=width, names=names
    )


def with_images(inputs: Inputs, name: str | int, images: Tensor) -> Inputs:
    """Return inputs with other images; tensors that go along with the images take the values of the first one."""
    before = inputs[name]  # type: ignore[index]

    def follow(key: str | int, value: Any) -> Any:
        if key == name:
            return images
        if isinstance(value, Tensor) and value.dim() and len(value) == len(before):
            return value[:1].expand(len(images), *value.shape[1:])
        return value

    if isinstance(inputs, Mapping):
        return {key: follow(key, value) for key, value in inputs.items()}
    return tuple(follow(key, value) for key, value in enumerate(inputs))


@dataclass(frozen=True)
class _Convolution:
    """What the first convolution over the image makes of it."""

    rows: int
    columns: int
    step: tuple[int, int]


@dataclass
class _Maps:
    conv: _Convolution | None = None
    stage: tuple[int, int] | None = None


@contextmanager
def _maps(model: nn.Module, image_shape: torch.Size) -> Iterator[_Maps]:
    """Watch a pass for the convolution that reads the image, and for a stage of blocks of our own."""
    maps = _Maps()

    def look(part: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not args or not isinstance(args[0], Tensor) or args[0].dim() != 4:
            return
        if isinstance(part, TransformerStage | PlainTransformerStage) and maps.stage is None:
            maps.stage = (args[0].shape[2], args[0].shape[3])
        elif isinstance(part, nn.Conv2d) and maps.conv is None and args[0].shape[1:] == image_shape[1:]:
            assert isinstance(part.stride, tuple)
            maps.conv = _Convolution(output.shape[2], output.shape[3], (part.stride[0], part.stride[1]))

    with _hooked(model, look):
        yield maps


@contextmanager
def _hooked(model: nn.Module, look: Callable[[nn.Module, tuple[Any, ...], Any], None]) -> Iterator[None]:
    handles = [part.register_forward_hook(look) for part in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _require_whole(model: nn.Module, shapes: list[tuple[int, int, int, int]]) -> None:
    sizes = {(batch, query_len, key_len) for batch, _, query_len, key_len in shapes}
    batch, query_len, key_len = shapes[0][0], *shapes[0][2:]
    if len(sizes) > 1 or batch != 1 or query_len != key_len:
        windows = ", ".join(f"{queries} x {keys} in {count}" for count, queries, keys in sorted(sizes))
        raise ModelError(
            f"every layer must read all patches of an image at once; {type(model).__name__} attends in windows or at "
            f"several scales (queries x keys in so many pieces: {windows}), which are not laid over the image"
        )


def _covered(image: Tensor, conv: _Convolution | None, rows: int, columns: int) -> tuple[int, int]:
    """Return how many pixels the patches cover; places behind several convolutions cover the whole image."""
    height, width = image.shape[2:]
    if conv is None or (conv.rows, conv.columns) != (rows, columns):
        return height, width
    return min(height, rows * conv.step[0]), min(width, columns * conv.step[1])


def _first_patch(model: nn.Module, reader: Reader, inputs: Inputs, conv: _Convolution, num_tokens: int) -> int:
    """Return the number of the first patch's token, seen from which tokens change with which patches.

    Raises:
        ModelError: patches are not the tokens that follow one another, row by row.
    """
    found = image_in(inputs)
    assert found is not None
    name, images = found
    rows, columns = conv.rows, conv.columns
    tried = sorted({0, min(1, columns - 1), columns * min(1, rows - 1), rows * columns - 1})
    probes = images[:1].repeat(1 + len(tried), 1, 1, 1)
    generator = torch.Generator().manual_seed(SEED)
    down, across = conv.step
    for number, patch in enumerate(tried, start=1):
        top, left = patch // columns * down, patch % columns * across
        area = probes[number, :, top : top + down, left : left + across]
        noise = torch.randn(area.shape, generator=generator).to(area)
        area += noise * (1 + area.abs().max())
    changed: list[Tensor] = []

    def look(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        tokens = output[0] if isinstance(output, tuple) and output else output
        if changed or not isinstance(tokens, Tensor):
            return
        if tokens.dim() == 4 and tokens.shape[1:3] == (rows, columns):
            tokens = tokens.flatten(1, 2)
        if tokens.dim() == 3 and tokens.shape[:2] == (len(probes), num_tokens):
            difference = (tokens[1:] - tokens[:1]).abs().amax(dim=-1)
            changed.append(difference > ROUNDING * difference.amax(dim=-1, keepdim=True))

    def ignore(_: int, __: LayerWeights) -> None:
        pass

    with _hooked(model, look):
        reader.read(with_images(inputs, name, probes), ignore)
    if not changed:
        raise ModelError(f"{type(model).__name__} has no part that puts out its {num_tokens} tokens, to see patches in")
    first = int(changed[0][0].int().argmax())
    expected = torch.zeros_like(changed[0])
    inside = torch.tensor([first + patch for patch in tried])
    if int(inside[-1]) < num_tokens:
        expected[torch.arange(len(tried)), inside] = True
    if not torch.equal(expected, changed[0]):
        raise ModelError(
            f"{type(model).__name__} must make one token of each patch, row by row; to change one changes others"
        )
    return first


def _names_beside(model: nn.Module, num_others: int) -> tuple[str, ...]:
    """Return names of the tokens that are no patches, from the vectors that the model keeps for them."""
    if not is_transformers_model(model):
        return ()
    names = []
    for path, parameter in model.named_parameters():
        name = NAMED.get(path.rpartition(".")[2])
        if name is not None:
            count = parameter.numel() // parameter.shape[-1]
            names += [name] if name.startswith("[") else [f"{name} {number}" for number in range(count)]
    # [CLS] is the first wherever it is; the others stand in the order in which they are put beside the patches
    names.sort(key=lambda name: name != "[CLS]")
    return tuple(names) if len(names) == num_others else ()
