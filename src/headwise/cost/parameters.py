"""Parameters of a model, counted from its config alone: every weight once."""

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig, ModelConfig
from headwise.cost.results import ParameterCount


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Count the weights of a model by part; a weight that is used twice (a tied head) counts once."""
    attention = feed_forward = norm = 0
    for block, num_layers in config.block_groups:
        attention += num_layers * attention_parameters(block.attention)
        feed_forward += num_layers * feed_forward_parameters(block.feed_forward)
        norm += num_layers * _block_norms(block)
    # Embedding and final norms are of the blocks' kind in every architecture that a config can describe.
    norm += (config.embedding_norm + config.final_norm) * _norm(config.blocks[0], config.embed_dim)
    num_rows = config.vocab_size + config.position_table_size + config.num_token_types
    output_head, head_norm, head_other = _head(config)
    pooler = config.embed_dim * (config.embed_dim + 1) if config.pooler else 0
    return ParameterCount(
        attention=attention,
        feed_forward=feed_forward,
        embedding=num_rows * config.embed_dim + output_head,
        norm=norm + head_norm,
        other=pooler + head_other,
        output_head=output_head,
    )


def attention_parameters(config: AttentionConfig) -> int:
    """Count the weights of the four projections of an attention layer, with their biases.

    Without biases, grouped heads and widths of its own the layer has 4 E² of them, whatever the number of heads. The
    norms of queries and keys are not projections and not in the count.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """
    query_width = config.num_heads * config.head_dim
    key_width = config.num_kv_heads * config.head_dim
    value_width = config.num_kv_heads * config.v_head_dim
    concat_width = config.num_heads * config.v_head_dim
    weights = (
        config.embed_dim * query_width
        + config.key_dim * key_width
        + config.value_dim * value_width
        + concat_width * config.embed_dim
    )
    in_bias = query_width + key_width + value_width if config.projection_bias else 0
    out_bias = config.embed_dim if config.projection_bias is True else 0
    return weights + in_bias + out_bias


def feed_forward_parameters(config: FeedForwardConfig) -> int:
    """Count the weights of a feed-forward layer: all its experts and their router, whether active or not."""
    num_up = 2 if config.gated else 1
    weights = (num_up + 1) * config.embed_dim * config.hidden_dim
    biases = num_up * config.hidden_dim + config.embed_dim if config.bias else 0
    router = config.num_experts * config.embed_dim if config.num_experts > 1 else 0
    return config.num_experts * (weights + biases) + router


def _block_norms(block: BlockConfig) -> int:
    query_and_key = 2 * block.attention.head_dim if block.attention.qk_norm else 0  # RMSNorm: no bias
    return 2 * _norm(block, block.attention.embed_dim) + query_and_key


def _norm(block: BlockConfig, width: int) -> int:
    return 2 * width if block.norm == "layernorm" else width


def _head(config: ModelConfig) -> tuple[int, int, int]:
    """Count the head's weights: what an output head owns itself, its norm, and the rest."""
    head, embed_dim = config.head, config.embed_dim
    if head is None:
        return 0, 0, 0
    own = (0 if head.tied else embed_dim * head.num_outputs) + (head.num_outputs if head.bias else 0)
    norm = _norm(config.blocks[0], embed_dim) if head.transform else 0
    transform = embed_dim * (embed_dim + 1) if head.transform else 0
    if head.kind == "language_model":
        return own, norm, transform
    return 0, norm, own + transform
