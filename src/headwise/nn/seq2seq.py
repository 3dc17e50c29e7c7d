"""Seq2Seq: an encoder reads a source text, and a decoder that looks at it foretells a target text."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headwise.caches.base import KVCache
from headwise.caches.model import ModelCache
from headwise.caches.slots import CrossCache, GrowingCache
from headwise.config.attention import AttentionConfig, T5Bias
from headwise.config.block import BlockConfig
from headwise.config.checks import require_instance, shown
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.patterns import Mask
from headwise.masks.tables import Explicit
from headwise.nn.block import Block, FeedForward
from headwise.nn.checks import explain_device, explain_ids, require_ids, require_numbers, require_tokens
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.projection import project
from headwise.nn.transformer import INITIAL_DEVIATION
from headwise.ops.products import linear

# What a model on paper may have and this module has not, each with the value that means: none.
_NOT_BUILT_HERE = {
    "num_token_types": 0,
    "embedding_norm": False,
    "position_table_size": 0,
    "sinusoid_scale": 0,
    "pooler": False,
}


class DecoderCache(NamedTuple):
    """What a decoder keeps between calls: of its own tokens, and of the source text, layer by layer."""

    own: ModelCache
    source: ModelCache


class CrossBlock(nn.Module):
    """A block of a decoder: its tokens look at each other, then at the source text, then think by themselves.

    For f each of the three, pre-norm: `x = x + f(norm(x))`; post-norm: `x = norm(x + f(x))`.

    Args:
        config: with a `cross_attention`.
        impl: which implementation computes the attentions.

    Raises:
        UnsupportedError: no `cross_attention`, another norm placement, what `MultiHeadAttention` cannot build.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.1.
    """

    def __init__(self, config: BlockConfig, *, impl: str = "auto"):
        super().__init__()
        require_instance("config", config, BlockConfig)
        if config.cross_attention is None or config.norm_placement not in ("pre", "post"):
            raise UnsupportedError(
                "a block of a decoder must have a cross_attention, and norms before or after its parts, to be built "
                f"here; got cross_attention {config.cross_attention} and norm_placement {config.norm_placement!r}"
            )
        assert isinstance(config.attention, AttentionConfig)
        self.config = config
        kind = nn.LayerNorm if config.norm == "layernorm" else nn.RMSNorm
        width = config.attention.embed_dim
        self.attention = MultiHeadAttention.from_config(config.attention, impl=impl)
        self.attention_norm = kind(width, eps=config.norm_eps)
        self.cross_attention = MultiHeadAttention.from_config(config.cross_attention, impl=impl)
        self.cross_attention_norm = kind(width, eps=config.norm_eps)
        self.feed_forward = FeedForward(config.feed_forward)
        self.feed_forward_norm = kind(width, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout_p)

    def forward(
        self,
        tokens: Float[Tensor, "batch seq_len embed_dim"],
        source: Float[Tensor, "batch source_len embed_dim"],
        *,
        source_mask: Mask | None = None,
        cache: KVCache | None = None,
        source_cache: KVCache | None = None,
        real_source: Bool[Tensor, "batch source_len"] | None = None,
    ) -> Float[Tensor, "batch seq_len embed_dim"]:
        """Return the tokens' next states.

        Args:
            tokens: (batch, seq_len, embed_dim).
            source: (batch, source_len, embed_dim) the encoder's last states.
            source_mask: which of the source's tokens may be read.
            cache: of the tokens.
            source_cache: a `CrossCache` of the source, beside which `real_source` stands for `source_mask`.
            real_source: (batch, source_len) which of the source's tokens are no padding.
        """
        tokens = self._add(tokens, self.attention_norm, lambda x: self.attention(x, cache=cache))
        if source_cache is None:
            tokens = self._add(
                tokens, self.cross_attention_norm, lambda x: self.cross_attention(x, source, mask=source_mask)
            )
        else:
            tokens = self._add(
                tokens,
                self.cross_attention_norm,
                lambda x: self.cross_attention(x, source, cache=source_cache, real_tokens=real_source),
            )
        return self._add(tokens, self.feed_forward_norm, self.feed_forward)

    def _add(self, tokens: Tensor, norm: nn.Module, part: Any) -> Tensor:
        if self.config.norm_placement == "pre":
            added: Tensor = tokens + self.dropout(part(norm(tokens)))
            return added
        normed: Tensor = norm(tokens + self.dropout(part(tokens)))
        return normed


class Seq2Seq(nn.Module):
    """An encoder-decoder with one token table, as T5 is.

    `memory = norm(encoder blocks(dropout(table[source])))`, `hidden = norm(decoder blocks(dropout(table[target]),
    memory))`, `scores = hidden W^T`, where W is the token table's own if the head is tied. T5's biases stand in the
    first layer of each stack, and the others share them.

    Args:
        config: of kind "encoder-decoder", with a language model's head.
        impl: which implementation computes the attentions.

    Raises:
        ConfigError: another description than a `ModelConfig`.
        UnsupportedError: another kind of model or head, or a part that is not built here.

    Source: Raffel et al. 2019, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    section 2.1.
    """

    def __init__(self, config: ModelConfig, *, impl: str = "auto"):
        super().__init__()
        require_instance("config", config, ModelConfig)
        encoder, head = config.encoder, config.head
        if encoder is None or head is None or head.kind != "language_model" or head.transform or head.bias:
            raise UnsupportedError(
                "an encoder-decoder must have an encoder and a language model's head of one projection to be built "
                f"here; got kind {config.kind!r} and head {head}"
            )
        for name, absent in _NOT_BUILT_HERE.items():
            for part in (config, encoder):
                if getattr(part, name, absent) != absent:
                    raise UnsupportedError(
                        f"{name} must be {absent!r} for an encoder-decoder to be built here; "
                        f"got {getattr(part, name)!r}; run the model through transformers"
                    )
        self.config, self.head = config, head
        self.token_table = nn.Embedding(config.vocab_size, config.embed_dim)
        nn.init.normal_(self.token_table.weight, std=INITIAL_DEVIATION)
        self.dropout = nn.Dropout(config.embedding_dropout_p)
        self.encoder = nn.ModuleList(Block(block, impl=impl) for block in _with_tables(encoder.blocks))
        self.encoder_norm = _make_norm(encoder.blocks[0]) if encoder.final_norm else nn.Identity()
        self.decoder = nn.ModuleList(CrossBlock(block, impl=impl) for block in _with_tables(config.blocks))
        self.norm = _make_norm(config.blocks[0]) if config.final_norm else nn.Identity()
        for layers in (self.encoder, self.decoder):
            _share_table(layers)
        self.projection: nn.Linear | None = None
        if not head.tied:
            self.projection = nn.Linear(config.embed_dim, head.num_outputs, bias=False)
            nn.init.normal_(self.projection.weight, std=INITIAL_DEVIATION)

    def forward(
        self,
        source_ids: Int[Tensor, "batch source_len"],
        target_ids: Int[Tensor, "batch target_len"],
        *,
        real_source: Bool[Tensor, "batch source_len"] | None = None,
    ) -> Float[Tensor, "batch target_len vocab_size"]:
        """Return the scores of what follows each token of the target texts.

        Args:
            source_ids: (batch, source_len).
            target_ids: (batch, target_len), shifted: the first is the token that a target begins with.
            real_source: (batch, source_len) which tokens of the sources are no padding, which may stand anywhere;
                before a text or behind it, it changes nothing. Default: all.

        Raises:
            ConfigError: ids are not one whole number a token, beyond the table, or not on its device; `real_source`
                holds not one bool a token; sources and targets of other numbers of rows.
        """
        return self.decode(target_ids, self.encode(source_ids, real_source), real_source=real_source)

    def encode(
        self, ids: Int[Tensor, "batch source_len"], real_source: Bool[Tensor, "batch source_len"] | None = None
    ) -> Float[Tensor, "batch source_len embed_dim"]:
        """Return the last states of the source texts.

        Args:
            ids: (batch, source_len) the source texts.
            real_source: as of `forward`.

        Raises:
            ConfigError: as `forward`.
        """
        x = self._look_up("ids of sources", ids)
        mask = _source_mask(real_source, ids)
        for block in self.encoder:
            x = block(x, mask=mask)
        encoded: Tensor = self.encoder_norm(x)
        return encoded

    def decode(
        self,
        ids: Int[Tensor, "batch seq_len"],
        memory: Float[Tensor, "batch source_len embed_dim"],
        *,
        real_source: Bool[Tensor, "batch source_len"] | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "batch seq_len vocab_size"]:
        """Return the scores of what follows each of these tokens.

        Args:
            ids: (batch, seq_len) the next tokens of the targets.
            memory: what `encode` returned; a cache reads it at its first call alone.
            real_source: as of `forward`.
            cache: of `make_cache`, under `torch.no_grad`.

        Raises:
            ConfigError: as `forward`; a memory of another shape; a cache that is no `DecoderCache` of so many layers,
                or holds a source of other lengths.
        """
        x = self._look_up("ids of targets", ids)
        require_tokens("memory", memory, "embed_dim", self.config.embed_dim)
        if memory.shape[0] != ids.shape[0]:
            raise ConfigError(f"memory must have a row a target, {ids.shape[0]}; got {memory.shape[0]}")
        source_mask = _source_mask(real_source, memory)
        if cache is not None:
            self._require_cache(cache, memory, real_source)
            cache.own.settle()
        for number, block in enumerate(self.decoder):
            if cache is None:
                x = block(x, memory, source_mask=source_mask)
            else:
                x = block(
                    x,
                    memory,
                    cache=cache.own.layers[number],
                    source_cache=cache.source.layers[number],
                    real_source=None if cache.source.layers[number].lengths else real_source,
                )
        hidden = self.norm(x)
        return linear(hidden, self.token_table.weight) if self.projection is None else project(self.projection, hidden)

    def make_cache(self) -> DecoderCache:
        """Return an empty cache for the decoder."""
        return DecoderCache(
            ModelCache([GrowingCache() for _ in self.decoder]), ModelCache([CrossCache() for _ in self.decoder])
        )

    def _look_up(self, name: str, ids: Tensor) -> Tensor:
        """Return the vector of each token, after dropout."""
        table = self.token_table.weight
        require_ids(name, ids)
        require_numbers(name, ids, table)
        ids = ids.long()  # torch's table reads no narrower dtype than int32
        try:
            vectors: Tensor = self.dropout(self.token_table(ids))
        except IndexError:
            explain_ids(name, ids, "vocab_size", self.config.vocab_size)
            raise
        except RuntimeError:
            explain_device(name, ids, table)
            raise
        return vectors

    def _require_cache(self, cache: DecoderCache, memory: Tensor, real_source: Tensor | None) -> None:
        """Raise ConfigError unless a cache is one of this decoder, and of this source if it holds one."""
        require_instance("cache", cache, DecoderCache)
        for part in cache:
            require_instance("cache", part, ModelCache)
            if len(part) != len(self.decoder):
                raise ConfigError(f"cache must have one layer a block, {len(self.decoder)}; got {len(part)}")
        batch_size, source_len = memory.shape[:2]
        lengths = (source_len,) * batch_size if real_source is None else tuple(real_source.sum(1).tolist())
        for layer in cache.source:
            if layer.lengths and layer.lengths != lengths:
                raise ConfigError(
                    f"cache must be of these sources, of {lengths} tokens; got one of {layer.lengths} (make another)"
                )


def _source_mask(real_source: Tensor | None, tokens: Tensor) -> Mask | None:
    """Return the mask of which of these tokens, (batch, source_len) or their vectors, are no padding."""
    if real_source is None:
        return None
    wanted = tuple(tokens.shape[:2])
    is_tensor = isinstance(real_source, Tensor)
    if not is_tensor or real_source.dtype != torch.bool or real_source.shape != wanted:
        got = f"{real_source.dtype} of shape {tuple(real_source.shape)}" if is_tensor else shown(real_source)
        raise ConfigError(f"real_source must hold a bool for each token of the sources, shape {wanted}; got {got}")
    return Explicit(real_source[:, None, None, :])


def _with_tables(blocks: tuple[BlockConfig, ...]) -> list[BlockConfig]:
    """Let every layer of a stack own a table of biases, so that each can be built; they are made one afterwards."""
    return [_with_table(block) for block in blocks]


def _with_table(block: BlockConfig) -> BlockConfig:
    attention = block.attention
    if not isinstance(attention, AttentionConfig) or not isinstance(attention.position, T5Bias):
        return block
    return replace(block, attention=replace(attention, position=replace(attention.position, owns_table=True)))


def _share_table(layers: nn.ModuleList) -> None:
    attentions: list[Any] = [layer.get_submodule("attention") for layer in layers]
    if isinstance(attentions[0].config.position, T5Bias):
        for attention in attentions:
            attention.relative_bias = attentions[0].relative_bias


def _make_norm(block: BlockConfig) -> nn.Module:
    kind = nn.LayerNorm if block.norm == "layernorm" else nn.RMSNorm
    return kind(block.attention.embed_dim, eps=block.norm_eps)
