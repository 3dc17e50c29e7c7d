"""Parameters of a model, counted from its config alone: every weight once."""

from headwise.config.attention import T5Bias
from headwise.config.block import AnyAttention
from headwise.config.latent import LatentAttentionConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig, ModelConfig
from headwise.config.vision_model import COMPATIBLE, GrowingPatches, MapPlaces, StackedAttentionConfig
from headwise.cost.results import ParameterCount


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Count the weights of a model by part; a weight that is used twice (a tied head) counts once."""
    encoder = config.encoder
    layers = [
        (block_parameters(block), num_layers)
        for block, num_layers in (*config.block_groups, *(encoder.block_groups if encoder else ()))
    ]
    # Embedding and final norms are of the blocks' kind in every architecture that a config can describe.
    num_norms = config.embedding_norm + config.final_norm
    num_rows = config.vocab_size + config.position_table_size + config.num_token_types
    if encoder:
        num_norms += encoder.embedding_norm + encoder.final_norm
        num_rows += encoder.position_table_size
    around_norms = around_other = 0
    if isinstance(config.patches, MapPlaces):
        around_norms, around_other = _around_places(config, config.patches)
    elif config.patches:
        # the projection of a patch, its bias, and the class token
        num_rows += config.patches.patch_dim + (1 if isinstance(config.patches, GrowingPatches) else 2)
    output_head, head_norm, head_other = _head(config)
    pooler = config.embed_dim * (config.embed_dim + 1) if config.pooler else 0
    return ParameterCount(
        attention=sum(num_layers * layer.attention for layer, num_layers in layers),
        feed_forward=sum(num_layers * layer.feed_forward for layer, num_layers in layers),
        embedding=num_rows * config.embed_dim
        + sum(num_layers * layer.embedding for layer, num_layers in layers)
        + output_head,
        norm=sum(num_layers * layer.norm for layer, num_layers in layers)
        + num_norms * _norm(config.blocks[0], config.embed_dim)
        + head_norm
        + around_norms,
        other=pooler + head_other + around_other,
        output_head=output_head,
    )


def block_parameters(block: BlockConfig) -> ParameterCount:
    """Count the weights of one layer by part; a table of position biases that it holds is "embedding"."""
    return ParameterCount(
        attention=_mixing_parameters(block),
        feed_forward=feed_forward_parameters(block.feed_forward),
        embedding=_bias_table(block.attention),
        norm=_block_norms(block),
        other=0,
    )


def attention_parameters(config: AnyAttention) -> int:
    """Count the weights of an attention layer but for its norms: projections, biases, and what else it learns.

    Without biases, grouped heads and widths of its own the layer has 4 E² of them, whatever the number of heads.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2; latent attention: DeepSeek-AI 2024,
    "DeepSeek-V2", section 2.1; gated delta net: Yang et al. 2024, "Gated Delta Networks".
    """
    if isinstance(config, LatentAttentionConfig):
        return _latent_parameters(config)
    if isinstance(config, LinearAttentionConfig):
        return _linear_parameters(config)
    query_width = config.num_heads * config.head_dim
    in_width = query_width * (2 if config.output_gate else 1)
    weights = config.embed_dim * in_width + config.num_heads * config.v_head_dim * config.embed_dim
    in_bias = in_width
    if config.kv_layer is None:
        key_width = config.num_kv_heads * config.head_dim
        value_width = config.num_kv_heads * config.v_head_dim
        weights += config.key_dim * key_width + config.value_dim * value_width
        in_bias += key_width + value_width
    if isinstance(config, StackedAttentionConfig):
        weights += 3 * config.embed_dim**2
    biases = (in_bias if config.projection_bias else 0) + (config.embed_dim if config.projection_bias is True else 0)
    return weights + biases + (config.num_heads if config.sink else 0)


def _latent_parameters(config: LatentAttentionConfig) -> int:
    width, heads = config.embed_dim, config.num_heads
    query_width = heads * config.head_dim
    if config.q_lora_rank is None:
        queries, query_bias = width * query_width, 0
    else:
        queries, query_bias = config.q_lora_rank * (width + query_width), config.q_lora_rank
    keys_and_values = width * config.cached_dim + config.kv_lora_rank * heads * (
        config.qk_nope_head_dim + config.v_head_dim
    )
    output = heads * config.v_head_dim * width
    biases = query_bias + config.cached_dim + width if config.projection_bias else 0
    return queries + keys_and_values + output + biases


def _linear_parameters(config: LinearAttentionConfig) -> int:
    # Queries, keys, values and the gate; two numbers a head for the decay and the step; the output; the convolution;
    # and for each head the base of its decay and an offset.
    projected = config.conv_width + config.value_width + 2 * config.num_value_heads
    projections = config.embed_dim * (projected + config.value_width)
    return projections + config.conv_width * config.conv_kernel_size + 2 * config.num_value_heads


def feed_forward_parameters(config: FeedForwardConfig) -> int:
    """Count the weights of a feed-forward layer: all its experts and their router, whether active or not."""
    num_up = 2 if config.gated else 1
    weights = (num_up + 1) * config.embed_dim * config.hidden_dim
    biases = num_up * config.hidden_dim + config.embed_dim if config.bias else 0
    if config.num_experts == 1:
        return weights + biases
    router = config.num_experts * (config.embed_dim + config.router_bias)
    shared = (num_up + 1) * config.embed_dim * config.shared_hidden_dim + config.embed_dim * config.shared_gate
    if config.shared_bias:
        shared += num_up * config.shared_hidden_dim + config.embed_dim
    return config.num_experts * (weights + biases) + router + shared


def _around_places(config: ModelConfig, places: MapPlaces) -> tuple[int, int]:
    """Count what stands around the layers of a C3TR: weights of its three batch norms, and of its linear maps."""
    inner = config.embed_dim
    convolutions = 2 * places.num_channels * inner + 2 * inner * places.out_channels
    map_of_places = inner * (inner + 1) if config.model_type == COMPATIBLE else 0
    return 2 * (2 * inner + places.out_channels), convolutions + map_of_places


def _mixing_parameters(block: BlockConfig) -> int:
    cross = attention_parameters(block.cross_attention) if block.cross_attention else 0
    return attention_parameters(block.attention) + cross


def _bias_table(attention: AnyAttention) -> int:
    position = attention.position
    return position.num_buckets * attention.num_heads if isinstance(position, T5Bias) and position.owns_table else 0


def _block_norms(block: BlockConfig) -> int:
    inner = _inner_norms(block.attention) + (_inner_norms(block.cross_attention) if block.cross_attention else 0)
    return block.num_norms * _norm(block, block.attention.embed_dim) + inner


def _inner_norms(attention: AnyAttention) -> int:
    """Count the weights of the norms inside an attention layer: RMSNorms all, without bias."""
    if isinstance(attention, LatentAttentionConfig):
        return attention.kv_lora_rank + (attention.q_lora_rank or 0)
    if isinstance(attention, LinearAttentionConfig):
        return attention.value_head_dim
    if not attention.qk_norm:
        return 0
    queries, keys = attention.head_dim, attention.head_dim
    if attention.qk_norm_over == "projection":
        queries, keys = attention.num_heads * queries, attention.num_kv_heads * keys
    return queries + (keys if attention.kv_layer is None else 0)


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
