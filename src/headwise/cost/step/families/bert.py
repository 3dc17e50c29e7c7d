"""BERT and its relatives on a tape: encoders whose norms stand after each sum."""

from dataclasses import replace
from types import NoneType

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import attend
from headwise.cost.step.layers import normalise, project, project_heads
from headwise.cost.step.run import Family, Run, Weights, attention_of
from headwise.cost.step.tape import Storage, Value


def _embed_bert(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    types = run.tape.new("token types", (1, run.workload.query_len), "int64")
    return _embed(run, config, weights, inputs, types, buffers["position ids"].storage, num_rows=1)


def _embed_roberta(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    """As BERT, but positions are counted in each text, for padding has none."""
    tape, ids_shape = run.tape, (run.workload.batch, run.workload.query_len)
    position_ids = tape.new("position ids", ids_shape, "int64")
    types = tape.new("token types", ids_shape, "int64")
    return _embed(run, config, weights, inputs, types, position_ids, num_rows=run.workload.batch)


def _embed(
    run: Run,
    config: ModelConfig,
    weights: Weights,
    inputs: Weights,
    types: Storage,
    position_ids: Storage,
    num_rows: int,
) -> Value:
    batch, seq, width = run.workload.batch, run.workload.query_len, config.embed_dim
    tokens = ops.embedding("token embeddings", weights["token table"], inputs["token ids"].storage, (batch, seq, width))
    kinds = ops.embedding("type embeddings", weights["type table"], types, (batch, seq, width))
    embeddings = ops.add("embeddings", tokens, kinds)
    positions = ops.embedding("position embeddings", weights["position table"], position_ids, (num_rows, seq, width))
    embeddings = ops.add("embeddings", embeddings, positions)
    return _end_embeddings(run, config, weights, embeddings)


def _embed_distilbert(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    batch, seq, width = run.workload.batch, run.workload.query_len, config.embed_dim
    tokens = ops.embedding("token embeddings", weights["token table"], inputs["token ids"].storage, (batch, seq, width))
    position_ids = buffers["position ids"].storage
    positions = ops.embedding("position embeddings", weights["position table"], position_ids, (1, seq, width))
    return _end_embeddings(run, config, weights, ops.add("embeddings", tokens, positions))


def _end_embeddings(run: Run, config: ModelConfig, weights: Weights, embeddings: Value) -> Value:
    embeddings = normalise(run, "embeddings, normed", embeddings, weights, "norm")
    embeddings = run.dropout("embeddings", embeddings, config.embedding_dropout_p)
    run.held.append(embeddings.storage)
    return embeddings


def _layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    with run.tape.owned_by(f"{run.layer} attention"):
        attended, _attention_weights = _attention(run, attention_of(block), weights, x)
        attended = _close(run, block, weights, attended, x, "out_proj", "attention norm")
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        hidden = _intermediate(block, weights, attended)
        return _close(run, block, weights, hidden, attended, "down_proj", "feed-forward norm")


def _attention(run: Run, config: AttentionConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    query, key, value = project_heads(x, weights, config)
    return attend(run, config, query, key, value, softmax="throughout")


def _intermediate(block: BlockConfig, weights: Weights, x: Value) -> Value:
    x = project("feed-forward hidden", x, weights, "up_proj")
    return ops.activation("feed-forward active", x, block.feed_forward.activation)


def _close(
    run: Run, block: BlockConfig, weights: Weights, x: Value, residual: Value, projection: str, norm: str
) -> Value:
    x = project(f"{projection} output", x, weights, projection)
    # DistilBERT drops nothing of what its attention adds.
    dropout_p = 0.0 if run.family is DISTILBERT and projection == "out_proj" else block.dropout_p
    x = run.dropout(f"{projection} output", x, dropout_p)
    return normalise(run, f"{norm} output", ops.add(f"{norm} input", x, residual), weights, norm)


BERT = Family(
    _embed_bert,
    _layer,
    ("attention", "attention norm", "feed-forward", "feed-forward norm"),
    positions=(NoneType,),
    norm_placements=("post",),
    parts=frozenset({"plain", "dropout_p", "pooler"}),
    tables=("vocab_size", "position_table_size", "num_token_types", "embedding_norm"),
    buffers=("position ids", "token types"),
)
ROBERTA = replace(BERT, embed=_embed_roberta, drops_before_pooler=True)
DISTILBERT = replace(
    BERT,
    embed=_embed_distilbert,
    tables=("vocab_size", "position_table_size", "embedding_norm"),
    buffers=("position ids",),
)
