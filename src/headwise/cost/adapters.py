"""Low-rank adapters of a layer: its projections by name, and those that get one."""

from typing import NamedTuple

from headwise.config.attention import AttentionConfig
from headwise.config.block import AnyAttention, BlockConfig, FeedForwardConfig
from headwise.config.latent import LatentAttentionConfig
from headwise.config.model import ModelConfig
from headwise.config.vision_model import COMPATIBLE
from headwise.cost.workload import Lora
from headwise.errors import ConfigError

PARTS_OF_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Projections that are held as one matrix, which gets one adapter if one of them is a target."""

FUSED = {
    **dict.fromkeys(("gpt2", "gpt_neox", "bloom", "falcon"), ("qkv_proj",)),
    "phi3": ("qkv_proj", "gate_up_proj"),
}
"""The fused projections of each `model_type` that has some."""


class Projection(NamedTuple):
    """A matrix of weights that may get an adapter: its width before and after; `targets`: the names it answers to."""

    inputs: int
    outputs: int
    targets: tuple[str, ...]

    def is_target(self, lora: Lora) -> bool:
        """Whether it gets an adapter."""
        return not set(self.targets).isdisjoint(lora.targets)


Projections = dict[str, Projection]
"""Projections by name; a fused one has its own."""


class LayerProjections(NamedTuple):
    """The projections of one layer by branch.

    Experts are stacked in transformers and get no adapter; the expert that every token goes through does, and stands
    in the place of a dense feed-forward.
    """

    attention: Projections
    cross_attention: Projections
    feed_forward: Projections


def projections_of(block: BlockConfig, *, model_type: str) -> LayerProjections:
    """Return what of a layer can get adapters."""
    fused = FUSED.get(model_type, ())
    cross = {} if block.cross_attention is None else _fuse(_attention(block.cross_attention), fused)
    return LayerProjections(_fuse(_attention(block.attention), fused), cross, _fuse(_mlp(block.feed_forward), fused))


def adapter_shapes(block: BlockConfig, lora: Lora, *, model_type: str) -> tuple[tuple[int, int], ...]:
    """Return (inputs, outputs) of each projection of a layer that gets an adapter."""
    return tuple(
        (projection.inputs, projection.outputs)
        for branch in projections_of(block, model_type=model_type)
        for projection in branch.values()
        if projection.is_target(lora)
    )


def require_targets(config: ModelConfig, lora: Lora | None) -> None:
    """Raise ConfigError unless there are targets, and each is a projection of some layer of the model."""
    if lora is None:
        return
    if config.model_type == COMPATIBLE:
        raise ConfigError(
            f"lora must be left out of {config.name}, whose queries, keys and values are projected twice; got rank "
            f"{lora.rank}"
        )
    groups = (*(config.encoder.block_groups if config.encoder else ()), *config.block_groups)
    found = {
        target
        for block, _ in groups
        for branch in projections_of(block, model_type=config.model_type)
        for projection in branch.values()
        for target in projection.targets
    }
    if not lora.targets or not found.issuperset(lora.targets):
        raise ConfigError(
            f"targets of lora must be projections of the model: {', '.join(sorted(found))}; "
            f"got {', '.join(lora.targets) or 'none'}"
        )


def _attention(attention: AnyAttention) -> Projections:
    width = attention.embed_dim
    shapes = {}
    if isinstance(attention, AttentionConfig):
        gates = 2 if attention.output_gate else 1
        shapes["q_proj"] = (width, gates * attention.num_heads * attention.head_dim)
        if attention.kv_layer is None:
            shapes["k_proj"] = (attention.key_dim, attention.num_kv_heads * attention.head_dim)
            shapes["v_proj"] = (attention.value_dim, attention.num_kv_heads * attention.v_head_dim)
    if isinstance(attention, LatentAttentionConfig) and attention.q_lora_rank is None:
        shapes["q_proj"] = (width, attention.num_heads * attention.head_dim)
    shapes["out_proj"] = (attention.num_heads * attention.v_head_dim, width)
    return {name: Projection(*shape, (name,)) for name, shape in shapes.items()}


def _mlp(config: FeedForwardConfig) -> Projections:
    width = config.embed_dim
    hidden = config.hidden_dim if config.num_experts == 1 else config.shared_hidden_dim
    if not hidden:
        return {}
    names = ("gate_proj", "up_proj") if config.gated else ("up_proj",)
    into = {name: Projection(width, hidden, (name,)) for name in names}
    return into | {"down_proj": Projection(hidden, width, ("down_proj",))}


def _fuse(projections: Projections, fused: tuple[str, ...]) -> Projections:
    """Put one projection in the place of those that are its parts."""
    for whole in fused:
        parts = [projections[part] for part in PARTS_OF_FUSED[whole] if part in projections]
        if len(parts) > 1:
            outputs = sum(part.outputs for part in parts)
            rest = {name: one for name, one in projections.items() if name not in PARTS_OF_FUSED[whole]}
            targets = tuple(target for part in parts for target in part.targets)
            projections = {whole: Projection(parts[0].inputs, outputs, targets)} | rest
    return projections
