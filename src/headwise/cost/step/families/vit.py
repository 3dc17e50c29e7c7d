"""ViT on a tape: an encoder of image patches, with norms before each part."""

from types import NoneType

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import attend
from headwise.cost.step.layers import feed_forward, normalise, project, project_heads
from headwise.cost.step.run import Family, Run, Weights, attention_of
from headwise.cost.step.tape import Value


def _embed(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    assert config.patches is not None, "a config of a vit has patches"
    batch, width = run.workload.batch, config.embed_dim
    num_patches, num_tokens = config.patches.num_patches, config.patches.num_tokens
    patches = ops.convolve(
        "patch embeddings",
        inputs["pixels"],
        weights["patch weight"],
        weights["patch bias"],
        (batch, width, num_patches),
    )
    class_token = weights["class token"]
    x = run.tape.apply("embeddings", (batch, num_tokens, width), fresh=(class_token, patches))
    x = ops.add("embeddings with positions", x, weights["position table"])
    x = run.dropout("embeddings", x, config.embedding_dropout_p)
    run.held.append(x.storage)
    return x


def _layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    residual = x
    with run.tape.owned_by(f"{run.layer} attention"):
        x = normalise(run, "attention input", x, weights, "attention norm")
        x, _attention_weights = _attention(run, attention_of(block), weights, x)
        x = run.dropout("out_proj output", x, block.dropout_p)
        x = ops.add("residual after attention", x, residual)
    residual = x
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        x = normalise(run, "feed-forward input", x, weights, "feed-forward norm")
        x = feed_forward(block.feed_forward, weights, x)
        x = run.dropout("down_proj output", x, block.dropout_p)
        return ops.add("residual after feed-forward", x, residual)


def _attention(run: Run, config: AttentionConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    query, key, value = project_heads(x, weights, config)
    attended, attention_weights = attend(run, config, query, key, value)
    return project("out_proj output", attended, weights, "out_proj"), attention_weights


VIT = Family(
    _embed,
    _layer,
    ("attention", "attention norm", "feed-forward norm", "feed-forward"),
    positions=(NoneType,),
    parts=frozenset({"plain", "dropout_p", "position_table_size", "pooler"}),
    tables=("patches",),
)
