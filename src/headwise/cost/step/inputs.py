"""What a model reads and holds besides its weights, on a tape: token ids, pixels, and buffers."""

from headwise.config.attention import AttentionConfig
from headwise.config.latent import LatentAttentionConfig
from headwise.config.model import ModelConfig
from headwise.config.position import Rotary
from headwise.config.vision_model import MapPlaces
from headwise.cost.step.run import Family
from headwise.cost.step.tape import Shape, Tape, Value
from headwise.cost.workload import Workload


def make_inputs(tape: Tape, config: ModelConfig, workload: Workload) -> dict[str, Value]:
    """Make what the model is called with."""
    if isinstance(config.patches, MapPlaces):
        return _make_map(tape, config, config.patches, workload)
    if config.patches is not None:
        side = config.patches.image_size
        pixels = (workload.batch, config.patches.num_channels, side, side)
        return _make(tape, {"pixels": (pixels, workload.weight_dtype)})
    shapes: dict[str, tuple[Shape, str]] = {"token ids": ((workload.batch, workload.query_len), "int64")}
    if config.encoder is None:
        return _make(tape, shapes)
    if workload.phase == "decode":  # the encoder has run
        source = (workload.batch, workload.seq, config.embed_dim)
        return _make(tape, shapes | {"encoder output": (source, workload.weight_dtype)})
    return _make(tape, {"source ids": shapes["token ids"]} | shapes)


def _make_map(tape: Tape, config: ModelConfig, places: MapPlaces, workload: Workload) -> dict[str, Value]:
    """Make the map that a C3TR reads, and what its batch norms remember of maps before."""
    side = places.places_per_side
    shapes: dict[str, tuple[Shape, str]] = {
        "feature map": ((workload.batch, places.num_channels, side, side), workload.weight_dtype)
    }
    for name, channels in (("cv1", config.embed_dim), ("cv2", config.embed_dim), ("cv3", places.out_channels)):
        for part in ("mean", "variance"):
            shapes[f"{name} running {part}"] = ((channels,), workload.weight_dtype)
        shapes[f"{name} number of batches"] = ((), "int64")
    return _make(tape, shapes)


def make_buffers(tape: Tape, config: ModelConfig, family: Family) -> dict[str, Value]:
    """Make the tensors that the model holds besides its weights."""
    half = (max(_rotary_dim(block.attention) for block, _ in config.block_groups) // 2,)
    shapes: dict[str, tuple[Shape, str]] = {
        "position ids": ((1, config.max_positions), "int64"),
        "token types": ((1, config.max_positions), "int64"),
        "rotary frequencies": (half, "float32"),
        "original rotary frequencies": (half, "float32"),
        "windowed rotary frequencies": (half, "float32"),
        "original windowed rotary frequencies": (half, "float32"),
        "embedding scale": ((), "float32"),
    }
    has_kinds = len({block.attention.mask for block, _ in config.block_groups}) > 1
    names = [name for name in family.buffers if has_kinds or "windowed" not in name]
    return _make(tape, {name: shapes[name] for name in names})


def _rotary_dim(attention: object) -> int:
    """Return how many numbers of a head are turned."""
    if isinstance(attention, LatentAttentionConfig):
        return attention.qk_rope_head_dim
    if isinstance(attention, AttentionConfig) and isinstance(attention.position, Rotary):
        return attention.position.rotary_dim or attention.head_dim
    return 0


def _make(tape: Tape, shapes: dict[str, tuple[Shape, str]]) -> dict[str, Value]:
    return {name: Value(shape, tape.new(name, shape, dtype, kind="input")) for name, (shape, dtype) in shapes.items()}
