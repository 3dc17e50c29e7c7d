"""MultiHeadAttention: project to heads, attend in each, project back."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headwise.caches.base import KVCache
from headwise.config.attention import ALiBi, AttentionConfig, Rotary, T5Bias
from headwise.config.checks import require_flag, require_instance
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.patterns import Full, Mask
from headwise.nn.cached import Remembered, check_cache, remember, remember_source, require_possible
from headwise.nn.checks import explain_refusal, require_tokens
from headwise.nn.projection import FusedProjection, make_projection, merge_heads, project, split_heads
from headwise.ops.attention import attention
from headwise.ops.obstacles import require_impl
from headwise.ops.results import AttentionOutput
from headwise.positions.bias import make_relative_bias
from headwise.positions.checks import require_positions
from headwise.positions.rotary import RotaryPositions

# What a layer on paper may have and this module has not, each with the value that means: none.
_NOT_BUILT_HERE = {"qk_norm_over": "head", "output_gate": False, "kv_layer": None}


class MultiHeadAttention(nn.Module):
    """Multi-head attention with grouped heads, for self- and cross-attention.

    `output = out_proj(concat over heads h of softmax(scores_h where the masks allow) v_g)`, with
    `scores_h = scale * q_h k_g^T`, capped and biased as asked for, `q = q_proj(query)`, `k = k_proj(key)`,
    `v = v_proj(value)` cut into heads, and `g = h // queries_per_kv`.

    The meaning is the same in every mode: in training (but for dropout), in evaluation, with or without weights asked
    for, with any `impl`. A query that may read no key attends to nothing: its output is the bias of `out_proj`.

    Args:
        embed_dim: width E of the queries that come in and of the output.
        num_heads: number of query heads.
        num_kv_heads: number of key/value heads. Default: `num_heads`.
        head_dim: size of a query or key head. Default: `embed_dim / num_heads`, which must then be whole.
        v_head_dim: size of a value head. Default: `head_dim`.
        key_dim: width of the tokens that keys are projected from. Default: `embed_dim`.
        value_dim: width of the tokens that values are projected from. Default: `key_dim`.
        projection_bias: True: all four projections have a bias; "qkv": all but `out_proj`; False: none.
        qk_norm: RMSNorm of each query and key head, before positions.
        qk_norm_eps: what that norm adds to the mean square.
        position: how scores know where tokens are: Rotary, ALiBi, T5Bias with a table of the layer's own, or None.
        mask: structural mask that belongs to the layer; a call's own mask is combined with it by `&`.
        scale: factor on the scores. Default: `1 / sqrt(head_dim)`.
        softcap: bound that the scores approach on either side. Default: none.
        sink: each head has one more logit, learned, that takes weight from the keys and has no value.
        dropout_p: probability with which a weight is dropped in training.
        fused_qkv: one projection `qkv_proj` gives queries, keys and values, in this order: the same result by one
            product in self-attention. As positions do, it needs keys and values of the queries' width.
        impl: which implementation of `attention` computes it: "auto", "reference", "sdpa", "blocked",
            "decode" or "flex".

    Attributes:
        config: the same settings as an `AttentionConfig`, every default filled in.
        recomputes: in training nothing is kept between queries, keys, values and the attention's output, which is
            computed again in backward (selective checkpointing). False unless set.

    Raises:
        ConfigError: settings that contradict each other.
        UnsupportedError: T5's bias without a table, an unknown `impl`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2; grouped heads: Ainslie et al. 2023, "GQA".
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        projection_bias: bool | Literal["qkv"] = True,
        qk_norm: bool = False,
        qk_norm_eps: float = 1e-6,
        position: Rotary | ALiBi | T5Bias | None = None,
        mask: Mask = Full(),  # noqa: B008  a frozen value
        scale: float | None = None,
        softcap: float | None = None,
        sink: bool = False,
        dropout_p: float = 0.0,
        fused_qkv: bool = False,
        impl: str = "auto",
    ):
        super().__init__()
        self.config = config = AttentionConfig.from_keywords(
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            key_dim=key_dim,
            value_dim=value_dim,
            projection_bias=projection_bias,
            qk_norm=qk_norm,
            qk_norm_eps=qk_norm_eps,
            position=position,
            mask=mask,
            scale=scale,
            softcap=softcap,
            sink=sink,
            dropout_p=dropout_p,
        )
        require_flag("fused_qkv", fused_qkv)
        require_impl(impl)
        self.impl = impl
        self.recomputes = False
        has_bias = projection_bias is not False
        head_dims = (config.head_dim, config.head_dim, config.v_head_dim)
        num_heads_of = (num_heads, config.num_kv_heads, config.num_kv_heads)
        sizes = [count * dim for count, dim in zip(num_heads_of, head_dims, strict=True)]
        self.qkv_proj: FusedProjection | None = None
        if fused_qkv or position is not None:
            _require_one_width(config)
        if fused_qkv:
            self.qkv_proj = FusedProjection(embed_dim, sizes, bias=has_bias)
        else:
            self.q_proj = make_projection(embed_dim, sizes[0], bias=has_bias)
            self.k_proj = make_projection(config.key_dim, sizes[1], bias=has_bias)
            self.v_proj = make_projection(config.value_dim, sizes[2], bias=has_bias)
        self.out_proj = make_projection(num_heads * config.v_head_dim, embed_dim, bias=projection_bias is True)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.qk_norm_eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.qk_norm_eps) if qk_norm else None
        self.sink = nn.Parameter(torch.zeros(num_heads)) if sink else None
        self.rotary = RotaryPositions(position, config.head_dim) if isinstance(position, Rotary) else None
        self.relative_bias = make_relative_bias(position, num_heads)

    @classmethod
    def from_config(
        cls, config: AttentionConfig, *, fused_qkv: bool = False, impl: str = "auto"
    ) -> "MultiHeadAttention":
        """Build the layer that a config describes.

        Raises:
            ConfigError: another description than an `AttentionConfig`.
            UnsupportedError: the config has a part that this layer has not (a gate, shared keys, norms over all heads).
        """
        require_instance("config", config, AttentionConfig)
        for name, absent in _NOT_BUILT_HERE.items():
            if getattr(config, name) != absent:
                raise UnsupportedError(
                    f"{name} must be {absent!r} for a layer to be built here; got {getattr(config, name)!r}; "
                    "run the model through transformers"
                )
        settings = {field.name: getattr(config, field.name) for field in fields(config)}
        return cls(
            **{name: value for name, value in settings.items() if name not in _NOT_BUILT_HERE},
            fused_qkv=fused_qkv,
            impl=impl,
        )

    def forward(
        self,
        query: Float[Tensor, "batch query_len embed_dim"],
        key: Float[Tensor, "batch key_len key_dim"] | None = None,
        value: Float[Tensor, "batch key_len value_dim"] | None = None,
        *,
        mask: Mask | None = None,
        positions: Int[Tensor, "batch query_len"] | Int[Tensor, " query_len"] | None = None,
        cache: KVCache | None = None,
        real_tokens: Bool[Tensor, "batch num_tokens"] | None = None,
    ) -> Float[Tensor, "batch query_len embed_dim"]:
        """Let each token of `query` gather what it needs from the tokens of `key` and `value`.

        Args:
            query: (batch, query_len, embed_dim).
            key: (batch, key_len, key_dim) tokens to attend to. Default: `query` (self-attention).
            value: (batch, key_len, value_dim) tokens to gather from. Default: `key`.
            mask: which keys a query may read, beyond what the layer's own mask allows.
            positions: (query_len,) or (batch, query_len) position of each token, for a layer with positions. Default:
                0, 1, 2, ..., with a cache the tokens' places in their rows' streams. Rotary rules that read a text's
                length (dynamic NTK, LongRoPE) take it to be the largest position of the row, plus 1: give padding
                position 0, and let no other text share a row with one that is longer than the rule's original length.
            cache: what holds the keys and values of earlier tokens and takes those of this call, under `torch.no_grad`.
                With a `key` of its own it holds that source text: the first call projects it, later ones only read.
            real_tokens: (batch, key_len) which tokens that keys are made of are no padding, with a cache, which keeps
                none of it. Default: all.

        Returns:
            (batch, query_len, embed_dim).

        Raises:
            ConfigError: a shape that does not fit, another dtype or device than the weights', a mask that is no Mask
                or is made for another batch, positions without a use or not one whole number a token.
            UnsupportedError: a layer with positions in cross-attention; nested or sparse tensors.
        """
        return self.attend(
            query, key, value, mask=mask, positions=positions, cache=cache, real_tokens=real_tokens
        ).output

    def attend(
        self,
        query: Float[Tensor, "batch query_len embed_dim"],
        key: Float[Tensor, "batch key_len key_dim"] | None = None,
        value: Float[Tensor, "batch key_len value_dim"] | None = None,
        *,
        mask: Mask | None = None,
        positions: Int[Tensor, "batch query_len"] | Int[Tensor, " query_len"] | None = None,
        cache: KVCache | None = None,
        real_tokens: Bool[Tensor, "batch num_tokens"] | None = None,
        return_weights: bool = False,
        return_logsumexp: bool = False,
    ) -> AttentionOutput:
        """Do what `forward` does and return what the heads saw, too.

        Args:
            query, key, value, mask, positions, cache, real_tokens: as of `forward`.
            return_weights: whether to return the weights of each head, before dropout.
            return_logsumexp: whether to return the logarithm of each softmax's sum.

        Returns:
            `output`: the layer's own (batch, query_len, embed_dim), after `out_proj`. `weights`: (batch, num_heads,
            query_len, key_len), a ring's in slot order. `logsumexp`: (batch, num_heads, query_len). None: not asked.
        """
        is_self_attention = key is None or key is query
        key = query if key is None else key
        value = key if value is None else value
        self._check(query, key, value, positions, is_self_attention)

        check_cache(
            cache,
            mask,
            real_tokens,
            batch_size=key.shape[0],
            num_tokens=key.shape[1],
            position=self.config.position,
        )

        has_source = cache is not None and not is_self_attention and any(cache.lengths)
        try:
            q, k, v = self._project(query, key, value, has_source=has_source)
        except RuntimeError:
            explain_refusal(self, query=query, key=key, value=value)
            raise
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), k if has_source else self.k_norm(k)
        index = None
        if cache is not None and is_self_attention:
            index = cache.next_index(*query.shape[:2], real_tokens=real_tokens, device=query.device)
        if self.rotary is not None:
            own = torch.arange(query.shape[1], device=query.device) if index is None else index
            places = own if positions is None else positions
            q, k = self.rotary(q, places), self.rotary(k, places)

        bias_positions = None if self.relative_bias is None else positions
        own_mask = self.config.mask if mask is None else self.config.mask & mask
        found = Remembered(k, v, own_mask, key_positions=bias_positions)
        wishes: dict[str, Any] = {"softcap": self.config.softcap, "sink": self.sink, "return_weights": return_weights}
        wishes |= {"return_logsumexp": return_logsumexp, "dropout_p": self.config.dropout_p if self.training else 0.0}
        if cache is not None and index is None:
            sources = (None, None) if has_source else (k, v)
            found = remember_source(cache, *sources, mask=own_mask, real_tokens=real_tokens)
        elif cache is not None and index is not None:
            require_possible(self.impl, q, k, v, **wishes)
            found = remember(
                cache,
                k,
                v,
                mask=own_mask,
                index=index,
                positions=bias_positions,
                real_tokens=real_tokens,
                reads_places=self.relative_bias is not None,
            )
        attend: Callable[..., AttentionOutput] = partial(
            attention,
            mask=found.mask,
            bias=self.relative_bias,
            query_index=found.query_index,
            key_index=found.key_index,
            query_positions=bias_positions,
            key_positions=found.key_positions,
            scale=None if self.config.scale == self.config.head_dim**-0.5 else self.config.scale,
            impl=self.impl,
            **wishes,
        )
        if self.recomputes and torch.is_grad_enabled():
            result: AttentionOutput = checkpoint(attend, q, found.key, found.value, use_reentrant=False)
        else:
            result = attend(q, found.key, found.value)
        result = result._replace(output=merge_heads(result.output))  # lets go of the heads' own
        return result._replace(output=project(self.out_proj, result.output))

    def _project(self, query: Tensor, key: Tensor, value: Tensor, *, has_source: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of each head; queries in place of those that a cache has: `has_source`."""
        config = self.config
        if has_source:
            query = project(self.q_proj, query) if self.qkv_proj is None else self.qkv_proj.first(query)
            heads = split_heads(query, config.num_heads)
            return heads, heads, heads
        if self.qkv_proj is not None:
            parts = self.qkv_proj(query, key, value)
        else:
            parts = (project(self.q_proj, query), project(self.k_proj, key), project(self.v_proj, value))
        counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        q, k, v = (split_heads(part, count) for part, count in zip(parts, counts, strict=True))
        return q, k, v

    def _check(
        self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor | None, is_self_attention: bool
    ) -> None:
        config = self.config
        require_tokens("query", query, "embed_dim", config.embed_dim)
        batch_size, query_len, _ = query.shape
        if key is not query or config.key_dim != config.embed_dim:
            require_tokens("key", key, "key_dim", config.key_dim)
            if key.shape[0] != batch_size:
                raise ConfigError(f"key must have the batch size of the query, {batch_size}; got {key.shape[0]}")
        if value is not key or config.value_dim != config.key_dim:
            require_tokens("value", value, "value_dim", config.value_dim)
            if value.shape[:2] != key.shape[:2]:
                raise ConfigError(
                    f"value must have the batch size and length of the key, {tuple(key.shape[:2])}; "
                    f"got {tuple(value.shape[:2])}"
                )
        if config.position is None and positions is not None:
            raise ConfigError(
                "positions are read by a layer that was built with some, and this one has none (position=None); leave "
                "them out, or build the layer with position=Rotary(), ALiBi() or T5Bias()"
            )
        if config.position is not None and not is_self_attention:
            raise UnsupportedError(
                "a layer with positions must attend within one text, since they encode distances there; got a key of "
                "its own; leave key and value out, or build the layer with position=None"
            )
        if positions is not None:
            require_positions(positions, query, batch_size=batch_size, seq_len=query_len)


def _require_one_width(config: AttentionConfig) -> None:
    if not config.embed_dim == config.key_dim == config.value_dim:
        raise ConfigError(
            "queries, keys and values must come from tokens of one width for fused_qkv, and for positions, which are "
            f"those of one text; got {config.embed_dim}, {config.key_dim} and {config.value_dim}"
        )
