"""Low-rank adapters of a layer: the shapes of the projections that get one."""

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig
from headwise.config.latent import LatentAttentionConfig
from headwise.cost.workload import Lora

# Families that hold several projections as one matrix, which then gets one adapter if one of them is a target.
_FUSED = {
    **dict.fromkeys(("gpt2", "gpt_neox", "bloom", "falcon"), (("q_proj", "k_proj", "v_proj"),)),
    "phi3": (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")),
}


def adapter_shapes(block: BlockConfig, lora: Lora, *, model_type: str) -> tuple[tuple[int, int], ...]:
    """Return (inputs, outputs) of each projection of a layer that gets an adapter.

    Experts are stacked in transformers and get none; the expert that every token goes through does.
    """
    shapes = _projection_shapes(block)
    for fused in _FUSED.get(model_type, ()):
        if set(fused) & set(lora.targets):
            parts = [shapes.pop(part) for part in fused if part in shapes]
            shapes[next(part for part in fused if part in lora.targets)] = (parts[0][0], sum(out for _, out in parts))
    return tuple(shapes[target] for target in dict.fromkeys(lora.targets) if target in shapes)


def _projection_shapes(block: BlockConfig) -> dict[str, tuple[int, int]]:
    attention, feed_forward = block.attention, block.feed_forward
    width = attention.embed_dim
    shapes = {"out_proj": (attention.num_heads * attention.v_head_dim, width)}
    if isinstance(attention, AttentionConfig):
        query_width = attention.num_heads * attention.head_dim * (2 if attention.output_gate else 1)
        shapes["q_proj"] = (width, query_width)
        if attention.kv_layer is None:
            shapes["k_proj"] = (attention.key_dim, attention.num_kv_heads * attention.head_dim)
            shapes["v_proj"] = (attention.value_dim, attention.num_kv_heads * attention.v_head_dim)
    if isinstance(attention, LatentAttentionConfig) and attention.q_lora_rank is None:
        shapes["q_proj"] = (width, attention.num_heads * attention.head_dim)
    hidden_dim = feed_forward.hidden_dim if feed_forward.num_experts == 1 else feed_forward.shared_hidden_dim
    if hidden_dim:
        names = ("gate_proj", "up_proj") if feed_forward.gated else ("up_proj",)
        shapes |= dict.fromkeys(names, (width, hidden_dim)) | {"down_proj": (hidden_dim, width)}
    return shapes
