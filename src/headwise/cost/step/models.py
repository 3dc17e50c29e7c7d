"""Forward passes of transformers 5.24's models on a tape, written as the models are.

A variable here lives as long as its twin there; one whose name begins with an underscore only holds its tensor.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig, ModelConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import Run, attend
from headwise.cost.step.experts import mix_experts
from headwise.cost.step.tape import Storage, Value

Weights = Mapping[str, Value]


@dataclass(frozen=True)
class Family:
    """How one family of models embeds its tokens and runs a layer.

    Args:
        embed: (run, config, weights, token ids, buffers) -> hidden states (B, T, E).
        layer: (run, block, weights, hidden states) -> hidden states.
    """

    embed: Callable[[Run, ModelConfig, Weights, Storage, Weights], Value]
    layer: Callable[[Run, BlockConfig, Weights, Value], Value]


def project(name: str, x: Value, weights: Weights, projection: str, outputs: int | None = None) -> Value:
    """Apply the linear layer whose weight, and bias if it has one, are named `projection`."""
    weight, bias = weights[f"{projection} weight"], weights.get(f"{projection} bias")
    return ops.linear(name, x, weight, bias, outputs=outputs)


def normalise(name: str, x: Value, weights: Weights, norm: str, *, adds_one: bool = False) -> Value:
    """Apply the norm named `norm`: a layer norm where it has a bias, else a root-mean-square norm.

    `adds_one`: the factor is one plus the weight (Gemma).
    """
    weight, bias = weights[f"{norm} weight"], weights.get(f"{norm} bias")
    if bias is not None:
        return ops.layer_norm(name, x, weight, bias)
    return ops.rms_norm(name, x, ops.shift(f"{name} weight plus one", weight) if adds_one else weight)


def _embed_bert(run: Run, config: ModelConfig, weights: Weights, ids: Storage, buffers: Weights) -> Value:
    batch, seq, width = run.workload.batch, run.workload.seq, config.embed_dim
    types = run.tape.new("token types", (1, seq), "int64")
    tokens = ops.embedding("token embeddings", weights["token table"], ids, (batch, seq, width))
    kinds = ops.embedding("type embeddings", weights["type table"], types, (batch, seq, width))
    embeddings = ops.add("embeddings", tokens, kinds)
    position_ids = buffers["position ids"].storage
    positions = ops.embedding("position embeddings", weights["position table"], position_ids, (1, seq, width))
    embeddings = ops.add("embeddings", embeddings, positions)
    embeddings = normalise("embeddings, normed", embeddings, weights, "norm")
    embeddings = run.dropout("embeddings", embeddings, config.embedding_dropout_p)
    run.held.append(embeddings.storage)
    return embeddings


def _bert_layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    with run.tape.owned_by(f"{run.layer} attention"):
        attended, _attention_weights = _bert_attention(run, block.attention, weights, x)
        attended = _bert_close(run, block, weights, attended, x, "out_proj", "attention norm")
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        hidden = _bert_intermediate(block.feed_forward, weights, attended)
        return _bert_close(run, block, weights, hidden, attended, "down_proj", "feed-forward norm")


def _bert_attention(run: Run, config: AttentionConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    query = ops.split_heads(project("query", x, weights, "q_proj"), config.num_heads, config.head_dim)
    key = ops.split_heads(project("key", x, weights, "k_proj"), config.num_heads, config.head_dim)
    value = ops.split_heads(project("value", x, weights, "v_proj"), config.num_heads, config.head_dim)
    return attend(run, config, query, key, value)


def _bert_intermediate(config: FeedForwardConfig, weights: Weights, x: Value) -> Value:
    x = project("feed-forward hidden", x, weights, "up_proj")
    return ops.activation("feed-forward active", x, config.activation)


def _bert_close(
    run: Run, block: BlockConfig, weights: Weights, x: Value, residual: Value, projection: str, norm: str
) -> Value:
    x = project(f"{projection} output", x, weights, projection)
    x = run.dropout(f"{projection} output", x, block.dropout_p)
    return normalise(f"{norm} output", ops.add(f"{norm} input", x, residual), weights, norm)


def _embed_gpt2(run: Run, config: ModelConfig, weights: Weights, ids: Storage, buffers: Weights) -> Value:
    batch, seq, width = run.workload.batch, run.workload.seq, config.embed_dim
    tokens = ops.embedding("token embeddings", weights["token table"], ids, (batch, seq, width))
    position_ids = run.tape.new("position ids", (1, seq), "int64")
    positions = ops.embedding("position embeddings", weights["position table"], position_ids, (1, seq, width))
    run.held += [tokens.storage, positions.storage, position_ids]
    embeddings = ops.add("embeddings", tokens, positions)
    return run.dropout("embeddings", embeddings, config.embedding_dropout_p)


def _gpt2_layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    residual = x
    with run.tape.owned_by(f"{run.layer} attention"):
        x = normalise("attention input", x, weights, "attention norm")
        attended, _attention_weights = _gpt2_attention(run, block, weights, x)
        x = ops.add("residual after attention", attended, residual)
    residual = x
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        x = normalise("feed-forward input", x, weights, "feed-forward norm")
        return ops.add("residual after feed-forward", residual, _gpt2_feed_forward(run, block, weights, x))


def _gpt2_attention(run: Run, block: BlockConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    config, width = block.attention, block.attention.embed_dim
    parts = ops.split(project("query, key and value", x, weights, "qkv_proj", outputs=3 * width), (width,) * 3)
    query, key, value = (ops.split_heads(part, config.num_heads, config.head_dim) for part in parts)
    del parts
    key, value = run.cache(key), run.cache(value)
    attended, attention_weights = attend(run, config, query, key, value)
    attended = project("out_proj output", attended, weights, "out_proj", outputs=width)
    return run.dropout("out_proj output", attended, block.dropout_p), attention_weights


def _gpt2_feed_forward(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    x = project("feed-forward hidden", x, weights, "up_proj", outputs=block.feed_forward.hidden_dim)
    x = ops.activation("feed-forward active", x, block.feed_forward.activation)
    x = project("down_proj output", x, weights, "down_proj", outputs=block.feed_forward.embed_dim)
    return run.dropout("down_proj output", x, block.dropout_p)


def _embed_llama(run: Run, config: ModelConfig, weights: Weights, ids: Storage, buffers: Weights) -> Value:
    batch, seq = run.workload.batch, run.workload.seq
    x = ops.embedding("token embeddings", weights["token table"], ids, (batch, seq, config.embed_dim))
    if config.model_type == "gemma":
        x = ops.scale("embeddings, scaled", x)
    run.held += [x.storage, run.tape.new("position ids", (1, seq), "int64")]
    angles = (1, 1, seq, config.blocks[0].attention.head_dim)
    run.cosine = Value(angles, run.tape.new("rotary cosines", angles))
    run.sine = Value(angles, run.tape.new("rotary sines", angles))
    return x


def _llama_layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    adds_one = run.model_type == "gemma"
    residual = x
    with run.tape.owned_by(f"{run.layer} attention"):
        x = normalise("attention input", x, weights, "attention norm", adds_one=adds_one)
        x, _attention_weights = _llama_attention(run, block.attention, weights, x)
        x = ops.add("residual after attention", residual, x)
    residual = x
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        x = normalise("feed-forward input", x, weights, "feed-forward norm", adds_one=adds_one)
        if block.feed_forward.num_experts > 1:
            x = mix_experts(x, block.feed_forward, weights)
        else:
            x = _gated_feed_forward(block.feed_forward, weights, x)
        return ops.add("residual after feed-forward", residual, x)


def _llama_attention(run: Run, config: AttentionConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    query = _project_heads("query", x, weights, "q_proj", config, config.num_heads)
    key = _project_heads("key", x, weights, "k_proj", config, config.num_kv_heads)
    value = ops.split_heads(project("value", x, weights, "v_proj"), config.num_kv_heads, config.v_head_dim)
    query, key = _rotate_both(run, query, key)
    key, value = run.cache(key), run.cache(value)
    attended, attention_weights = attend(run, config, query, key, value)
    return project("out_proj output", attended, weights, "out_proj"), attention_weights


def _project_heads(
    name: str, x: Value, weights: Weights, projection: str, config: AttentionConfig, num_heads: int
) -> Value:
    x = project(name, x, weights, projection)
    if config.qk_norm:
        whole = x.shape
        x = ops.view(x, (*whole[:2], num_heads, config.head_dim))
        x = ops.view(normalise(f"{name}, normed", x, weights, f"{name} norm"), whole)
    return ops.split_heads(x, num_heads, config.head_dim)


def _rotate_both(run: Run, query: Value, key: Value) -> tuple[Value, Value]:
    assert run.cosine is not None and run.sine is not None, "the embeddings make the angles"
    return ops.rotate("query", query, run.cosine, run.sine), ops.rotate("key", key, run.cosine, run.sine)


def _gated_feed_forward(config: FeedForwardConfig, weights: Weights, x: Value) -> Value:
    active = ops.activation("gate, active", project("gate", x, weights, "gate_proj"), config.activation)
    product = ops.multiply("feed-forward active", active, project("up", x, weights, "up_proj"))
    del active
    return project("down_proj output", product, weights, "down_proj")


_LLAMA = Family(_embed_llama, _llama_layer)

FAMILIES = {
    "bert": Family(_embed_bert, _bert_layer),
    "gpt2": Family(_embed_gpt2, _gpt2_layer),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": _LLAMA,
    "mixtral": _LLAMA,
}
"""The forward pass of each `model_type`."""
