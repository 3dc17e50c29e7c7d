"""GPT-2 on a tape: a decoder with one fused projection, whose weights are (inputs, outputs)."""

from types import NoneType

from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import attend
from headwise.cost.step.caching import update_cache
from headwise.cost.step.heads import split_heads
from headwise.cost.step.layers import normalise, project
from headwise.cost.step.run import Family, Run, Weights, attention_of
from headwise.cost.step.tape import Value


def _embed(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    batch, seq, width = run.workload.batch, run.workload.query_len, config.embed_dim
    tokens = ops.embedding("token embeddings", weights["token table"], inputs["token ids"].storage, (batch, seq, width))
    position_ids = run.tape.new("position ids", (1, seq), "int64")
    positions = ops.embedding("position embeddings", weights["position table"], position_ids, (1, seq, width))
    run.held += [tokens.storage, positions.storage, position_ids]
    embeddings = ops.add("embeddings", tokens, positions)
    return run.dropout("embeddings", embeddings, config.embedding_dropout_p)


def _layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    residual = x
    with run.tape.owned_by(f"{run.layer} attention"):
        x = normalise(run, "attention input", x, weights, "attention norm")
        attended, _attention_weights = _attention(run, block, weights, x)
        x = ops.add("residual after attention", attended, residual)
    residual = x
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        x = normalise(run, "feed-forward input", x, weights, "feed-forward norm")
        return ops.add("residual after feed-forward", residual, _feed_forward(run, block, weights, x))


def _attention(run: Run, block: BlockConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    config = attention_of(block)
    width = config.num_heads * config.head_dim  # that of the model, or of the heads that one device of several has
    parts = ops.split(project("query, key and value", x, weights, "qkv_proj", outputs=3 * width), (width,) * 3)
    query, key, value = (split_heads(part, config.num_heads, config.head_dim) for part in parts)
    del parts
    key, value = update_cache(run, config, key, value)
    attended, attention_weights = attend(run, config, query, key, value, softmax="given")
    attended = project("out_proj output", attended, weights, "out_proj", outputs=config.embed_dim)
    return run.dropout("out_proj output", attended, block.dropout_p), attention_weights


def _feed_forward(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    x = project("feed-forward hidden", x, weights, "up_proj", outputs=block.feed_forward.hidden_dim)
    x = ops.activation("feed-forward active", x, block.feed_forward.activation)
    x = project("down_proj output", x, weights, "down_proj", outputs=block.feed_forward.embed_dim)
    return run.dropout("down_proj output", x, block.dropout_p)


GPT2 = Family(
    _embed,
    _layer,
    ("attention norm", "attention", "feed-forward norm", "feed-forward"),
    fused=frozenset({"qkv_proj"}),
    weights_turned=True,
    positions=(NoneType,),
    parts=frozenset({"plain", "dropout_p"}),
    tables=("vocab_size", "position_table_size"),
)
