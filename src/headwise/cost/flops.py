"""Floating-point operations of a model's matrix products, from its config alone: one multiply-add is 2.

MACs, multiply-adds, are half of every number here. Norms, softmax, activations, the look-up of embeddings and the
optimizer are no matrix products of the model and count nothing.
"""

from collections.abc import Iterator

from headwise.config.block import AnyAttention, BlockConfig
from headwise.config.checks import require_size
from headwise.config.model import ModelConfig, OutputHead, PatchConfig
from headwise.config.vision_model import COMPATIBLE, GrowingPatches, MapPlaces
from headwise.cost.layer_flops import FLOPS_PER_MULTIPLY_ADD, Lengths, Work, attention_work, block_work
from headwise.cost.results import FlopCount
from headwise.errors import ConfigError

# Backward has two products for each of forward's, of the same size: the gradients of its two factors.
TRAIN_PER_FORWARD = 3


def forward_flops(config: ModelConfig, *, batch: int, seq: int) -> FlopCount:
    """Count one forward pass over `batch` texts of `seq` tokens, padding included: a prefill.

    Every block's attention and feed-forward, the pooler and the head, whose scores are counted for every token that it
    reads. An encoder-decoder reads `seq` tokens of source and `seq` of target; an image model's `seq` is its number of
    tokens.

    Args:
        config: the model.
        batch: number of texts.
        seq: tokens per text.

    Raises:
        ConfigError: a number is out of range, or is not an image's number of tokens.

    Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", table 1; the score term as in Chowdhery et
    al. 2022, "PaLM", appendix B (there the full square: our `dense`).
    """
    require_lengths(config, batch=batch, seq=seq)
    outside = input_flops(config, batch=batch) + top_flops(config, batch=batch, seq=seq)
    outside += around_flops(config, batch=batch)
    return sum_layers(config, batch=batch, seq=seq, outside=outside).total


def train_flops(config: ModelConfig, *, batch: int, seq: int) -> FlopCount:
    """Count one training step as 3 x forward: "model" FLOPs, without what checkpointing or a kernel computes again.

    What a step really runs is in `step_flops`.

    Raises:
        ConfigError: as of `forward_flops`.
    """
    forward = forward_flops(config, batch=batch, seq=seq)
    assert forward.attended is not None  # a config's masks are structural: their pairs can always be counted
    return FlopCount(dense=TRAIN_PER_FORWARD * forward.dense, attended=TRAIN_PER_FORWARD * forward.attended)


def decode_flops(config: ModelConfig, *, batch: int, seq: int) -> FlopCount:
    """Count one token of generation for each of `batch` texts, against a cache that then holds `seq` tokens.

    The new token is the last of the `seq`: its keys are those that `kv_cache_bytes` counts. `dense` reads all of
    them in every layer, `attended` no more than a layer's window. Latent attention is reckoned as transformers runs it:
    keys and values of all cached tokens are made anew from the latent vectors. Of an encoder-decoder, the encoder has
    run, and cross-attention reads the cached keys of `seq` tokens of source.

    Args:
        config: the model.
        batch: number of texts.
        seq: tokens per text in the cache, the new one included.

    Raises:
        ConfigError: the model is an encoder, or a number is out of range.
    """
    require_lengths(config, batch=batch, seq=seq)
    if config.kind == "encoder":
        raise ConfigError(f"a model must be a decoder to generate token by token; {config.name} is an encoder")
    lengths = Lengths(batch=batch, query_len=1, key_len=seq, source_len=seq, is_cached=True)
    total = Work(weighted=top_flops(config, batch=batch, seq=1))
    for block, num_layers in config.block_groups:
        total += block_work(block, lengths).repeated(num_layers)
    return total.total


def attention_flops(config: AnyAttention, *, batch: int, query_len: int, key_len: int) -> FlopCount:
    """Count one attention layer: its projections, `query @ key^T` and `weights @ value`.

    The last two cost D + V multiply-adds for each pair of a query and a key, per query head: all pairs (`dense`), or
    those that the layer's mask allows (`attended`). Grouped heads make two projections smaller and nothing else. Latent
    and linear layers are counted by their own rules.

    Args:
        config: the layer, of any kind.
        batch: number of texts.
        query_len: number T of queries; they stand at the end of the keys.
        key_len: number S of keys; all of them are projected in this call, none comes out of a cache.

    Raises:
        ConfigError: a number is out of range.
    """
    for name, value in (("batch", batch), ("query_len", query_len), ("key_len", key_len)):
        require_size(name, value)
    return attention_work(config, Lengths(batch=batch, query_len=query_len, key_len=key_len)).total


