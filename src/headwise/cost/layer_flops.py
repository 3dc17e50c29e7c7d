"""FLOPs of one layer's forward pass, from its config alone: products with weights, and products of activations."""

from dataclasses import dataclass

from headwise.config.attention import AttentionConfig
from headwise.config.block import AnyAttention, BlockConfig, FeedForwardConfig
from headwise.config.checks import MAX_SIZE, require_size
from headwise.config.latent import LatentAttentionConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.config.vision_model import StackedAttentionConfig
from headwise.cost.results import FlopCount

FLOPS_PER_MULTIPLY_ADD = 2
_STATE_PRODUCTS = 3  # of a key and a value head's width: read the state with the key, update it, read it with the query


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """FLOPs of a forward pass by what backward does with them.

    `weighted`: products of tokens with weights. The rest is products of tokens with tokens, the attention core, dense
    and attended: `scores` (queries with keys) and `values` (weights with values); what a linear layer does with its
    state is in `values`.
    """

    weighted: int = 0
    dense_scores: int = 0
    attended_scores: int = 0
    dense_values: int = 0
    attended_values: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            weighted=self.weighted + other.weighted,
            dense_scores=self.dense_scores + other.dense_scores,
            attended_scores=self.attended_scores + other.attended_scores,
            dense_values=self.dense_values + other.dense_values,
            attended_values=self.attended_values + other.attended_values,
        )

    def scaled(self, *, weighted: int, scores: int, values: int) -> "Work":
        """Return each part so many times."""
        return Work(
            weighted=weighted * self.weighted,
            dense_scores=scores * self.dense_scores,
            attended_scores=scores * self.attended_scores,
            dense_values=values * self.dense_values,
            attended_values=values * self.attended_values,
        )

    def repeated(self, times: int) -> "Work":
        """Return all parts so many times."""
        return self.scaled(weighted=times, scores=times, values=times)

    @property
    def total(self) -> FlopCount:
        """All parts together."""
        return FlopCount(
            dense=self.weighted + self.dense_scores + self.dense_values,
            attended=self.weighted + self.attended_scores + self.attended_values,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """How many tokens a layer meets.

    Args:
        batch: number of texts.
        query_len: tokens per text that are computed now; they stand at the end of the keys.
        key_len: tokens per text that they can look back on, themselves included.
        source_len: tokens per text of the encoder's output, which cross-attention reads.
        is_cached: keys and values of earlier tokens, and of the whole source, come out of a cache.
    """

    batch: int
    query_len: int
    key_len: int
    source_len: int = 0
    is_cached: bool = False


def block_work(block: BlockConfig, lengths: Lengths) -> Work:
    """Count one layer: attention, cross-attention and feed-forward."""
    feed_forward = feed_forward_flops(block.feed_forward, tokens=lengths.batch * lengths.query_len)
    work = attention_work(block.attention, lengths) + Work(weighted=feed_forward)
    return work if block.cross_attention is None else work + cross_attention_work(block.cross_attention, lengths)


def cross_attention_work(config: AttentionConfig, lengths: Lengths) -> Work:
    """Count one attention layer over an encoder's output, whose keys are projected once for all tokens."""
    source = Lengths(batch=lengths.batch, query_len=lengths.query_len, key_len=lengths.source_len)
    return _heads_work(config, source, projected_len=0 if lengths.is_cached else lengths.source_len)


def attention_work(config: AnyAttention, lengths: Lengths) -> Work:
    """Count one attention layer of any kind; keys out of a cache are not projected again, latent ones are expanded."""
    projected = lengths.query_len if lengths.is_cached else lengths.key_len
    if isinstance(config, LatentAttentionConfig):
        return _latent_work(config, lengths, projected_len=projected)
    if isinstance(config, LinearAttentionConfig):
        return _linear_work(config, lengths)
    return _heads_work(config, lengths, projected_len=projected)


def feed_forward_flops(config: FeedForwardConfig, *, tokens: int) -> int:
    """Count one feed-forward layer: the router, and the experts that each token goes through, the shared one too.

    Args:
        config: the layer.
        tokens: number of tokens of all texts.

    Raises:
        ConfigError: the number is out of range.
    """
    require_size("tokens", tokens, maximum=MAX_SIZE**2)  # texts times tokens of each
    num_products = 3 if config.gated else 2
    per_token = config.num_active_experts * num_products * config.embed_dim * config.hidden_dim
    if config.num_experts > 1:
        per_token += config.embed_dim * (config.num_experts + config.shared_gate)
        per_token += num_products * config.embed_dim * config.shared_hidden_dim
    return FLOPS_PER_MULTIPLY_ADD * tokens * per_token


def _heads_work(config: AttentionConfig, lengths: Lengths, *, projected_len: int) -> Work:
    queries, keys = lengths.batch * lengths.query_len, lengths.batch * projected_len
    query_width = config.num_heads * config.head_dim * (2 if config.output_gate else 1)
    projections = queries * config.embed_dim * (query_width + config.num_heads * config.v_head_dim)
    if config.kv_layer is None:
        projections += keys * config.key_dim * config.num_kv_heads * config.head_dim
        projections += keys * config.value_dim * config.num_kv_heads * config.v_head_dim
    if isinstance(config, StackedAttentionConfig):
        projections += (queries + 2 * keys) * config.embed_dim**2
    return _core(config, lengths, head_dim=config.head_dim) + Work(weighted=FLOPS_PER_MULTIPLY_ADD * projections)


def _latent_work(config: LatentAttentionConfig, lengths: Lengths, *, projected_len: int) -> Work:
    queries, keys = lengths.batch * lengths.query_len, lengths.batch * projected_len
    query_width = config.num_heads * config.head_dim
    rank = config.q_lora_rank
    per_query = config.embed_dim * query_width if rank is None else rank * (config.embed_dim + query_width)
    per_query += config.num_heads * config.v_head_dim * config.embed_dim
    # The cache holds latent vectors: keys and values of every head are made of all of them, each time.
    expanded = lengths.batch * lengths.key_len
    per_expanded = config.kv_lora_rank * config.num_heads * (config.qk_nope_head_dim + config.v_head_dim)
    projections = queries * per_query + keys * config.embed_dim * config.cached_dim + expanded * per_expanded
    return _core(config, lengths, head_dim=config.head_dim) + Work(weighted=FLOPS_PER_MULTIPLY_ADD * projections)


def _core(config: AttentionConfig | LatentAttentionConfig, lengths: Lengths, *, head_dim: int) -> Work:
    """Count the products of queries with keys, D a pair, and of weights with values, V a pair, in every query head."""
    pairs = lengths.batch * config.num_heads * lengths.query_len * lengths.key_len
    allowed = config.mask.count_pairs(
        lengths.query_len, lengths.key_len, batch_size=lengths.batch, num_heads=config.num_heads
    )
    per_score, per_value = (FLOPS_PER_MULTIPLY_ADD * width for width in (head_dim, config.v_head_dim))
    return Work(
        dense_scores=per_score * pairs,
        attended_scores=per_score * allowed,
        dense_values=per_value * pairs,
        attended_values=per_value * allowed,
    )


def _linear_work(config: LinearAttentionConfig, lengths: Lengths) -> Work:
    """Count a gated delta net: attended, the recurrence; dense, its form by chunks, as it is run on many tokens.

    In a chunk of C tokens each head multiplies keys with keys, queries with keys and the result with values (C x C),
    and reads, updates and reads its state; the triangular system that is solved between them is no product.
    """
    tokens = lengths.batch * lengths.query_len
    projected = config.conv_width + 2 * config.value_width + 2 * config.num_value_heads
    per_head_and_token = config.key_head_dim * config.value_head_dim * _STATE_PRODUCTS
    recurrent = tokens * config.num_value_heads * per_head_and_token
    if lengths.is_cached:
        convolved, by_chunks = tokens, recurrent
    else:
        # The convolution's outputs that reach past the end are computed and cut off.
        convolved = lengths.batch * (lengths.query_len + config.conv_kernel_size - 1)
        size = config.chunk_size
        num_chunks = _num_chunks(config, lengths)
        within = size * size * (2 * config.key_head_dim + config.value_head_dim)
        by_chunks = lengths.batch * config.num_value_heads * num_chunks * (within + size * per_head_and_token)
    weighted = tokens * config.embed_dim * projected + convolved * config.conv_width * config.conv_kernel_size
    return Work(
        weighted=FLOPS_PER_MULTIPLY_ADD * weighted,
        dense_values=FLOPS_PER_MULTIPLY_ADD * by_chunks,
        attended_values=FLOPS_PER_MULTIPLY_ADD * recurrent,
    )


def linear_backward_extra(config: LinearAttentionConfig, lengths: Lengths) -> int:
    """Count what backward by chunks has beyond two products for each of forward's; it may be negative.

    More: the gradient of each chunk's triangular matrix, from both systems solved with it. Less: the state before the
    first chunk is zero and needs no gradient (two reads), and the one after the last chunk has no reader (one update,
    two products).
    """
    size, widths = config.chunk_size, config.key_head_dim + config.value_head_dim
    more = _num_chunks(config, lengths) * size * size * widths
    less = 4 * size * config.key_head_dim * config.value_head_dim
    return FLOPS_PER_MULTIPLY_ADD * lengths.batch * config.num_value_heads * (more - less)


def _num_chunks(config: LinearAttentionConfig, lengths: Lengths) -> int:
    return -(-lengths.query_len // config.chunk_size)
