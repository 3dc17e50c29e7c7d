"""Our own modules of images on a tape: blocks over the patches of an image, or over the places of a feature map.

Between their convolutions channels stand apart in memory (B, C, H, W), and so does the residual stream, whose first
tensor is a view of a map: order "places". A norm copies it to work on it, forward and backward; what the norm gives,
and its gradient, lie in the order of tokens.
"""

from headwise.config.model import ModelConfig
from headwise.config.vision_model import GrowingPatches, MapPlaces
from headwise.cost.step import operations as ops
from headwise.cost.step.autocast import cast, cast_inputs, promote
from headwise.cost.step.families.headwise import HEADWISE
from headwise.cost.step.norms import batch_norm
from headwise.cost.step.run import Family, Run, Weights
from headwise.cost.step.tape import Shape, Storage, Tape, Value


def _embed_patches(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    patches = patches_of(config)
    shape = map_shape(run, patches, config.embed_dim)
    # The convolution of the whole image: viewed as tokens, each a patch.
    x = ops.convolve("patches", inputs["pixels"], weights["patch weight"], weights["patch bias"], shape)
    x.storage.layout = "places"
    return _place_tokens(run, patches, x)


def _embed_map(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    shape = map_shape(run, patches_of(config), config.embed_dim)
    x = pointwise(run, "cv1", inputs["feature map"], weights, shape, gradient="tokens")
    return _place_tokens(run, patches_of(config), x)


def finish_map(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, x: Value) -> Value:
    """Join the map that has attended with the one beside it, and mix them."""
    places = patches_of(config)
    assert isinstance(places, MapPlaces), "of a C3TR"
    shape = map_shape(run, places, config.embed_dim)
    beside = pointwise(run, "cv2", inputs["feature map"], weights, shape, gradient="places")
    both = _join_channels("both maps", ops.view(x, shape), beside)
    del beside
    shape = map_shape(run, places, places.out_channels)
    return pointwise(run, "cv3", both, weights, shape, gradient="places")


def _place_tokens(run: Run, patches: GrowingPatches, x: Value) -> Value:
    """View a map as tokens, and add to each the sines of its row and of its column."""
    batch, width = x.shape[:2]
    run.held.append(x.storage)  # the stage's argument, until it returns
    x = ops.view(x, (batch, patches.num_tokens, width))
    positions = _make_positions(run.tape, patches.num_tokens, width, x.dtype)
    return ops.add("embeddings with positions", x, Value((patches.num_tokens, width), positions))


def _make_positions(tape: Tape, num_tokens: int, width: int, dtype: str) -> Storage:
    """The sines and cosines of each place's row, then of its column, made in float64 for this call."""
    _grid = tape.new("rows and columns", (num_tokens, 2), "int64")
    _halves = [_encode(tape, axis, num_tokens, width // 4, dtype) for axis in ("row", "column")]
    return tape.new("positions", (num_tokens, width), dtype)


def _encode(tape: Tape, axis: str, num_tokens: int, num_waves: int, dtype: str) -> Storage:
    shape = (num_tokens, num_waves)
    _frequencies = tape.new("frequencies", (num_waves,), "float64")
    _angles = tape.new(f"angles of the {axis}", shape, "float64")
    waves = [tape.new(f"{name} of the {axis}", shape, "float64") for name in ("sines", "cosines")]
    _stacked = tape.new(f"waves of the {axis}", (*shape, 2), "float64")
    waves.clear()
    return tape.new(f"positions by {axis}", (num_tokens, 2 * num_waves), dtype)


def pointwise(run: Run, name: str, x: Value, weights: Weights, shape: Shape, *, gradient: str) -> Value:
    """A 1 x 1 convolution, batch norm, SiLU.

    Args:
        run: the forward pass.
        name: of the part, "cv1".
        x: the map that it reads.
        weights: of what stands around the layers.
        shape: of the map that it gives.
        gradient: order in memory in which SiLU's gradient comes out: that of the gradient that goes in.
    """
    with run.tape.owned_by(name):
        x, weight = cast_inputs("conv", x, weights[f"{name} weight"])
        x = run.tape.apply(
            "convolution",
            shape,
            fresh=(x, weight),
            kept=(x.storage, weight.storage),  # both, whichever needs a gradient
            layout="places",
            gradient_layouts=("places", "same"),
        )
        norm = [weights[f"{name} norm {part}"] for part in ("weight", "bias")]
        x = batch_norm("convolution, normed", x, *norm, is_training=run.workload.phase == "train")
        return run.tape.apply(
            "output", shape, fresh=(x,), kept=(x.storage,), layout="places", gradient_layouts=(gradient,)
        )


def _join_channels(name: str, first: Value, second: Value) -> Value:
    """Join two maps by their channels; backward hands each a view of its part of the gradient."""
    dtype = promote(first, second)
    batch, channels, *sides = first.shape
    parts = [cast(part, dtype) for part in (first, second)]
    shape = (batch, channels + second.shape[1], *sides)
    return first.storage.tape.apply(name, shape, passed=parts, layout="places")


def map_shape(run: Run, patches: GrowingPatches, channels: int) -> Shape:
    """Return the shape of a map with so many channels."""
    side = patches.places_per_side
    return (run.workload.batch, channels, side, side)


def patches_of(config: ModelConfig) -> GrowingPatches:
    """Return how the images of a model of `image_model` become tokens."""
    assert isinstance(config.patches, GrowingPatches), "a model of image_model"
    return config.patches


PATCH_ENCODER = Family(_embed_patches, HEADWISE.layer, HEADWISE.layer_weights, makes_masks=False)

C3TR = Family(_embed_map, HEADWISE.layer, HEADWISE.layer_weights, makes_masks=False, finish=finish_map)
