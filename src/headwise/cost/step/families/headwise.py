"""Our own modules on a tape: `nn.Block`s between a token table (with learned positions or without) and a head."""

from types import NoneType

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig, ModelConfig
from headwise.config.position import ALiBi, Rotary, T5Bias
from headwise.cost.step import operations as ops
from headwise.cost.step.autocast import cast
from headwise.cost.step.heads import split_heads
from headwise.cost.step.layers import normalise, project
from headwise.cost.step.norms import rms_norm_of_torch
from headwise.cost.step.own_attention import attend
from headwise.cost.step.run import Family, Run, Weights, attention_of
from headwise.cost.step.tape import Value


def _embed(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    batch, seq, width = run.workload.batch, run.workload.query_len, config.embed_dim
    x = ops.embedding("token embeddings", weights["token table"], inputs["token ids"].storage, (batch, seq, width))
    if "position table" in weights:
        position_ids = run.tape.new("position ids", (seq,), "int64")
        positions = ops.embedding("position embeddings", weights["position table"], position_ids, (seq, width))
        x = ops.add("embeddings", x, positions)
    return run.dropout("embeddings", x, config.embedding_dropout_p)


def _layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    placement = block.norm_placement
    with run.tape.owned_by(f"{run.layer} attention"):
        seen = _attention(run, attention_of(block), weights, _normed_input(run, block, "attention", x, weights))
        if placement in ("both", "output"):
            seen = normalise(run, "attention output, normed", seen, weights, "attention output norm")
        with_seen = ops.add("residual after attention", x, run.dropout("out_proj output", seen, block.dropout_p))
        if placement == "post":
            with_seen = normalise(run, "attention output, normed", with_seen, weights, "attention norm")
        if not block.parallel:
            x = with_seen
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        thought = _feed_forward(run, block.feed_forward, weights, _normed_input(run, block, "feed-forward", x, weights))
        if placement in ("both", "output"):
            thought = normalise(run, "feed-forward output, normed", thought, weights, "feed-forward output norm")
        x = ops.add("residual after feed-forward", with_seen, run.dropout("down_proj output", thought, block.dropout_p))
        return (
            normalise(run, "feed-forward output, normed", x, weights, "feed-forward norm") if placement == "post" else x
        )


def _normed_input(run: Run, block: BlockConfig, branch: str, x: Value, weights: Weights) -> Value:
    """Return what a branch reads: the tokens, through the norm before it if there is one."""
    if block.norm_placement in ("post", "output"):
        return x
    return normalise(run, f"{branch} input", x, weights, "attention norm" if block.shared_norm else f"{branch} norm")


def _attention(run: Run, config: AttentionConfig, weights: Weights, x: Value) -> Value:
    query = split_heads(project("query", x, weights, "q_proj"), config.num_heads, config.head_dim)
    key = split_heads(project("key", x, weights, "k_proj"), config.num_kv_heads, config.head_dim)
    value = split_heads(project("value", x, weights, "v_proj"), config.num_kv_heads, config.v_head_dim)
    if config.qk_norm:
        normed = normalise(run, "query, normed", query, weights, "query norm")
        query, key = normed, normalise(run, "key, normed", key, weights, "key norm")
        del normed
    if isinstance(config.position, Rotary):
        rotary_dim = config.position.rotary_dim or config.head_dim
        query, key = _rotate(run, "query", query, rotary_dim), _rotate(run, "key", key, rotary_dim)
    return project("out_proj output", attend(run, config, weights, query, key, value), weights, "out_proj")


def _rotate(run: Run, name: str, x: Value, rotary_dim: int) -> Value:
    """Turn the first numbers of each head, by angles made for this call in float64."""
    shape = (x.shape[2], rotary_dim // 2)
    _angles = [run.tape.new(f"{part} of {name}, float64", shape, "float64") for part in ("cosines", "sines")]
    if rotary_dim == x.shape[-1]:
        return _turn(run, name, x)
    turned = _turn(run, name, ops.cut(x, rotary_dim))
    return ops.join(f"{name}, rotated in part", turned, ops.cut(x, x.shape[-1] - rotary_dim))


def _turn(run: Run, name: str, x: Value) -> Value:
    """Turn pairs in float32; keeps the cosines and sines of their angles."""
    dtype, num_pairs = x.dtype, x.shape[-1] // 2
    angles = (1, x.shape[2], num_pairs)
    first, second = ops.split(cast(x, "float32"), (num_pairs, num_pairs))
    cosine, sine = (Value(angles, run.tape.new(f"{part} of {name}", angles)) for part in ("cosines", "sines"))
    turned = ops.subtract(
        f"{name}, first of pairs",
        ops.multiply(f"{name} first times cosine", first, cosine),
        ops.multiply(f"{name} second times sine", second, sine),
    )
    other = ops.add(
        f"{name}, second of pairs",
        ops.multiply(f"{name} first times sine", first, sine),
        ops.multiply(f"{name} second times cosine", second, cosine),
    )
    del first, second
    return cast(ops.join(f"{name}, rotated", turned, other), dtype)


def _feed_forward(run: Run, config: FeedForwardConfig, weights: Weights, x: Value) -> Value:
    hidden = project("up", x, weights, "up_proj")
    activation = "gelu_pytorch_tanh" if config.activation == "gelu_new" else config.activation  # fused here
    if config.gated:
        active = ops.activation("gate, active", project("gate", x, weights, "gate_proj"), activation)
        hidden = ops.multiply("feed-forward active", active, hidden)
        del active
    else:
        hidden = ops.activation("feed-forward active", hidden, activation)
    hidden = run.dropout("feed-forward active", hidden, config.dropout_p)
    return project("down_proj output", hidden, weights, "down_proj")


HEADWISE = Family(
    _embed,
    _layer,
    (
        "attention",
        "attention norm",
        "attention output norm",
        "feed-forward",
        "feed-forward norm",
        "feed-forward output norm",
    ),
    rms_norm=rms_norm_of_torch,
    makes_masks=False,
    positions=(NoneType, Rotary, ALiBi, T5Bias),
    norm_placements=("pre", "post", "both", "output"),
    has_plain_head=True,
    parts=frozenset(
        {
            "num_kv_heads",
            "head_dim",
            "v_head_dim",
            "qk_norm over head",
            "any mask",
            "any sink",
            "softcap",
            "own positions",
            "interleaved",
            "rotary_dim",
            "parallel",
            "shared_norm",
            "gated",
            "plain",
            "dropout_p",
            "feed-forward dropout_p",
            "position_table_size",
        }
    ),
)