def require_lengths(config: ModelConfig, *, batch: int, seq: int) -> None:
    """Raise ConfigError unless the numbers are sizes, and those that the model can have."""
    require_size("batch", batch)
    require_size("seq", seq)
    if config.patches is not None and seq != config.patches.num_tokens:
        raise ConfigError(
            f"seq of an image model must be its number of tokens, {_say_tokens(config.patches)}; got {seq}"
        )


def _say_tokens(patches: PatchConfig) -> str:
    if isinstance(patches, GrowingPatches):
        return f"{patches.places_per_side} x {patches.places_per_side} places = {patches.num_tokens}"
    return f"{patches.num_patches} patches and the class token = {patches.num_tokens}"


def layers_of(config: ModelConfig, *, batch: int, seq: int) -> Iterator[tuple[BlockConfig, int, Lengths]]:
    """Yield each distinct block of a full pass, encoder first, with its number of layers and the lengths it meets."""
    lengths = Lengths(batch=batch, query_len=seq, key_len=seq, source_len=seq)
    for block, num_layers in (*(config.encoder.block_groups if config.encoder else ()), *config.block_groups):
        yield block, num_layers, lengths


def sum_layers(config: ModelConfig, *, batch: int, seq: int, outside: int = 0) -> Work:
    """Add up a full pass over all layers, and products with weights outside of them."""
    total = Work(weighted=outside)
    for block, num_layers, lengths in layers_of(config, batch=batch, seq=seq):
        total += block_work(block, lengths).repeated(num_layers)
    return total


def input_flops(config: ModelConfig, *, batch: int) -> int:
    """Count what turns images into tokens: each patch times the projection. Texts are looked up.

    Of a C3TR, the two convolutions of the map that comes in.
    """
    if config.patches is None:
        return 0
    if isinstance(config.patches, MapPlaces):
        places = batch * config.patches.num_tokens
        return FLOPS_PER_MULTIPLY_ADD * places * config.patches.num_channels * 2 * config.embed_dim
    return FLOPS_PER_MULTIPLY_ADD * batch * config.patches.num_patches * config.patches.patch_dim * config.embed_dim


def around_flops(config: ModelConfig, *, batch: int) -> int:
    """Count the linear maps of places around a C3TR's layers: the last convolution, the compatible form's first map.

    They have a backward of two products, whatever stands on top.
    """
    if not isinstance(config.patches, MapPlaces):
        return 0
    inner, places = config.embed_dim, batch * config.patches.num_tokens
    per_place = 2 * inner * config.patches.out_channels + (inner**2 if config.model_type == COMPATIBLE else 0)
    return FLOPS_PER_MULTIPLY_ADD * places * per_place


def top_flops(config: ModelConfig, *, batch: int, seq: int) -> int:
    """Count the pooler, and the head on every state that it reads; a tied head costs what an untied one does."""
    pooler = FLOPS_PER_MULTIPLY_ADD * batch * config.embed_dim**2 if config.pooler else 0
    if config.head is None or not config.head.transform:
        return pooler + output_flops(config, batch=batch, seq=seq)
    transform = FLOPS_PER_MULTIPLY_ADD * _num_states(config.head, batch, seq) * config.embed_dim**2
    return pooler + transform + output_flops(config, batch=batch, seq=seq)


def output_flops(config: ModelConfig, *, batch: int, seq: int) -> int:
    """Count the output projection on every state that the head reads; 0 without a head."""
    if config.head is None:
        return 0
    width, num_outputs = config.embed_dim, config.head.num_outputs
    return FLOPS_PER_MULTIPLY_ADD * _num_states(config.head, batch, seq) * width * num_outputs


def _num_states(head: OutputHead, batch: int, seq: int) -> int:
    return batch * seq if head.per_token else batch
