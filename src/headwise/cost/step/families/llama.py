"""Llama and its relatives on a tape: decoders with rotary positions and gated feed-forwards.

Llama, Mistral, Mixtral, Qwen 2, Qwen 3 and their experts, SmolLM3, StarCoder2: norms before each part. OLMo 2: after
each part, before the sum. Gemma 2 and 3: both. Phi-3: fused projections.
"""

from dataclasses import replace
from types import NoneType

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, ModelConfig
from headwise.config.position import Rotary
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import attend
from headwise.cost.step.caching import update_cache
from headwise.cost.step.experts import (
    mix_experts,
    mix_with_gated_expert,
    route_by_softmax,
    route_by_softmax_and_cast,
)
from headwise.cost.step.heads import split_heads
from headwise.cost.step.layers import (
    feed_forward,
    gated_feed_forward,
    normalise,
    project,
    rotate_both,
    rotate_first_part,
)
from headwise.cost.step.norms import rms_norm_cast_last, rms_norm_one_plus
from headwise.cost.step.run import Family, Run, Weights, attention_of
from headwise.cost.step.tape import Value

ROTARY_BUFFERS = ("rotary frequencies", "original rotary frequencies")


def embed(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    """Look tokens up, and make the rotary angles that all layers share."""
    x = look_up(run, config, weights, inputs, buffers)
    rotary_dim = 2 * buffers["rotary frequencies"].shape[0]
    make_angles(run, rotary_dim, "float32" if run.family.rotates_in_float32 else x.dtype)
    return x


def look_up(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    """Look tokens up, scale them where the family does, and drop some."""
    batch, seq, width = run.workload.batch, run.workload.query_len, config.embed_dim
    table, ids, shape = weights["token table"], inputs["token ids"].storage, (batch, seq, width)
    factor = buffers.get("embedding scale")
    if factor is not None and table.dtype != "float32":
        factor = Value((), run.tape.new("embedding scale, cast", (), table.dtype))
    x = ops.embedding("token embeddings", table, ids, shape, factor=factor)
    run.held += [x.storage, run.tape.new("position ids", (1, seq), "int64")]
    return run.dropout("embeddings", x, config.embedding_dropout_p)


def _embed_gemma3(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    """As others do, but windowed layers turn by angles of their own."""
    x = look_up(run, config, weights, inputs, buffers)
    for mask in dict.fromkeys(attention_of(block).mask for block, _ in config.block_groups):
        make_angles(run, 2 * buffers["rotary frequencies"].shape[0], x.dtype)
        assert run.cosine is not None and run.sine is not None, "just made"
        run.angles[mask] = run.cosine, run.sine
    return x


def make_angles(run: Run, rotary_dim: int, dtype: str) -> None:
    """Make cosines and sines of the angles by which queries and keys are turned."""
    angles = (1, 1, run.workload.query_len, rotary_dim)
    run.cosine = Value(angles, run.tape.new("rotary cosines", angles, dtype))
    run.sine = Value(angles, run.tape.new("rotary sines", angles, dtype))


def _layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    residual = x
    with run.tape.owned_by(f"{run.layer} attention"):
        x = _norm_if_any(run, "attention input", x, weights, "attention norm")
        x, _attention_weights = _attention(run, attention_of(block), weights, x)
        x = _norm_if_any(run, "attention output, normed", x, weights, "attention output norm")
        x = run.dropout("out_proj output", x, block.dropout_p)
        x = ops.add("residual after attention", residual, x)
    residual = x
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        x = _norm_if_any(run, "feed-forward input", x, weights, "feed-forward norm")
        x = _feed_forward(run, block, weights, x)
        x = _norm_if_any(run, "feed-forward output, normed", x, weights, "feed-forward output norm")
        x = run.dropout("down_proj output", x, block.dropout_p)
        return ops.add("residual after feed-forward", residual, x)


def _norm_if_any(run: Run, name: str, x: Value, weights: Weights, norm: str) -> Value:
    return normalise(run, name, x, weights, norm) if f"{norm} weight" in weights else x


def _attention(run: Run, config: AttentionConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    if "qkv_proj weight" in weights:
        query, key, value = _split_fused(x, weights, config)
    else:
        query = _project_heads(run, "query", x, weights, "q_proj", config, config.num_heads)
        key = _project_heads(run, "key", x, weights, "k_proj", config, config.num_kv_heads)
        value = split_heads(project("value", x, weights, "v_proj"), config.num_kv_heads, config.v_head_dim)
    if config.position is not None:
        rotate = rotate_first_part if run.family is PHI3 else rotate_both
        query, key = rotate(run, query, key)
    key, value = update_cache(run, config, key, value)
    attended, attention_weights = attend(run, config, query, key, value)
    return project("out_proj output", attended, weights, "out_proj"), attention_weights


def _project_heads(
    run: Run, name: str, x: Value, weights: Weights, projection: str, config: AttentionConfig, num_heads: int
) -> Value:
    x = project(name, x, weights, projection)
    if config.qk_norm and config.qk_norm_over == "projection":
        x = _norm_if_any(run, f"{name}, normed", x, weights, f"{name} norm")
    elif config.qk_norm:
        whole = x.shape
        x = ops.view(x, (*whole[:2], num_heads, config.head_dim))
        x = ops.view(normalise(run, f"{name}, normed", x, weights, f"{name} norm"), whole)
    return split_heads(x, num_heads, config.head_dim)


def _split_fused(x: Value, weights: Weights, config: AttentionConfig) -> tuple[Value, Value, Value]:
    query_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    joined = project("query, key and value", x, weights, "qkv_proj")
    query, key, value = (ops.cut(joined, width) for width in (query_width, kv_width, kv_width))
    return (
        split_heads(query, config.num_heads, config.head_dim),
        split_heads(key, config.num_kv_heads, config.head_dim),
        split_heads(value, config.num_kv_heads, config.v_head_dim),
    )


def _feed_forward(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    config = block.feed_forward
    if config.num_experts > 1:
        route = route_by_softmax if run.family is MIXTRAL else route_by_softmax_and_cast
        return (mix_with_gated_expert if config.shared_gate else mix_experts)(x, config, weights, route)
    if "gate_up_proj weight" in weights:
        gate, up = ops.split(project("gate and up", x, weights, "gate_up_proj"), (config.hidden_dim,) * 2)
        product = ops.multiply("feed-forward active", up, ops.activation("gate, active", gate, config.activation))
        del gate, up
        return project("down_proj output", product, weights, "down_proj")
    return gated_feed_forward(config, weights, x) if config.gated else feed_forward(config, weights, x)


LLAMA = Family(
    embed,
    _layer,
    ("attention", "feed-forward", "attention norm", "feed-forward norm"),
    parts=frozenset(
        {"num_kv_heads", "head_dim", "v_head_dim", "qk_norm over head", "qk_norm over projection", "gated", "dropout_p"}
    ),
    has_experts=True,
    buffers=ROTARY_BUFFERS,
)
MIXTRAL = replace(LLAMA)
QWEN2_MOE = replace(LLAMA, parts=LLAMA.parts | {"shared expert", "shared_gate"})
SMOLLM3 = replace(LLAMA, positions=(Rotary, NoneType), has_experts=False)
STARCODER2 = replace(LLAMA, parts=frozenset({"num_kv_heads", "head_dim", "plain", "dropout_p"}), has_experts=False)
PHI3 = replace(
    LLAMA,
    fused=frozenset({"qkv_proj", "gate_up_proj"}),
    parts=frozenset({"num_kv_heads", "head_dim", "rotary_dim", "gated", "dropout_p"}),
    has_experts=False,
)
GEMMA = replace(LLAMA, rms_norm=rms_norm_one_plus, buffers=(*ROTARY_BUFFERS, "embedding scale"))
GEMMA2 = replace(
    GEMMA,
    layer_weights=(
        "attention",
        "feed-forward",
        "attention norm",
        "attention output norm",
        "feed-forward norm",
        "feed-forward output norm",
    ),
    norm_placements=("both",),
    parts=GEMMA.parts | {"softcap"},
    has_sdpa=False,
)
GEMMA3 = replace(
    GEMMA2,
    embed=_embed_gemma3,
    parts=GEMMA.parts,
    buffers=(*GEMMA.buffers, "windowed rotary frequencies", "original windowed rotary frequencies"),
    has_sdpa=True,
)
OLMO2 = replace(
    LLAMA,
    layer_weights=("attention", "feed-forward", "attention output norm", "feed-forward output norm"),
    rms_norm=rms_norm_cast_last,
    norm_placements=("output",),
    rotates_in_float32=True,
)
