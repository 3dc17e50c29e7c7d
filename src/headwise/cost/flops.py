"""Floating-point operations of a model's matrix products, from its config alone: one multiply-add is 2."""

from headwise.config.attention import AttentionConfig
from headwise.config.checks import require_size
from headwise.config.model import FeedForwardConfig, ModelConfig, OutputHead
from headwise.cost.results import FlopCount

FLOPS_PER_MULTIPLY_ADD = 2
# Backward has two products for each of forward's, of the same size: the gradients of its two factors.
TRAIN_PER_FORWARD = 3


def forward_flops(config: ModelConfig, *, batch: int, seq: int) -> FlopCount:
    """Count one forward pass over `batch` texts of `seq` tokens, padding included.

    Every block's attention and feed-forward, the pooler and the head, whose scores are counted for every token that it
    reads. Norms, softmax, activations and the look-up of embeddings are no matrix products.

    Args:
        config: the model.
        batch: number of texts.
        seq: tokens per text.

    Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", table 1; the score term as in Chowdhery et
    al. 2022, "PaLM", appendix B (there the full square: our `dense`).
    """
    require_size("batch", batch)
    require_size("seq", seq)
    outside = _pooler_flops(config, batch) + _head_flops(config, batch, seq)
    dense = attended = outside
    for block, num_layers in config.block_groups:
        attention = attention_flops(block.attention, batch=batch, query_len=seq, key_len=seq)
        feed_forward = feed_forward_flops(block.feed_forward, tokens=batch * seq)
        dense += num_layers * (attention.dense + feed_forward)
        attended += num_layers * (_known(attention.attended) + feed_forward)
    return FlopCount(dense=dense, attended=attended)


def train_flops(config: ModelConfig, *, batch: int, seq: int) -> FlopCount:
    """Count one training step as 3 x forward: "model" FLOPs, without what checkpointing or a kernel computes again."""
    forward = forward_flops(config, batch=batch, seq=seq)
    return FlopCount(dense=TRAIN_PER_FORWARD * forward.dense, attended=TRAIN_PER_FORWARD * _known(forward.attended))


def attention_flops(config: AttentionConfig, *, batch: int, query_len: int, key_len: int) -> FlopCount:
    """Count one attention layer: four projections, `query @ key^T` and `weights @ value`.

    The last two cost D + V multiply-adds for each pair of a query and a key, per query head: all pairs (`dense`), or
    those that the layer's mask allows (`attended`). Grouped heads make two projections smaller and nothing else.

    Args:
        config: the layer.
        batch: number of texts.
        query_len: number T of queries; they stand at the end of the keys.
        key_len: number S of keys. All are projected here; keys out of a cache cost nothing.
    """
    for name, value in (("batch", batch), ("query_len", query_len), ("key_len", key_len)):
        require_size(name, value)
    queries, keys = batch * query_len, batch * key_len
    projections = FLOPS_PER_MULTIPLY_ADD * (
        queries * config.embed_dim * config.num_heads * config.head_dim
        + keys * config.key_dim * config.num_kv_heads * config.head_dim
        + keys * config.value_dim * config.num_kv_heads * config.v_head_dim
        + queries * config.num_heads * config.v_head_dim * config.embed_dim
    )
    per_pair = FLOPS_PER_MULTIPLY_ADD * (config.head_dim + config.v_head_dim)
    pairs = batch * config.num_heads * query_len * key_len
    allowed = config.mask.count_pairs(query_len, key_len, batch_size=batch, num_heads=config.num_heads)
    return FlopCount(dense=projections + per_pair * pairs, attended=projections + per_pair * allowed)


def feed_forward_flops(config: FeedForwardConfig, *, tokens: int) -> int:
    """Count one feed-forward layer on a number of tokens: the router, and the experts that each token goes through."""
    num_products = 3 if config.gated else 2
    router = config.embed_dim * config.num_experts if config.num_experts > 1 else 0
    per_token = config.num_active_experts * num_products * config.embed_dim * config.hidden_dim + router
    return FLOPS_PER_MULTIPLY_ADD * tokens * per_token


def _pooler_flops(config: ModelConfig, batch: int) -> int:
    return FLOPS_PER_MULTIPLY_ADD * batch * config.embed_dim**2 if config.pooler else 0


def _head_flops(config: ModelConfig, batch: int, seq: int) -> int:
    if config.head is None:
        return 0
    return FLOPS_PER_MULTIPLY_ADD * _states_read(config.head, batch, seq) * _head_multiply_adds(config)


def _states_read(head: OutputHead, batch: int, seq: int) -> int:
    return batch * seq if head.per_token else batch


def _head_multiply_adds(config: ModelConfig) -> int:
    assert config.head is not None
    transform = config.embed_dim**2 if config.head.transform else 0
    return transform + config.embed_dim * config.head.num_outputs


def _known(attended: int | None) -> int:
    assert attended is not None  # a config's masks are structural: their pairs can always be counted
    return attended
