"""Transformer: token ids -> hidden states, by a table of tokens, blocks, and a last norm, as a ModelConfig says."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headwise.caches.base import KVCache
from headwise.caches.model import ModelCache
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import GrowingCache
from headwise.config.attention import AttentionConfig, Rotary
from headwise.config.checks import require_instance
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.patterns import Mask
from headwise.nn.block import Block
from headwise.nn.checks import explain_device, explain_ids, require_ids, require_numbers
from headwise.positions.absolute import LearnedPositions, SinusoidalPositions
from headwise.positions.checks import require_positions
from headwise.positions.rotary import shared_tables

# What a model on paper may have and this module has not, each with the value that means: none.
_NOT_BUILT_HERE = {"num_token_types": 0, "embedding_norm": False, "pooler": False, "encoder": None, "patches": None}

INITIAL_DEVIATION = 0.02  # of the entries of tables, as in GPT-2 and BERT


class Transformer(nn.Module):
    """The body of a model of texts.

    `x = dropout(token_table[ids] + learned_positions[positions])`, or `+ sinusoid_scale * sinusoids(positions)`, then
    the blocks one after the other, then a norm where the config has one. Whether tokens see later ones is each
    attention's own mask.

    Args:
        config: of the whole model; a head on it is another module's.
        checkpoint: of every block: "none", "selective" or "full" (see `Block`).
        impl: which implementation computes the attentions.

    Raises:
        ConfigError: another description than a `ModelConfig`, another `checkpoint`.
        UnsupportedError: the model has a part that is not built here.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3; Radford et al. 2019 for the last norm.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        checkpoint: Literal["none", "selective", "full"] = "none",
        impl: str = "auto",
    ):
        super().__init__()
        require_instance("config", config, ModelConfig)
        for name, absent in _NOT_BUILT_HERE.items():
            if getattr(config, name) != absent:
                raise UnsupportedError(
                    f"{name} must be {absent!r} for a model to be built here; got {getattr(config, name)!r}; "
                    "run the model through transformers"
                )
        self.config = config
        self.token_table = nn.Embedding(config.vocab_size, config.embed_dim)
        nn.init.normal_(self.token_table.weight, std=INITIAL_DEVIATION)
        self.positions = _make_positions(config)
        self.dropout = nn.Dropout(config.embedding_dropout_p)
        self.blocks = nn.ModuleList([Block(block, checkpoint=checkpoint, impl=impl) for block in config.blocks])
        self.norm = self._make_norm() if config.final_norm else None

    def forward(
        self,
        ids: Int[Tensor, "batch seq_len"],
        *,
        mask: Mask | None = None,
        positions: Int[Tensor, "batch seq_len"] | Int[Tensor, " seq_len"] | None = None,
        cache: ModelCache | None = None,
        real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
    ) -> Float[Tensor, "batch seq_len embed_dim"]:
        """Return the last hidden state of each token.

        Args:
            ids: (batch, seq_len) token ids.
            mask: which keys a query may read, beyond what each attention's own mask allows: padding, packed documents.
            positions: (seq_len,) or (batch, seq_len) position of each token, as left padding and packing need them,
                read by the position table and by attentions with positions. Default: 0, 1, 2, ..., with a cache the
                tokens' places in their rows' streams.
            cache: keys and values of earlier tokens, layer by layer (`make_cache`), under `torch.no_grad`.
            real_tokens: (batch, seq_len) which tokens are no padding, with a cache, which keeps none. Default: all.

        Raises:
            ConfigError: ids are not one whole number a token, or not on the device of the table; an id or a position
                beyond its table, wherever numbers can be looked at; positions that nothing reads, or not one whole
                number a token; a cache of another number of layers, or what it refuses.
        """
        require_ids("ids", ids)
        if positions is not None:
            require_positions(positions, ids, batch_size=ids.shape[0], seq_len=ids.shape[1])
        x = self._look_up(ids)
        caches: Sequence[KVCache | None] = [None] * len(self.blocks) if cache is None else self._layers_of(cache)
        places = positions
        if places is None and (self.positions is not None or cache is not None):
            places = self._places(ids, caches[0], real_tokens)
        if isinstance(self.positions, SinusoidalPositions):
            x = x + self.config.sinusoid_scale * self.positions(places, dtype=x.dtype)
        elif self.positions is not None:
            x = x + self.positions(places)
        elif positions is not None and not any(self._kinds_of_position):
            raise ConfigError(
                "positions are read by a table or by attentions that have some, and this model has none; leave them out"
            )
        x = self.dropout(x)
        is_shared = cache is not None and not torch.compiler.is_compiling()
        with shared_tables() if is_shared else nullcontext():
            for block, position, layer_cache in zip(self.blocks, self._kinds_of_position, caches, strict=True):
                # By default positions are indices; made here, they are the same for all layers, with their angles.
                own_positions = places if isinstance(position, Rotary) else positions
                own_positions = None if position is None else own_positions
                x = block(x, mask=mask, positions=own_positions, cache=layer_cache, real_tokens=real_tokens)
        hidden: Tensor = x if self.norm is None else self.norm(x)
        return hidden

    def make_cache(self, *, spare: int = 0) -> ModelCache:
        """Return an empty cache for this model: of layers with a window as many tokens as it sees, else of all tokens.

        Args:
            spare: how many tokens can be taken back where a window is full (`RollingCache`).
        """
        windows = [block.attention.mask.look_back for block in self.config.blocks]
        return ModelCache([GrowingCache() if one is None else RollingCache(one, spare=spare) for one in windows])

    def _layers_of(self, cache: ModelCache) -> tuple[KVCache, ...]:
        require_instance("cache", cache, ModelCache)
        if len(cache) != len(self.blocks):
            raise ConfigError(f"cache must have one layer a block, {len(self.blocks)}; got {len(cache)}")
        cache.settle()
        return cache.layers

    def _places(self, ids: Tensor, cache: KVCache | None, real_tokens: Tensor | None) -> Tensor:
        """Return the position of each token where none are given; that of padding, which nobody reads, is 0."""
        if cache is None:
            return torch.arange(ids.shape[1], device=ids.device)
        index = cache.next_index(*ids.shape, real_tokens=real_tokens, device=ids.device)
        return index if real_tokens is None else index.clamp(min=0)

    def _look_up(self, ids: Tensor) -> Tensor:
        """Return the vector of each token."""
        require_numbers("ids", ids, self.token_table.weight)
        ids = ids.long()  # torch's table reads no narrower dtype than int32
        try:
            vectors: Tensor = self.token_table(ids)
        except IndexError:
            explain_ids("ids", ids, "vocab_size", self.config.vocab_size)
            raise
        except RuntimeError:
            explain_device("ids", ids, self.token_table.weight)
            raise
        return vectors

    @property
    def _kinds_of_position(self) -> list[object]:
        """The kind of positions of each layer, None of one that reads none."""
        attentions = [block.attention for block in self.config.blocks]
        return [one.position if isinstance(one, AttentionConfig) else None for one in attentions]

    def _make_norm(self) -> nn.Module:
        first = self.config.blocks[0]
        kind = nn.LayerNorm if first.norm == "layernorm" else nn.RMSNorm
        return kind(self.config.embed_dim, eps=first.norm_eps)


def _make_positions(config: ModelConfig) -> LearnedPositions | SinusoidalPositions | None:
    if config.sinusoid_scale:
        return SinusoidalPositions(config.embed_dim)
    return LearnedPositions(config.position_table_size, config.embed_dim) if config.position_table_size else None
